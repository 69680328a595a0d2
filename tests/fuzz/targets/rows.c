/* A candidate that says which rows it holds: of one sequence and of two, packed and padded, under a map and under
 * m3ref's names. */
#include "oracle/judge/batch/split.h"
#include "oracle/map/map.h"
#include "world.h"

const int fuzz_parts = 1;
void fuzz_begin(void) { fuzz_world(); }

static void open_candidate(const struct m3_map_files *files)
{
    struct m3_error error = { 0 }, notes = { 0 };
    struct m3_safetensors *candidate = NULL;
    struct m3_parts parts = { 0 };
    int status = m3_map_open_files(&candidate, files, &notes, &error);
    if (!status && files->layout && files->layout->count > 1)
        status = m3_batch_split(&parts, files->layout, NULL, candidate, &notes, &error);
    else if (!status) status = m3_batch_drop_ones(&candidate, 0, &notes, &error);
    for (int64_t i = 0; !status && i < m3_safetensors_count(candidate); i++) {
        const struct m3_tensor *t = m3_safetensors_at(candidate, i);
        if (t->count > 0) fuzz_see(m3_decode(t->dtype, t->data, t->count - 1));
    }
    m3_parts_free(&parts);
    m3_safetensors_close(candidate);
    m3_error_free(&notes);
    fuzz_check(status, &error);
}

void fuzz_one(const struct fuzz_bytes *parts)
{
    static int64_t lengths[] = { 3, 2 }, before[] = { 0, 1 };
    const struct m3_layout layouts[] = {
        { .count = 1, .lengths = lengths, .before = before },
        { .count = 2, .lengths = lengths, .before = before },
        { .count = 2, .slots = 3, .lengths = lengths, .before = before },
    };
    const struct m3_map_sizes sizes = m3_map_sizes_of_config(&fuzz_world()->model->config);
    struct m3_map_files files = { .path = fuzz_file("candidate.safetensors", parts[0]), .sizes = &sizes };
    for (int i = -1; i < 3; i++)
        for (int is_mapped = 0; is_mapped < 2; is_mapped++) {
            files.layout = i < 0 ? NULL : &layouts[i];
            files.map = is_mapped ? "vllm" : NULL;
            open_candidate(&files);
        }
}
