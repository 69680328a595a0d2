#include "base/room.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

static const size_t page = 2 << 20;

void *m3_room(size_t count, size_t size)
{
    void *room = calloc(count, size);
    if (!room || count * size < 2 * page) return room;
    const uintptr_t begin = ((uintptr_t)room + page - 1) / page * page, end = (uintptr_t)room + count * size;
    madvise((void *)begin, (end - begin) / page * page, MADV_HUGEPAGE);        /* where it fails, small pages serve */
    return room;
}
