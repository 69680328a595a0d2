#include <string.h>
#include <zlib.h>

#include "mutate.h"

enum { SIGNATURE = 8, AROUND = 12, MOST_CHUNKS = 64 };       /* around data: length, type, checksum */

static size_t big_endian(const uint8_t *b)
{
    return (size_t)b[0] << 24 | (size_t)b[1] << 16 | (size_t)b[2] << 8 | (size_t)b[3];
}

static void put_big_endian(uint8_t *b, size_t value)
{
    for (int i = 0; i < 4; i++) b[i] = (uint8_t)(value >> 8 * (3 - i));
}

/* Begins of chunks, and after the last the end of what can be read. */
static int find_chunks(size_t begins[MOST_CHUNKS + 1], const uint8_t *file, size_t size)
{
    int count = 0;
    size_t at = SIGNATURE;
    while (count < MOST_CHUNKS && size - at >= AROUND && big_endian(file + at) <= size - at - AROUND) {
        begins[count++] = at;
        at += big_endian(file + at) + AROUND;
    }
    begins[count] = at;
    return count;
}

/* Sizes of pictures are kept small: a large one costs time and teaches nothing. */
static void change_head(uint8_t *data, struct dice *dice)
{
    static const uint8_t depths[] = { 1, 2, 4, 8, 16, 3, 0 }, colours[] = { 0, 2, 3, 4, 6, 1, 7 };
    switch (roll(dice, 4)) {
    case 0: put_big_endian(data + 4 * roll(dice, 2), roll(dice, 70)); break;
    case 1: data[8] = depths[roll(dice, sizeof depths)]; break;
    case 2: data[9] = colours[roll(dice, sizeof colours)]; break;
    default: data[12] = (uint8_t)roll(dice, 3);
    }
}

size_t mutate_png(uint8_t *file, size_t size, size_t room, struct dice *dice)
{
    size_t begins[MOST_CHUNKS + 1];
    const int count = find_chunks(begins, file, size);
    if (count == 0) return LLVMFuzzerMutate(file, size, room);
    const int i = (int)roll(dice, (uint64_t)count);
    uint8_t *chunk = file + begins[i], *next = file + begins[i + 1];
    const size_t length = (size_t)(next - chunk), data = length - AROUND, behind = size - begins[i + 1];
    const uint64_t how = roll(dice, 8);
    if (how == 0) {
        memmove(chunk, next, behind);
        return size - length;
    }
    if (how == 1 && size + length <= room) {
        memmove(next + length, next, behind);
        memcpy(next, chunk, length);
        return size + length;
    }
    size_t changed = data;
    if (memcmp(chunk + 4, "IHDR", 4) == 0 && data == 13) change_head(chunk + 8, dice);
    else {
        uint8_t bytes[1 << 12];
        const size_t most = room - size < 16 ? data : data + 16;
        if (most > sizeof bytes || most == 0) return LLVMFuzzerMutate(file, size, room);
        memcpy(bytes, chunk + 8, data);
        changed = LLVMFuzzerMutate(bytes, data, most);
        memmove(chunk + AROUND + changed, next, behind);
        memcpy(chunk + 8, bytes, changed);
        put_big_endian(chunk, changed);
    }
    put_big_endian(chunk + 8 + changed, crc32(0, chunk + 4, (uInt)changed + 4));
    return size - data + changed;
}
