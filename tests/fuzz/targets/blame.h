/* A candidate of the little model, judged from its own inputs. */
#ifndef M3_FUZZ_BLAME_H
#define M3_FUZZ_BLAME_H

#include "oracle/judge/check/blame_honest.h"
#include "world.h"

static inline void blame_candidate(struct fuzz_bytes content)
{
    const struct fuzz_world *w = fuzz_world();
    struct m3_error error = { 0 };
    struct m3_safetensors *candidate;
    struct m3_judgement result;
    const struct m3_blame_options options = { .force = 1, .profile = "bf16", .names_mistakes = 1 };
    int status = m3_safetensors_open(&candidate, fuzz_file("candidate.safetensors", content), &error);
    if (!status) {
        status = m3_blame_honest(&result, &w->setting, candidate, &options, 0, &error);
        if (!status && result.failed > 0 && result.status == M3_OK) fuzz_broken("a blame passes with a failed tap");
        m3_judgement_free(&result);
    }
    m3_safetensors_close(candidate);
    fuzz_check(status, &error);
}

#endif
