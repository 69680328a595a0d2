#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "estimate/documents.h"

/* What is read of a formula so far. The first error stays; reading goes on to the end of the level with NaN. */
struct reader {
    const char *formula, *at;
    const struct m3_estimate *e;
    const json_t *summary;
    struct m3_error *error;
    int status, depth;
};

enum { MOST_DEPTH = 64, MOST_NAME = 128 };

static double sum(struct reader *r);

static double wrong(struct reader *r, const char *expected)
{
    if (!r->status)
        r->status = m3_fail(r->error, M3_BAD_INPUT, "formula %s: at %td: got %s, expected %s", r->formula,
                            r->at - r->formula, *r->at ? r->at : "its end", expected);
    return NAN;
}

static void skip_blanks(struct reader *r)
{
    while (*r->at == ' ') r->at++;
}

static int take(struct reader *r, char c)
{
    skip_blanks(r);
    if (*r->at != c) return 0;
    r->at++;
    return 1;
}

/* Digits, a fraction, a power: no hexadecimal, which strtod would take. */
static double number(struct reader *r)
{
    static const char digits[] = "0123456789";
    const char *end = r->at + strspn(r->at, digits);
    if (*end == '.') end += 1 + strspn(end + 1, digits);
    if (*end == 'e') {
        const char *power = end + 1 + (end[1] == '+' || end[1] == '-');
        if (isdigit((unsigned char)*power)) end = power + strspn(power, digits);
    }
    char text[64];
    size_t length = (size_t)(end - r->at);
    if (length >= sizeof text) return wrong(r, "a shorter number");
    memcpy(text, r->at, length);
    text[length] = '\0';
    r->at = end;
    return strtod(text, NULL);
}

static size_t name_length(const char *text)
{
    size_t n = 0;
    while (isalnum((unsigned char)text[n]) || text[n] == '_' || (text[n] == '.' && isalnum((unsigned char)text[n + 1])))
        n++;
    return n;
}

struct named {
    const char *name;
    double value;
};

static int find(double *value, const struct named *all, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(all[i].name, name) == 0) {
            *value = all[i].value;
            return 1;
        }
    return 0;
}

static int of_request(double *value, const struct m3_estimate *e, const char *name)
{
    const struct m3_estimate_request *r = &e->request;
    const struct named all[] = {
        { "T", (double)r->context },
        { "batch", (double)r->batch },
        { "layers", (double)e->config->layers },
        { "full", (double)e->full },
        { "sparse", (double)e->sparse },
        { "dense", (double)e->dense },
        { "moe", (double)e->moe },
        { "cached", (double)e->cached },
        { "indexed", (double)e->indexed },
        { "keys", (double)e->keys_main },
        { "mtp", (double)r->mtp_modules },
        { "params_mtp", (double)e->census.of[M3_COMPONENT_MTP_MODULES].parameters },
        { "weight_bits", r->weights->bits },
        { "kv_bits", r->kv->bits },
        { "index_bits", r->index_kv->bits },
        { "act", (double)r->activation_bytes },
        { "gpus", (double)r->gpus },
        { "card", (double)r->card_bytes },
        { "peak", (double)e->peak_flops },
        { "bandwidth", r->gpu ? (double)r->gpu->bandwidth : NAN },
    };
    return find(value, all, sizeof all / sizeof all[0], name);
}

