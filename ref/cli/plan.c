#ifndef _GNU_SOURCE
#define _GNU_SOURCE             /* asprintf */
#endif
#include "cli/plan.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/minmax.h"
#include "base/sha256.h"
#include "estimate/plan.h"
#include "estimate/rates.h"
#include "io/fingerprint.h"
#include "io/gzip.h"
#include "io/temporary.h"
#include "model/files/case.h"
#include "model/model.h"
#include "oracle/variants/mistakes.h"

/* How long companions take in passes of the double engine, and a run that rounds as a profile allows in passes of the
 * float engine. Measured on a layer of released widths with 16 experts, at T = 64 and 512. */
enum { BOUNDS = 14, ROUNDED = 3 };

/* How often the judge of a dump does the work of a pass, by kind: values, bounds, walks and derivatives. */
static const double recomputed_times[M3_WORK_KINDS] = {
    [M3_WORK_PRODUCTS] = 5,   [M3_WORK_EXPERTS] = 6.5, [M3_WORK_INDEX] = 10,
    [M3_WORK_ATTENTION] = 20, [M3_WORK_ROWS] = 30,     [M3_WORK_HEAD] = 5,
};

/* Of attention, where keys and values were stored in few bits: what each key may be off by is carried through. Measured on
 * a layer of released sizes in BF16, at T = 512, and in 512 rows of T = 4096. */
enum { CARRIED = 190 };

static double times_of(const struct m3_cli_plan *p, int kind)
{
    return kind == M3_WORK_ATTENTION && p->directions ? CARRIED : recomputed_times[kind];
}

/* How often `grad` does the work of a pass, by kind. Products: the pass; the layer again; two products of a derivative.
 * Of the experts only two of three matrices are applied again. Attention has five products in its derivative for two in
 * the pass. Blocks have no derivative. */
static const double gradient_times[M3_WORK_KINDS] = {
    [M3_WORK_PRODUCTS] = 4,    [M3_WORK_EXPERTS] = 11 / 3.0, [M3_WORK_INDEX] = 2,
    [M3_WORK_ATTENTION] = 4.5, [M3_WORK_ROWS] = 4,           [M3_WORK_HEAD] = 3,
};

/* What is planned, and what the machine needs for it. */
struct planned {
    const struct m3_cli_plan *p;
    struct m3_config config;
    struct m3_case c;
    struct m3_pass_plan pass;
    struct m3_token_plan token;
    int64_t judged;                     /* rows of the dump, if not all; 0: all */
    struct m3_model *model;             /* NULL: a file of it is absent */
    double seconds[M3_WORK_KINDS];      /* of all passes */
    double rates[M3_WORK_KINDS];        /* work per second, of the last engine that was measured */
    struct m3_disk_rates disk;
    double read_bytes;                  /* from the disk */
    double hash_bytes, hash_rate;
    double write_bytes, write_rate;
    double token_seconds;
};

static const struct m3_weight *stored_matrix(const struct planned *x)
{
    if (!x->model) return NULL;
    const struct m3_layer *l = &x->model->layers[x->pass.first];
    return l->experts ? &l->experts[0].w1 : &l->q_proj;
}

static int measure(struct m3_rates *rates, const struct planned *x, const struct m3_engine *engine, int64_t T,
                   int64_t p0, struct m3_error *error)
{
    const struct m3_rates_request request = { .engine = engine,
                                              .config = &x->config,
                                              .stored = stored_matrix(x),
                                              .first = x->pass.first,
                                              .end = x->pass.end,
                                              .T = T,
                                              .p0 = p0,
                                              .has_cache = x->p->has_cache,
                                              .linear = x->p->input->linear,
                                              .threads = (int)x->p->input->threads };
    return m3_rates_measure(rates, &request, error);
}

static struct m3_work work_of(const struct planned *x, int64_t T, int64_t p0, int64_t logit_rows)
{
    struct m3_work work = { 0 };
    for (int64_t l = x->pass.first; l < x->pass.end; l++) m3_work_add_layer(&work, &x->config, l, T, p0);
    if (x->pass.end == x->config.layers) m3_work_add_head(&work, &x->config, logit_rows);
    return work;
}

