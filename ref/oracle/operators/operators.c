#include "oracle/operators/operators.h"

#include <string.h>

#include "oracle/operators/composites.def"

/* ---- roles */

#define TAP(of) .role = M3_ROLE_TAP, .tap = M3_TAP_##of
#define WEIGHT(of, i) .role = M3_ROLE_WEIGHT, .tap = M3_TAP_##of, .weight = i
#define SCALES(of, i) .role = M3_ROLE_SCALES, .tap = M3_TAP_##of, .weight = i
#define EXPERTS(i) .role = M3_ROLE_EXPERTS, .tap = M3_TAP_EXPERT_OUT, .weight = i
#define GIVEN(as) .role = M3_ROLE_##as, .tap = M3_TAPS
#define MAYBE(as) .role = M3_ROLE_##as, .tap = M3_TAPS, .optional = 1

/* ---- what is in a call, as rows of operands and of outputs; outputs that may be left out come first */

#define OPERANDS_IN(type, called, kind, shape, is, means) { .name = #called, .letters = shape, is, .what = means },
#define OPERANDS_ROW(called, shape, is, means) { .name = #called, .letters = shape, is, .what = means },
#define OPERANDS_OUT(...)
#define OPERANDS_MAYBE_OUT(...)
#define OPERANDS_OUT_ROW(...)
#define OPERANDS_MAYBE_OUT_ROW(...)
#define OPERANDS_EXTRA(...)
#define OPERANDS_VALUE(...)

