#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "estimate/foreign.h"
#include "estimate/private/parts.h"
#include "io/json.h"

/* An expectation or a quotient. A whole one is printed as an integer. */
static json_t *quantity(double x)
{
    if (isnan(x)) return json_null();
    return x == floor(x) && fabs(x) < 0x1p53 ? json_integer((json_int_t)x) : json_real(x);
}

static json_t *spread_json(const struct m3_estimate *e)
{
    if (!e->has_spread) return json_null();
    json_t *list = json_array();
    for (int64_t j = 0; j < e->config->K; j++) m3_json_append(list, quantity(e->p_fullest[j]));
    return list;
}

static const char *model_type(const struct m3_estimate *e)
{
    if (e->request.foreign) return e->request.foreign->few ? "m3ref_comparison" : "llama";
    return m3_config_type_name(e->config->type);
}

/* The figures that are not numbers. */
static json_t *texts(const struct m3_estimate *e)
{
    const struct m3_estimate_request *r = &e->request;
    const struct m3_foreign *few = m3_few_numbers(e);
    const int bound = m3_compute_bound(e), split = r->gpu && m3_splits_experts(e);
    return json_pack("{s:s,s:s,s:s*,s:s*,s:s,s:s,s:s,s:s,s:s,s:b,s:b,s:s?,s:o,s:s?,s:o}", "type", "summary",
                     "model_type", model_type(e), "name", few ? few->name : NULL, "source", few ? few->source : NULL,
                     "weights", r->weights->name, "kv", r->kv->name, "index_kv", r->index_kv->name, "mtp_join",
                     r->mtp_join == M3_MTP_ADDITIVE ? "additive" : "concat", "vision_boundary",
                     r->boundary == M3_BOUNDARY_NONE ? "none" : "segment", "all_logits", r->all_logits,
                     "no_causal_skip", r->no_causal_skip, "gpu", r->gpu ? r->gpu->name : NULL, "layout.fits",
                     r->layout.tp && r->gpu ? json_boolean(m3_layout_fits(e)) : json_null(), "bound",
                     bound < 0 ? NULL
                     : bound   ? "compute"
                               : "memory",
                     "expert_parallel.fits", split ? json_boolean(m3_estimate_fits(e)) : json_null());
}

/* null if unknown. */
static json_t *figure_json(const struct m3_estimate *e, const struct m3_figure *figure, const json_t *texts)
{
    const struct m3_value value = m3_estimate_figure(e, figure->key);
    char fraction[64];
    switch (figure->kind) {
    case M3_FIGURE_TEXT: return json_incref(json_object_get(texts, figure->key));
    case M3_FIGURE_RATIO:
        snprintf(fraction, sizeof fraction, "%" PRId64 "/%" PRId64, (int64_t)value.over, (int64_t)value.under);
        return json_pack("{s:s,s:o}", "fraction", fraction, "value", quantity(m3_value_double(&value)));
    default:
        if (strcmp(figure->key, "expert_spread.p_fullest") == 0) return spread_json(e);
        if (value.kind == M3_VALUE_EXACT) return json_integer((json_int_t)value.over);
        return quantity(m3_value_double(&value));
    }
}

/* Is a group, by the first part of its key, null as a whole because the model does not have it? */
static int is_null_as_group(const char *group)
{
    static const char *const groups[] = { "flops_vision", "expert_spread", "expert_parallel", "critical_path" };
    for (size_t i = 0; i < sizeof groups / sizeof groups[0]; i++)
        if (strcmp(group, groups[i]) == 0) return 1;
    return 0;
}

static void put(json_t *summary, const char *key, json_t *value)
{
    char group[64];
    const char *dot = strchr(key, '.');
    snprintf(group, sizeof group, "%.*s", (int)strcspn(key, "."), key);
    if (!dot || (json_is_null(value) && is_null_as_group(group))) {
        m3_json_set(summary, group, value);
        return;
    }
    if (!json_object_get(summary, group)) m3_json_set(summary, group, json_object());
    m3_json_set(json_object_get(summary, group), dot + 1, value);
}

/* Ratios, texts, modules and a layout that do not apply are left out instead of null. */
static int is_left_out(const struct m3_figure *figure, const struct m3_estimate *e)
{
    const int can_be = figure->kind == M3_FIGURE_RATIO || figure->kind == M3_FIGURE_TEXT ||
                       strcmp(figure->key, "params_by_component.mtp") == 0 || strncmp(figure->key, "layout.", 7) == 0;
    return can_be && !m3_figure_holds(figure, e);
}

json_t *m3_estimate_json(const struct m3_estimate *e)
{
    json_t *summary = json_object(), *given = texts(e);
    for (int i = 0; i < M3_FIGURES; i++) {
        const struct m3_figure *figure = &m3_figures[i];
        if (m3_figure_named(e, figure->key) == figure && !is_left_out(figure, e))
            put(summary, figure->key, figure_json(e, figure, given));
    }
    json_decref(given);
    if (!m3_json_failed()) return summary;
    json_decref(summary);
    return NULL;
}

const json_t *m3_estimate_value(const json_t *summary, const char *key)
{
    char step[64];
    while (summary && *key) {
        size_t length = strcspn(key, ".");
        if (length >= sizeof step) return NULL;
        memcpy(step, key, length);
        step[length] = '\0';
        summary =
            json_is_array(summary) ? json_array_get(summary, strtoul(step, NULL, 10)) : json_object_get(summary, step);
        key += length + (key[length] == '.');
    }
    return summary;
}
