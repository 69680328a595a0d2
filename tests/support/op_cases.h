/* Files of cases and of results of `m3ref op`, in a test: operands and results are doubles. Include in one test file. */
#ifndef M3_TESTS_OP_CASES_H
#define M3_TESTS_OP_CASES_H

#include "files.h"

#include <jansson.h>
#include <math.h>

#include "io/safetensors.h"
#include "oracle/error/profile.h"
#include "oracle/operators/check_file.h"
#include "oracle/operators/make.h"
#include "oracle/operators/results.h"

struct op_values {
    char name[64];
    int is_ids, rank;
    int64_t shape[4], count;
    double *x; /* NULL: no such operand */
};

struct op_case {
    const struct m3_safetensors *file;
    json_t *entry;
    int64_t number;
    struct op_values outputs[8];
    int output_count;
};

struct op_set {
    struct m3_safetensors *file;
    json_t *list;
    struct op_case *cases;
    int64_t count;
};

/* ---- cases */

/* Does the operator have the size? R is r twice; block is written b. */
static inline int op_has_size(const struct m3_operator_row *row, char letter)
{
    const int has_r = strstr(row->parameters, ",R") || row->parameters[0] == 'R';
    if (letter == 'r' && has_r) return 1;
    if (letter == 'b') return strstr(row->parameters, "block,") != NULL;
    if (letter == 'n' && strstr(row->parameters, "merge")) return 0;
    for (int i = 0; i < M3_OPERATOR_OPERANDS && row->operands[i].name; i++)
        if (strchr(row->operands[i].letters, letter)) return 1;
    for (int i = 0; i < M3_OPERATOR_OUTPUTS && row->outputs[i].name; i++)
        if (strchr(row->outputs[i].letters, letter)) return 1;
    return 0;
}

/* Those of a list of sizes that the operator has. */
static inline const char *op_sizes(char text[256], const char *op, const char *list)
{
    text[0] = '\0';
    for (const char *at = list; *at; at += strcspn(at, ","), at += *at == ',')
        if (op_has_size(m3_operator_named(op), *at))
            sprintf(text + strlen(text), "%s%.*s", text[0] ? "," : "", (int)strcspn(at, ","), at);
    return text;
}

static inline void op_make(const char *op, const char *path, const struct m3_make_options *options)
{
    struct m3_make_summary summary;
    struct m3_error error = { 0 };
    const int status = m3_make_cases(m3_operator_named(op), path, options, &summary, &error);
    ck_assert_msg(status == M3_OK, "%s: %s", op, error.text);
}

static inline void op_open(struct op_set *set, const char *path)
{
    struct m3_error error = { 0 };
    *set = (struct op_set){ 0 };
    ck_assert_int_eq(m3_safetensors_open(&set->file, path, &error), M3_OK);
    set->list = json_loads(m3_safetensors_metadata(set->file, "cases"), 0, NULL);
    set->count = (int64_t)json_array_size(set->list);
    ck_assert_int_gt(set->count, 0);
    set->cases = calloc((size_t)set->count, sizeof *set->cases);
    for (int64_t i = 0; i < set->count; i++) {
        struct op_case *c = &set->cases[i];
        c->file = set->file;
        c->entry = json_array_get(set->list, (size_t)i);
        c->number = json_integer_value(json_object_get(c->entry, "case"));
    }
}

static inline void op_close(struct op_set *set)
{
    for (int64_t i = 0; i < set->count; i++)
        for (int k = 0; k < set->cases[i].output_count; k++) free(set->cases[i].outputs[k].x);
    free(set->cases);
    json_decref(set->list);
    m3_safetensors_close(set->file);
}

static inline struct op_values op_tensor(const struct m3_safetensors *file, int64_t number, const char *operand)
{
    struct op_values v = { .count = 0 };
    char name[96];
    snprintf(name, sizeof name, "%d.%s", (int)number, operand);
    snprintf(v.name, sizeof v.name, "%.63s", operand);
    const struct m3_tensor *t = m3_safetensors_find(file, name);
    if (!t) return v;
    v.rank = t->rank;
    v.count = t->count;
    v.is_ids = t->dtype == M3_I32 || t->dtype == M3_I64;
    memcpy(v.shape, t->shape, sizeof v.shape);
    v.x = malloc(((size_t)t->count + 1) * sizeof *v.x);
    for (int64_t i = 0; i < t->count; i++) v.x[i] = m3_decode(t->dtype, t->data, i);
    return v;
}

