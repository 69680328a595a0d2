/* Mutations that keep the structure of a format, so that inputs get past its first checks. Each takes a file of `size`
 * bytes in a buffer of `room` bytes and returns the new size. */
#ifndef M3_FUZZ_MUTATE_H
#define M3_FUZZ_MUTATE_H

#include <stddef.h>
#include <stdint.h>

struct dice {
    uint64_t state;
};

/* A number below `sides`, which is at least 1. */
uint64_t roll(struct dice *dice, uint64_t sides);

size_t mutate_json(uint8_t *text, size_t size, size_t room, struct dice *dice);
/* Header length, offsets and data stay consistent, most of the time. */
size_t mutate_tensors(uint8_t *file, size_t size, size_t room, struct dice *dice);
/* Checksums of chunks are right. */
size_t mutate_png(uint8_t *file, size_t size, size_t room, struct dice *dice);

/* Of libFuzzer: a mutation without regard to structure, with the constants that the reader compared its input with. */
size_t LLVMFuzzerMutate(uint8_t *bytes, size_t size, size_t room);

#endif
