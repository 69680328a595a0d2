#include "base/room.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { PAGE = 2 << 20 };

void *m3_room(size_t count, size_t size)
{
    void *room = calloc(count, size);
    if (!room || count * size < 2 * PAGE) return room;
    const uintptr_t begin = ((uintptr_t)room + PAGE - 1) / PAGE * PAGE, end = (uintptr_t)room + count * size;
    madvise((void *)begin, (end - begin) / PAGE * PAGE, MADV_HUGEPAGE);        /* where it fails, small pages serve */
    return room;
}
