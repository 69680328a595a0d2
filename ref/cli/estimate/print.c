#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/printable.h"
#include "cli/estimate/estimate.h"
#include "estimate/foreign.h"

struct m3_cli_digits m3_cli_grouped(int64_t value)
{
    struct m3_cli_digits d;
    char plain[24];
    int length = snprintf(plain, sizeof plain, "%" PRId64, value), out = 0;
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0) d.text[out++] = ',';
        d.text[out++] = plain[i];
    }
    d.text[value < 0 ? 0 : out] = '\0';
    return d;
}

/* Ends the line of a figure: " [E0-58 E3-23]" first, if documents print another value. */
static void end_line(const struct m3_cli_marks *marks, const char *key, const char *other)
{
    int count = 0;
    for (int i = 0; i < marks->count; i++) {
        const struct m3_mark *all = marks->marks;
        int seen = strcmp(all[i].key, key) != 0 && (!other || strcmp(all[i].key, other) != 0);
        for (int j = 0; j < i && !seen; j++)
            seen = (strcmp(all[j].key, key) == 0 || (other && strcmp(all[j].key, other) == 0)) &&
                   strcmp(all[j].row->erratum, all[i].row->erratum) == 0;
        if (!seen) printf("%s%s", count++ ? " " : "  [", all[i].row->erratum);
    }
    printf(count ? "]\n" : "\n");
}

void m3_cli_print_count(const struct m3_estimate *e, const struct m3_cli_marks *marks, const char *key,
                        const char *name, const char *unit)
{
    const int64_t value = m3_whole(e, key);
    if (value < 0) return;
    printf("  %-34s %26s%s%s", name, m3_cli_grouped(value).text, *unit ? " " : "", unit);
    end_line(marks, key, NULL);
}

void m3_cli_print_bytes(const struct m3_estimate *e, const struct m3_cli_marks *marks, const char *key,
                        const char *name)
{
    const double quantity = m3_quantity(e, key);
    if (isnan(quantity)) return;
    const int64_t whole = m3_whole(e, key), bytes = whole < 0 ? llround(quantity) : whole;
    printf("  %-34s %26s B %14.3f GB %14.3f GiB", name, m3_cli_grouped(bytes).text, (double)bytes / 1e9,
           (double)bytes / 0x1p30);
    end_line(marks, key, NULL);
}

void m3_cli_print_quantity(const struct m3_estimate *e, const struct m3_cli_marks *marks, const char *key,
                           const char *name, double scale, int decimals, const char *unit)
{
    const double value = m3_quantity(e, key);
    if (isnan(value)) return;
    printf("  %-34s %26.*f%s%s", name, decimals, scale * value, *unit ? " " : "", unit);
    end_line(marks, key, NULL);
}

/* "" if there are no such layers, or the value is unknown. */
static struct m3_cli_digits per_layer(int64_t value, int64_t layers)
{
    return m3_cli_grouped(layers > 0 && value >= 0 ? value / layers : M3_UNKNOWN);
}

