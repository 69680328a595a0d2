/* A reference with companions, and a candidate whose values are the inputs of its own operators. */
#include "compare.h"

const int fuzz_parts = 2;
void fuzz_begin(void) {}

void fuzz_one(const struct fuzz_bytes *parts) { compare_two(parts); }
