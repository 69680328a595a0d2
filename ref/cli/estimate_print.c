#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "estimate/foreign.h"
#include "estimate/estimate.h"

/* "1,048,576"; "" for what is not known */
struct digits {
    char text[32];
};

static struct digits grouped(int64_t value)
{
    struct digits d;
    char plain[24];
    int length = snprintf(plain, sizeof plain, "%" PRId64, value), out = 0;
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0) d.text[out++] = ',';
        d.text[out++] = plain[i];
    }
    d.text[value < 0 ? 0 : out] = '\0';
    return d;
}

/* What is not known is left out, here and below. */
static void print_count(const char *name, int64_t value, const char *unit)
{
    if (value < 0) return;
    printf("  %-34s %26s%s%s\n", name, grouped(value).text, *unit ? " " : "", unit);
}

/* GB is 10^9 bytes, GiB 2^30: both, always with their names. */
static void print_bytes(const char *name, int64_t bytes)
{
    if (bytes < 0) return;
    printf("  %-34s %26s B %14.3f GB %14.3f GiB\n", name, grouped(bytes).text, (double)bytes / 1e9,
           (double)bytes / 0x1p30);
}

static void print_quantity(const char *name, double value, int decimals, const char *unit)
{
    if (!isnan(value)) printf("  %-34s %26.*f%s%s\n", name, decimals, value, *unit ? " " : "", unit);
}

/* A number of bytes that may be an expectation. */
static int64_t rounded(double bytes) { return isnan(bytes) ? M3_UNKNOWN : llround(bytes); }

/* "" where there are no such layers, or nothing is known. */
static struct digits per_layer(int64_t value, int64_t layers)
{
    return grouped(layers > 0 && value >= 0 ? value / layers : M3_UNKNOWN);
}

static void print_parameters(const struct m3_estimate *e)
{
    const struct m3_census *census = e->request.files ? e->request.files : &e->census;
    const int64_t layers[M3_COMPONENTS] = {
        [M3_ATTENTION] = e->config->layers, [M3_INDEXER] = e->sparse, [M3_DENSE_MLP] = e->dense,
        [M3_MOE_ROUTED] = e->moe, [M3_MOE_SHARED] = e->moe, [M3_MOE_ROUTER] = e->moe, [M3_MOE_ROUTER_BIAS] = e->moe,
        [M3_MTP_MODULES] = e->request.mtp_modules,
    };
    printf("\n%-36s %26s %11s %22s\n", "parameters", "all", "", "of a layer");
    for (int i = 0; i < M3_COMPONENTS; i++) {
        int64_t count = census->of[i].parameters;
        if (count < 0 || (i == M3_MTP_MODULES && !count)) continue;
        printf("  %-34s %26s %9.4f %%", m3_component_names[i], grouped(count).text,
               100 * (double)count / (double)e->params_total);
        if (layers[i]) printf(" %22s", per_layer(count, layers[i]).text);
        printf("\n");
    }
    print_count("total", e->params_total, "");
    print_count("tensors, scales included", e->tensors, "");

    printf("\nactive for one token of text\n");
    print_count("layers", e->active_layers, "");
    print_count(e->active_layers < 0 ? "as published" : "layers + lm_head", e->active_head,
                e->active_layers < 0 ? "" : "every weight that is multiplied");
    print_count("layers + lm_head + embedding", e->active_embedding, "");
    print_count("the same + vision", e->active_vision, "");
}

void m3_cli_estimate_model(const struct m3_estimate *e, const char *path)
{
    const struct m3_estimate_request *r = &e->request;
    char name[64];
    if (r->foreign && r->foreign->few) {
        printf("%s: %s, by a few numbers: %s\n", path, r->foreign->name, r->foreign->source);
        if (e->full) printf("%" PRId64 " layers with attention\n", e->full);
    } else {
        printf("%s: %" PRId64 " layers: %" PRId64 " full attention, %" PRId64 " sparse; %" PRId64 " dense MLP, %" PRId64
               " mixture of experts\n", path, e->config->layers, e->full, e->sparse, e->dense, e->moe);
    }
    print_parameters(e);

    printf("\nweights%s\n", e->weight_bytes_stored < 0 ? "" : r->weights_asked ? ", the nominal size counts"
                                                                              : ", the stored size counts");
    snprintf(name, sizeof name, "%s, nominal", r->weights->name);
    print_bytes(name, e->weight_bytes);
    print_bytes("in the dtypes of a release", e->weight_bytes_released);
    print_bytes("stored", e->weight_bytes_stored);
    if (r->gpu)
        printf("\n%" PRId64 " x %s: %s B (%.3f GB) each, %.4g TFLOP/s, %.4g TB/s, ridge %.2f FLOP/B\n", r->gpus,
               r->gpu->name, grouped(r->card_bytes).text, (double)r->card_bytes / 1e9, (double)e->peak_flops / 1e12,
               (double)r->gpu->bandwidth / 1e12, (double)e->peak_flops / (double)r->gpu->bandwidth);
}