static inline double op_number(const struct op_case *c, const char *parameter)
{
    const json_t *p = json_object_get(json_object_get(c->entry, "params"), parameter);
    ck_assert_msg(p != NULL, "parameter %s is not in the case", parameter);
    return json_is_string(p) ? strtod(json_string_value(p), NULL) : json_number_value(p);
}

static inline int op_word_is(const struct op_case *c, const char *parameter, const char *value)
{
    const char *word = json_string_value(json_object_get(json_object_get(c->entry, "params"), parameter));
    ck_assert_msg(word != NULL, "parameter %s is not in the case", parameter);
    return strcmp(word, value) == 0;
}

/* ---- results */

/* Adds an output of NaN, to be filled. Sizes of 0 end the shape. */
static inline double *op_output(struct op_case *c, const char *name, int is_ids, int64_t a, int64_t b, int64_t d)
{
    ck_assert_int_lt(c->output_count, 8);
    struct op_values *v = &c->outputs[c->output_count++];
    *v = (struct op_values){ .is_ids = is_ids, .rank = d ? 3 : b ? 2 : 1, .shape = { a, b, d }, .count = a };
    if (b) v->count *= b;
    if (d) v->count *= d;
    snprintf(v->name, sizeof v->name, "%.63s", name);
    v->x = malloc(((size_t)v->count + 1) * sizeof *v->x);
    for (int64_t i = 0; i < v->count; i++) v->x[i] = NAN;
    return v->x;
}

static inline struct op_values *op_output_named(struct op_case *c, const char *name)
{
    for (int i = 0; i < c->output_count; i++)
        if (strcmp(c->outputs[i].name, name) == 0) return &c->outputs[i];
    return NULL;
}