/* `times` passes of an engine over the case, and `recomputed` times what a dump is judged by. */
static int add_passes(struct planned *x, const struct m3_engine *engine, double times, int recomputed,
                      struct m3_error *error)
{
    struct m3_rates rates;
    /* Sampled rows lie in the middle, on average. */
    const int64_t T = x->judged ? x->judged : x->c.T, p0 = x->p->cached + (x->c.T - T) / 2;
    if (times == 0 && !recomputed) return M3_OK;
    const int status = measure(&rates, x, engine, T, p0, error);
    if (status) return status;
    const int all_logits =
        x->p->gradients || x->p->recomputed || (x->p->writes_taps && m3_tap_matches(x->p->taps, "logits"));
    struct m3_work work = work_of(x, T, p0, all_logits ? T : m3_min(T, 64));
    if (x->pass.first == 0) m3_work_add_vision(&work, &x->config, x->c.pictures.P);
    for (int kind = 0; kind < M3_WORK_KINDS; kind++) {
        const double more = x->p->gradients ? gradient_times[kind] : 1;
        const double all = times * more + recomputed * times_of(x->p, kind);
        x->seconds[kind] += all * m3_rates_time(&rates, &work, kind);
        x->rates[kind] = rates.seconds[kind] > 0 ? rates.work[kind] / rates.seconds[kind] : 0;
    }
    return M3_OK;
}

/* Known mistakes whose direction is sought in a tap. */
static int mistakes_of(const char *tap)
{
    int count = 0;
    for (int i = 0; i < m3_mistake_count(); i++) count += m3_tap_matches(m3_mistake_at(i)->first, tap);
    return count;
}

/* What each of these mistakes would make of a few rows. To read the matrices of an expert takes as long as to multiply
 * READ rows by them. */
static int add_directions(struct planned *x, struct m3_error *error)
{
    enum { FEW = 8, READ = 10 };
    struct m3_rates rates;
    const int64_t T = m3_min(x->judged ? x->judged : x->c.T, FEW);
    const double rows = (double)(T * m3_max(1, x->config.K)), read = READ * m3_work_experts_chosen(&x->config, (int)T);
    if (!x->p->directions) return M3_OK;
    const int status = measure(&rates, x, m3_engine_f64(), T, 0, error);
    if (status) return status;
    const struct m3_work work = work_of(x, T, 0, T);
    x->seconds[M3_WORK_EXPERTS] +=
        mistakes_of("layers.0.moe.expert_out") * fmax(1, read / rows) * m3_rates_time(&rates, &work, M3_WORK_EXPERTS);
    x->seconds[M3_WORK_PRODUCTS] += mistakes_of("layers.0.attn_out") * m3_rates_time(&rates, &work, M3_WORK_PRODUCTS);
    return M3_OK;
}

/* The widest tap of which they are tried: in doubles, the rows with what each may be off by, the right ones, the
 * mistaken ones, and the operands. */
static double direction_bytes(const struct planned *x)
{
    enum { ARRAYS = 16, FEW = 8, MANY = 1 << 20 };
    const double width = (double)x->config.H * (double)m3_max(1, x->config.K);
    const double rows = fmin((double)x->c.T, fmax(FEW, MANY / width));
    return x->p->directions ? ARRAYS * sizeof(double) * rows * width : 0;
}

static int add_tokens(struct planned *x, struct m3_error *error)
{
    const struct m3_engine *engine = x->p->f64_passes ? m3_engine_f64() : m3_engine_f32();
    const int64_t p0 = x->c.T + x->p->new_tokens / 2;
    struct m3_rates rates;
    if (x->p->new_tokens < 2) return M3_OK;
    const int status = measure(&rates, x, engine, 1, p0, error);
    if (status) return status;
    const struct m3_work work = work_of(x, 1, p0, 1);
    for (int kind = 0; kind < M3_WORK_KINDS; kind++) {
        const double each = m3_rates_time(&rates, &work, kind);
        x->token_seconds += each;
        x->seconds[kind] += each * (double)(x->p->new_tokens - 1);
    }
    return M3_OK;
}