static void print_flops(const struct m3_estimate *e)
{
    const struct m3_flops *d = &e->decode, *p = &e->prefill;
    const struct {
        const char *name;
        int64_t decode, layers, prefill;
    } lines[] = {
        { "full attention", d->full_attention, e->full, p->full_attention },
        { "index scores", d->msa_index, e->sparse, p->msa_index },
        { "chosen blocks", d->msa_main, e->sparse, p->msa_main },
        { "projections q, k, v, o", d->projections, e->config->layers, p->projections },
        { "index projections", d->index_projections, e->sparse, p->index_projections },
        { "dense MLP", d->dense_mlp, e->dense, p->dense_mlp },
        { "shared expert", d->moe_shared, e->moe, M3_UNKNOWN },
        { "routed experts", d->moe_routed, e->moe, M3_UNKNOWN },
        { "router", d->moe_router, e->moe, M3_UNKNOWN },
        { "mixture of experts, these three", d->moe, e->moe, p->moe },
        { "lm_head", d->lm_head, 0, p->lm_head },
        { "all but attention", d->projections < 0 ? e->decode_linear : M3_UNKNOWN, 0, M3_UNKNOWN },
        { "total", d->total, 0, p->total },
    };
    printf("\n%-36s %26s %22s %30s\n", "FLOPs", "one decoded token", "of a layer", "prefill");
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        if (lines[i].decode < 0) continue;
        printf("  %-34s %26s", lines[i].name, grouped(lines[i].decode).text);
        if (lines[i].layers || lines[i].prefill >= 0)
            printf(" %22s", per_layer(lines[i].decode, lines[i].layers).text);
        if (lines[i].prefill >= 0) printf(" %30s", grouped(lines[i].prefill).text);
        printf("\n");
    }
}

static void print_ratios(const struct m3_estimate *e)
{
    printf("\nfull attention everywhere against this model, FLOPs\n");
    for (int i = 0; i < M3_RATIOS; i++)
        printf("  %-34s %14.4f  %" PRId64 "/%" PRId64 "\n", m3_ratio_names[i],
               (double)e->ratios[i].over / (double)e->ratios[i].under, e->ratios[i].over, e->ratios[i].under);
}

static void print_pictures(const struct m3_vision_flops *f)
{
    if (!f->patches) return;
    printf("\nFLOPs of the pictures: %s patches, %s tokens\n", grouped(f->patches).text, grouped(f->tokens).text);
    print_count("patch embedding", f->patch_embed, "");
    print_count("linears of the tower", f->linears, "");
    print_count("attention of the tower", f->attention, "");
    print_count("projector", f->projector, "");
    print_count("total", f->total, "");
}

static void print_other_work(const struct m3_estimate *e)
{
    if (!e->sparse) return;
    printf("\n%-36s %26s %22s\n", "no matrix product, one decoded token", "all", "of a layer");
    printf("  %-34s %26s %22s\n", "comparisons for block maxima", grouped(e->sparse * e->block_maxima).text,
           grouped(e->block_maxima).text);
    printf("  %-34s %26s %22s\n", "scores that blocks are chosen from", grouped(e->sparse * e->candidates).text,
           grouped(e->candidates).text);
}

static void print_experts(const struct m3_estimate *e)
{
    const struct m3_critical_path *path = &e->critical_path;
    if (!m3_splits_experts(e)) return;
    printf("\nexperts shared out over %" PRId64 " cards, all else on each\n", e->request.gpus);
    print_bytes("weights of a card, nominal", e->card_weights);
    print_bytes("weights of a card, as stored", e->card_weights_stored);
    printf("  %-34s %26s\n", "caches and activations beside them", e->card_fits ? "fit" : "do not fit");
    if (!e->has_critical_path) return;
    print_bytes("read of experts, fullest card", rounded(path->expert_bytes));
    print_bytes("read of other weights", rounded(path->other_bytes));
    print_quantity("a step, those on each card", 1e3 * path->replicated_seconds, 6, "ms");
    print_quantity("a step, those shared out", 1e3 * path->sharded_seconds, 6, "ms");
    print_quantity("caches, shared out, to be added", 1e3 * path->cache_seconds, 6, "ms");
}

