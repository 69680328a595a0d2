/* Memory of a test that is released together. */
#ifndef M3_TESTS_ROOM_H
#define M3_TESTS_ROOM_H

#include <stdint.h>
#include <stdlib.h>

static void **rooms;
static int room_count, room_most;

/* Memory of malloc, released with the rest; NULL is none. */
static inline void *room_keep(void *memory)
{
    if (room_count == room_most) {
        room_most = 2 * room_most + 64;
        rooms = realloc(rooms, (size_t)room_most * sizeof *rooms);
        if (!rooms) abort();
    }
    return rooms[room_count++] = memory;
}

/* Zeros. */
static inline void *room(int64_t count, size_t size)
{
    void *memory = calloc((size_t)count + 1, size);
    if (!memory) abort();
    return room_keep(memory);
}

/* Those that came after the first `kept`. */
static inline void rooms_free(int kept)
{
    while (room_count > kept) free(rooms[--room_count]);
}

#endif
