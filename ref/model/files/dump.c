#include "model/files/dump.h"

#include <stdlib.h>
#include <string.h>

#include "base/version.h"
#include "model/semantics.h"

struct m3_dump {
    struct m3_writer *writer;
    const char *patterns;
    const struct m3_model *model;
    const struct m3_config *config;
    const struct m3_pictures *pictures;     /* NULL: none */
    int64_t T, p0, shift, modules, taps;    /* p0: cached places; modules: MTP modules whose taps it has */
    struct bias {
        const struct m3_weight *of;
        int64_t index;                      /* in the file */
    } *biases;                              /* [bias_count], stored with moe.experts */
    int64_t bias_count;
    const void *hidden;                     /* [T,H] what the first layer is given, if it is a tap of the dump */
    int64_t hidden_at;                      /* in the file */
    int additive;                           /* mtp_join: two taps fewer */
    enum m3_dtype dtype;
};

static int64_t size_of(const struct m3_dump *d, char letter, int64_t layer)
{
    const struct m3_vision_config *v = &d->config->vision;
    switch (letter) {
    case 'T': return m3_layer_rows(layer, d->T);
    case 'B': return (d->p0 + d->shift + m3_layer_rows(layer, d->T) + d->config->block - 1) / d->config->block;
    case 'P': return d->pictures->P;
    case 'M': return m3_merged(d->pictures->P, v);
    case 'O': return d->pictures->images + d->pictures->videos;
    default: return m3_config_size(d->config, letter);
    }
}

int m3_dump_wants(const struct m3_dump *d, enum m3_tap tap, int64_t layer)
{
    char name[96];
    return m3_tap_name(name, sizeof name, tap, layer) == 0 && m3_tap_matches(d->patterns, name);
}

static int wants(void *self, enum m3_tap tap, int64_t layer) { return m3_dump_wants(self, tap, layer); }

static enum m3_dtype dtype_of(const struct m3_dump *d, enum m3_tap tap)
{
    return m3_tap_table[tap].kind == M3_KIND_REALS ? d->dtype : M3_I32;
}

static int write_rows(void *self, enum m3_tap tap, int64_t layer, const void *data, int64_t row, int64_t rows,
                      struct m3_error *error)
{
    struct m3_dump *d = self;
    int64_t width = 1;
    (void)row;
    for (const char *s = m3_tap_table[tap].shape + 1; *s; s++) width *= size_of(d, *s, layer);
    return m3_writer_write(d->writer, data, (uint64_t)(rows * width) * m3_dtype_bytes(dtype_of(d, tap)), error);
}

int m3_dump_shape(int64_t shape[M3_MAX_RANK], const struct m3_dump *d, enum m3_tap tap, int64_t layer)
{
    int rank = 0;
    for (const char *s = m3_tap_table[tap].shape; *s; s++) shape[rank++] = size_of(d, *s, layer);
    return rank;
}

/* Experts are selected by scores plus a bias: a selection cannot be judged without the bias. */
static int declare_bias(struct m3_dump *d, const char *tap, int64_t layer, struct m3_error *error)
{
    const int64_t l = m3_layer_index(d->config, layer);
    const struct m3_weight *of = &d->model->layers[l].router_bias;
    struct bias *more = realloc(d->biases, (size_t)(d->bias_count + 1) * sizeof *more);
    char name[128];
    if (!more) return m3_fail_memory(error, tap, sizeof *more);
    d->biases = more;
    if (!of->data) return M3_OK;
    more[d->bias_count++] = (struct bias){ of, m3_writer_declared(d->writer) };
    snprintf(name, sizeof name, "%s.bias", tap);
    return m3_writer_tensor(d->writer, name, M3_F32, 1, &of->cols, error);
}

static int write_bias(struct m3_dump *d, const struct bias *bias, struct m3_error *error)
{
    const int64_t n = bias->of->cols;
    float *values = malloc((size_t)n * sizeof *values + 1);
    if (!values) return m3_fail_memory(error, "moe.experts.bias", (size_t)n * sizeof *values);
    m3_expand_f32(values, bias->of, 0, 0, n);
    int status = m3_writer_append(d->writer, bias->index, values, (uint64_t)n * sizeof *values, error);
    free(values);
    return status;
}

