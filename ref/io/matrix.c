#include "io/matrix.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { NVFP4_GROUP = 16, MX_GROUP = 32, PACKED_CODES = 8, NAME_BYTES = 256 };

struct search {
    struct m3_matrix *matrix;
    const struct m3_tensor_source *source;
    const struct m3_matrix_report *report;
    const char *name;                   /* "X.weight" */
    const struct m3_tensor *codes;
    const char *path;                   /* of the codes */
    int64_t rows, cols;
    int problems;
};

static void problem(struct search *s, const char *path, const char *tensor, const char *what)
{
    s->problems++;
    s->report->add(s->report->self, path, tensor, what);
}

static const struct m3_tensor *find(const struct search *s, const char *suffix, const char **path)
{
    char name[NAME_BYTES];
    const int length = snprintf(name, sizeof name, "%s%s", s->name, suffix);
    return length < NAME_BYTES ? s->source->find(s->source->files, name, path) : NULL;
}

static void missing(struct search *s, const char *suffix, const char *expected)
{
    char name[NAME_BYTES], what[300];
    snprintf(name, sizeof name, "%s%s", s->name, suffix);
    snprintf(what, sizeof what, "got no such tensor, expected %s", expected);
    problem(s, s->source->home, name, what);
}

static int is_matrix(const struct m3_tensor *t, int64_t rows, int64_t cols)
{
    return t->rank == 2 && t->shape[0] == rows && t->shape[1] == cols;
}

static void wrong_shape(struct search *s, const char *path, const struct m3_tensor *t, const char *dtype, int64_t rows,
                        int64_t cols)
{
    char is[160], what[400];
    size_t n = (size_t)snprintf(is, sizeof is, "[");
    for (int i = 0; i < t->rank && n < sizeof is; i++)
        n += (size_t)snprintf(is + n, sizeof is - n, "%s%" PRId64, i ? "," : "", t->shape[i]);
    snprintf(what, sizeof what, "got %s] %s, expected [%" PRId64 ",%" PRId64 "] %s", is, m3_dtype_name(t->dtype), rows,
             cols, dtype);
    problem(s, path, t->name, what);
}

static void claim(struct search *s, const struct m3_tensor *t) { s->matrix->of[s->matrix->count++] = t; }

static int is_ue8m0(const struct m3_tensor *t) { return t->dtype == M3_U8 || t->dtype == M3_F8_E8M0; }

static int is_float(const struct m3_tensor *t)
{
    return t->dtype == M3_F32 || t->dtype == M3_BF16 || t->dtype == M3_F16 || t->dtype == M3_F64;
}

/* ---- F8_E4M3 */

static void find_e4m3(struct search *s)
{
    struct m3_weight *w = &s->matrix->weight;
    const int64_t block_rows = (s->rows + 127) / 128, block_cols = (s->cols + 127) / 128;
    const char *path;
    const struct m3_tensor *scales = find(s, "_scale_inv", &path);
    if (!scales) scales = find(s, "_scale", &path);
    if (!scales) {
        missing(s, "_scale_inv", "the scales of F8_E4M3 codes");
        return;
    }
    claim(s, scales);
    w->scales = scales->data;
    if (scales->dtype == M3_F32 && is_matrix(scales, block_rows, block_cols)) w->scaling = M3_SCALE_128X128;
    else if (is_ue8m0(scales) && is_matrix(scales, s->rows, (s->cols + 31) / 32)) w->scaling = M3_SCALE_MX32;
    else if (is_ue8m0(scales)) wrong_shape(s, path, scales, "U8", s->rows, (s->cols + 31) / 32);
    else wrong_shape(s, path, scales, "F32", block_rows, block_cols);
}

/* ---- codes of 4 bits */

/* Checks the shape of the codes, and that groups fill the columns. */
static int fits(struct search *s, const char *dtype, int64_t rows, int64_t cols, int64_t group)
{
    char what[200];
    if (s->cols % group != 0) {
        snprintf(what, sizeof what, "got %" PRId64 " columns, expected a multiple of %" PRId64 ", the size of a group",
                 s->cols, group);
        problem(s, s->path, s->codes->name, what);
        return 0;
    }
    if (!is_matrix(s->codes, rows, cols)) wrong_shape(s, s->path, s->codes, dtype, rows, cols);
    return is_matrix(s->codes, rows, cols);
}

