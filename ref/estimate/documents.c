#include "estimate/documents.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "estimate/foreign.h"
#include "estimate/private/parts.h"

static const struct {
    const char *name;
    double scale;
} units[] = {
    { "", 1 },         { "x", 1 },        { "%", 0.01 },  { "K", 1e3 },   { "M", 1e6 },      { "B", 1e9 },
    { "G", 1e9 },      { "T", 1e12 },     { "P", 1e15 },  { "E", 1e18 },  { "bytes", 1 },    { "KB", 1e3 },
    { "MB", 1e6 },     { "GB", 1e9 },     { "TB", 1e12 }, { "PB", 1e15 }, { "KiB", 0x1p10 }, { "MiB", 0x1p20 },
    { "GiB", 0x1p30 }, { "TiB", 0x1p40 }, { "s", 1 },     { "ms", 1e-3 }, { "us", 1e-6 },
};

static const char digits[] = "0123456789";

/* Digits with or without commas; with them, groups of three after the first. Commas are dropped from the copy. */
static const char *copy_whole(char *to, size_t room, const char *text)
{
    size_t group = strspn(text, digits), n = 0;
    int commas = 0;
    if (group == 0) return NULL;
    for (;;) {
        if (n + group >= room || (commas && group != 3)) return NULL;
        memcpy(to + n, text, group);
        n += group;
        text += group;
        if (*text != ',') break;
        if (!commas && group > 3) return NULL;
        commas = 1;
        group = strspn(++text, digits);
    }
    to[n] = '\0';
    return text;
}

static int find_unit(struct m3_printed_number *number, const char *text)
{
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (strcmp(text, units[i].name) == 0) {
            number->scale = units[i].scale;
            number->unit = text;
            return 1;
        }
    return 0;
}

int m3_printed_parse(struct m3_printed_number *number, const char *text, struct m3_error *error)
{
    enum { MOST_DIGITS = 40 };
    char plain[4 * MOST_DIGITS] = "";
    const char *at = copy_whole(plain, MOST_DIGITS, text + (*text == '~' || *text == '='));
    int good = at != NULL;
    *number = (struct m3_printed_number){ 0 };
    if (good && *at == '.') {
        size_t count = strspn(at + 1, digits);
        good = count > 0 && count < MOST_DIGITS;
        if (good) strncat(plain, at, count + 1);
        at += good ? count + 1 : 0;
        number->decimals = good ? (int)count : 0;
    }
    if (good && *at == 'e') {
        size_t count = strspn(at + 1, digits);
        good = count > 0 && count < 3;
        if (good) strncat(plain, at, count + 1);
        at += good ? count + 1 : 0;
    }
    good = good && find_unit(number, at + (*at == ' '));
    if (!good)
        return m3_fail(error, M3_BAD_INPUT, "printed figure: got %s, expected a decimal number and a unit or none",
                       text);
    const char *raised = strchr(plain, 'e');
    number->value = strtod(plain, NULL) * number->scale;
    number->half = 0.5 * pow(10, (raised ? atoi(raised + 1) : 0) - number->decimals) * number->scale;
    return M3_OK;
}

static const char letters[] = "HQGDXVNKEFIJ";

/* Models given by a config. With another size a model would have figures of its own. */
/* clang-format off */
static const struct {
    const char *name;
    int mxfp8;
    int64_t parameters, positions, layers;
    int64_t full, dense;                /* layers before the first sparse one, before the first with experts */
    int64_t block, R;
    double theta;
    int64_t sizes[sizeof letters - 1];
} configs[] = {
    { "m3", 0, 427040140160, 1048576, 60, 3, 3, 128, 64, 5e6,
      { 6144, 64, 4, 128, 128, 200064, 16, 4, 128, 3072, 12288, 3072 } },
    { "m3-mxfp8", 1, 427040140160, 1048576, 60, 3, 3, 128, 64, 5e6,
      { 6144, 64, 4, 128, 128, 200064, 16, 4, 128, 3072, 12288, 3072 } },
    { "m2.7", 0, 228689764864, 204800, 62, 62, 0, 128, 64, 5e6,
      { 3072, 48, 8, 128, 128, 200064, 16, 8, 256, 1536, 0, 0 } },
    { "m2", 0, 228689764864, 196608, 62, 62, 0, 128, 64, 5e6,
      { 3072, 48, 8, 128, 128, 200064, 16, 8, 256, 1536, 0, 0 } },
    { "llama-3-70b", 0, 70553706496, 8192, 80, 80, 80, 0, 0, 0,
      { 8192, 64, 8, 128, 0, 128256, 0, 0, 0, 0, 28672, 0 } },
};
/* clang-format on */

