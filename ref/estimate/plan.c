#include "estimate/plan.h"

#include <inttypes.h>

#include "base/minmax.h"
#include "estimate/estimate.h"
#include "model/model.h"
#include "model/taps.h"

struct listing {
    struct m3_pass_plan *plan;
    FILE *out;
};

static void take_file(void *to, const char *name, int is_needed, int64_t bytes)
{
    const struct listing *l = to;
    l->plan->all++;
    if (!is_needed) return;
    l->plan->needed++;
    if (bytes < 0) l->plan->absent++;
    else l->plan->bytes += bytes;
    if (l->out && bytes < 0) fprintf(l->out, "file:  %s, absent\n", name);
    else if (l->out) fprintf(l->out, "file:  %s, %" PRId64 " bytes\n", name, bytes);
}

/* The formulas of the estimates, for the layers of the pass alone. */
static int count_flops(struct m3_pass_plan *plan, const struct m3_config *config, struct m3_error *error)
{
    struct m3_config part = *config;
    struct m3_estimate estimate;
    const struct m3_format *format = m3_format_named("bf16");
    const struct m3_estimate_request request = {
        .context = plan->T, .batch = 1, .weights = format, .kv = format, .index_kv = format, .all_logits = 1
    };
    part.layers = plan->end - plan->first;
    part.sparse = config->sparse + plan->first;
    part.moe = config->moe + plan->first;
    const int status = m3_estimate(&estimate, &part, &request, error);
    if (status) return status;
    plan->flops = m3_whole(&estimate, "flops_prefill.total");
    if (plan->end < config->layers) plan->flops -= m3_whole(&estimate, "flops_prefill.lm_head");
    return M3_OK;
}

int m3_plan_token(struct m3_token_plan *plan, const struct m3_config *config, int64_t context, struct m3_error *error)
{
    struct m3_estimate e;
    const struct m3_format *bf16 = m3_format_named("bf16"), *f32 = m3_format_named("f32");
    const struct m3_estimate_request request = {
        .context = context, .batch = 1, .weights = bf16, .kv = f32, .index_kv = f32
    };
    const int status = m3_estimate(&e, config, &request, error);
    if (status) return status;
    *plan = (struct m3_token_plan){ .flops = m3_whole(&e, "flops_decode.total"),
                                    .weights = m3_quantity(&e, "decode_read_bytes.weights"),
                                    .all_weights = m3_quantity(&e, "weight_bytes"),
                                    .all_keys = m3_quantity(&e, "kv_bytes.total") };
    plan->keys = m3_quantity(&e, "decode_read_bytes.total") - plan->weights;
    return M3_OK;
}

/* Elements of `rows` rows of a tap in a pass. */
static int64_t elements(const struct m3_pass_plan *plan, const struct m3_config *config, enum m3_tap tap, int64_t rows)
{
    int64_t count = 1;
    for (const char *letter = m3_tap_table[tap].shape; *letter; letter++)
        count *= *letter == 'T'   ? rows
                 : *letter == 'B' ? (plan->T + config->block - 1) / m3_max(1, config->block)
                                  : m3_config_size(config, *letter);
    return count;
}

static int matches(const char *taps, enum m3_tap tap, int64_t layer)
{
    char name[96];
    return m3_tap_name(name, sizeof name, tap, layer) == 0 && m3_tap_matches(taps, name);
}

/* A tap of layers: where it exists, and where somebody asks for it. */
static void count_layer_tap(struct m3_pass_plan *plan, const struct m3_config *config, const char *taps,
                            enum m3_tap tap)
{
    int64_t layers = 0, asked = 0;
    for (int64_t l = plan->first; l < plan->end; l++) {
        const int has_it = m3_layer_has_tap(config, tap, l);
        layers += has_it;
        asked += has_it && matches(taps, tap, l);
    }
    plan->tap_elements += asked * elements(plan, config, tap, plan->T);
    if (layers == 0 || (tap == M3_TAP_EXPERT_OUT && asked == 0)) return; /* [T,K,H] exists only for those who ask */
    const int is_scores = tap == M3_TAP_INDEX_BLOCK_SCORES;
    const int64_t at_once = is_scores ? m3_min(plan->T, M3_SCORE_ROWS) : plan->T;
    plan->widest = m3_max(plan->widest, 8 * elements(plan, config, tap, at_once));
    if (is_scores) plan->scores = 8 * elements(plan, config, tap, plan->T);
}

static void count_taps(struct m3_pass_plan *plan, const struct m3_config *config, const char *taps)
{
    for (int tap = M3_TAP_ATTN_NORM; tap <= M3_TAP_OUT; tap++) count_layer_tap(plan, config, taps, (enum m3_tap)tap);
    for (int tap = M3_TAP_EMBED; plan->first == 0 && tap <= M3_TAP_FUSED; tap++)
        if (matches(taps, (enum m3_tap)tap, -1)) plan->tap_elements += elements(plan, config, M3_TAP_EMBED, plan->T);
    for (int tap = M3_TAP_FINAL_NORM; plan->end == config->layers && tap <= M3_TAP_LOGITS; tap++)
        if (matches(taps, (enum m3_tap)tap, -1))
            plan->tap_elements += elements(plan, config, (enum m3_tap)tap, plan->T);
}

int m3_plan_pass(struct m3_pass_plan *plan, FILE *out, const char *folder, const struct m3_config *config,
                 int64_t first, int64_t end, int64_t T, const char *taps, struct m3_error *error)
{
    *plan = (struct m3_pass_plan){ .first = first, .end = end > 0 ? end : config->layers, .T = T };
    struct listing listing = { plan, out };
    int status = m3_model_list_files(folder, first, end, take_file, &listing, error);
    if (!status) status = count_flops(plan, config, error);
    if (!status) count_taps(plan, config, taps);
    return status;
}
