/* Room for large arrays. */
#ifndef M3_BASE_ROOM_H
#define M3_BASE_ROOM_H

#include <stddef.h>

/* Asks the system to keep these bytes in large pages, where whole ones fit: to touch an array for the first time in
 * pages of 4 KiB costs as much as a few operations on each of its numbers, and so does jumping about in it. Where the
 * system has no large pages to offer, small ones serve. Memory from mmap cannot be remapped after this. */
void m3_large_pages(void *first, size_t bytes);

/* As calloc, on large pages. */
void *m3_room(size_t count, size_t size);

#endif