/* The share of the weights' numbers that a pass reads: not all experts, and few rows of the embedding. */
static double share_read(const struct planned *x)
{
    const struct m3_config *c = &x->config;
    const int has_head = x->pass.end == c->layers, rows = (int)(x->judged ? x->judged : x->c.T);
    double read = 0, all = 0;
    for (int64_t l = x->pass.first; l < x->pass.end; l++) {
        struct m3_work one = { 0 };
        m3_work_add_layer(&one, c, l, 1, 0);
        const double expert = m3_config_moe(c, l) ? 3 * (double)c->H * (double)c->F : 0;
        read += one.of[M3_WORK_PRODUCTS] + expert * m3_work_experts_chosen(c, rows);
        all += one.of[M3_WORK_PRODUCTS] + expert * (double)c->E;
    }
    const double table = (double)c->V * (double)c->H;
    read += has_head ? table : 0;
    all += table * ((x->pass.first == 0) + (has_head && !c->tied_embeddings));
    return all > 0 && read < all ? read / all : 1;
}

/* ---- gradients */

/* Numbers of the matrices of a layer with so many experts: each token multiplies by all others. */
static double layer_numbers(const struct planned *x, int64_t l, int64_t experts)
{
    const struct m3_config *c = &x->config;
    struct m3_work one = { 0 };
    m3_work_add_layer(&one, c, l, 1, 0);
    return one.of[M3_WORK_PRODUCTS] + (m3_config_moe(c, l) ? 3 * (double)experts * (double)c->H * (double)c->F : 0);
}

static double table_numbers(const struct planned *x)
{
    return (double)x->config.V * (double)x->config.H * (x->config.tied_embeddings ? 1 : 2);
}

/* Bytes that grad holds besides the activations: hidden states, and gradients of the tables and of the largest
 * layer, one expert at a time. */
static double gradient_bytes(const struct planned *x)
{
    double largest = 0;
    for (int64_t l = 0; l < x->config.layers; l++) largest = fmax(largest, layer_numbers(x, l, 1));
    const double hidden = (double)(x->config.layers + 3) * (double)x->c.T * (double)x->config.H;
    return (x->p->f64_passes ? 8 : 4) * (hidden + largest + table_numbers(x));
}

/* Numbers that it writes. */
static double gradient_numbers(const struct planned *x)
{
    double all = table_numbers(x);
    for (int64_t l = 0; l < x->config.layers; l++) all += layer_numbers(x, l, x->config.E);
    return (double)x->pass.tap_elements + (m3_tap_matches(x->p->taps, "param.*") ? all : 0);
}

static double gradient_operations(const struct planned *x)
{
    struct m3_work work = work_of(x, x->c.T, 0, x->c.T);
    double products = 0;
    if (x->c.pictures.P > 0) m3_work_add_vision(&work, &x->config, x->c.pictures.P);
    for (int kind = 0; kind < M3_WORK_KINDS; kind++)
        products += kind == M3_WORK_ROWS ? 0 : gradient_times[kind] * work.of[kind];
    return 2 * products;
}

/* ---- files */

static double hash_rate(void)
{
    enum { PIECE = 8 << 20 };
    char hex[65], *piece = calloc(PIECE, 1);
    struct m3_sha256 *hash = m3_sha256_new();
    const double begin = m3_seconds();
    if (piece && hash) m3_sha256_add(hash, piece, PIECE);
    if (hash) m3_sha256_end(hash, hex);
    free(piece);
    return PIECE / (m3_seconds() - begin);
}

static int measure_hashes(struct planned *x, struct m3_error *error)
{
    char *memory = m3_fingerprint_memory();
    const struct m3_fingerprint_how how = { .whole = M3_FINGERPRINT_WHOLE, .memory = memory };
    uint64_t left;
    const int status = m3_fingerprint_left(&left, x->model->checkpoint, &how, error);
    x->hash_bytes = (double)left;
    x->hash_rate = hash_rate() * (double)m3_min(m3_checkpoint_files(x->model->checkpoint), x->p->input->threads);
    free(memory);
    return status;
}

/* Into a file without a name, up to the disk. */
static int measure_writes(struct planned *x, struct m3_error *error)
{
    enum { PIECE = 16 << 20 };
    struct m3_nameless file;
    int status = m3_temporary_nameless(&file, NULL, error);
    char *piece = calloc(PIECE, 1);
    if (!status && !piece) status = m3_fail_memory(error, "--plan", PIECE);
    const double begin = m3_seconds();
    if (!status) status = m3_write_all(file.fd, piece, PIECE, file.path, error);
    if (!status && fsync(file.fd) != 0) status = m3_fail(error, M3_IO, "%s: cannot sync", file.path);
    x->write_rate = PIECE / (m3_seconds() - begin);
    free(piece);
    m3_nameless_close(&file);
    return status;
}

