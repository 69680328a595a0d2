#include "base/room.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

static const size_t page = 2 << 20;

void m3_large_pages(void *first, size_t bytes)
{
    const uintptr_t begin = ((uintptr_t)first + page - 1) / page * page, end = ((uintptr_t)first + bytes) / page * page;
    if (bytes >= 2 * page) madvise((void *)begin, end - begin, MADV_HUGEPAGE);
}

void *m3_room(size_t count, size_t size)
{
    void *room = calloc(count, size);
    if (room) m3_large_pages(room, count * size);
    return room;
}
