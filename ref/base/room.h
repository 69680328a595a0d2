/* Room for large arrays. */
#ifndef M3_BASE_ROOM_H
#define M3_BASE_ROOM_H

#include <stddef.h>

/* As calloc, on large pages where the system offers them: touching an array for the first time in pages of 4 KiB costs
 * as much as a few operations on each of its numbers. */
void *m3_room(size_t count, size_t size);

#endif
