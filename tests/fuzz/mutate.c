/* The mutator of all targets: takes the input apart into its files, and mutates one of them by its format. */
#include "mutate.h"

#include <stdlib.h>
#include <string.h>

#include "fuzz.h"

size_t LLVMFuzzerCustomMutator(uint8_t *input, size_t size, size_t room, unsigned seed);

uint64_t roll(struct dice *dice, uint64_t sides)
{
    dice->state ^= dice->state << 13;
    dice->state ^= dice->state >> 7;
    dice->state ^= dice->state << 17;
    return (dice->state >> 11) % sides;
}

static int is_png(const uint8_t *file, size_t size) { return size > 20 && memcmp(file, "\x89PNG\r\n\x1a\n", 8) == 0; }

static int is_json(const uint8_t *file, size_t size)
{
    size_t i = 0;
    while (i < size && (file[i] == ' ' || file[i] == '\n')) i++;
    return i < size && (file[i] == '{' || file[i] == '[');
}

static int is_tensors(const uint8_t *file, size_t size) { return size > 10 && !file[6] && !file[7] && file[8] == '{'; }

static size_t mutate_file(uint8_t *file, size_t size, size_t room, struct dice *dice)
{
    if (roll(dice, 16) == 0) return LLVMFuzzerMutate(file, size, room);
    if (is_png(file, size)) return mutate_png(file, size, room, dice);
    if (is_json(file, size)) return mutate_json(file, size, room, dice);
    if (is_tensors(file, size)) return mutate_tensors(file, size, room, dice);
    return LLVMFuzzerMutate(file, size, room);
}

size_t LLVMFuzzerCustomMutator(uint8_t *input, size_t size, size_t room, unsigned seed)
{
    struct dice dice = { seed * UINT64_C(0x9E3779B97F4A7C15) + 1 };
    struct fuzz_bytes parts[FUZZ_MOST_PARTS];
    const size_t sizes = 4 * (size_t)(fuzz_parts - 1);
    if (fuzz_parts == 1) return mutate_file(input, size, room, &dice);
    if (room < sizes + 16) return size;
    fuzz_split(parts, input, size);

    const int chosen = (int)roll(&dice, (uint64_t)fuzz_parts);
    size_t others = sizes;
    for (int i = 0; i < fuzz_parts; i++) others += i == chosen ? 0 : parts[i].size;
    if (others >= room) return size;
    const size_t most = room - others;
    uint8_t *whole = malloc(room), *file = malloc(most), *to = whole;
    size_t length = parts[chosen].size < most ? parts[chosen].size : most;
    if (!whole || !file) abort();
    if (length) memcpy(file, parts[chosen].bytes, length);
    length = mutate_file(file, length, most, &dice);
    for (int i = 0; i < fuzz_parts; i++) {
        const struct fuzz_bytes part = i == chosen ? (struct fuzz_bytes){ file, length } : parts[i];
        for (int b = 0; i + 1 < fuzz_parts && b < 4; b++) *to++ = (uint8_t)(part.size >> 8 * b);
        if (part.size) memcpy(to, part.bytes, part.size);
        to += part.size;
    }
    size = (size_t)(to - whole);
    memcpy(input, whole, size);
    free(whole);
    free(file);
    return size;
}
