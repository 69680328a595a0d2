/* SHA-256 by libcrypto. Used for model, case and tap hashes. */
#ifndef M3_BASE_SHA256_H
#define M3_BASE_SHA256_H

#include <stddef.h>

struct m3_sha256;

struct m3_sha256 *m3_sha256_new(void);                      /* NULL if memory is short */
void m3_sha256_add(struct m3_sha256 *hash, const void *bytes, size_t count);
/* The hash of what has been added so far; more may be added afterwards. As m3_sha256_end, but frees nothing. */
int m3_sha256_so_far(const struct m3_sha256 *hash, char hex[65]);
/* Writes 64 lower-case hex digits and a NUL, and frees the hash. Returns 0, or M3_INTERNAL if a step failed. */
int m3_sha256_end(struct m3_sha256 *hash, char hex[65]);

#endif