static int declare(struct m3_dump *d, enum m3_tap tap, int64_t layer, struct m3_error *error)
{
    int64_t shape[M3_MAX_RANK];
    char name[96];
    if (!m3_dump_wants(d, tap, layer)) return M3_OK;
    const int rank = m3_dump_shape(shape, d, tap, layer);
    m3_tap_name(name, sizeof name, tap, layer);
    d->taps++;
    int status = m3_writer_tensor(d->writer, name, dtype_of(d, tap), rank, shape, error);
    return !status && tap == M3_TAP_EXPERTS ? declare_bias(d, name, layer, error) : status;
}

/* Declares the taps with this `where`. */
static int declare_part(struct m3_dump *d, enum m3_tap_where where, int64_t layer, struct m3_error *error)
{
    int status = M3_OK;
    for (int tap = 0; !status && tap < M3_TAPS; tap++)
        if (m3_tap_table[tap].where == where) status = declare(d, tap, layer, error);
    return status;
}

static int declare_layer(struct m3_dump *d, int64_t layer, struct m3_error *error)
{
    int status = M3_OK;
    for (int tap = 0; !status && tap < M3_TAPS; tap++) {
        const enum m3_tap_where where = m3_tap_table[tap].where;
        const int in_layers = where >= M3_WHERE_EVERY_LAYER && where < M3_WHERE_AFTER_LAYERS;
        if (in_layers && m3_layer_has_tap(d->config, tap, layer)) status = declare(d, tap, layer, error);
    }
    return status;
}

/* Declares, in the order of the table, the taps before the module's layer, the layer's, and those after it. */
static int declare_module(struct m3_dump *d, int64_t m, struct m3_error *error)
{
    int64_t layer = M3_MTP_LAYER + m;
    int status = M3_OK;
    int first = d->additive ? M3_TAP_MTP_EH_PROJ : M3_TAP_MTP_EMBED_NORM;
    for (int tap = first; !status && tap <= M3_TAP_MTP_EH_PROJ; tap++) status = declare(d, tap, layer, error);
    if (!status) status = declare_layer(d, layer, error);
    if (!status) status = declare(d, M3_TAP_MTP_FINAL_NORM, layer, error);
    return status ? status : declare(d, M3_TAP_MTP_LOGITS, layer, error);
}

/* After a cached prefix the dump says which rows of the whole sequence it holds, for comparison with a dump of all
 * rows. */
static int write_row_numbers(struct m3_dump *d, struct m3_error *error)
{
    int status = M3_OK;
    for (int64_t t = 0; !status && t < d->T; t++) {
        int32_t row = (int32_t)(d->p0 + t);
        status = m3_writer_write(d->writer, &row, sizeof row, error);
    }
    return status;
}

/* A part of the layers is judged from what its first layer was given. */
static int declare_hidden(struct m3_dump *d, const struct m3_request *r, struct m3_error *error)
{
    if (!r->hidden || r->first_layer == 0 || !m3_dump_wants(d, M3_TAP_OUT, r->first_layer - 1)) return M3_OK;
    d->hidden = r->hidden;
    d->hidden_at = m3_writer_declared(d->writer);
    return declare(d, M3_TAP_OUT, r->first_layer - 1, error);
}

/* Declares every tap of the run, in execution order. */
static int declare_all(struct m3_dump *d, const struct m3_request *r, struct m3_error *error)
{
    int status = M3_OK, from_start = r->first_layer == 0, sees = from_start && d->pictures;
    if (sees) status = declare_part(d, M3_WHERE_BEFORE_VISION_LAYERS, -1, error);
    for (int64_t v = 0; !status && sees && v < d->config->vision.layers; v++)
        status = declare_part(d, M3_WHERE_EVERY_VISION_LAYER, v, error);
    if (!status && sees) status = declare_part(d, M3_WHERE_AFTER_VISION_LAYERS, -1, error);

    if (!status && from_start) status = declare_part(d, M3_WHERE_BEFORE_LAYERS, -1, error);
    if (!status) status = declare_hidden(d, r, error);
    for (int64_t l = r->first_layer; !status && l < r->end_layer; l++) status = declare_layer(d, l, error);
    if (status || r->end_layer < d->config->layers) return status;
    status = declare_part(d, M3_WHERE_AFTER_LAYERS, -1, error);
    for (int64_t m = 0; !status && m < d->modules; m++) status = declare_module(d, m, error);
    return status;
}