static void print_parameters(const struct m3_estimate *e, const struct m3_cli_marks *marks)
{
    char key[64];
    const int64_t layers[M3_COMPONENTS] = {
        [M3_COMPONENT_ATTENTION] = e->config->layers, [M3_COMPONENT_INDEXER] = e->sparse,
        [M3_COMPONENT_DENSE_MLP] = e->dense,          [M3_COMPONENT_MOE_ROUTED] = e->moe,
        [M3_COMPONENT_MOE_SHARED] = e->moe,           [M3_COMPONENT_MOE_ROUTER] = e->moe,
        [M3_COMPONENT_MOE_ROUTER_BIAS] = e->moe,      [M3_COMPONENT_MTP_MODULES] = e->request.mtp_modules,
    };
    printf("\n%-36s %26s %11s %22s\n", "parameters", "all", "", "of a layer");
    for (int i = 0; i < M3_COMPONENTS; i++) {
        snprintf(key, sizeof key, "params_by_component.%s", m3_component_names[i]);
        const int64_t count = m3_whole(e, key);
        if (count < 0 || (i == M3_COMPONENT_MTP_MODULES && !count)) continue;
        printf("  %-34s %26s %9.4f %%", m3_component_names[i], m3_cli_grouped(count).text,
               100 * (double)count / m3_quantity(e, "params_total"));
        if (layers[i]) printf(" %22s", per_layer(count, layers[i]).text);
        end_line(marks, key, NULL);
    }
    m3_cli_print_count(e, marks, "params_total", "total", "");
    m3_cli_print_count(e, marks, "tensors", "tensors, scales included", "");

    const int few = m3_whole(e, "params_active_by_convention.layers") < 0;
    printf("\nactive for one token of text\n");
    m3_cli_print_count(e, marks, "params_active_by_convention.layers", "layers", "");
    m3_cli_print_count(e, marks, "params_active_text", few ? "as published" : "layers + lm_head",
                       few ? "" : "every weight that is multiplied");
    m3_cli_print_count(e, marks, "params_active_by_convention.layers_head_embedding", "layers + lm_head + embedding",
                       "");
    m3_cli_print_count(e, marks, "params_active_by_convention.layers_head_embedding_vision", "the same + vision", "");
}

void m3_cli_estimate_model(const struct m3_estimate *e, const char *path, const struct m3_cli_marks *marks)
{
    const struct m3_estimate_request *r = &e->request;
    char name[64];
    if (r->foreign && r->foreign->few) {
        printf("%s: %s, by a few numbers: %s\n", m3_printable(path).text, r->foreign->name, r->foreign->source);
        if (e->full) printf("%" PRId64 " layers with attention\n", e->full);
    } else {
        printf("%s: %" PRId64 " layers: %" PRId64 " full attention, %" PRId64 " sparse; %" PRId64 " dense MLP, %" PRId64
               " mixture of experts\n",
               m3_printable(path).text, e->config->layers, e->full, e->sparse, e->dense, e->moe);
    }
    print_parameters(e, marks);

    printf("\nweights%s\n", !r->files          ? ""
                            : r->weights_asked ? ", the nominal size counts"
                                               : ", the stored size counts");
    snprintf(name, sizeof name, "%s, nominal", r->weights->name);
    m3_cli_print_bytes(e, marks, "weight_bytes", name);
    if (r->weights->bits < 16)
        printf(
            "  (%d bits for every weight, norms and embedding included, without scales: formats with scales are larger)\n",
            r->weights->bits);
    m3_cli_print_bytes(e, marks, "weight_bytes_released", "in the dtypes of a release");
    m3_cli_print_bytes(e, marks, "weight_bytes_stored", "stored");
    if (r->gpu)
        printf("\n%" PRId64 " x %s: %s B (%.3f GB) each, %.4g TFLOP/s, %.4g TB/s, ridge %.2f FLOP/B\n", r->gpus,
               r->gpu->name, m3_cli_grouped(r->card_bytes).text, (double)r->card_bytes / 1e9,
               m3_quantity(e, "peak_flops") / 1e12, (double)r->gpu->bandwidth / 1e12, m3_quantity(e, "ridge"));
}