static int of_config(double *value, const struct m3_config *c, const char *name)
{
    const struct m3_vision_config *v = &c->vision;
    const struct named all[] = {
        { "R", (double)c->R },
        { "block", (double)c->block },
        { "max_positions", (double)c->max_positions },
        { "theta", c->rope_theta },
        { "eps", c->eps },
        { "scaling", c->routed_scaling },
        { "alpha", c->swiglu_alpha },
        { "limit", c->swiglu_limit },
        { "modules", (double)c->mtp_modules },
        { "local_blocks", (double)c->semantics.local_blocks },
        { "init_blocks", (double)c->semantics.init_blocks },
        { "vision", v->present },
        { "patch", (double)v->patch },
        { "merge", (double)v->spatial_merge },
        { "temporal_patch", (double)v->temporal_patch },
        { "channels", (double)v->channels },
        { "segment", (double)v->segment_max_frames },
        { "vision_layers", (double)v->layers },
        { "vision_theta", v->rope_theta },
        { "image_token", (double)v->image_token },
        { "video_token", (double)v->video_token },
    };
    if (strlen(name) == 1 && strchr("HQGDXVNKEFIJWAULYZC", name[0])) {
        *value = (double)m3_config_size(c, name[0]);
        return 1;
    }
    return find(value, all, sizeof all / sizeof all[0], name);
}

static int of_summary(double *value, const json_t *summary, const char *key)
{
    const json_t *found = m3_estimate_value(summary, key);
    const json_t *quotient = json_object_get(found, "value");
    if (quotient) found = quotient;
    if (!json_is_number(found)) return 0;
    *value = json_number_value(found);
    return 1;
}

static double call(struct reader *r, const char *name)
{
    const int two = strcmp(name, "min") == 0 || strcmp(name, "max") == 0;
    double x = sum(r), y = 0;
    if (two && !take(r, ',')) return wrong(r, "a comma");
    if (two) y = sum(r);
    if (!take(r, ')')) return wrong(r, "a closing parenthesis");
    if (two) return (strcmp(name, "min") == 0) == (x < y) ? x : y;
    return strcmp(name, "ceil") == 0 ? ceil(x) : floor(x);
}

static double named(struct reader *r)
{
    char name[MOST_NAME];
    const char *begin = r->at;
    size_t length = name_length(begin);
    double value;
    if (length >= sizeof name) return wrong(r, "a shorter name");
    memcpy(name, begin, length);
    name[length] = '\0';
    r->at += length;
    if (strcmp(name, "ceil") == 0 || strcmp(name, "floor") == 0 || strcmp(name, "min") == 0 || strcmp(name, "max") == 0)
        return take(r, '(') ? call(r, name) : wrong(r, "a parenthesis");
    if (of_request(&value, r->e, name) || of_config(&value, r->e->config, name) || of_summary(&value, r->summary, name))
        return value;
    r->at = begin;
    return wrong(r, "a name, or a key of the summary with a number");
}

static double atom(struct reader *r)
{
    skip_blanks(r);
    if (isdigit((unsigned char)*r->at)) return number(r);
    if (isalpha((unsigned char)*r->at)) return named(r);
    if (!take(r, '(')) return wrong(r, "a number, a name or a parenthesis");
    double value = sum(r);
    return take(r, ')') ? value : wrong(r, "a closing parenthesis");
}

static double power(struct reader *r)
{
    double value = NAN;
    if (++r->depth > MOST_DEPTH) wrong(r, "fewer levels");
    else if (take(r, '-')) value = -power(r);
    else {
        value = atom(r);
        if (!r->status && take(r, '^')) value = pow(value, power(r));
    }
    r->depth--;
    return value;
}

static double product(struct reader *r)
{
    double value = power(r);
    while (!r->status) {
        if (take(r, '*')) value *= power(r);
        else if (take(r, '/')) value /= power(r);
        else break;
    }
    return value;
}

static double sum(struct reader *r)
{
    double value = product(r);
    while (!r->status) {
        if (take(r, '+')) value += product(r);
        else if (take(r, '-')) value -= product(r);
        else break;
    }
    return value;
}

int m3_figure_value(double *value, const char *formula, const struct m3_estimate *e, const json_t *summary,
                    struct m3_error *error)
{
    struct reader r = { .formula = formula, .at = formula, .e = e, .summary = summary, .error = error };
    *value = sum(&r);
    skip_blanks(&r);
    if (!r.status && *r.at) wrong(&r, "an operator or the end");
    if (r.status) *value = NAN;
    return r.status;
}
