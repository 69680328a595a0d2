/* An envelope, a reference, a candidate that is ranked in the envelope. */
#include "oracle/judge/rows/envelope.h"

#include "compare.h"
#include "world.h"

const int fuzz_parts = 3;
void fuzz_begin(void) { fuzz_world(); }

void fuzz_one(const struct fuzz_bytes *parts)
{
    struct m3_error error = { 0 };
    struct m3_safetensors *files[2];
    struct m3_envelope *envelope = NULL;
    struct m3_comparison result;
    const char *path = fuzz_file("envelope.safetensors", parts[0]);
    int status = m3_envelope_open(&envelope, path, NULL, fuzz_world()->profile, &error);
    fuzz_check(status, &error);
    if (status) return;
    const struct m3_compare_options options = { .profile = fuzz_world()->profile, .envelope = envelope, .force = 1 };
    status = open_two(files, parts + 1, &error);
    if (!status) {
        status = m3_compare(&result, files[0], files[1], &options, &error);
        if (!status) check_comparison(&result);
        m3_comparison_free(&result);
    }
    close_two(files);
    m3_envelope_close(envelope);
    fuzz_check(status, &error);
}