static int measure_all(struct planned *x, struct m3_error *error)
{
    const struct m3_cli_plan *p = x->p;
    const size_t width = p->f64_passes ? sizeof(double) : sizeof(float);
    const double numbers = p->gradients ? gradient_numbers(x) : (double)x->pass.tap_elements;
    x->write_bytes = (double)width * p->writes_taps * m3_max(p->copies, 1) * numbers;
    int status = add_passes(x, m3_engine_f32(), p->f32_passes + ROUNDED * p->rounded, 0, error);
    if (!status) status = add_passes(x, m3_engine_f64(), p->f64_passes + BOUNDS * p->with_bounds, p->recomputed, error);
    if (!status) status = add_directions(x, error);
    if (!status) status = add_tokens(x, error);
    if (!status && x->write_bytes > 0) status = measure_writes(x, error);
    if (status || !x->model) return status;
    m3_rates_disk(&x->disk, x->model->checkpoint);
    if (p->hashes) status = measure_hashes(x, error);
    const double share = x->hash_bytes > 0 ? 1 : share_read(x);
    x->read_bytes = (1 - x->disk.resident) * share * (double)x->pass.bytes;
    return status;
}

/* ---- what is printed */

/* The disk reads while the pass computes; hashes and outputs are before and after it. */
static double print_time(const struct planned *x)
{
    static const char *const units[M3_WORK_KINDS] = { [M3_WORK_ROWS] = "G numbers" };
    double computing = 0;
    for (int kind = 0; kind < M3_WORK_KINDS; kind++) {
        if (x->seconds[kind] == 0) continue;
        computing += x->seconds[kind];
        printf("  %-16s %9.3g s", m3_work_names[kind], x->seconds[kind]);
        if (x->rates[kind] > 0)
            printf(" at %.3g %s a second", x->rates[kind] / 1e9 * (units[kind] ? 1 : 2),
                   units[kind] ? units[kind] : "GFLOP");
        printf("\n");
    }
    const double reading = x->disk.rate > 0 ? x->read_bytes / x->disk.rate : 0;
    const double hashing = x->hash_bytes > 0 ? x->hash_bytes / x->hash_rate : 0;
    const double writing = x->write_rate > 0 ? x->write_bytes / x->write_rate : 0;
    if (reading > 0)
        printf("  %-16s %9.3g s for %.3g GB at %.3g GB a second, meanwhile\n", "disk", reading, x->read_bytes / 1e9,
               x->disk.rate / 1e9);
    if (hashing > 0)
        printf("  %-16s %9.3g s for %.3g GB, which later runs remember\n", "hashes", hashing, x->hash_bytes / 1e9);
    if (writing > 0) printf("  %-16s %9.3g s for %.3g GB\n", "writing", writing, x->write_bytes / 1e9);
    return hashing + writing + (reading > computing + hashing ? reading - hashing : computing);
}

/* The formulas of the estimates have no cache. */
static double operations(const struct planned *x)
{
    if (x->p->cached == 0) return (double)x->pass.flops;
    const struct m3_work work = work_of(x, x->c.T, x->p->cached, x->c.T);
    double products = 0;
    for (int kind = 0; kind < M3_WORK_KINDS; kind++) products += kind == M3_WORK_ROWS ? 0 : work.of[kind];
    return 2 * products;
}

/* Keys, values and index keys of all places at the end. */
static double cache_bytes(const struct planned *x)
{
    const struct m3_config *c = &x->config;
    const int real_bytes = x->p->f64_passes ? 8 : 4;
    double place = 0;
    if (x->p->new_tokens) return x->token.all_keys * (real_bytes / 4);
    for (int64_t l = 0; l < c->layers && x->p->has_cache; l++)
        place += 2 * (double)c->G * (double)c->D + (m3_config_sparse(c, l) ? (double)c->X : 0);
    return place * (double)(x->p->cached + x->c.T) * real_bytes;
}

/* The judged rows of all taps in floats; keys, values and index keys of all rows in double, with what they may be off
 * by. */
static double sample_bytes(const struct planned *x)
{
    const struct m3_config *c = &x->config;
    const double share = (double)x->judged / (double)x->c.T, place = (double)(2 * c->G * c->D + c->X);
    if (!x->judged) return 0;
    return sizeof(float) * share * (double)x->pass.tap_elements + 3 * sizeof(double) * place * (double)x->c.T;
}

