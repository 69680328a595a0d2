/* Two dumps of several sequences. */
#include "oracle/judge/batch/several.h"

#include "compare.h"
#include "world.h"

const int fuzz_parts = 2;
void fuzz_begin(void) { fuzz_world(); }

static int compare_several(struct m3_safetensors *const files[2], const struct m3_layout *layout,
                           struct m3_error *notes, struct m3_error *error)
{
    struct m3_parts reference = { 0 }, candidate = { 0 }, none = { 0 };
    struct m3_judgement result;
    const struct m3_compare_options options = { .profile = fuzz_world()->profile, .force = 1 };
    const struct m3_compared_parts parts = { .reference = &reference, .candidate = &candidate, .companions = &none };
    int status = m3_batch_split(&reference, layout, NULL, files[0], notes, error);
    if (!status) status = m3_batch_split(&candidate, layout, NULL, files[1], notes, error);
    if (!status) {
        status = m3_compare_several(&result, &parts, &options, error);
        m3_judgement_free(&result);
    }
    m3_parts_free(&reference);
    m3_parts_free(&candidate);
    return status;
}

void fuzz_one(const struct fuzz_bytes *parts)
{
    struct m3_error error = { 0 }, notes = { 0 };
    struct m3_safetensors *files[2];
    struct m3_layout layout = { 0 };
    int status = open_two(files, parts, &error);
    if (!status && m3_is_dump_of_several(files[0])) {
        status = m3_layout_from_dump(&layout, files[0], &error);
        if (!status) status = compare_several(files, &layout, &notes, &error);
    } else if (!status) {
        status = m3_batch_drop_ones(&files[1], m3_batch_longest(files[0]), &notes, &error);
    }
    m3_layout_free(&layout);
    close_two(files);
    m3_error_free(&notes);
    fuzz_check(status, &error);
}