/* Models given by few numbers. */
static const struct {
    const char *name, *published;       /* of settings; in the file */
    int64_t parameters, active, positions, layers, Q, G, D, cached_numbers;
} fews[] = {
    { "llama-3-70b-rounded", "Llama 3 70B, rounded", 70000000000, 70000000000, 8192, 80, 64, 8, 128, 2048 },
    { "nemotron-3-ultra", "Nemotron 3 Ultra", 550000000000, 55000000000, 262144, 12, 64, 2, 128, 512 },
    { "kimi-k2.5", "Kimi K2.5", 1000000000000, 32000000000, 262144, 61, 0, 0, 0, 576 },
    { "glm-5.1", "GLM-5.1", 744000000000, 40000000000, 0, 0, 0, 0, 0, 0 },
    { "qwen3.5-moe", "Qwen3.5 MoE", 35000000000, 3000000000, 0, 0, 0, 0, 0, 0 },
    { "mimo-v2-flash", "MiMo-V2-Flash", 309000000000, 15000000000, 0, 0, 0, 0, 0, 0 },
};

enum { CONFIGS = sizeof configs / sizeof configs[0], FEWS = sizeof fews / sizeof fews[0] };

static int is_config(const struct m3_config *c, int64_t parameters, int i)
{
    int same = parameters == configs[i].parameters && c->max_positions == configs[i].positions &&
               c->layers == configs[i].layers && c->block == configs[i].block && c->R == configs[i].R &&
               c->rope_theta == configs[i].theta && configs[i].mxfp8 == (c->matrix_scaling == M3_SCALE_MX32);
    for (int j = 0; letters[j]; j++) same = same && m3_config_size(c, letters[j]) == configs[i].sizes[j];
    for (int64_t l = 0; same && l < c->layers; l++)
        same = m3_config_sparse(c, l) == (l >= configs[i].full) && m3_config_moe(c, l) == (l >= configs[i].dense);
    return same;
}

static int is_few(const struct m3_foreign *m, int i)
{
    const struct m3_config *c = &m->config;
    return strcmp(m->name, fews[i].published) == 0 && m->parameters == fews[i].parameters &&
           m->active == fews[i].active && c->max_positions == fews[i].positions && c->layers == fews[i].layers &&
           c->Q == fews[i].Q && c->G == fews[i].G && c->D == fews[i].D && m->cached_numbers == fews[i].cached_numbers;
}

const char *m3_document_model(const struct m3_estimate *e)
{
    const struct m3_foreign *foreign = e->request.foreign;
    const int64_t modules = e->census.of[M3_COMPONENT_MTP_MODULES].parameters;
    const int64_t parameters = m3_whole(e, "params_total") - modules;
    if (foreign && foreign->few) {
        for (int i = 0; i < FEWS; i++)
            if (is_few(foreign, i)) return fews[i].name;
        return NULL;
    }
    for (int i = 0; i < CONFIGS; i++)
        if (is_config(e->config, parameters, i)) return configs[i].name;
    return NULL;
}

/* A whole number >= 0, K and M allowed; -1 if it is none. */
static int64_t whole(const char *text)
{
    char *end;
    errno = 0;
    long long value = isdigit((unsigned char)*text) ? strtoll(text, &end, 10) : -1;
    if (value < 0 || errno) return -1;
    int64_t unit = *end == 'K' ? 1 << 10 : *end == 'M' ? 1 << 20 : 1;
    if (unit > 1) end++;
    return *end || value > INT64_MAX / unit ? -1 : value * unit;
}