static void print_cards(const struct m3_estimate *e)
{
    const struct m3_estimate_request *r = &e->request;
    printf("\n%" PRId64 " x %s, everything split evenly, nothing sent between cards\n", r->gpus, r->gpu->name);
    print_count("fewest cards, weights alone", e->min_cards_weights, "");
    print_count("fewest cards", e->min_cards, "");
    print_count("largest batch at this context", e->max_batch, "");
    print_quantity("a step, by its bytes", 1e3 * e->bandwidth_seconds, 6, "ms");
    print_quantity("a step, by its FLOPs", 1e3 * e->compute_seconds, 6,
                   e->compute_bound < 0 ? "ms" : e->compute_bound ? "ms, compute-bound" : "ms, memory-bound");
    if (!e->has_spread) return;
    printf("  %-34s %26.5f of %" PRId64 "\n", "experts on the fullest card", e->expected_fullest, e->config->K);
    printf("  %-34s %26.5f\n", "cards hit by a token's experts", e->expected_cards_hit);
}

void m3_cli_estimate_detail(const struct m3_estimate *e)
{
    const struct m3_estimate_request *r = &e->request;
    printf("\n%s%s%sbatch %s\n", r->context < 0 ? "" : "context ", grouped(r->context).text,
           r->context < 0 ? "" : ", ", grouped(r->batch).text);
    print_flops(e);
    if (e->sparse) print_ratios(e);
    print_pictures(&e->vision);
    print_other_work(e);
    printf("\ncaches of the batch: keys and values %s, index keys %s\n", r->kv->name, r->index_kv->name);
    print_bytes("keys and values", e->kv_batch_main);
    print_bytes("index keys", e->kv_batch_index);
    print_bytes("total", e->kv_batch_total);

    printf("\nmemory\n");
    print_bytes("weights + caches", e->memory_without_activations);
    print_bytes("assumed activations, a sequence", r->activation_bytes);
    print_bytes("total", e->memory);

    printf("\nread in one step of decoding, weights as %s\n", r->weights->name);
    print_bytes("weights", rounded(e->read_weights));
    print_bytes("keys and values, full layers", e->read_kv_full);
    print_bytes("keys and values, chosen blocks", e->read_kv_selected);
    print_bytes("index keys", e->read_index_keys);
    print_bytes("total", rounded(e->read_total));
    print_bytes("weights, as stored", rounded(e->read_weights_stored));
    print_quantity("experts read in a layer, expected", e->experts_read, 4, "");
    print_quantity("arithmetic intensity", e->intensity, 4, "FLOP/B");
    if (r->gpu) print_cards(e);
    if (r->gpu) print_experts(e);
}

/* A cell of the table of combinations: "-" for what is not known. */
static void print_cell(int width, int decimals, double value)
{
    if (isnan(value)) printf(" %*s", width, "-");
    else printf(" %*.*f", width, decimals, value);
}

static double known(int64_t value) { return value < 0 ? NAN : (double)value; }

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
    print_cell(13, 3, known(e->decode.total) / 1e9);
    print_cell(14, 3, known(e->prefill.total) / 1e12);
    print_cell(11, 3, known(e->kv_batch_total) / 1e9);
    print_cell(11, 3, known(e->memory) / 1e9);
    print_cell(11, 3, e->read_total / 1e9);
    print_cell(8, 4, e->intensity);
    if (r->gpu) {
        print_cell(6, 0, known(e->min_cards));
        print_cell(6, 0, known(e->max_batch));
        print_cell(9, 4, 1e3 * (e->compute_bound > 0 ? e->compute_seconds : e->bandwidth_seconds));
    }
    printf("\n");
}

/* Every value that is no group, with its dotted key; `header` prints the keys, else the values. */
static void print_flat(const json_t *value, const char *key, int header, int *cells)
{
    char inner[160];
    const char *name;
    json_t *member;
    size_t index;
    if (json_is_object(value)) {
        json_object_foreach((json_t *)value, name, member) {
            snprintf(inner, sizeof inner, "%s%s%s", key, *key ? "." : "", name);
            print_flat(member, inner, header, cells);
        }
        return;
    }
    if (json_is_array(value)) {
        json_array_foreach(value, index, member) {
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