#define OPTIONAL_MAYBE_OUT(type, called, kind, shape, is, means)                                                       \
    { .name = #called, .letters = shape, is, .optional = 1, .what = means },
#define OPTIONAL_MAYBE_OUT_ROW(called, shape, is, means)                                                               \
    { .name = #called, .letters = shape, is, .optional = 1, .what = means },
#define OPTIONAL_OUT(...)
#define OPTIONAL_OUT_ROW(...)
#define OPTIONAL_IN(...)
#define OPTIONAL_ROW(...)
#define OPTIONAL_EXTRA(...)
#define OPTIONAL_VALUE(...)

#define OUTPUTS_OUT(type, called, kind, shape, is, means) { .name = #called, .letters = shape, is, .what = means },
#define OUTPUTS_OUT_ROW(called, shape, is, means) { .name = #called, .letters = shape, is, .what = means },
#define OUTPUTS_MAYBE_OUT(...)
#define OUTPUTS_MAYBE_OUT_ROW(...)
#define OUTPUTS_IN(...)
#define OUTPUTS_ROW(...)
#define OUTPUTS_EXTRA(...)
#define OUTPUTS_VALUE(...)

/* ---- the same for derivatives */

#define READ_INCOMING(called, shape)                                                                                   \
    { .name = #called, .letters = shape, GIVEN(INCOMING), .what = "gradient of the output" },
#define READ_IN(called, shape, is, means, i) { .name = #called, .letters = shape, is, .what = means },
#define READ_ROW(called, shape, is, means) { .name = #called, .letters = shape, is, .what = means },
#define READ_OUT(...)
#define READ_OUT_ROW(...)
#define READ_EXTRA(...)

#define MADE_OUT(called, shape, i) { .name = #called, .letters = shape, GIVEN(GRADIENT), .what = "" },
#define MADE_OUT_ROW(called, shape) { .name = #called, .letters = shape, GIVEN(GRADIENT), .what = "" },
#define MADE_INCOMING(...)
#define MADE_IN(...)
#define MADE_ROW(...)
#define MADE_EXTRA(...)

/* ---- the rows */

#define LISTS(op) .operands = { M3_CALL_##op(OPERANDS_) }, .outputs = { M3_CALL_##op(OPTIONAL_) M3_CALL_##op(OUTPUTS_) }
#define OPERATOR(op, file, bodies, number, layer, means, fields, ...)                                                  \
    { .name = #op, .section = number " " #op, .what = means, .kind = layer, LISTS(op), .parameters = fields },
#define VARIANT(op, heading, layer, means, fields)                                                                     \
    { .name = #op, .section = heading, .what = means, .kind = layer, LISTS(op), .parameters = fields },
#define COMPOSITE(op, heading, layer, means, fields)                                                                   \
    { .name = #op, .section = heading, .what = means, .composite = 1, .kind = layer, LISTS(op), .parameters = fields },

#define BACK_LISTS(op) .operands = { M3_BACK_##op(READ_) }, .outputs = { M3_BACK_##op(MADE_) }
#define DERIVATIVE(op, OP, bodies, heading, layer, means, fields)                                                      \
    { .name = #op "_backward",                                                                                         \
      .section = heading,                                                                                              \
      .what = means,                                                                                                   \
      .kind = layer,                                                                                                   \
      BACK_LISTS(op),                                                                                                  \
      .parameters = fields,                                                                                            \
      .derivative = M3_DERIVATIVE_##OP },
#define DERIVATIVE_VARIANT(op, OP, heading, layer, means, fields)                                                      \
    DERIVATIVE(op, OP, NONE, heading, layer, means, fields)
#define NO_ROW(...)

static const struct m3_operator_row rows[] = { M3_OPERATORS(OPERATOR, VARIANT) M3_COMPOSITES(COMPOSITE)
                                                   M3_DERIVATIVES(DERIVATIVE, DERIVATIVE_VARIANT, NO_ROW) };

enum { ROWS = sizeof rows / sizeof rows[0] };

int m3_operator_rows(void) { return ROWS; }

const struct m3_operator_row *m3_operator_at(int i) { return i >= 0 && i < ROWS ? &rows[i] : NULL; }

const struct m3_operator_row *m3_operator_named(const char *name)
{
    for (int i = 0; i < ROWS; i++)
        if (strcmp(rows[i].name, name) == 0) return &rows[i];
    return NULL;
}

int m3_operator_outputs(const struct m3_operator_row *op)
{
    int n = 0;
    while (n < M3_OPERATOR_OUTPUTS && op->outputs[n].role != M3_ROLE_NONE) n++;
    return n;
}

int m3_operator_by_row(const struct m3_operator_row *op)
{
    if (op->derivative) return 0;
    const char rows = op->outputs[0].letters[0];
    for (int i = 0; i < M3_OPERATOR_OPERANDS; i++) switch (op->operands[i].role) {
        case M3_ROLE_GRID:
        case M3_ROLE_ENDS:
        case M3_ROLE_PLACES: return 0;
        default: break;
        }
    return rows == 'T' || rows == 'P';
}

int m3_operator_has(const struct m3_operator_row *op, char letter)
{
    for (int i = 0; i < M3_OPERATOR_OPERANDS && op->operands[i].role != M3_ROLE_NONE; i++)
        if (strchr(op->operands[i].letters, letter)) return 1;
    for (int i = 0; i < M3_OPERATOR_OUTPUTS && op->outputs[i].role != M3_ROLE_NONE; i++)
        if (strchr(op->outputs[i].letters, letter)) return 1;
    return 0;
}

int m3_shape_by_letters(int64_t shape[M3_MAX_RANK], const char *letters, const int64_t *sizes)
{
    int rank = 0;
    for (; *letters && rank < M3_MAX_RANK; rank++) {
        const int64_t factor = *letters >= '0' && *letters <= '9' ? *letters++ - '0' : 1;
        shape[rank] = *letters ? factor * sizes[(unsigned char)*letters++] : factor;
    }
    return rank;
}

int m3_operand_named(const struct m3_operand_row *list, int most, const char *name)
{
    for (int i = 0; i < most && list[i].role != M3_ROLE_NONE; i++)
        if (strcmp(list[i].name, name) == 0) return i;
    return -1;
}
