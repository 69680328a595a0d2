#include <string.h>

#include "estimate/documents/documents.h"
#include "estimate/private/parts.h"

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