int m3_dump_describe(struct m3_writer *writer, const struct m3_model *model, const struct m3_engine *engine,
                     const struct m3_case *c, const struct m3_request *r, const char *command, struct m3_error *error)
{
    char model_sha256[65], config_sha256[65];
    const char *weights_sha256;
    int status = m3_checkpoint_sha256(model->checkpoint, model_sha256, error);
    if (!status) status = m3_checkpoint_config_sha256(model->checkpoint, config_sha256, error);
    if (!status) status = m3_checkpoint_weights_sha256(model->checkpoint, &weights_sha256, error);
    if (status) return status;
    char *semantics = m3_semantics_json(r->semantics);
    if (!semantics) return m3_fail_memory(error, "the semantics", 0);

    const char *const strings[][2] = {
        { "format", "m3ref-dump" },         { "format_version", "1" },       { "producer", M3_PRODUCER },
        { "precision", engine->precision }, { "command", command },          { "semantics", semantics },
        { "model_sha256", model_sha256 },   { "case_sha256", c->sha256 },    { "weights_sha256", weights_sha256 },
        { "config_sha256", config_sha256 }, { "arithmetic", M3_ARITHMETIC },
    };
    for (size_t i = 0; !status && i < sizeof strings / sizeof strings[0]; i++)
        if (strings[i][1][0]) status = m3_writer_metadata(writer, strings[i][0], strings[i][1], error);
    free(semantics);
    return status;
}

int m3_dump_open(struct m3_dump **dump, struct m3_sink *sink, const char *path, const char *patterns,
                 const struct m3_model *model, const struct m3_engine *engine, const struct m3_case *c,
                 const struct m3_request *request, const char *command, struct m3_error *error)
{
    *dump = NULL;
    struct m3_dump *d = calloc(1, sizeof *d);
    if (!d) return m3_fail_memory(error, "a dump", sizeof *d);
    d->patterns = patterns;
    d->model = model;
    d->config = &model->config;
    d->pictures = request->pictures;
    d->T = c->T;
    d->p0 = request->cache ? m3_cache_length(request->cache, M3_CACHE_MAIN) : 0;
    d->shift = request->shift;
    d->modules = m3_request_modules(model, request);
    d->additive = request->semantics->mtp_join == M3_MTP_ADDITIVE;
    d->dtype = engine->real_bytes == sizeof(double) ? M3_F64 : M3_F32;

    int status = m3_writer_new(&d->writer, path, error);
    if (!status && d->p0 > 0) status = m3_writer_tensor(d->writer, "rows", M3_I32, 1, &d->T, error);
    if (!status) status = declare_all(d, request, error);
    if (!status && d->taps == 0)
        status = m3_fail(error, M3_USAGE, "--taps: got %s, expected a pattern that matches a tap of this run",
                         patterns ? patterns : "*");
    if (!status) status = m3_dump_describe(d->writer, model, engine, c, request, command, error);
    if (status) {
        m3_dump_abandon(d);
        return status;
    }
    *sink = (struct m3_sink){ .self = d, .wants = wants, .write = write_rows };
    *dump = d;
    return M3_OK;
}

int m3_dump_begin(struct m3_dump *d, struct m3_error *error)
{
    int status = m3_writer_begin(d->writer, error);
    if (!status && d->p0 > 0) status = write_row_numbers(d, error);
    for (int64_t i = 0; !status && i < d->bias_count; i++) status = write_bias(d, &d->biases[i], error);
    if (!status && d->hidden)
        status = m3_writer_append(d->writer, d->hidden_at, d->hidden,
                                  (uint64_t)(d->T * d->config->H) * m3_dtype_bytes(d->dtype), error);
    return status;
}

struct m3_writer *m3_dump_writer(const struct m3_dump *dump) { return dump->writer; }

int64_t m3_dump_taps(const struct m3_dump *dump) { return dump->taps; }

int m3_dump_commit(struct m3_dump *dump, struct m3_error *error)
{
    int status = m3_writer_commit(dump->writer, error);
    free(dump->biases);
    free(dump);
    return status;
}

void m3_dump_abandon(struct m3_dump *dump)
{
    if (!dump) return;
    m3_writer_abandon(dump->writer);
    free(dump->biases);
    free(dump);
}
