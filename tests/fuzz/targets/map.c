#include "oracle/map/map.h"

#include "fuzz.h"

const int fuzz_parts = 1;
void fuzz_begin(void) {}

void fuzz_one(const struct fuzz_bytes *parts)
{
    struct m3_error error = { 0 };
    struct m3_map *map;
    const int status = m3_map_open(&map, fuzz_file("map.json", parts[0]), &error);
    m3_map_close(map);
    fuzz_check(status, &error);
}