static void print(const struct planned *x)
{
    const struct m3_cli_plan *p = x->p;
    const struct m3_pass_plan *pass = &x->pass;
    printf("files: %" PRId64 " of %" PRId64 " needed, %" PRId64 " of them absent; %.3f GB", pass->needed, pass->all,
           pass->absent, (double)pass->bytes / 1e9);
    if (x->model) printf(", %.0f%% in memory", 100 * x->disk.resident);
    printf("\nlayers: %" PRId64 " to %" PRId64 ", T %" PRId64, pass->first, pass->end - 1, pass->T);
    if (p->cached) printf(" after %" PRId64 " cached", p->cached);
    if (x->judged) printf(", %" PRId64 " rows of it judged", x->judged);
    printf("\n");
    printf("passes: %d in float, %d in double, %d of these with error bounds; operators recomputed from the dump: %s\n",
           p->f32_passes + p->rounded, p->f64_passes, p->with_bounds, p->recomputed ? "yes" : "no");
    printf("operations: %.3g in one pass", operations(x));
    if (p->gradients) printf(", %.3g with gradients", gradient_operations(x));
    printf("\n");
    if (p->new_tokens)
        printf("tokens: %" PRId64 ", after the first %.3g operations and about %.2g s each, without drafts\n",
               p->new_tokens, (double)x->token.flops, x->token_seconds);
    const double part = x->judged ? (double)x->judged / (double)x->c.T : 1;
    const double bounds = p->with_bounds || p->recomputed ? 4 * (double)pass->scores : 0;
    printf("memory: about %.2f GB of its own, besides the mapped files\n",
           (part * ((p->recomputed ? 9 : 6) * (double)pass->widest + bounds) + sample_bytes(x) + cache_bytes(x) +
            direction_bytes(x) + (p->gradients ? gradient_bytes(x) : 0)) /
                   1e9 +
               0.02);
    printf("disk: about %.2f GB for %s%s\n", x->write_bytes / 1e9, p->gradients ? "gradients" : "taps",
           p->copies > 1 ? ", with the second copy in the folder of --resume" : "");
    printf("rates measured now, with %" PRId64 " threads:\n", p->input->threads);
    const double time = print_time(x);
    printf("time: about %.2g s\n", time);
}

static int open_model(struct planned *x, struct m3_error *error)
{
    struct m3_error notes = { 0 };      /* the config's are known */
    if (x->pass.absent) return M3_OK;
    const int status = x->p->end > 0
                           ? m3_model_open_layers(&x->model, x->p->model, x->p->first, x->p->end, &notes, error)
                           : m3_model_open(&x->model, x->p->model, &notes, error);
    m3_error_free(&notes);
    return status;
}

/* Rows that are judged by their own inputs need no pass. */
static int choose_rows(struct planned *x, struct m3_cli_plan *p, struct m3_error *error)
{
    const int status = m3_sample_count(&x->judged, &p->rows, p->rows_of_long, x->c.T, error);
    if (x->judged) p->f64_passes = p->rounded = p->with_bounds = p->writes_taps = 0;
    return status;
}

int m3_cli_plan(const struct m3_cli_plan *given, struct m3_error *notes, struct m3_error *error)
{
    struct m3_cli_plan plan = *given;
    const struct m3_cli_plan *p = &plan;
    struct planned x = { .p = p };
    char *path = NULL;
    if (asprintf(&path, "%s/config.json", p->model) < 0) return m3_fail_memory(error, p->model, 0);
    int status = m3_config_read(&x.config, path, notes, error);
    if (!status) status = m3_cli_input_read(&x.c, p->input, &x.config, p->cached, error);
    if (!status && p->check) status = p->check(p->self, &x.c, &x.config, error);
    if (!status) status = choose_rows(&x, &plan, error);
    const char *taps = p->writes_taps || p->recomputed ? p->taps : "";
    if (!status) status = m3_plan_pass(&x.pass, stdout, p->model, &x.config, p->first, p->end, x.c.T, taps, error);
    if (!status && p->new_tokens) status = m3_plan_token(&x.token, &x.config, x.c.T + p->new_tokens - 1, error);
    if (!status) status = open_model(&x, error);
    if (!status) status = measure_all(&x, error);
    if (!status) print(&x);
    m3_model_close(x.model);
    m3_case_free(&x.c);
    m3_config_free(&x.config);
    free(path);
    return status;
}
