/* The list of known mistakes, which are defined in mistakes/, and a run of the model with one of them. */
#include "oracle/variants/private/mistakes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "model/files/dump.h"
#include "model/semantics.h"
#include "oracle/error/recompute.h"

/* ---- the list */

/* Of two with the same results in a tap the first is named: what is wrong in modules alone before what is everywhere. */
static const struct m3_mistake_section *const sections[] = {
    &m3_mistakes_select,  &m3_mistakes_index, &m3_mistakes_attend, &m3_mistakes_cache,
    &m3_mistakes_mtp,     &m3_mistakes_rope,  &m3_mistakes_norm,   &m3_mistakes_mlp,
    &m3_mistakes_weights, &m3_mistakes_load,  &m3_mistakes_vision,
};

enum { SECTIONS = sizeof sections / sizeof sections[0] };

int m3_mistake_count(void)
{
    int count = 0;
    for (int s = 0; s < SECTIONS; s++) count += sections[s]->count;
    return count;
}

const struct m3_mistake *m3_mistake_at(int i)
{
    for (int s = 0; i >= 0 && s < SECTIONS; i -= sections[s++]->count)
        if (i < sections[s]->count) return &sections[s]->all[i];
    return NULL;
}

const struct m3_mistake *m3_mistake_named(const char *id)
{
    for (int i = 0; i < m3_mistake_count(); i++)
        if (strcmp(m3_mistake_at(i)->id, id) == 0) return m3_mistake_at(i);
    return NULL;
}

/* ---- requirements on the input */

/* The number of layers of a kind, modules included. */
static int64_t layers_that(const struct m3_model *model, int (*is)(const struct m3_config *, int64_t))
{
    int64_t count = 0;
    for (int64_t l = 0; l < model->config.layers + model->mtp_modules; l++) count += is(&model->config, l) != 0;
    return count;
}

static int has_long_picture(const struct m3_config *c, const struct m3_pictures *p)
{
    const int64_t most = c->vision.segment_max_frames;
    for (int64_t i = 0; i < p->images + p->videos; i++)
        if (most > 0 && p->grid[i][0] > most) return 1;
    return p->images + p->videos > 1;
}

static int has_blocks(const struct m3_config *c)
{
    return c->matrix_scaling == M3_SCALE_MX32 || c->matrix_scaling == M3_SCALE_128X128;
}

static int64_t farthest(const struct m3_case *the_case)
{
    int64_t far = 0;
    for (int64_t t = 0; t < the_case->T; t++)
        if (the_case->positions[t] > far) far = the_case->positions[t];
    return far;
}

