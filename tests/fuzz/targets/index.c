/* A model directory: the index is the first part, the two shards are the others. */
#include <string.h>

#include "fuzz.h"
#include "io/checkpoint.h"

const int fuzz_parts = 3;
void fuzz_begin(void) { fuzz_file("config.json", (struct fuzz_bytes){ (const uint8_t *)"{}", 2 }); }

static int of_first(void *self, const char *tensor)
{
    (void)self;
    return strncmp(tensor, "a", 1) == 0;
}

static void read_all(const struct m3_checkpoint *checkpoint)
{
    char hex[65];
    struct m3_error error = { 0 };
    for (int64_t i = 0; i < m3_checkpoint_count(checkpoint); i++) {
        const char *path;
        const struct m3_tensor *t = m3_checkpoint_at(checkpoint, i, &path);
        if (m3_checkpoint_find(checkpoint, t->name, NULL) == NULL) fuzz_broken("a tensor is not found by its name");
        if (!m3_checkpoint_names(checkpoint, t->name)) fuzz_broken("a tensor has no name");
    }
    fuzz_check(m3_checkpoint_sha256(checkpoint, hex, &error), &error);
}

static void see(void *to, const char *name, int is_needed, int64_t bytes)
{
    (void)to, (void)name;
    fuzz_see((double)is_needed + (double)bytes);
}

void fuzz_one(const struct fuzz_bytes *parts)
{
    struct m3_error error = { 0 };
    struct m3_checkpoint *checkpoint;
    fuzz_file("model.safetensors.index.json", parts[0]);
    fuzz_file("model-00001-of-00002.safetensors", parts[1]);
    fuzz_file("model-00002-of-00002.safetensors", parts[2]);
    int status = m3_checkpoint_open(&checkpoint, fuzz_path(""), &error);
    if (!status) read_all(checkpoint);
    m3_checkpoint_close(checkpoint);
    fuzz_check(status, &error);
    status = m3_checkpoint_open_part(&checkpoint, fuzz_path(""), of_first, NULL, &error);
    m3_checkpoint_close(checkpoint);
    fuzz_check(status, &error);
    fuzz_check(m3_checkpoint_list(fuzz_path(""), of_first, NULL, see, NULL, &error), &error);
}
