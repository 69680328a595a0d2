/* Targets that compare two dumps. */
#include <math.h>
#include <stdio.h>

#include "fuzz.h"
#include "io/safetensors.h"
#include "oracle/judge/compare.h"

/* Opens both files; returns the status. Close them in any case. */
static inline int open_two(struct m3_safetensors *files[2], const struct fuzz_bytes *parts, struct m3_error *error)
{
    files[0] = files[1] = NULL;
    const int status = m3_safetensors_open(&files[0], fuzz_file("reference.safetensors", parts[0]), error);
    return status ? status : m3_safetensors_open(&files[1], fuzz_file("candidate.safetensors", parts[1]), error);
}

static inline void close_two(struct m3_safetensors *files[2])
{
    m3_safetensors_close(files[0]);
    m3_safetensors_close(files[1]);
}

/* A verdict must follow from the stages, and NaN may never pass. */
static inline void check_comparison(const struct m3_judgement *c)
{
    int64_t failed = 0;
    for (int64_t i = 0; i < c->count; i++) {
        const struct m3_finding *s = &c->findings[i];
        failed += s->verdict == M3_VERDICT_FAIL;
        if (s->verdict == M3_VERDICT_PASS && !s->selection && isnan(s->off.max_abs))
            fuzz_broken("a stage passes with NaN");
    }
    if (failed != c->failed) fuzz_broken("the failed stages are not those that are counted");
    if (failed > 0 && c->status == M3_OK) fuzz_broken("a comparison passes with a failed stage");
}

/* Compares the two files of an input. */
static inline void compare_two(const struct fuzz_bytes *parts)
{
    struct m3_error error = { 0 };
    struct m3_safetensors *files[2];
    struct m3_judgement result;
    const struct m3_compare_options options = { .force = 1 };
    int status = open_two(files, parts, &error);
    if (!status) {
        status = m3_compare(&result, files[0], files[1], &options, &error);
        if (!status) check_comparison(&result);
        m3_judgement_free(&result);
    }
    close_two(files);
    fuzz_check(status, &error);
}
