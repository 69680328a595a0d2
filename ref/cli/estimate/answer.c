#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "cli/estimate/estimate.h"

/* "1.9 ms", "12.3 s" */
static void print_time(const char *before, double seconds)
{
    if (isnan(seconds)) return;
    printf("%s%.3g %s", before, seconds < 1 ? 1e3 * seconds : seconds, seconds < 1 ? "ms" : "s");
}

static void print_speed(const struct m3_estimate *e, const char *step, const char *tokens, const char *prefill,
                        int bound)
{
    const double rate = m3_quantity(e, tokens);
    if (isnan(rate)) return;
    print_time("; a step takes about ", m3_quantity(e, step));
    printf(" (%s-bound), %.*f tokens/s", bound ? "compute" : "memory", rate < 100, rate);
    print_time("; a prefill of one sequence about ", m3_quantity(e, prefill));
    printf(", if %" PRId64 "%% of the card's rates are reached", e->request.efficiency);
}

static void answer_layout(const struct m3_estimate *e)
{
    const struct m3_layout *l = &e->request.layout;
    const double held = m3_quantity(e, "layout.memory_bytes_per_card") / 1e9,
                 card = (double)e->request.card_bytes / 1e9;
    printf("%s: tp %" PRId64 ", pp %" PRId64 ", dp %" PRId64 ", ep %" PRId64
           " puts up to %.1f GB on each %s of %.0f GB",
           m3_layout_fits(e) ? "fits" : "does not fit", l->tp, l->pp, l->dp, l->ep, held, e->request.gpu->name, card);
    printf("; the largest batch at this context is %" PRId64, m3_whole(e, "layout.max_batch"));
    print_speed(e, "layout.step_seconds", "layout.tokens_per_second", "layout.prefill_seconds",
                m3_quantity(e, "layout.compute_seconds") >= m3_quantity(e, "layout.bandwidth_seconds"));
    printf("\n\n");
}

void m3_cli_estimate_answer(const struct m3_estimate *e)
{
    const struct m3_estimate_request *r = &e->request;
    const int64_t cards = r->gpu ? m3_whole(e, "min_cards") : M3_UNKNOWN;
    if (r->gpu && r->layout.tp) answer_layout(e);
    if (cards < 0 || r->layout.tp) return;
    printf("%s on %" PRId64 " x %s: %" PRId64 " card%s at least for a batch of %" PRId64,
           cards <= r->gpus ? "fits" : "does not fit", r->gpus, r->gpu->name, cards, cards == 1 ? "" : "s", r->batch);
    printf("; the largest batch at this context is %" PRId64, m3_whole(e, "max_batch"));
    print_speed(e, "step_seconds", "tokens_per_second", "prefill_seconds", m3_compute_bound(e) > 0);
    if (r->activation_bytes)
        printf(
            ". Each sequence is assumed to need %.3g GiB for activations; with a layout (--tp, ..) they are computed",
            (double)r->activation_bytes / 0x1p30);
    printf("\n\n");
}

void m3_cli_estimate_layout(const struct m3_estimate *e, const struct m3_cli_marks *marks)
{
    const struct m3_layout *l = &e->request.layout;
    printf("\na card of the fullest stage: tp %" PRId64 ", pp %" PRId64 ", dp %" PRId64 ", ep %" PRId64
           "; prefill in chunks of %" PRId64 " tokens\n",
           l->tp, l->pp, l->dp, l->ep, l->chunk);
    m3_cli_print_count(e, marks, "layout.layers_per_card", "layers", "");
    m3_cli_print_count(e, marks, "layout.query_heads_per_card", "query heads", "");
    m3_cli_print_count(e, marks, "layout.kv_heads_per_card", "key/value heads",
                       l->tp > e->config->G ? "(several cards hold the same head)" : "");
    m3_cli_print_count(e, marks, "layout.experts_per_card", "routed experts of a layer",
                       l->ep < l->tp ? "(each in parts, on several cards)" : "");
    m3_cli_print_count(e, marks, "layout.sequences_per_card", "sequences", "");
    m3_cli_print_bytes(e, marks, "layout.weight_bytes_per_card", "weights");
    m3_cli_print_bytes(e, marks, "layout.kv_bytes_per_card", "keys and values, index keys");
    m3_cli_print_bytes(e, marks, "layout.activation_bytes_per_card", "activations");
    m3_cli_print_bytes(e, marks, "layout.memory_bytes_per_card", "all of these");
    m3_cli_print_count(e, marks, "layout.max_batch", "largest batch at this context", "");
    m3_cli_print_bytes(e, marks, "layout.read_bytes", "read for a step, one card a stage");
    m3_cli_print_quantity(e, marks, "layout.bandwidth_seconds", "a step, by its bytes", 1e3, 6, "ms");
    m3_cli_print_quantity(e, marks, "layout.compute_seconds", "a step, by its FLOPs", 1e3, 6, "ms");
    m3_cli_print_count(e, marks, "efficiency", "assumed efficiency", e->request.gpu ? "% of these rates" : "");
    m3_cli_print_quantity(e, marks, "layout.tokens_per_second", "then tokens of the batch", 1, 1, "per second");
    m3_cli_print_quantity(e, marks, "layout.prefill_seconds", "then a prefill of one sequence", 1, 3, "s");
}
