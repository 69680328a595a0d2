#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "estimate/estimate.h"

/* "1,048,576" */
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
    d.text[out] = '\0';
    return d;
}

static void print_count(const char *name, int64_t value, const char *unit)
{
    printf("  %-34s %26s%s%s\n", name, grouped(value).text, *unit ? " " : "", unit);
}

/* GB is 10^9 bytes, GiB 2^30: both, always with their names. */
static void print_bytes(const char *name, int64_t bytes)
{
    printf("  %-34s %26s B %14.3f GB %14.3f GiB\n", name, grouped(bytes).text, (double)bytes / 1e9,
           (double)bytes / 0x1p30);
}

static void print_parameters(const struct m3_estimate *e)
{
    const struct m3_census *census = e->request.files ? e->request.files : &e->census;
    printf("\nparameters\n");
    for (int i = 0; i < M3_COMPONENTS; i++) {
        int64_t count = census->of[i].parameters;
        if (i == M3_MTP_MODULES && !count) continue;
        printf("  %-34s %26s %9.4f %%\n", m3_component_names[i], grouped(count).text,
               100 * (double)count / (double)e->params_total);
    }
    print_count("total", e->params_total, "");
    print_count("tensors, scales included", e->tensors, "");

    printf("\nactive for one token of text\n");
    print_count("layers", e->active_layers, "");
    print_count("layers + lm_head", e->active_head, "every weight that is multiplied");
    print_count("layers + lm_head + embedding", e->active_embedding, "");
    print_count("the same + vision", e->active_vision, "");
}

void m3_cli_estimate_model(const struct m3_estimate *e, const char *path)
{
    const struct m3_estimate_request *r = &e->request;
    char name[64];
    printf("%s: %" PRId64 " layers: %" PRId64 " full attention, %" PRId64 " sparse; %" PRId64 " dense MLP, %" PRId64
           " mixture of experts\n", path, e->config->layers, e->full, e->sparse, e->dense, e->moe);
    print_parameters(e);

    printf("\nweights%s\n", e->weight_bytes_stored < 0 ? "" : r->weights_asked ? ", the nominal size counts"
                                                                              : ", the stored size counts");
    snprintf(name, sizeof name, "%s, nominal", r->weights->name);
    print_bytes(name, e->weight_bytes);
    print_bytes("in the dtypes of a release", e->weight_bytes_released);
    if (e->weight_bytes_stored >= 0) print_bytes("stored", e->weight_bytes_stored);
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
        int64_t decode, prefill;
    } lines[] = {
        { "full attention", d->full_attention, p->full_attention },
        { "index scores", d->msa_index, p->msa_index },
        { "chosen blocks", d->msa_main, p->msa_main },
        { "projections q, k, v, o", d->projections, p->projections },
        { "index projections", d->index_projections, p->index_projections },
        { "dense MLP", d->dense_mlp, p->dense_mlp },
        { "mixture of experts", d->moe, p->moe },
        { "lm_head", d->lm_head, p->lm_head },
        { "total", d->total, p->total },
    };
    printf("\n%-36s %26s %30s\n", "FLOPs", "one decoded token", "prefill");
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        printf("  %-34s %26s %30s\n", lines[i].name, grouped(lines[i].decode).text, grouped(lines[i].prefill).text);
    if (!e->sparse) return;
    printf("\nfull attention everywhere against this model, FLOPs\n");
    for (int i = 0; i < M3_RATIOS; i++)
        printf("  %-34s %14.4f  %" PRId64 "/%" PRId64 "\n", m3_ratio_names[i],
               (double)e->ratios[i].over / (double)e->ratios[i].under, e->ratios[i].over, e->ratios[i].under);
}

static void print_cards(const struct m3_estimate *e)
{
    const struct m3_estimate_request *r = &e->request;
    printf("\n%" PRId64 " x %s, everything split evenly, nothing sent between cards\n", r->gpus, r->gpu->name);
    print_count("fewest cards, weights alone", e->min_cards_weights, "");
    print_count("fewest cards", e->min_cards, "");
    print_count("largest batch at this context", e->max_batch, "");
    printf("  %-34s %26.6f ms\n", "a step, by its bytes", 1e3 * e->bandwidth_seconds);
    printf("  %-34s %26.6f ms, %s-bound\n", "a step, by its FLOPs", 1e3 * e->compute_seconds,
           e->compute_bound ? "compute" : "memory");
    if (!e->has_spread) return;
    printf("  %-34s %26.5f of %" PRId64 "\n", "experts on the fullest card", e->expected_fullest, e->config->K);
    printf("  %-34s %26.5f\n", "cards hit by a token's experts", e->expected_cards_hit);
}

void m3_cli_estimate_detail(const struct m3_estimate *e)
{
    const struct m3_estimate_request *r = &e->request;
    printf("\ncontext %s, batch %s\n", grouped(r->context).text, grouped(r->batch).text);
    print_flops(e);
    printf("\ncaches of the batch: keys and values %s, index keys %s\n", r->kv->name, r->index_kv->name);
    print_bytes("keys and values", e->kv_batch_main);
    print_bytes("index keys", e->kv_batch_index);
    print_bytes("total", e->kv_batch_total);

    printf("\nmemory\n");
    print_bytes("weights + caches", e->memory_without_activations);
    print_bytes("assumed activations, a sequence", r->activation_bytes);
    print_bytes("total", e->memory);

    printf("\nread in one step of decoding, weights as %s\n", r->weights->name);
    print_bytes("weights", llround(e->read_weights));
    print_bytes("keys and values, full layers", e->read_kv_full);
    print_bytes("keys and values, chosen blocks", e->read_kv_selected);
    print_bytes("index keys", e->read_index_keys);
    print_bytes("total", llround(e->read_total));
    printf("  %-34s %26.4f\n", "experts read in a layer, expected", e->experts_read);
    printf("  %-34s %26.4f FLOP/B\n", "arithmetic intensity", e->intensity);
    if (r->gpu) print_cards(e);
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
    printf("%8" PRId64 " %6" PRId64 " %13.3f %14.3f %11.3f %11.3f %11.3f %8.4f", r->context, r->batch,
           (double)e->decode.total / 1e9, (double)e->prefill.total / 1e12, (double)e->kv_batch_total / 1e9,
           (double)e->memory / 1e9, e->read_total / 1e9, e->intensity);
    if (r->gpu) {
        double seconds = e->compute_bound ? e->compute_seconds : e->bandwidth_seconds;
        printf(" %6" PRId64 " %6" PRId64 " %9.4f", e->min_cards, e->max_batch, 1e3 * seconds);
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
}

void m3_cli_estimate_csv(const json_t *summary, int first)
{
    for (int header = first; header >= 0; header--) {
        int cells = 0;
        print_flat(summary, "", header, &cells);
        putchar('\n');
    }
}
