#include <stdlib.h>
#include <string.h>

#include "io/json.h"
#include "model/semantics.h"
#include "oracle/operators/from_dump/private.h"
#include "oracle/operators/parameters.h"

/* Fields of the reading; those that are not in `reading` have their released value. */
static json_t *word_of(const struct m3_cut_run *run, const struct m3_call_parameter *p, const char *released,
                       const json_t *reading)
{
    const json_t *value = json_object_get(reading, p->name);
    char text[M3_PARAMETER_TEXT];
    if (strcmp(p->name, "activation") == 0) return json_string(run->model->config.oai ? "swiglu_oai" : "swiglu");
    if (!json_is_integer(value)) return json_string(value ? json_string_value(value) : released);
    snprintf(text, sizeof text, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    return json_string(text);
}

static json_t *value_of(const struct m3_parameters *in, const struct m3_call_parameter *p)
{
    const void *at = m3_parameter_place(in, p);
    return p->type == M3_PARAMETER_NUMBER ? json_real(*(const double *)at) : json_integer(*(const int64_t *)at);
}

json_t *m3_cut_parameters(const struct m3_cut_run *run)
{
    const struct m3_vision_config *v = &run->model->config.vision;
    /* They are only read. */
    const struct m3_parameters in = { .config = (struct m3_config *)(uintptr_t)&run->model->config,
                                      .semantics = (struct m3_semantics *)(uintptr_t)&run->semantics,
                                      .p0 = run->the_case.p0,
                                      .id = run->the_case.pictures.videos > 0 ? v->video_token : v->image_token,
                                      .merge = v->spatial_merge,
                                      .in_vision = (run->op->kind & M3_LAYER_VISION) != 0 };
    const struct m3_call_parameter *p;
    char released[M3_PARAMETER_TEXT];
    char *text = m3_semantics_json(&run->semantics);
    json_t *reading = text ? m3_json_of_text(text) : NULL, *all = reading ? json_object() : NULL;
    for (int i = 0; all && (p = m3_parameter_in(released, run->op->parameters, i)); i++) {
        json_t *value = p->type == M3_PARAMETER_WORD ? word_of(run, p, released, reading) : value_of(&in, p);
        if (json_object_set_new(all, p->name, value) == 0) continue;
        json_decref(all);
        all = NULL;
    }
    json_decref(reading);
    free(text);
    return all;
}
