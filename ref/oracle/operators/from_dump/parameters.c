#include <stdlib.h>
#include <string.h>

#include "io/json.h"
#include "model/semantics.h"
#include "oracle/operators/from_dump/private.h"
#include "oracle/operators/parameters.h"

/* Fields of the reading; those that are not in `reading` have their released value, which is the default. */
static json_t *word_of(const struct m3_cut_run *run, const struct m3_call_parameter *p, const json_t *reading)
{
    const json_t *value = json_object_get(reading, p->name);
    char text[M3_PARAMETER_TEXT];
    if (strcmp(p->name, "activation") == 0) return json_string(run->model->config.oai ? "swiglu_oai" : "swiglu");
    if (!json_is_integer(value)) return json_string(value ? json_string_value(value) : p->value);
    snprintf(text, sizeof text, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    return json_string(text);
}

static json_t *number_of(const struct m3_cut_run *run, const char *name)
{
    const struct m3_config *c = &run->model->config;
    const int in_vision = (run->op->kind & M3_LAYER_VISION) != 0;
    if (strcmp(name, "eps") == 0) return json_real(in_vision ? c->vision.eps : c->eps);
    if (strcmp(name, "theta") == 0) return json_real(in_vision ? c->vision.rope_theta : c->rope_theta);
    if (strcmp(name, "factor") == 0) return json_real(c->routed_scaling);
    if (strcmp(name, "alpha") == 0) return json_real(c->swiglu_alpha);
    if (strcmp(name, "limit") == 0) return json_real(c->swiglu_limit);
    return json_real(run->semantics.jitter);
}

static json_t *count_of(const struct m3_cut_run *run, const char *name)
{
    const struct m3_config *c = &run->model->config;
    const struct m3_pictures *p = &run->the_case.pictures;
    if (strcmp(name, "R") == 0) return json_integer(c->R);
    if (strcmp(name, "block") == 0) return json_integer(c->block);
    if (strcmp(name, "N") == 0) return json_integer(c->N);
    if (strcmp(name, "K") == 0) return json_integer(c->K);
    if (strcmp(name, "p0") == 0) return json_integer(run->the_case.p0);
    if (strcmp(name, "id") == 0) return json_integer(p->videos > 0 ? c->vision.video_token : c->vision.image_token);
    if (strcmp(name, "merge") == 0) return json_integer(c->vision.spatial_merge);
    return json_integer(c->vision.segment_max_frames);
}

json_t *m3_cut_parameters(const struct m3_cut_run *run)
{
    const struct m3_call_parameter *p;
    char *text = m3_semantics_json(&run->semantics);
    json_t *reading = text ? m3_json_of_text(text) : NULL, *all = reading ? json_object() : NULL;
    for (int i = 0; all && (p = m3_parameter_in(NULL, run->op->parameters, i)); i++) {
        json_t *value = p->type == M3_PARAMETER_WORD     ? word_of(run, p, reading)
                        : p->type == M3_PARAMETER_NUMBER ? number_of(run, p->name)
                                                         : count_of(run, p->name);
        if (json_object_set_new(all, p->name, value) == 0) continue;
        json_decref(all);
        all = NULL;
    }
    json_decref(reading);
    free(text);
    return all;
}