static inline uint16_t op_bf16(double x)
{
    const float f = (float)x;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if (isnan(f)) return 0x7fc0;
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* 11 bits, ties to even; below 2^-14 multiples of 2^-24. Not every clang has _Float16. */
static inline uint16_t op_f16(double x)
{
    const double size = fabs(x);
    const int sign = signbit(x) ? 0x8000 : 0;
    int exponent;
    if (isnan(x)) return 0x7e00;
    if (size >= 65520) return (uint16_t)(sign | 0x7c00);
    if (size < 0x1p-14) return (uint16_t)(sign | (int)rint(size * 0x1p24));
    const double fraction = frexp(size, &exponent);
    return (uint16_t)(sign | ((exponent + 13) * 1024 + (int)rint(fraction * 2048)));
}

static inline void op_encode(unsigned char *to, enum m3_dtype dtype, double x)
{
    const float f = (float)x;
    const int32_t i = isnan(x) ? -7 : (int32_t)x;
    const int64_t l = i;
    const uint16_t b = op_bf16(x);
    const uint16_t h = op_f16(x);
    switch (dtype) {
    case M3_F64: memcpy(to, &x, 8); return;
    case M3_F32: memcpy(to, &f, 4); return;
    case M3_BF16: memcpy(to, &b, 2); return;
    case M3_F16: memcpy(to, &h, 2); return;
    case M3_I64: memcpy(to, &l, 8); return;
    default: memcpy(to, &i, 4);
    }
}

/* Writes all outputs, floats as `dtype`; those that are named in `left_out` (",lse,each,") are not written. */
static inline void op_write(struct op_set *set, const char *path, enum m3_dtype dtype, const char *left_out)
{
    struct m3_writer *writer;
    struct m3_error error = { 0 };
    ck_assert_int_eq(m3_writer_new(&writer, path, &error), M3_OK);
    for (int pass = 0; pass < 2; pass++) {
        if (pass == 1) ck_assert_int_eq(m3_writer_begin(writer, &error), M3_OK);
        for (int64_t i = 0; i < set->count; i++)
            for (int k = 0; k < set->cases[i].output_count; k++) {
                const struct op_values *v = &set->cases[i].outputs[k];
                char name[96], listed[80];
                snprintf(listed, sizeof listed, ",%s,", v->name);
                if (left_out && strstr(left_out, listed)) continue;
                snprintf(name, sizeof name, "%d.%s", (int)set->cases[i].number, v->name);
                const enum m3_dtype as = v->is_ids ? M3_I32 : dtype;
                if (pass == 0) {
                    ck_assert_int_eq(m3_writer_tensor(writer, name, as, v->rank, v->shape, &error), M3_OK);
                    continue;
                }
                const size_t size = m3_dtype_bytes(as);
                unsigned char *bytes = malloc((size_t)v->count * size + 1);
                for (int64_t e = 0; e < v->count; e++) op_encode(bytes + (size_t)e * size, as, v->x[e]);
                ck_assert_int_eq(m3_writer_write(writer, bytes, (uint64_t)v->count * size, &error), M3_OK);
                free(bytes);
            }
    }
    ck_assert_int_eq(m3_writer_commit(writer, &error), M3_OK);
}

/* Reads the results of a file into the cases, in place of what they hold. */
static inline void op_read(struct op_set *set, const char *path)
{
    struct m3_safetensors *file;
    struct m3_error error = { 0 };
    ck_assert_int_eq(m3_safetensors_open(&file, path, &error), M3_OK);
    for (int64_t i = 0; i < set->count; i++) {
        struct op_case *c = &set->cases[i];
        const char *name;
        json_t *shape;
        for (int k = 0; k < c->output_count; k++) free(c->outputs[k].x);
        c->output_count = 0;
        json_object_foreach(json_object_get(c->entry, "outputs"), name, shape)
        {
            struct op_values v = op_tensor(file, c->number, name);
            if (v.x) c->outputs[c->output_count++] = v;
        }
    }
    m3_safetensors_close(file);
}

/* ---- verdicts */

struct op_verdict {
    int status; /* of the judging; then of the results */
    char divergence[64], mistake[64], notes[512];
    int64_t index[8], judged, failed, stages;
};

static inline struct op_verdict op_check(const char *op, const char *cases_path, const char *results_path,
                                         const char *profile_name)
{
    struct op_verdict verdict = { .status = -1 };
    struct m3_safetensors *file = NULL, *results = NULL;
    struct m3_case_file cases;
    struct m3_file_check check;
    struct m3_profile *profile = NULL;
    struct m3_error error = { 0 };
    ck_assert_int_eq(m3_safetensors_open(&file, cases_path, &error), M3_OK);
    ck_assert_int_eq(m3_safetensors_open(&results, results_path, &error), M3_OK);
    ck_assert_int_eq(m3_case_file_open(&cases, m3_operator_named(op), file, &error), M3_OK);
    ck_assert_int_eq(m3_profile_open(&profile, profile_name, &error), M3_OK);
    const int status = m3_file_check(&check, &cases, results, NULL, profile, 1, &error);
    ck_assert_msg(status == M3_OK, "%s: status %d: %s", op, status, error.text);
    const struct m3_judgement *c = &check.comparison;
    verdict.status = (int)c->status;
    verdict.judged = c->judged, verdict.failed = c->failed, verdict.stages = c->count;
    if (c->first) {
        snprintf(verdict.divergence, sizeof verdict.divergence, "%s", c->first->tap);
        memcpy(verdict.index, c->first->index,
               sizeof c->first->index < sizeof verdict.index ? sizeof c->first->index : sizeof verdict.index);
    }
    snprintf(verdict.mistake, sizeof verdict.mistake, "%s", c->mistake ? c->mistake : "");
    snprintf(verdict.notes, sizeof verdict.notes, "%s", c->notes.text ? c->notes.text : "");
    m3_file_check_free(&check);
    m3_profile_close(profile);
    m3_case_file_close(&cases);
    m3_safetensors_close(results);
    m3_safetensors_close(file);
    return verdict;
}

/* What the reference gives, with the tolerance if in double. */
static inline void op_run(const char *op, const char *cases_path, const char *results_path,
                          const struct m3_engine *engine)
{
    struct m3_safetensors *file = NULL;
    struct m3_case_file cases;
    struct m3_error error = { 0 };
    ck_assert_int_eq(m3_safetensors_open(&file, cases_path, &error), M3_OK);
    ck_assert_int_eq(m3_case_file_open(&cases, m3_operator_named(op), file, &error), M3_OK);
    const int status = m3_write_results(&cases, results_path, engine, NULL, 1, engine == m3_engine_f64(), &error);
    ck_assert_msg(status == M3_OK, "%s: %s", op, error.text);
    m3_case_file_close(&cases);
    m3_safetensors_close(file);
}

#endif
