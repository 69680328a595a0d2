/* A map, and a dump under another program's names. The sizes are those of the model, or what a dump tells of them. */
#include "oracle/map/map.h"

#include "world.h"

const int fuzz_parts = 2;
void fuzz_begin(void) { fuzz_world(); }

static void apply(const struct fuzz_bytes *parts, int by_dump)
{
    struct m3_error error = { 0 }, notes = { 0 };
    struct m3_map *map;
    struct m3_safetensors *foreign = NULL, *converted = NULL;
    struct m3_map_sizes sizes = m3_map_sizes_of_config(&fuzz_world()->model->config);
    int status = m3_map_open(&map, fuzz_file("map.json", parts[0]), &error);
    if (!status) status = m3_safetensors_open(&foreign, fuzz_file("dump.safetensors", parts[1]), &error);
    if (!status && by_dump) sizes = m3_map_sizes_of_dump(foreign);
    if (!status) status = m3_map_apply(&converted, map, &sizes, foreign, &notes, &error);
    for (int64_t i = 0; !status && i < m3_safetensors_count(converted); i++) {
        const struct m3_tensor *t = m3_safetensors_at(converted, i);
        if (t->count > 0) fuzz_see(m3_decode(t->dtype, t->data, t->count - 1));
    }
    m3_safetensors_close(converted);
    m3_safetensors_close(foreign);
    m3_map_close(map);
    m3_error_free(&notes);
    fuzz_check(status, &error);
}

void fuzz_one(const struct fuzz_bytes *parts)
{
    apply(parts, 0);
    apply(parts, 1);
}
