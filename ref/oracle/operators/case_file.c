#include "oracle/operators/case_file.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/generator.h"
#include "base/version.h"
#include "io/json.h"
#include "model/files/origin.h"

/* A file of another arithmetic draws other operands; one that has changed is refused. Cases that others made state neither.
 */
static int check_identity(const struct m3_safetensors *file, struct m3_error *error)
{
    int status = M3_OK;
    if (m3_safetensors_metadata(file, "arithmetic"))
        status = m3_origin_require(file, "arithmetic", M3_ARITHMETIC, error);
    return !status && m3_safetensors_seal(file) ? m3_safetensors_check_seal(file, error) : status;
}

int m3_case_file_open(struct m3_case_file *cases, const struct m3_operator_row *op, const struct m3_safetensors *file,
                      struct m3_error *error)
{
    const char *path = m3_safetensors_path(file), *name = m3_safetensors_metadata(file, "operator");
    const char *text = m3_safetensors_metadata(file, "cases");
    const struct m3_operator_row *own = name ? m3_operator_named(name) : op;
    *cases = (struct m3_case_file){ .op = own, .file = file };
    if (!text) return m3_fail(error, M3_BAD_INPUT, "%s: got no metadata \"cases\", expected a file of op --make", path);
    if (!own || (op && own != op))
        return m3_fail(error, M3_BAD_INPUT, "%s: got cases of operator %s, expected %s", path, name ? name : "none",
                       op ? op->name : "one of op --list");
    const int status = check_identity(file, error);
    if (status) return status;
    cases->cases = m3_json_of_text(text);
    if (!json_is_array(cases->cases) || json_array_size(cases->cases) == 0) {
        m3_case_file_close(cases);
        return m3_fail(error, M3_BAD_INPUT, "%s: metadata \"cases\": got no list of cases, expected one", path);
    }
    cases->count = (int64_t)json_array_size(cases->cases);
    return M3_OK;
}

void m3_case_file_close(struct m3_case_file *cases)
{
    json_decref(cases->cases);
    *cases = (struct m3_case_file){ 0 };
}

static int take_rows(struct m3_operator_case *c, const json_t *rows, const char *path, struct m3_error *error)
{
    const size_t count = json_array_size(rows);
    if (!rows || json_is_null(rows)) return M3_OK;
    c->rows = json_is_array(rows) && count > 0 ? malloc(count * sizeof *c->rows) : NULL;
    for (size_t i = 0; c->rows && i < count; i++) {
        const json_t *row = json_array_get(rows, i);
        c->rows[i] = json_is_integer(row) ? json_integer_value(row) : -1;
        if (c->rows[i] < 0 || (i > 0 && c->rows[i] <= c->rows[i - 1])) {
            m3_operator_case_free(c);
            break;
        }
    }
    c->row_count = (int64_t)count;
    if (c->rows) return M3_OK;
    return m3_fail(error, M3_BAD_INPUT,
                   "%s: case %" PRId64 ": rows: got no ascending list of rows, expected one or null", path, c->number);
}

static int64_t number_of(const struct m3_case_file *cases, int64_t i)
{
    const json_t *number = json_object_get(json_array_get(cases->cases, (size_t)i), "case");
    return json_is_integer(number) ? json_integer_value(number) : -1;
}

int m3_case_file_at(struct m3_operator_case *c, const struct m3_case_file *cases, int64_t i, struct m3_error *error)
{
    const char *path = m3_safetensors_path(cases->file);
    const json_t *entry = json_array_get(cases->cases, (size_t)i);
    const char *what = json_string_value(json_object_get(entry, "what"));
    const json_t *parameters = json_object_get(entry, "params");
    *c = (struct m3_operator_case){ .number = number_of(cases, i) };
    if (c->number < 0)
        return m3_fail(error, M3_BAD_INPUT, "%s: entry %" PRId64 " of the cases: got no number \"case\", expected one",
                       path, i);
    if (i > 0 && c->number <= number_of(cases, i - 1))
        return m3_fail(error, M3_BAD_INPUT,
                       "%s: entry %" PRId64 " of the cases: got case %" PRId64 " after %" PRId64
                       ", expected ascending numbers",
                       path, i, c->number, number_of(cases, i - 1));
    if (parameters && !json_is_object(parameters))
        return m3_fail(error, M3_BAD_INPUT, "%s: case %" PRId64 ": params: got no object, expected one", path,
                       c->number);
    c->what = what ? what : "";
    c->parameters = parameters;
    c->drawn = json_object_get(entry, "drawn");
    if (c->drawn && !json_is_object(c->drawn))
        return m3_fail(error, M3_BAD_INPUT, "%s: case %" PRId64 ": drawn: got no object, expected one", path,
                       c->number);
    c->exact = json_is_true(json_object_get(entry, "exact"));
    return take_rows(c, json_object_get(entry, "rows"), path, error);
}

void m3_operator_case_free(struct m3_operator_case *c)
{
    free(c->rows);
    c->rows = NULL;
    c->row_count = 0;
}

