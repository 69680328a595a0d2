#include "oracle/error/profile.h"

#include <stdio.h>

#include "fuzz.h"

const int fuzz_parts = 1;
void fuzz_begin(void) {}

static void ask(const struct m3_profile *p, const char *tap)
{
    const struct m3_read_rounding read = m3_profile_read(p, tap);
    const struct m3_input_rounding input = m3_profile_input(p, tap);
    const struct m3_partials partials = m3_profile_partials(p, tap);
    fuzz_see(m3_profile_store(p, tap) + m3_profile_store_floor(p, tap) + m3_profile_weights(p, tap) +
             m3_profile_weight_floor(p, tap) + m3_profile_dump_rounding(p, tap) + m3_input_roundoff(&input) + read.u +
             read.largest + (double)partials.ranks + m3_profile_alpha(p, 1.702));
    fuzz_see(m3_profile_exact(p, tap) + m3_profile_fused_norm(p, tap) + m3_profile_weight_first(p, tap) +
             (int)m3_profile_dtype(p, tap) + (int)m3_profile_dumped(p, tap) + (int)m3_profile_norm_weight(p, tap));
}

void fuzz_one(const struct fuzz_bytes *parts)
{
    static const char *const taps[] = { "embed",
                                        "layers.0.attn_norm",
                                        "layers.1.q_proj",
                                        "layers.1.attn.p",
                                        "layers.1.moe.experts",
                                        "layers.1.index.block_scores",
                                        "vision.layers.0.mlp",
                                        "logits" };
    struct m3_error error = { 0 };
    struct m3_profile *profile;
    char words[512];
    const char *path = fuzz_file("profile.json", parts[0]);
    int status = m3_profile_open(&profile, path, &error);
    for (size_t i = 0; !status && i < sizeof taps / sizeof *taps; i++) ask(profile, taps[i]);
    if (!status) fuzz_see(m3_profile_arithmetic(profile, 100).u + m3_profile_truncates(profile));
    m3_profile_close(profile);
    fuzz_check(status, &error);
    snprintf(words, sizeof words, "%s+tp8+fused_norm", path);
    status = m3_profile_open(&profile, words, &error);
    m3_profile_close(profile);
    fuzz_check(status, &error);
}