static void print_flops(const struct m3_estimate *e, const struct m3_cli_marks *marks)
{
    static const struct {
        const char *key, *name;
    } lines[] = {
        { ".full_attention", "full attention" },
        { ".msa_index", "index scores" },
        { ".msa_main", "chosen blocks" },
        { ".projections", "projections q, k, v, o" },
        { ".index_projections", "index projections" },
        { ".dense_mlp", "dense MLP" },
        { "_moe.shared", "shared expert" },
        { "_moe.routed", "routed experts" },
        { "_moe.router", "router" },
        { ".moe", "mixture of experts, these three" },
        { ".lm_head", "lm_head" },
        { "_linear", "all but attention" },         /* only if its parts are not known */
        { ".total", "total" },
    };
    const int64_t layers[sizeof lines / sizeof lines[0]] = {
        e->full, e->sparse, e->sparse, e->config->layers, e->sparse, e->dense, e->moe, e->moe, e->moe, e->moe,
    };
    const int in_parts = m3_whole(e, "flops_decode.projections") >= 0;
    char key[64], other[64];
    printf("\n%-36s %26s %22s %30s\n", "FLOPs", "one decoded token", "of a layer", "prefill");
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        snprintf(key, sizeof key, "flops_decode%s", lines[i].key);
        snprintf(other, sizeof other, "flops_prefill%s", lines[i].key);
        const int64_t decode = m3_whole(e, key), prefill = m3_whole(e, other);
        if (decode < 0 || (in_parts && strcmp(lines[i].key, "_linear") == 0)) continue;
        printf("  %-34s %26s", lines[i].name, m3_cli_grouped(decode).text);
        if (layers[i] || prefill >= 0) printf(" %22s", per_layer(decode, layers[i]).text);
        if (prefill >= 0) printf(" %30s", m3_cli_grouped(prefill).text);
        end_line(marks, key, other);
    }
}

static void print_ratios(const struct m3_estimate *e, const struct m3_cli_marks *marks)
{
    const char *key;
    printf("\nfull attention everywhere against this model, FLOPs\n");
    for (int i = 0; (key = m3_ratio_key(i)); i++) {
        const struct m3_value ratio = m3_estimate_figure(e, key);
        printf("  %-34s %14.4f  %" PRId64 "/%" PRId64, strchr(key, '.') + 1, (double)ratio.over / (double)ratio.under,
               (int64_t)ratio.over, (int64_t)ratio.under);
        end_line(marks, key, NULL);
    }
}

static void print_pictures(const struct m3_estimate *e, const struct m3_cli_marks *marks)
{
    if (!e->patches) return;
    printf("\nFLOPs of the pictures: %s patches, %s tokens\n", m3_cli_grouped(e->patches).text,
           m3_cli_grouped(m3_whole(e, "flops_vision.tokens")).text);
    m3_cli_print_count(e, marks, "flops_vision.patch_embed", "patch embedding", "");
    m3_cli_print_count(e, marks, "flops_vision.linears", "linears of the tower", "");
    m3_cli_print_count(e, marks, "flops_vision.attention", "attention of the tower", "");
    m3_cli_print_count(e, marks, "flops_vision.projector", "projector", "");
    m3_cli_print_count(e, marks, "flops_vision.total", "total", "");
}

static void print_work(const struct m3_estimate *e, const char *name, const char *key, const char *of_layer)
{
    printf("  %-34s %26s %22s\n", name, m3_cli_grouped(m3_whole(e, key)).text,
           m3_cli_grouped(m3_whole(e, of_layer)).text);
}

static void print_other_work(const struct m3_estimate *e)
{
    if (!e->sparse) return;
    printf("\n%-36s %26s %22s\n", "no matrix product, one decoded token", "all", "of a layer");
    print_work(e, "comparisons for block maxima", "other_work.block_max_comparisons",
               "other_work.block_max_comparisons_per_layer");
    print_work(e, "scores that blocks are chosen from", "other_work.selection_candidates",
               "other_work.selection_candidates_per_layer");
}

static void print_experts(const struct m3_estimate *e, const struct m3_cli_marks *marks)
{
    if (!m3_splits_experts(e)) return;
    printf("\nexperts shared out over %" PRId64 " cards, all else on each\n", e->request.gpus);
    m3_cli_print_bytes(e, marks, "expert_parallel.weight_bytes_per_card", "weights of a card, nominal");
    m3_cli_print_bytes(e, marks, "expert_parallel.weight_bytes_per_card_stored", "weights of a card, as stored");
    printf("  %-34s %26s\n", "caches and activations beside them", m3_estimate_fits(e) ? "fit" : "do not fit");
    if (isnan(m3_quantity(e, "critical_path.expert_bytes"))) return;
    m3_cli_print_bytes(e, marks, "critical_path.expert_bytes", "read of experts, fullest card");
    m3_cli_print_bytes(e, marks, "critical_path.other_bytes", "read of other weights");
    m3_cli_print_quantity(e, marks, "critical_path.replicated_seconds", "a step, those on each card", 1e3, 6, "ms");
    m3_cli_print_quantity(e, marks, "critical_path.sharded_seconds", "a step, those shared out", 1e3, 6, "ms");
    m3_cli_print_quantity(e, marks, "critical_path.cache_seconds", "caches, shared out, to be added", 1e3, 6, "ms");
}

