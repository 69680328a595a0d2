/* A map of files, and a folder with those of two ranks or chunks, of one sequence and of two. */
#include "model/files/batch.h"
#include "oracle/map/map.h"
#include "world.h"

const int fuzz_parts = 3;
void fuzz_begin(void) { fuzz_world(); }

static void open_all(const struct m3_map_files *files)
{
    struct m3_error error = { 0 }, notes = { 0 };
    struct m3_safetensors *whole = NULL;
    const int status = m3_map_open_files(&whole, files, &notes, &error);
    for (int64_t i = 0; !status && i < m3_safetensors_count(whole); i++) {
        const struct m3_tensor *t = m3_safetensors_at(whole, i);
        if (t->count > 0) fuzz_see(m3_decode(t->dtype, t->data, t->count - 1));
    }
    m3_safetensors_close(whole);
    m3_error_free(&notes);
    fuzz_check(status, &error);
}

void fuzz_one(const struct fuzz_bytes *parts)
{
    static int64_t lengths[] = { 3, 2 }, before[] = { 0, 1 };
    const struct m3_layout two = { .count = 2, .slots = 3, .lengths = lengths, .before = before };
    const struct m3_map_sizes sizes = m3_map_sizes_of_config(&fuzz_world()->model->config);
    fuzz_file("ranks/0.safetensors", parts[1]);
    fuzz_file("ranks/1.safetensors", parts[2]);
    struct m3_map_files files = { .path = fuzz_path("ranks"), .map = fuzz_file("map.json", parts[0]), .sizes = &sizes };
    open_all(&files);
    files.layout = &two;
    open_all(&files);
}