static int set_number(int64_t *to, const char *text, int64_t low, int64_t high)
{
    *to = whole(text);
    return *to >= low && *to <= high;
}

/* One "name=value"; the card is looked up when the GPU is known. 0 if it is not understood. */
static int set_word(struct m3_document_setting *s, const char *name, const char *value, const char **card)
{
    static const char *const names[] = { "T", "B", "w", "kv", "ikv", "gpu", "gpus", "card", "act", "mtp" };
    struct m3_estimate_request *r = &s->request;
    int i = 0, count = sizeof names / sizeof names[0];
    while (i < count && strcmp(name, names[i])) i++;
    if (i == count || s->named & 1u << i) return 0;
    s->named |= 1u << i;
    switch (1 << i) {
    case M3_NAMES_CONTEXT: return set_number(&r->context, value, 1, M3_MOST_CONTEXT);
    case M3_NAMES_BATCH: return set_number(&r->batch, value, 1, M3_MOST_BATCH);
    case M3_NAMES_WEIGHTS: r->weights_asked = 1; return (r->weights = m3_format_named(value)) != NULL;
    case M3_NAMES_KV: return (r->kv = m3_format_named(value)) != NULL;
    case M3_NAMES_INDEX_KV: return (r->index_kv = m3_format_named(value)) != NULL;
    case M3_NAMES_GPU: return (r->gpu = m3_gpu_named(value)) != NULL;
    case M3_NAMES_GPUS: return set_number(&r->gpus, value, 1, 65536);
    case M3_NAMES_CARD: *card = value; return 1;
    case M3_NAMES_ACTIVATIONS: return set_number(&r->activation_bytes, value, 0, INT64_C(1) << 50);
    default: return set_number(&r->mtp_modules, value, 0, 16);
    }
}

static int set_card(struct m3_document_setting *s, const char *card)
{
    struct m3_estimate_request *r = &s->request;
    if (!r->gpu) return !card && !(s->named & M3_NAMES_GPUS);
    r->card_bytes = r->gpu->vendor_bytes;
    if (!card || strcmp(card, "vendor") == 0) return 1;
    if (strcmp(card, "reported") != 0) return set_number(&r->card_bytes, card, 1, INT64_C(1) << 50);
    r->card_bytes = r->gpu->reported_bytes;
    return r->card_bytes > 0;
}

static int known_model(const char *name)
{
    for (int i = 0; i < CONFIGS; i++)
        if (strcmp(configs[i].name, name) == 0) return 1;
    for (int i = 0; i < FEWS; i++)
        if (strcmp(fews[i].name, name) == 0) return 1;
    return 0;
}

int m3_document_setting_parse(struct m3_document_setting *setting, const char *text, struct m3_error *error)
{
    char copy[256], *rest = copy;
    const char *card = NULL;
    int good = strlen(text) < sizeof copy;
    *setting = (struct m3_document_setting){ .request = { .batch = 1,
                                                          .weights = m3_format_named("bf16"),
                                                          .kv = m3_format_named("bf16"),
                                                          .gpus = 1,
                                                          .activation_bytes = M3_ACTIVATION_BYTES } };
    strcpy(copy, good ? text : "");
    char *word = strsep(&rest, " ");
    good = good && known_model(word);
    snprintf(setting->model, sizeof setting->model, "%s", word);
    while (good && (word = strsep(&rest, " "))) {
        char *value = strchr(word, '=');
        if (value) *value++ = '\0';
        good = value && set_word(setting, word, value, &card);
    }
    if (!setting->request.index_kv) setting->request.index_kv = setting->request.kv;
    if (good && set_card(setting, card)) return M3_OK;
    return m3_fail(error, M3_BAD_INPUT,
                   "setting: got %s, expected a model and T= B= w= kv= ikv= gpu= gpus= card= act= "
                   "mtp=, each at most once, cards with a GPU",
                   text);
}

