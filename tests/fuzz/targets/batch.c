/* Several sequences in a file, and their labels. */
#include "model/files/batch.h"

#include <stdlib.h>

#include "fuzz.h"
#include "model/files/labels.h"
#include "world.h"

static struct m3_config config;

const int fuzz_parts = 1;
void fuzz_begin(void) { fuzz_config_of(&config, "tests/fuzz/little.json"); }

void fuzz_one(const struct fuzz_bytes *parts)
{
    struct m3_error error = { 0 };
    struct m3_batch batch = { 0 };
    const char *path = fuzz_file("case.safetensors", parts[0]);
    int status = m3_batch_read(&batch, path, &config, &error);
    if (!status) status = m3_batch_check(&batch, &config, 0, path, M3_BAD_INPUT, &error);
    if (!status) status = m3_batch_anchor(&batch, M3_ANCHOR_SLOT, &error);
    if (!status) free(m3_layout_json(&batch.layout));
    if (!status) {
        struct m3_labels labels = { 0 };
        status = m3_labels_read(&labels, path, &batch, &config, &error);
        m3_labels_free(&labels);
    }
    m3_batch_free(&batch);
    fuzz_check(status, &error);
}
