/* The taps of a candidate. */
#include "blame.h"

const int fuzz_parts = 1;
void fuzz_begin(void) { fuzz_world(); }
void fuzz_one(const struct fuzz_bytes *parts) { blame_candidate(parts[0]); }