/* Names that documents' formulas have besides those of explanations. */
static int other_name(double *value, const struct m3_estimate *e, const char *name)
{
    const struct m3_estimate_request *r = &e->request;
    const struct m3_config *c = e->config;
    const struct m3_vision_config *v = &c->vision;
    const struct {
        const char *name;
        double value;
    } all[] = {
        { "keys", m3_quantity(e, "keys_main") },
        { "act", (double)r->activation_bytes },
        { "card", (double)r->card_bytes },
        { "peak", m3_quantity(e, "peak_flops") },
        { "A", (double)m3_config_size(c, 'A') },
        { "U", (double)m3_config_size(c, 'U') },
        { "R", (double)c->R },
        { "max_positions", (double)c->max_positions },
        { "theta", c->rope_theta },
        { "eps", c->eps },
        { "scaling", c->routed_scaling },
        { "alpha", c->swiglu_alpha },
        { "limit", c->swiglu_limit },
        { "modules", (double)c->mtp_modules },
        { "local_blocks", (double)c->semantics.local_blocks },
        { "init_blocks", (double)c->semantics.init_blocks },
        { "patch", (double)v->patch },
        { "temporal_patch", (double)v->temporal_patch },
        { "channels", (double)v->channels },
        { "segment", (double)v->segment_max_frames },
        { "vision_layers", (double)v->layers },
        { "vision_theta", v->rope_theta },
        { "image_token", (double)v->image_token },
        { "video_token", (double)v->video_token },
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (strcmp(all[i].name, name) == 0) {
            *value = all[i].value;
            return 1;
        }
    return 0;
}

static int name_value(struct m3_value *value, void *self, const char *name)
{
    const struct m3_scope *scope = self;
    double x;
    m3_scope_value(value, self, name);
    if (value->kind != M3_VALUE_UNKNOWN) return 1;
    if (!other_name(&x, scope->e, name)) return 0;
    *value = (struct m3_value){ .kind = M3_VALUE_REAL, .real = x };
    return 1;
}

int m3_figure_value(double *value, const char *formula, const struct m3_estimate *e, struct m3_error *error)
{
    struct m3_scope scope = m3_scope_of(e);
    struct m3_value result;
    int status = m3_formula_value(&result, formula, name_value, &scope, error);
    *value = m3_value_double(&result);
    return status;
}

/* The value of a formula in an estimate for `request`. */
static int value_for(double *value, const struct m3_printed *row, const struct m3_config *config,
                     const struct m3_estimate_request *request, struct m3_error *error)
{
    struct m3_estimate e;
    int status = m3_estimate(&e, config, request, error);
    return status ? status : m3_figure_value(value, row->formula, &e, error);
}

struct m3_subject m3_subject_of(const struct m3_estimate *e, struct m3_census *room)
{
    if (e->request.mtp_modules) m3_census_of_config(room, e->config, 0, M3_MTP_CONCAT);
    return (struct m3_subject){ e->config, e->request.mtp_modules ? room : &e->census, e->request.foreign };
}

int m3_printed_judge(struct m3_judgement *judgement, const struct m3_printed *row, const struct m3_subject *subject,
                     struct m3_error *error)
{
    struct m3_document_setting setting;
    *judgement = (struct m3_judgement){ .verdict = M3_REPRODUCTION_NOT_COMPUTABLE, .ours = NAN };
    int status = m3_printed_parse(&judgement->printed, row->printed, error);
    if (!status) status = m3_document_setting_parse(&setting, row->setting, error);
    if (!status && row->formula) {
        struct m3_estimate_request *request = &setting.request;
        if (!request->context) request->context = subject->config->max_positions;
        if (!request->context) request->context = M3_UNKNOWN;
        if (!request->mtp_modules) request->config = subject->census;
        request->foreign = subject->foreign;
        status = value_for(&judgement->ours, row, subject->config, request, error);
    }
    if (status) return m3_fail(error, M3_BAD_INPUT, "%s: %s: cannot be judged", row->place, row->what);
    if (!isfinite(judgement->ours)) return M3_OK;
    const struct m3_printed_number *printed = &judgement->printed;
    int near = fabs(judgement->ours - printed->value) <= printed->half + 1e-12 * fabs(printed->value);
    judgement->verdict = near ? M3_REPRODUCTION_REPRODUCED : M3_REPRODUCTION_DIFFERS;
    return M3_OK;
}
