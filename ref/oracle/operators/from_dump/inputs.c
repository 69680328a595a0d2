#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/operators/evaluate.h"
#include "oracle/operators/from_dump/private.h"

int m3_cut_needs_case(const struct m3_operator_row *op)
{
    if (strstr(op->parameters, "p0")) return 1;
    for (int i = 0; i < M3_OPERATOR_OPERANDS && op->operands[i].role != M3_ROLE_NONE; i++)
        switch (op->operands[i].role) {
        case M3_ROLE_TAP:
        case M3_ROLE_WEIGHT:
        case M3_ROLE_SCALES:
        case M3_ROLE_EXPERTS: break;
        default: return 1;
        }
    return 0;
}

/* One operator replaces the rows of one id. */
static int check_placeholders(const struct m3_cut_run *run, struct m3_error *error)
{
    const struct m3_pictures *p = &run->the_case.pictures;
    if (strcmp(run->op->name, "scatter") != 0 || p->images == 0 || p->videos == 0) return M3_OK;
    return m3_fail(error, M3_BAD_INPUT, "%s: got a case of images and videos, expected one kind for scatter",
                   m3_safetensors_path(run->dump));
}

/* Which token of the case a row of the cut is. */
static int token_of(int64_t *token, const struct m3_cut_run *run, int64_t row, struct m3_error *error)
{
    *token = m3_row_number(run->side.rows, row);
    if (*token < run->the_case.T) return M3_OK;
    return m3_fail(error, M3_BAD_INPUT, "%s: got row %" PRId64 ", expected a row of the case, which has %" PRId64,
                   m3_safetensors_path(run->dump), *token, run->the_case.T);
}

static int take_tokens(struct m3_cut_operand *x, const struct m3_cut_run *run, int64_t rows, struct m3_error *error)
{
    const struct m3_case *c = &run->the_case;
    const int is_ids = x->row->role == M3_ROLE_IDS;
    int64_t token;
    int status = check_placeholders(run, error);
    if (!status) status = m3_cut_room(x, is_ids ? M3_I32 : M3_I64, 1, &rows, error);
    for (int64_t r = 0; !status && r < rows; r++) {
        status = token_of(&token, run, r, error);
        if (status) break;
        if (is_ids) ((int32_t *)x->owned)[r] = c->ids[token];
        else ((int64_t *)x->owned)[r] = c->positions[token];
    }
    return status;
}

/* cos and sin of the rows, as the run had them: rounded once to its own number type. */
static int find_positions(void *self, const char *operand, struct m3_tensor *tensor)
{
    *tensor = *(const struct m3_tensor *)self;
    return strcmp(operand, "pos") == 0;
}

static int take_angles(struct m3_cut_operand *x, const struct m3_cut_run *run, int64_t rows, struct m3_error *error)
{
    static const struct m3_operand_row pos = { .name = "pos", .role = M3_ROLE_POSITIONS };
    struct m3_cut_run table = *run;
    struct m3_cut_operand positions = { .row = &pos };
    struct m3_fragment *call = NULL;
    struct m3_evaluation made = { 0 };
    table.op = m3_operator_named("rope_table");
    json_t *parameters = m3_cut_parameters(&table);
    const struct m3_operand_source source = {
        .self = &positions.tensor, .find = find_positions, .parameters = parameters, .name = "rope_table"
    };
    const struct m3_evaluation_how how = { .engine = run->is_f64 ? m3_engine_f64() : m3_engine_f32(),
                                           .threads = 1,
                                           .linear = M3_LINEAR_ORDERED };
    int status = parameters ? take_tokens(&positions, run, rows, error) : m3_fail_memory(error, "parameters", 0);
    if (!status) status = m3_fragment_make(&call, table.op, &source, error);
    if (!status) status = m3_evaluate(&made, call, &how, error);
    if (!status) {
        const struct m3_tensor *angles = &made.outputs[x->row->role == M3_ROLE_SIN];
        status = m3_cut_room(x, angles->dtype, angles->rank, angles->shape, error);
        if (!status) memcpy(x->owned, angles->data, angles->bytes);
    }
    m3_evaluation_free(&made);
    m3_fragment_free(call);
    json_decref(parameters);
    free(positions.owned);
    return status;
}

static int take_seen(struct m3_cut_operand *x, const struct m3_cut_run *run, int64_t rows, struct m3_error *error)
{
    const struct m3_case *c = &run->the_case;
    if (!c->seen) return M3_OK;
    if (c->places < rows)
        return m3_fail(error, M3_BAD_INPUT, "%s: got a mask of %" PRId64 " places, expected %" PRId64,
                       m3_safetensors_path(run->dump), c->places, rows);
    int status = m3_cut_room(x, M3_U8, 1, &rows, error);
    if (!status) memcpy(x->owned, c->seen, (size_t)rows);
    return status;
}

/* A case of one operator does not say which pictures are videos: all that have one step come first. */
static int take_pictures(struct m3_cut_operand *x, const struct m3_cut_run *run, struct m3_error *error)
{
    const struct m3_pictures *p = &run->the_case.pictures;
    const struct m3_vision_config *v = &run->model->config.vision;
    const enum m3_vision_boundary boundary = run->semantics.vision_boundary;
    const int64_t count = p->images + p->videos;
    if (count == 0)
        return m3_fail(error, M3_BAD_INPUT, "%s: got a case without pictures, expected one with them for %s",
                       m3_safetensors_path(run->dump), run->op->name);
    if (x->row->role == M3_ROLE_GRID) {
        if (boundary == M3_BOUNDARY_NONE && p->images > 0 && p->videos > 0 && p->grid[p->images][0] == 1)
            return m3_fail(error, M3_BAD_INPUT,
                           "%s: got a video of one step after images with vision_boundary=none, expected images alone",
                           m3_safetensors_path(run->dump));
        const int64_t shape[] = { count, 3 };
        int status = m3_cut_room(x, M3_I64, 2, shape, error);
        if (!status) memcpy(x->owned, p->grid, (size_t)count * sizeof *p->grid);
        return status;
    }
    int64_t *ends = malloc((size_t)p->P * sizeof *ends), *places = malloc(3 * (size_t)p->P * sizeof *places);
    int status = ends && places ? M3_OK : m3_fail_memory(error, "segments", 4 * (size_t)p->P * sizeof *ends);
    const int64_t segments = status ? 0 : m3_pictures_segments(ends, places, p, v, boundary);
    if (!status) status = m3_cut_room(x, M3_I64, 1, &segments, error);
    if (!status) memcpy(x->owned, ends, (size_t)segments * sizeof *ends);
    free(ends);
    free(places);
    return status;
}

int m3_cut_input(struct m3_cut_operand *x, const struct m3_cut_run *run, const struct m3_cut *cut,
                 struct m3_error *error)
{
    switch (x->row->role) {
    case M3_ROLE_IDS:
    case M3_ROLE_POSITIONS: return take_tokens(x, run, cut->rows, error);
    case M3_ROLE_COS:
    case M3_ROLE_SIN: return take_angles(x, run, cut->rows, error);
    case M3_ROLE_SEEN: return take_seen(x, run, cut->rows, error);
    case M3_ROLE_ENDS:
    case M3_ROLE_GRID: return take_pictures(x, run, error);
    default: return m3_fail(error, M3_INTERNAL, "%s: %s: got an operand that no dump has", run->op->name, x->row->name);
    }
}