static void print_cards(const struct m3_estimate *e, const struct m3_cli_marks *marks)
{
    const struct m3_estimate_request *r = &e->request;
    const int bound = m3_compute_bound(e);
    printf("\n%" PRId64 " x %s, everything split evenly, nothing sent between cards\n", r->gpus, r->gpu->name);
    m3_cli_print_count(e, marks, "min_cards_weights", "fewest cards, weights alone", "");
    m3_cli_print_count(e, marks, "min_cards", "fewest cards", "");
    m3_cli_print_count(e, marks, "max_batch", "largest batch at this context", "");
    m3_cli_print_quantity(e, marks, "bandwidth_bound_seconds", "a step, by its bytes", 1e3, 6, "ms");
    m3_cli_print_quantity(e, marks, "compute_bound_seconds", "a step, by its FLOPs", 1e3, 6,
                          bound < 0 ? "ms"
                          : bound   ? "ms, compute-bound"
                                    : "ms, memory-bound");
    m3_cli_print_count(e, marks, "efficiency", "assumed efficiency", "% of these rates");
    m3_cli_print_quantity(e, marks, "tokens_per_second", "then tokens of the batch", 1, 1, "per second");
    m3_cli_print_quantity(e, marks, "prefill_seconds", "then a prefill of one sequence", 1, 3, "s");
    if (!e->has_spread) return;
    char of[32];
    snprintf(of, sizeof of, "of %" PRId64, e->config->K);
    m3_cli_print_quantity(e, marks, "expert_spread.expected_fullest", "experts on the fullest card", 1, 5, of);
    m3_cli_print_quantity(e, marks, "expert_spread.expected_cards_hit", "cards hit by a token's experts", 1, 5, "");
}

void m3_cli_estimate_detail(const struct m3_estimate *e, const struct m3_cli_marks *marks)
{
    const struct m3_estimate_request *r = &e->request;
    printf("\n%s%s%sbatch %s\n", r->context < 0 ? "" : "context ", m3_cli_grouped(r->context).text,
           r->context < 0 ? "" : ", ", m3_cli_grouped(r->batch).text);
    print_flops(e, marks);
    if (e->sparse) print_ratios(e, marks);
    print_pictures(e, marks);
    print_other_work(e);
    printf("\ncaches of the batch: keys and values %s, index keys %s\n", r->kv->name, r->index_kv->name);
    m3_cli_print_bytes(e, marks, "kv_bytes.main", "keys and values");
    m3_cli_print_bytes(e, marks, "kv_bytes.index", "index keys");
    m3_cli_print_bytes(e, marks, "kv_bytes.total", "total");

    printf("\nmemory\n");
    m3_cli_print_bytes(e, marks, "memory_bytes_without_activations", "weights + caches");
    m3_cli_print_bytes(e, marks, "activation_bytes_per_sequence", "assumed activations, a sequence");
    m3_cli_print_bytes(e, marks, "memory_bytes", "total");

    printf("\nread in one step of decoding, weights as %s\n", r->weights->name);
    m3_cli_print_bytes(e, marks, "decode_read_bytes.weights", "weights");
    m3_cli_print_bytes(e, marks, "decode_read_bytes.kv_full", "keys and values, full layers");
    m3_cli_print_bytes(e, marks, "decode_read_bytes.kv_selected", "keys and values, chosen blocks");
    m3_cli_print_bytes(e, marks, "decode_read_bytes.index_keys", "index keys");
    m3_cli_print_bytes(e, marks, "decode_read_bytes.total", "total");
    m3_cli_print_bytes(e, marks, "decode_read_bytes_stored.weights", "weights, as stored");
    m3_cli_print_quantity(e, marks, "experts_read_per_layer", "experts read in a layer, expected", 1, 4, "");
    m3_cli_print_quantity(e, marks, "arithmetic_intensity", "arithmetic intensity", 1, 4, "FLOP/B");
    if (r->gpu) print_cards(e, marks);
    if (r->gpu) print_experts(e, marks);
    if (r->layout.tp) m3_cli_estimate_layout(e, marks);
}

