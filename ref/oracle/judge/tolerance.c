#include "oracle/judge/tolerance.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Without a stated error: loose enough for fp32 through dozens of layers, far below the error of a wrong operator. */
static const double default_allowance = 1e-5;

/* Points within operators, and the first tap that depends on them. */
static const struct {
    enum m3_tap tap;
    const char *point;
} inner[] = {
    { M3_TAP_VISION_Q_ROPE, "vision.layers.0.rope.cos" },
    { M3_TAP_VISION_Q_ROPE, "vision.layers.0.rope.product" },
    { M3_TAP_VISION_ATTN, "vision.layers.0.attn.logits" },
    { M3_TAP_VISION_ATTN, "vision.layers.0.attn.p" },
    { M3_TAP_VISION_ATTN, "vision.layers.0.attn.partial" },
    { M3_TAP_Q_ROPE, "layers.0.rope.cos" },
    { M3_TAP_Q_ROPE, "layers.0.rope.product" },
    { M3_TAP_INDEX_BLOCK_SCORES, "layers.0.index.scores" },
    { M3_TAP_ATTN_LSE, "layers.0.attn.logits" },
    { M3_TAP_ATTN, "layers.0.attn.p" },
    { M3_TAP_ATTN, "layers.0.attn.partial" },
    { M3_TAP_MLP_ACT, "layers.0.mlp.act.chain" },
    { M3_TAP_EXPERT_OUT, "layers.0.moe.expert.gate" },
    { M3_TAP_EXPERT_OUT, "layers.0.moe.expert.up" },
    { M3_TAP_EXPERT_OUT, "layers.0.moe.expert.chain" },
    { M3_TAP_EXPERT_OUT, "layers.0.moe.expert.act" },
    { M3_TAP_ROUTED, "layers.0.moe.routed.sum" },
    { M3_TAP_SHARED, "layers.0.moe.shared.gate" },
    { M3_TAP_SHARED, "layers.0.moe.shared.up" },
    { M3_TAP_SHARED, "layers.0.moe.shared.chain" },
    { M3_TAP_SHARED, "layers.0.moe.shared.act" },
};

/* Keys and values that may come from a coarser cache, and the first tap that reads them. */
static const struct {
    enum m3_tap tap;
    const char *key;
} cached[] = {
    { M3_TAP_INDEX_BLOCK_SCORES, "layers.0.index.k_rope" },
    { M3_TAP_ATTN_LSE, "layers.0.k_rope" },
    { M3_TAP_ATTN_LSE, "layers.0.v_proj" },
};

/* The roundoff of storing at the point, or of quantising its input. */
static double roundoff(const struct m3_profile *profile, const char *point, int is_tap)
{
    double u = m3_profile_store(profile, point);
    if (!is_tap) return u;
    const struct m3_input_rounding input = m3_profile_input(profile, point);
    return fmax(u, m3_input_roundoff(&input));
}

void m3_coarse_begin(struct m3_coarse_table *table, const struct m3_profile *profile)
{
    *table = (struct m3_coarse_table){ .profile = profile };
    if (profile == NULL) return;
    const double u = m3_profile_arithmetic(profile, 1).u;
    double most = u > 0x1p-24 ? u : 0;
    for (int tap = 0; tap < M3_TAPS; tap++) {
        char name[96];
        if (m3_tap_name(name, sizeof name, (enum m3_tap)tap, 0) == 0) most = fmax(most, roundoff(profile, name, 1));
        for (size_t i = 0; i < sizeof inner / sizeof *inner; i++)
            if ((int)inner[i].tap == tap) most = fmax(most, roundoff(profile, inner[i].point, 0));
        for (size_t i = 0; i < sizeof cached / sizeof *cached; i++)
            if ((int)cached[i].tap == tap) most = fmax(most, m3_profile_read(profile, cached[i].key).u);
        table->upto[tap] = most;
    }
}

struct m3_coarseness m3_coarse_alone(const struct m3_coarse_table *table, const char *name, enum m3_tap tap,
                                     int64_t layer)
{
    if (table->profile == NULL) return (struct m3_coarseness){ 0 };
    const enum m3_tap last = tap <= M3_TAP_PROJECTOR_OUT ? M3_TAP_VISION_OUT : M3_TAP_OUT;
    const enum m3_tap seen = layer > 0 && tap < last ? last : tap;         /* layers before it are complete */
    const double before = fmax(table->upto[seen], roundoff(table->profile, name, 1));
    const double dumped = m3_profile_dump_rounding(table->profile, name);
    return (struct m3_coarseness){ .before = before, .here = m3_profile_store(table->profile, name) + dumped };
}

struct m3_coarseness m3_coarse_of(struct m3_coarse_table *table, const char *name, enum m3_tap tap, int64_t layer)
{
    struct m3_coarseness at = m3_coarse_alone(table, name, tap, layer);
    table->seen = at.before = fmax(table->seen, at.before);
    return at;
}

static double stretch(const struct m3_coarseness *coarse, double growth, double rest)
{
    return growth * fmax(1, coarse->before / 0x1p-24) + coarse->here + rest;
}

int m3_tolerance(double *allowed, int *stated, const struct m3_coarseness *coarse,
                 const struct m3_safetensors *reference, const char *tap, const char *what, struct m3_error *error)
{
    char key[128];
    *allowed = stretch(coarse, default_allowance, 0);
    *stated = 0;
    int length = snprintf(key, sizeof key, "%s.%s", tap, what);
    const char *text = length > 0 && (size_t)length < sizeof key ? m3_safetensors_metadata(reference, key) : NULL;
    if (text == NULL) return M3_OK;

    char *end;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || !(value >= 0) || isinf(value))
        return m3_fail(error, M3_BAD_INPUT, "%s: metadata %s: got \"%s\", expected a finite number of at least 0",
                       m3_safetensors_path(reference), key, text);
    *allowed = stretch(coarse, 4 * value, 1e-7);
    *stated = 1;
    return M3_OK;
}