int m3_numbered_tensor(struct m3_tensor *tensor, const struct m3_safetensors *file, int64_t i, const char *name)
{
    char numbered[96];
    snprintf(numbered, sizeof numbered, "%" PRId64 ".%s", i, name);
    const struct m3_tensor *found = m3_safetensors_find(file, numbered);
    if (found) *tensor = *found;
    return found != NULL;
}

/* ---- operands that are drawn */

static int take_shape(struct m3_tensor *t, const json_t *shape)
{
    const size_t rank = json_array_size(shape);
    if (rank < 1 || rank > M3_MAX_RANK) return 0;
    t->rank = (int)rank, t->count = 1;
    for (int i = 0; i < t->rank; i++) {
        t->shape[i] = json_integer_value(json_array_get(shape, (size_t)i));
        if (t->shape[i] < 1 || __builtin_mul_overflow(t->count, t->shape[i], &t->count)) return 0;
    }
    return !__builtin_mul_overflow((uint64_t)t->count, m3_dtype_bytes(t->dtype), &t->bytes) && t->bytes <= INT64_MAX;
}

int m3_case_file_drawn(struct m3_tensor *t, struct m3_drawing *d, int *found, const struct m3_operator_case *c,
                       const char *operand, const char *name, struct m3_error *error)
{
    const json_t *rule = json_object_get(c->drawn, operand), *seed = json_object_get(rule, "seed");
    const json_t *offset = json_object_get(rule, "offset"), *scale = json_object_get(rule, "scale");
    const char *of = json_string_value(json_object_get(rule, "name"));
    const char *dtype = json_string_value(json_object_get(rule, "dtype"));
    *found = rule != NULL;
    if (!rule) return M3_OK;
    *t = (struct m3_tensor){ .name = operand, .dtype = dtype ? m3_dtype_named(dtype) : M3_DTYPES };
    *d = (struct m3_drawing){ .levels = json_integer_value(json_object_get(rule, "levels")),
                              .offset = json_number_value(offset),
                              .scale = json_number_value(scale),
                              .dtype = t->dtype };
    const char *wrong = NULL;
    if (t->dtype != M3_F32 && t->dtype != M3_BF16 && t->dtype != M3_F16) wrong = "dtype: expected F32, BF16 or F16";
    else if (!json_is_integer(seed) || json_integer_value(seed) < 0) wrong = "seed: expected 0 or more";
    else if (!of) wrong = "name: expected a string";
    else if (d->levels < 1 || d->levels > (t->dtype == M3_F32 ? 1 << 24 : 256))
        wrong = "levels: expected 1 to 256, or with F32 to 2^24";
    else if (!json_is_number(offset) || !json_is_number(scale) ||
             !(fabs(d->scale) * ((double)d->levels + fabs(d->offset)) <= 1e30))
        wrong = "offset, scale: expected numbers whose products with levels are at most 1e30";
    else if (!take_shape(t, json_object_get(rule, "shape")) || t->shape[0] > 1 << 20)
        wrong = "shape: expected a list of sizes, the first at most 2^20";
    if (wrong) return m3_fail(error, M3_BAD_INPUT, "%s: drawn: %s: %s", name, operand, wrong);
    d->key = m3_draw_key((uint64_t)json_integer_value(seed), of);
    return M3_OK;
}

/* ---- the case as a call */

struct finding {
    const struct m3_safetensors *file;
    const struct m3_operator_case *c;
    const char *name;
};

static int find(void *self, const char *operand, struct m3_tensor *tensor)
{
    const struct finding *f = self;
    return m3_numbered_tensor(tensor, f->file, f->c->number, operand);
}

static int find_drawn(void *self, const char *operand, struct m3_tensor *tensor, struct m3_drawing *drawing, int *found,
                      struct m3_error *error)
{
    const struct finding *f = self;
    return m3_case_file_drawn(tensor, drawing, found, f->c, operand, f->name, error);
}

int m3_case_file_call(struct m3_fragment **fragment, const struct m3_case_file *cases, const struct m3_operator_case *c,
                      struct m3_error *error)
{
    char name[512];
    struct finding finding = { cases->file, c, name };
    snprintf(name, sizeof name, "%s: case %" PRId64, m3_safetensors_path(cases->file), c->number);
    const struct m3_operand_source source = { &finding, find, c->parameters, name, find_drawn };
    int status = m3_fragment_make(fragment, cases->op, &source, error);
    if (status || !c->rows) return status;
    if (!cases->op->derivative && c->rows[c->row_count - 1] < m3_fragment_rows(*fragment)) return M3_OK;
    m3_fragment_free(*fragment);
    *fragment = NULL;
    if (cases->op->derivative)
        return m3_fail(error, M3_BAD_INPUT, "%s: rows: got a list, expected none: gradients are sums over all rows",
                       name);
    return m3_fail(error, M3_BAD_INPUT, "%s: rows: got %" PRId64 ", expected a row of the case", name,
                   c->rows[c->row_count - 1]);
}
