#include "oracle/operators/list.h"

#include <errno.h>
#include <jansson.h>
#include <string.h>

#include "io/json.h"
#include "oracle/operators/parameters.h"

const char *m3_role_name(const struct m3_operand_row *row)
{
    switch (row->role) {
    case M3_ROLE_WEIGHT:
    case M3_ROLE_EXPERTS:
    case M3_ROLE_SCALES: return "weight";
    case M3_ROLE_TAP: return m3_tap_table[row->tap].kind == M3_KIND_CHOICES ? "ids" : "input";
    case M3_ROLE_COS:
    case M3_ROLE_SIN:
    case M3_ROLE_NOISY:
    case M3_ROLE_OPERAND:
    case M3_ROLE_RESULT:
    case M3_ROLE_INCOMING: return "input";
    default: return "ids";
    }
}

static json_t *listed(const struct m3_operand_row *rows, int most, int outputs)
{
    json_t *all = json_array();
    for (int i = 0; i < most && rows[i].role != M3_ROLE_NONE; i++)
        json_array_append_new(all, json_pack("{s:s, s:s, s:s, s:b, s:s}", "name", rows[i].name, "role",
                                             outputs ? "output" : m3_role_name(&rows[i]), "shape", rows[i].letters,
                                             "optional", rows[i].optional, "what", rows[i].what));
    return all;
}

static json_t *listed_parameters(const struct m3_operator_row *op)
{
    const struct m3_call_parameter *p;
    char value[M3_PARAMETER_TEXT], choices[M3_PARAMETER_TEXT];
    json_t *all = json_array();
    for (int i = 0; (p = m3_parameter_in(value, op->parameters, i)); i++) {
        m3_parameter_choices(choices, p);
        json_array_append_new(all, json_pack("{s:s, s:s, s:s, s:s}", "name", p->name, "default", value, "values",
                                             choices, "what", p->what));
    }
    return all;
}

static json_t *row(const struct m3_operator_row *op)
{
    return json_pack("{s:s, s:s, s:s, s:s, s:b, s:o, s:o, s:o}", "type", "operator", "name", op->name, "what", op->what,
                     "section", op->section, "composite", op->composite, "operands",
                     listed(op->operands, M3_OPERATOR_OPERANDS, 0), "outputs",
                     listed(op->outputs, M3_OPERATOR_OUTPUTS, 1), "parameters", listed_parameters(op));
}

int m3_list_operators(FILE *out, struct m3_error *error)
{
    int status = M3_OK;
    for (int i = 0; !status && i < m3_operator_rows(); i++) status = m3_json_line(out, row(m3_operator_at(i)), error);
    if (!status && fflush(out)) return m3_fail(error, M3_IO, "list of operators: %s", strerror(errno));
    return status;
}
