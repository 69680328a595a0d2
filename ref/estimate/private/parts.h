/* The parts of m3_estimate. Used in this folder alone. */
#ifndef M3_ESTIMATE_PRIVATE_PARTS_H
#define M3_ESTIMATE_PRIVATE_PARTS_H

#include "estimate/estimate.h"

/* No product of sizes in range reaches 2^127: m3_config_read refuses more than 2^56 parameters. */
typedef __int128 m3_wide;

/* The value if 63 bits hold it; else 0, and the estimate fails. */
int64_t m3_exact(struct m3_estimate *e, m3_wide value);
/* Bytes of so many numbers, the last one filled up. */
m3_wide m3_packed_bytes(m3_wide count, const struct m3_format *format);

/* In the order in which they are called: what is counted from the config, */
void m3_estimate_parameters(struct m3_estimate *e);
void m3_estimate_flops(struct m3_estimate *e);
void m3_estimate_pictures(struct m3_estimate *e);
void m3_estimate_caches(struct m3_estimate *e);
void m3_estimate_reads(struct m3_estimate *e);
/* or all of that from a few numbers; */
void m3_estimate_few(struct m3_estimate *e);
/* and what follows. */
void m3_estimate_memory(struct m3_estimate *e);
void m3_estimate_time(struct m3_estimate *e);
void m3_estimate_spread(struct m3_estimate *e);

#endif
