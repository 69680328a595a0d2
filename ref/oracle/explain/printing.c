#include "oracle/explain/private/printing.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"

int m3_is_printed(const struct m3_explained_step *step, int given)
{
    const int is_constant = step->by == M3_BY_GIVEN && !step->formula[0];
    return (step->by == M3_BY_GIVEN) == given && !is_constant;
}

void m3_print_value(char text[M3_PRINTED], enum m3_step_type type, double value)
{
    snprintf(text, M3_PRINTED, "%.*g", type == M3_STEP_F64 ? 17 : type == M3_STEP_F32 ? 9 : 15, value);
}

void m3_print_bits(char text[M3_PRINTED], enum m3_step_type type, double value)
{
    const float single = (float)value;
    uint32_t bits;
    memcpy(&bits, &single, sizeof bits);
    m3_print_value(text, type, value);
    const size_t length = strlen(text);
    if (type == M3_STEP_F32) snprintf(text + length, M3_PRINTED - length, " (%08" PRIx32 ")", bits);
}

void m3_print_values(char text[M3_PRINTED], const struct m3_explained_step *step)
{
    enum { FEW = 6 };
    struct m3_text out = { text, M3_PRINTED, 0 };
    char number[M3_PRINTED];
    text[0] = '\0';
    if (!step->values) {
        m3_text_add(&out, "[%" PRId64 ",%" PRId64 "]", step->matrix.rows, step->matrix.cols);
        return;
    }
    if (step->count <= FEW) {
        for (int64_t i = 0; i < step->count; i++) {
            m3_print_value(number, step->type, step->values[i]);
            m3_text_add(&out, "%s%s", i ? " " : "", number);
        }
        if (step->count == 0) m3_text_add(&out, "none");
        return;
    }
    double least = INFINITY, most = -INFINITY;
    for (int64_t i = 0; i < step->count; i++) {
        least = fmin(least, step->values[i]);
        most = fmax(most, step->values[i]);
    }
    m3_text_add(&out, "%" PRId64 " numbers, %.6g to %.6g", step->count, least, most);
}

void m3_print_cell(char text[M3_PRINTED], const struct m3_cell *cell)
{
    if (cell->text[0]) snprintf(text, M3_PRINTED, "%s", cell->text);
    else m3_print_value(text, cell->type, cell->value);
}

void m3_print_element(char text[M3_PRINTED], const struct m3_explanation *x)
{
    struct m3_text out = { text, M3_PRINTED, 0 };
    m3_text_add(&out, "[%c=%" PRId64, tolower((unsigned char)x->letters[0]), x->row);
    for (int i = 0; i < x->rank; i++)
        m3_text_add(&out, ", %c=%" PRId64, tolower((unsigned char)x->letters[i + 1]), x->index[i]);
    m3_text_add(&out, "]");
}

void m3_print_result(char text[M3_PRINTED], const struct m3_explanation *x)
{
    const struct m3_explained_step *result = &x->steps.list[x->result];
    struct m3_text out = { text, M3_PRINTED, 0 };
    if (result->type != M3_STEP_INT) {
        m3_print_bits(text, result->type, result->values[0]);
        return;
    }
    text[0] = '\0';
    for (int64_t i = 0; i < result->count; i++) m3_text_add(&out, "%s%.0f", i ? " " : "", result->values[i]);
}
