/* How much more memory the process may take. What a file may take in proportion to its size is each format's own
 * ceiling (README.md); this is what the machine, the limits of the process and --max-memory allow. */
#ifndef M3_IO_MEMORY_H
#define M3_IO_MEMORY_H

#include <stdint.h>

#include "base/status.h"

/* What the process may still allocate: the lower of its limits (RLIMIT_DATA, RLIMIT_AS) less what it has, or the
 * memory of the machine. */
uint64_t m3_memory_room(void);
/* Is the process limited at all? */
int m3_memory_is_limited(void);

/* From now on the process may allocate so many bytes: the kernel counts them (RLIMIT_DATA), and beyond them an
 * allocation fails. Pages of mapped files do not count. M3_INTERNAL. */
int m3_memory_limit(uint64_t bytes, struct m3_error *error);

/* Fails with M3_INTERNAL if there is no room for `bytes`. `what` is for the message. */
int m3_memory_check(uint64_t bytes, const char *what, struct m3_error *error);
int m3_fail_room(uint64_t bytes, const char *what, struct m3_error *error);     /* the failure of the above */

#endif