const char *m3_mistake_missing(const struct m3_mistake *mistake, const struct m3_model *model,
                               const struct m3_semantics *semantics, const struct m3_case *the_case)
{
    const struct m3_config *c = &model->config;
    const struct m3_pictures *p = &the_case->pictures;
    const int64_t sparse = layers_that(model, m3_config_sparse), moe = layers_that(model, m3_config_moe);
    const int64_t all = c->layers + model->mtp_modules;
    const int64_t modules = model->mtp_modules < the_case->T - 1 ? model->mtp_modules : the_case->T - 1;
    const struct {
        int need, there;
        const char *what;
    } rows[] = {
        { M3_NEEDS_SPARSE | M3_NEEDS_CHOICE | M3_NEEDS_TWO_SPARSE, sparse > 0, "a sparse layer" },
        { M3_NEEDS_CHOICE, the_case->T > c->block * c->N, "more blocks than a list holds" },
        { M3_NEEDS_TWO_SPARSE, sparse > 1, "a second sparse layer" },
        { M3_NEEDS_PART_BLOCK, c->block > 0 && the_case->T % c->block != 0, "a last block that is not full" },
        { M3_NEEDS_LOCAL_BLOCKS, semantics->local_blocks > 1, "a second forced local block" },
        { M3_NEEDS_GROUPS, c->G > 1, "a second key head" },
        { M3_NEEDS_HEAD_NORM, !c->qk_norm_whole, "a norm of each head of q and k" },
        { M3_NEEDS_GEMMA, c->gemma_norm, "norms of Gemma's form" },
        { M3_NEEDS_DENSE_MLP, moe < all, "a layer with a dense MLP" },
        { M3_NEEDS_EXPERTS, moe > 0, "a layer with experts" },
        { M3_NEEDS_SHARED, moe > 0 && c->shared_intermediate > 0, "a shared expert" },
        { M3_NEEDS_OAI, c->oai, "the activation of SwiGLU-OAI" },
        { M3_NEEDS_MX32, c->matrix_scaling == M3_SCALE_MX32, "matrices with a scale per 32 columns" },
        { M3_NEEDS_PICTURES, p->P > 0, "a picture" },
        { M3_NEEDS_STILL, p->images > 0, "a still picture" },
        { M3_NEEDS_SEGMENTS, p->P > 0 && has_long_picture(c, p), "a second picture, or a long video" },
        { M3_NEEDS_MODULE, modules > 0, "a module of multi-token prediction" },
        { M3_NEEDS_TWO_MODULES, modules > 1, "a second module of multi-token prediction" },
        { M3_NEEDS_FAR, farthest(the_case) >= 10000, "a position of 10,000 or more" },
        { M3_NEEDS_SCALES, has_blocks(c), "matrices with a scale per block" },
        { M3_NEEDS_WHOLE_NORM, c->qk_norm_whole, "a norm over all heads of q and k" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if ((mistake->needs & rows[i].need) && !rows[i].there) return rows[i].what;
    return NULL;
}

/* ---- what a mistake does besides its operators */

int m3_mistake_keeps(enum m3_tap *tap, int64_t *layer, const struct m3_mistake *mistake, const struct m3_config *c)
{
    if (!mistake || !mistake->change || mistake->change->keeps == 0) return 0;
    *tap = mistake->change->keeps;
    *layer = *tap == M3_TAP_OUT ? c->layers - 1 : 0;
    while (*tap == M3_TAP_INDEX_BLOCKS && *layer < c->layers && !m3_config_sparse(c, *layer)) (*layer)++;
    return 1;
}

void m3_mistake_borrow(struct m3_layer *layer, const struct m3_mistake *mistake, const struct m3_model *model,
                       int64_t l)
{
    if (!mistake || !mistake->change || !mistake->change->borrows || l + 1 >= model->config.layers) return;
    mistake->change->borrows(layer, &model->layers[l + 1]);
}

double m3_mistake_routed_factor(const struct m3_mistake *mistake, const struct m3_config *c)
{
    const int is_one = !mistake || !mistake->change || !mistake->change->has_factors;
    return is_one ? 1 : pow(c->routed_scaling, mistake->change->factors - 1);
}

/* ---- memory of a run */

/* Shared pages: the engine releases pages of weights as if they belonged to a file, and private pages would then be
 * zeros. */
struct m3_owned {
    struct m3_owned *next;
    size_t bytes;
    void *data;
};

void *m3_own(struct m3_mistaken_run *run, int64_t count, size_t size, struct m3_error *error)
{
    size_t bytes;
    struct m3_owned *owned = malloc(sizeof *owned);
    if (!owned || __builtin_mul_overflow((size_t)count, size, &bytes) || bytes == 0) {
        free(owned);
        m3_fail_memory(error, "a mistake", size);
        return NULL;
    }
    void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) {
        free(owned);
        m3_fail_memory(error, "a mistake", bytes);
        return NULL;
    }
    *owned = (struct m3_owned){ run->owned, bytes, data };
    run->owned = owned;
    return data;
}

int m3_own_layers(struct m3_mistaken_run *run, struct m3_error *error)
{
    const int64_t layers = run->model.config.layers + run->model.mtp_modules;
    struct m3_layer *mine = m3_own(run, layers, sizeof *mine, error);
    if (!mine) return M3_INTERNAL;
    memcpy(mine, run->model.layers, (size_t)layers * sizeof *mine);
    run->model.layers = mine;
    return M3_OK;
}

int m3_own_experts(struct m3_mistaken_run *run, int64_t l, struct m3_error *error)
{
    struct m3_layer *layer = &run->model.layers[l];
    if (!layer->experts) return M3_OK;
    struct m3_expert *mine = m3_own(run, run->model.config.E, sizeof *mine, error);
    if (!mine) return M3_INTERNAL;
    memcpy(mine, layer->experts, (size_t)run->model.config.E * sizeof *mine);
    layer->experts = mine;
    return M3_OK;
}

int m3_each_layer(struct m3_mistaken_run *run, struct m3_error *error,
                  int (*change)(struct m3_mistaken_run *run, int64_t l, struct m3_error *error))
{
    int status = m3_own_layers(run, error);
    for (int64_t l = 0; l < run->model.config.layers + run->model.mtp_modules && !status; l++)
        status = change(run, l, error);
    return status;
}

/* In ascending order: the next layer still has its own. */
static int borrow_in(struct m3_mistaken_run *run, int64_t l, struct m3_error *error)
{
    (void)error;
    m3_mistake_borrow(&run->model.layers[l], run->mistake, &run->model, l);
    return M3_OK;
}

double *m3_own_weight(struct m3_mistaken_run *run, struct m3_weight *w, struct m3_error *error)
{
    double *mine = m3_own(run, w->rows * w->cols, sizeof *mine, error);
    if (!mine) return NULL;
    for (int64_t r = 0; r < w->rows; r++) m3_expand_f64(mine + r * w->cols, w, r, 0, w->cols);
    w->data = mine;
    w->scales = w->zeros = NULL;
    w->dtype = M3_F64;
    w->scaling = M3_UNSCALED;
    return mine;
}

double m3_round_bits(double x, int bits)
{
    int exponent;
    if (x == 0 || !isfinite(x)) return x;
    frexp(x, &exponent);
    return ldexp(nearbyint(ldexp(x, bits - exponent)), exponent - bits);
}

void m3_round_all(double *x, int64_t n, int bits)
{
    for (int64_t i = 0; i < n; i++) x[i] = m3_round_bits(x[i], bits);
}

int m3_round_weight(struct m3_mistaken_run *run, struct m3_weight *w, int bits, struct m3_error *error)
{
    double *numbers = m3_own_weight(run, w, error);
    if (!numbers) return M3_INTERNAL;
    m3_round_all(numbers, w->rows * w->cols, bits);
    return M3_OK;
}

/* ---- a run */

/* The reference's table, with the entries of the change. */
static void replace_entries(struct m3_ops *ops, const struct m3_ops *change)
{
    void (*entry)(void);
    *ops = *m3_right();
    for (size_t at = offsetof(struct m3_ops, embed); at < sizeof *ops; at += sizeof entry) {
        memcpy(&entry, (const char *)change + at, sizeof entry);
        if (entry) memcpy((char *)ops + at, &entry, sizeof entry);
    }
}

static struct m3_setting setting_of(const struct m3_mistaken_run *run)
{
    return (struct m3_setting){ .model = &run->model, .semantics = &run->semantics, .the_case = run->the_case };
}

static double rounded(double x, enum m3_dtype dtype)
{
    if (dtype == M3_BF16) return m3_round_bits(x, 8);
    return dtype == M3_F16 ? m3_round_bits(x, 11) : (double)(float)x;
}

/* Rounds to float, or to what the profile stores here, as a program would continue. */
static void store(const struct m3_mistaken_run *run, enum m3_tap tap, int64_t layer, double *data, int64_t rows)
{
    const struct m3_setting setting = setting_of(run);
    const int64_t count = data ? rows * m3_tap_width(&setting, tap, layer) : 0;
    enum m3_dtype dtype = M3_F32;
    char name[96];
    if (run->profile && m3_tap_name(name, sizeof name, tap, layer) == 0 && !m3_profile_exact(run->profile, name))
        dtype = m3_profile_dtype(run->profile, name);
    for (int64_t i = 0; i < count; i++) data[i] = rounded(data[i], dtype);
}

/* Records where the pass is; then calls the change's own function, if any. Experts' outputs are computed only if
 * wanted. */
static int follow(void *self, enum m3_tap tap, int64_t layer, void *data, int64_t row, int64_t rows,
                  struct m3_error *error)
{
    struct m3_mistaken_run *run = self;
    run->last = tap;
    run->layer = layer;
    int status = run->change->force && data ? run->change->force(run, tap, layer, data, row, rows, error) : M3_OK;
    if (!status && m3_tap_table[tap].kind == M3_KIND_REALS) store(run, tap, layer, data, rows);
    return status;
}

int m3_mistake_install(struct m3_mistaken_run **out, const struct m3_mistake *mistake, const struct m3_model *model,
                       const struct m3_semantics *semantics, const struct m3_case *the_case, struct m3_error *error)
{
    static const struct m3_change none;
    struct m3_mistaken_run *run = *out = calloc(1, sizeof *run);
    if (!run) return m3_fail_memory(error, "a run with a mistake", sizeof *run);
    *run = (struct m3_mistaken_run){
        .mistake = mistake,
        .change = mistake && mistake->change ? mistake->change : &none,
        .model = *model,
        .claimed = semantics,
        .semantics = *semantics,
        .the_case = the_case,
        .last = M3_TAPS,
        .layer = -1,
    };
    replace_entries(&run->ops, &run->change->ops);
    run->replacement = (struct m3_replacement){ &run->ops, run };
    run->force = (struct m3_force){ .self = run, .replace = follow };

    int status = mistake && mistake->reading ? m3_semantics_set(&run->semantics, mistake->reading, error) : M3_OK;
    if (!status && run->change->borrows) status = m3_each_layer(run, error, borrow_in);
    if (!status && run->change->prepare) status = run->change->prepare(run, error);
    run->request = m3_case_request(the_case);
    run->request.end_layer = run->model.config.layers;
    run->request.semantics = &run->semantics;
    run->request.linear = M3_LINEAR_BLAS;
    run->request.threads = 1;
    run->request.replacement = &run->replacement;
    run->request.force = &run->force;
    if (status) {
        m3_mistake_remove(run);
        *out = NULL;
    }
    return status;
}

void m3_mistake_is_followed(struct m3_mistaken_run *run, int64_t later) { run->later = later; }

const struct m3_model *m3_mistaken_model(const struct m3_mistaken_run *run) { return &run->model; }
struct m3_request *m3_mistaken_request(struct m3_mistaken_run *run) { return &run->request; }

void m3_mistake_remove(struct m3_mistaken_run *run)
{
    if (!run) return;
    for (struct m3_owned *owned = run->owned, *next; owned; owned = next) {
        next = owned->next;
        munmap(owned->data, owned->bytes);
        free(owned);
    }
    free(run);
}

/* ---- its dump, in float */

/* Passes the double engine's taps on to the sink of a float dump. */
struct narrow {
    struct m3_sink to;
    struct m3_setting setting;
};

static int narrow_wants(void *self, enum m3_tap tap, int64_t layer)
{
    const struct narrow *n = self;
    return n->to.wants(n->to.self, tap, layer);
}

static int narrow_write(void *self, enum m3_tap tap, int64_t layer, const void *data, int64_t row, int64_t rows,
                        struct m3_error *error)
{
    const struct narrow *n = self;
    if (m3_tap_table[tap].kind != M3_KIND_REALS) return n->to.write(n->to.self, tap, layer, data, row, rows, error);
    const int64_t count = rows * m3_tap_width(&n->setting, tap, layer);
    const double *wide = data;
    float *narrow = malloc((size_t)count * sizeof *narrow);
    if (!narrow) return m3_fail_memory(error, "a tap in float", (size_t)count * sizeof *narrow);
    for (int64_t i = 0; i < count; i++) narrow[i] = (float)wide[i];
    int status = n->to.write(n->to.self, tap, layer, narrow, row, rows, error);
    free(narrow);
    return status;
}

int m3_mistake_dump(struct m3_mistaken_run *run, const char *path, const char *taps, int threads,
                    struct m3_error *error)
{
    struct narrow narrow = { .setting = setting_of(run) };
    const struct m3_sink sink = { .self = &narrow, .wants = narrow_wants, .write = narrow_write };
    struct m3_request claimed = run->request;
    struct m3_dump *dump;
    claimed.semantics = run->claimed;
    int status = m3_dump_open(&dump, &narrow.to, path, taps, &run->model, m3_engine_f32(), run->the_case, &claimed,
                              "a deliberate mistake", error);
    if (status) return status;
    run->request.threads = threads;
    run->request.sink = &sink;
    status = m3_dump_begin(dump, error);
    if (!status) status = m3_engine_f64()->forward(&run->model, &run->request, error);
    run->request.sink = NULL;
    if (!status) return m3_dump_commit(dump, error);
    m3_dump_abandon(dump);
    return status;
}