/* One positive number. */
static void find_global(struct search *s, const char *suffix, int divides)
{
    struct m3_weight *w = &s->matrix->weight;
    const char *path;
    char what[120];
    const struct m3_tensor *global = find(s, suffix, &path);
    if (!global) {
        missing(s, suffix, "the scale of the whole matrix, F32 [1]");
        return;
    }
    claim(s, global);
    w->divides = divides;
    if (global->dtype != M3_F32 || global->count != 1) {
        snprintf(what, sizeof what, "got %" PRId64 " numbers of %s, expected one of F32", global->count,
                 m3_dtype_name(global->dtype));
        problem(s, path, global->name, what);
        return;
    }
    w->global = m3_decode(M3_F32, global->data, 0);
    if (w->global > 0 && isfinite(w->global)) return;
    snprintf(what, sizeof what, "got %.9g, expected a positive finite number", w->global);
    problem(s, path, global->name, what);
}

/* NVFP4 and MXFP4 differ in the scales of their groups. */
static void find_e2m1(struct search *s, const struct m3_tensor *scales, const char *path)
{
    struct m3_weight *w = &s->matrix->weight;
    const int is_mx = is_ue8m0(scales), is_compressed = s->codes->name[strlen(s->codes->name) - 1] == 'd';
    if (!s->rows) s->rows = s->codes->shape[0], s->cols = 2 * s->codes->shape[1];
    w->dtype = M3_F4_E2M1;
    w->scaling = is_mx ? M3_SCALE_MXFP4 : M3_SCALE_NVFP4;
    w->group = is_mx ? MX_GROUP : NVFP4_GROUP;
    w->scale_dtype = is_mx ? M3_F8_E8M0 : M3_F8_E4M3;
    if (!fits(s, "U8", s->rows, s->cols / 2, w->group)) return;
    if (!is_matrix(scales, s->rows, s->cols / w->group))
        wrong_shape(s, path, scales, is_mx ? "U8" : "F8_E4M3", s->rows, s->cols / w->group);
    if (!is_mx) find_global(s, is_compressed ? "_global_scale" : "_scale_2", is_compressed);
}

/* A group has cols / scales columns. */
static int find_int4_group(struct search *s, const struct m3_tensor *scales, const char *path)
{
    struct m3_weight *w = &s->matrix->weight;
    char what[160];
    if (scales->rank == 2 && scales->shape[0] == s->rows && scales->shape[1] > 0 && s->cols % scales->shape[1] == 0) {
        w->group = s->cols / scales->shape[1];
        w->scale_dtype = scales->dtype;
        return 1;
    }
    snprintf(what, sizeof what, "[%" PRId64 ",groups], where the groups divide %" PRId64 " columns", s->rows, s->cols);
    if (scales->rank == 2 && scales->shape[0] == s->rows) {
        char text[300];
        snprintf(text, sizeof text, "got %" PRId64 " groups, expected %s", scales->shape[1], what);
        problem(s, path, scales->name, text);
    } else {
        wrong_shape(s, path, scales, "BF16, F16 or F32", s->rows, s->cols);
    }
    return 0;
}

static void find_zeros(struct search *s)
{
    struct m3_weight *w = &s->matrix->weight;
    const int64_t rows = (s->rows + PACKED_CODES - 1) / PACKED_CODES, groups = s->cols / w->group;
    const char *path;
    const struct m3_tensor *zeros = find(s, "_zero_point", &path);
    if (!zeros) return;
    claim(s, zeros);
    w->zeros = zeros->data;
    if (zeros->dtype != M3_I32 || !is_matrix(zeros, rows, groups)) wrong_shape(s, path, zeros, "I32", rows, groups);
}

/* A size that a file states; -1 if it is none. */
static int64_t stated_size(const struct m3_tensor *shape, int64_t i)
{
    const double size = m3_decode(shape->dtype, shape->data, i);
    return size >= 0 && size < 0x1p53 ? (int64_t)size : -1;
}

/* The size of a matrix in int32 words is stated beside it, because its rows are padded. */
static void find_stated_shape(struct search *s)
{
    const char *path;
    const struct m3_tensor *shape = find(s, "_shape", &path);
    char what[160];
    if (shape) claim(s, shape);
    if (shape && (shape->count != 2 || (shape->dtype != M3_I64 && shape->dtype != M3_I32))) {
        problem(s, path, shape->name, "got another tensor than I64 [2], expected rows and columns");
        return;
    }
    const int64_t rows = shape ? stated_size(shape, 0) : s->codes->shape[0];
    const int64_t cols = shape ? stated_size(shape, 1) : s->codes->shape[1] * PACKED_CODES;
    if (!s->rows && rows > 0 && cols > 0 && cols <= s->codes->shape[1] * PACKED_CODES) s->rows = rows, s->cols = cols;
    if (!shape || (rows == s->rows && cols == s->cols)) return;
    snprintf(what, sizeof what, "got %" PRId64 " rows and %" PRId64 " columns, expected %" PRId64 " and %" PRId64, rows,
             cols, s->rows, s->cols);
    problem(s, path, shape->name, what);
}

