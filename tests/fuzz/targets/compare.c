/* Two dumps, both of them with any contents. */
#include "compare.h"

const int fuzz_parts = 2;
void fuzz_begin(void) {}

void fuzz_one(const struct fuzz_bytes *parts) { compare_two(parts); }
