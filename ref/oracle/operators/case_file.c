#include "oracle/operators/case_file.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

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
    cases->cases = json_loads(text, 0, NULL);
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

struct finding {
    const struct m3_safetensors *file;
    int64_t number;
};

static int find(void *self, const char *operand, struct m3_tensor *tensor)
{
    const struct finding *f = self;
    return m3_numbered_tensor(tensor, f->file, f->number, operand);
}

int m3_case_file_call(struct m3_fragment **fragment, const struct m3_case_file *cases, const struct m3_operator_case *c,
                      struct m3_error *error)
{
    char name[512];
    struct finding finding = { cases->file, c->number };
    snprintf(name, sizeof name, "%s: case %" PRId64, m3_safetensors_path(cases->file), c->number);
    const struct m3_operand_source source = { &finding, find, c->parameters, name };
    int status = m3_fragment_make(fragment, cases->op, &source, error);
    if (status || !c->rows) return status;
    if (c->rows[c->row_count - 1] < m3_fragment_rows(*fragment)) return M3_OK;
    m3_fragment_free(*fragment);
    *fragment = NULL;
    return m3_fail(error, M3_BAD_INPUT, "%s: rows: got %" PRId64 ", expected a row of the case", name,
                   c->rows[c->row_count - 1]);
}