static void find_int4(struct search *s, const struct m3_tensor *scales, const char *path)
{
    struct m3_weight *w = &s->matrix->weight;
    const char *order_path;
    const struct m3_tensor *order = find(s, "_g_idx", &order_path);
    find_stated_shape(s);
    if (order) problem(s, order_path, order->name, "got groups in the order of activations, which are not supported");
    if (order || s->problems) return;
    w->dtype = M3_I4;
    w->scaling = M3_SCALE_INT4;
    if (!find_int4_group(s, scales, path)) return;
    if (fits(s, "I32", s->rows, (s->cols + PACKED_CODES - 1) / PACKED_CODES, w->group)) find_zeros(s);
}

/* ModelOpt holds a column of two rows in a byte. Its inputs may have been smoothed by factors that are stored apart. */
static void find_int4_pairs(struct search *s, const struct m3_tensor *scales, const char *path)
{
    struct m3_weight *w = &s->matrix->weight;
    if (!s->rows) s->rows = 2 * s->codes->shape[0], s->cols = s->codes->shape[1];
    w->dtype = M3_I4;
    w->scaling = M3_SCALE_INT4_PAIRS;
    if (find_int4_group(s, scales, path)) fits(s, "U8", (s->rows + 1) / 2, s->cols, w->group);
}

static void refuse_smoothing(struct search *s)
{
    char name[NAME_BYTES];
    const char *path;
    const size_t stem = strlen(s->name) - strlen("weight");
    snprintf(name, sizeof name, "%.*spre_quant_scale", (int)stem, s->name);
    const struct m3_tensor *smoothing = s->source->find(s->source->files, name, &path);
    if (smoothing)
        problem(s, path, smoothing->name, "got factors of the inputs (AWQ), which are not supported, expected none");
}

static void find_packed(struct search *s)
{
    const char *path;
    const struct m3_tensor *scales = find(s, "_scale", &path);
    const int is_words = s->codes->dtype == M3_I32;
    if (s->codes->rank != 2 || s->codes->count == 0 || (s->codes->dtype != M3_U8 && !is_words)) {
        wrong_shape(s, s->path, s->codes, "U8 or I32", s->rows, s->cols / 2);
        return;
    }
    if (!scales) {
        missing(s, "_scale", "the scales of codes of 4 bits");
        return;
    }
    claim(s, scales);
    refuse_smoothing(s);
    s->matrix->weight.scales = scales->data;
    if (is_words && is_float(scales)) find_int4(s, scales, path);
    else if (!is_words && (is_ue8m0(scales) || scales->dtype == M3_F8_E4M3)) find_e2m1(s, scales, path);
    else if (!is_words && is_float(scales)) find_int4_pairs(s, scales, path);
    else wrong_shape(s, path, scales, "BF16, F16 or F32", s->rows, s->cols);
}

int m3_matrix_is_coded(const struct m3_tensor_source *source, const char *name)
{
    char packed[NAME_BYTES];
    const struct m3_tensor *plain = source->find(source->files, name, NULL);
    if (plain) return plain->dtype == M3_F8_E4M3 || plain->dtype == M3_U8;
    return snprintf(packed, sizeof packed, "%s_packed", name) < NAME_BYTES &&
           source->find(source->files, packed, NULL) != NULL;
}

void m3_matrix_find(struct m3_matrix *matrix, const struct m3_tensor_source *source, const char *name, int64_t rows,
                    int64_t cols, const struct m3_matrix_report *report)
{
    struct search s = {
        .matrix = matrix, .source = source, .report = report, .name = name, .rows = rows, .cols = cols
    };
    *matrix = (struct m3_matrix){ 0 };
    s.codes = find(&s, "", &s.path);
    if (!s.codes) s.codes = find(&s, "_packed", &s.path);
    if (!s.codes || strlen(name) < strlen("weight")) return;
    claim(&s, s.codes);
    matrix->weight.dtype = s.codes->dtype;
    matrix->weight.data = s.codes->data;
    if (s.codes->dtype != M3_F8_E4M3) {
        find_packed(&s);
    } else {
        if (!rows && s.codes->rank == 2) s.rows = s.codes->shape[0], s.cols = s.codes->shape[1];
        if (is_matrix(s.codes, s.rows, s.cols)) find_e4m3(&s);
        else wrong_shape(&s, s.path, s.codes, "F8_E4M3", s.rows, s.cols);
    }
    matrix->weight.rows = s.rows;
    matrix->weight.cols = s.cols;
}

int m3_is_of_activations(const char *name)
{
    static const char *const ends[] = { ".input_scale", ".input_global_scale", ".output_scale",  ".k_scale", ".v_scale",
                                        ".q_scale",     ".k_global_scale",     ".v_global_scale" };
    const char *last = strrchr(name, '.');
    for (size_t i = 0; last && i < sizeof ends / sizeof *ends; i++)
        if (strcmp(last, ends[i]) == 0) return 1;
    return 0;
}