/* A cell of the table of combinations: "-" if unknown. */
static void print_cell(int width, int decimals, double value)
{
    if (isnan(value)) printf(" %*s", width, "-");
    else printf(" %*.*f", width, decimals, value);
}

void m3_cli_estimate_line(const struct m3_estimate *e, int first)
{
    const struct m3_estimate_request *r = &e->request;
    if (first) {
        printf("\nFLOPs of one decoded token and of one prefill, the rest for the batch%s\n",
               r->gpu ? "; most: the largest batch" : "");
        printf("%8s %6s %13s %14s %11s %11s %11s %8s", "context", "batch", "GFLOP decode", "TFLOP prefill", "caches GB",
               "memory GB", "read GB", "FLOP/B");
        if (r->gpu) printf(" %6s %6s %9s", "cards", "most", "step ms");
        printf("\n");
    }
    if (r->context < 0) printf("%8s", "-");
    else printf("%8" PRId64, r->context);
    printf(" %6" PRId64, r->batch);
    print_cell(13, 3, m3_quantity(e, "flops_decode.total") / 1e9);
    print_cell(14, 3, m3_quantity(e, "flops_prefill.total") / 1e12);
    print_cell(11, 3, m3_quantity(e, "kv_bytes.total") / 1e9);
    print_cell(11, 3, m3_quantity(e, "memory_bytes") / 1e9);
    print_cell(11, 3, m3_quantity(e, "decode_read_bytes.total") / 1e9);
    print_cell(8, 4, m3_quantity(e, "arithmetic_intensity"));
    if (r->gpu) {
        print_cell(6, 0, m3_quantity(e, "min_cards"));
        print_cell(6, 0, m3_quantity(e, "max_batch"));
        print_cell(9, 4,
                   1e3 * m3_quantity(e, m3_compute_bound(e) > 0 ? "compute_bound_seconds" : "bandwidth_bound_seconds"));
    }
    printf("\n");
}

/* Prints every value that is not a group, with its dotted key: the keys if `header`, otherwise the values. */
static void print_flat(const json_t *value, const char *key, int header, int *cells)
{
    char inner[160];
    const char *name;
    json_t *member;
    size_t index;
    if (json_is_object(value)) {
        json_object_foreach((json_t *)value, name, member)
        {
            snprintf(inner, sizeof inner, "%s%s%s", key, *key ? "." : "", name);
            print_flat(member, inner, header, cells);
        }
        return;
    }
    if (json_is_array(value)) {
        json_array_foreach(value, index, member)
        {
            snprintf(inner, sizeof inner, "%s.%zu", key, index);
            print_flat(member, inner, header, cells);
        }
        return;
    }
    if ((*cells)++) putchar(',');
    if (header) printf("%s", key);
    else if (json_is_string(value)) printf("%s", json_string_value(value));
    else if (json_is_integer(value)) printf("%" JSON_INTEGER_FORMAT, json_integer_value(value));
    else if (json_is_real(value)) printf("%.17g", json_real_value(value));
    else if (json_is_boolean(value)) printf("%s", json_is_true(value) ? "true" : "false");
}

void m3_cli_estimate_csv(const json_t *summary, int first)
{
    for (int header = first; header >= 0; header--) {
        int cells = 0;
        print_flat(summary, "", header, &cells);
        putchar('\n');
    }
}
