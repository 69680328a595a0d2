#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/printable.h"
#include "base/sha256.h"
#include "cli/cli.h"
#include "cli/options.h"
#include "cli/paths.h"
#include "io/matrix.h"
#include "io/json.h"
#include "io/open.h"
#include "model/model.h"
#include "model/taps.h"

struct arguments {
    const char *path, *tensors;
    int json, sha256, help;
};

static const char about[] =
    "usage: m3ref inspect FILE_OR_MODEL [--tensors GLOB,...] [--json] [--sha256]\n"
    "\n"
    "Lists the tensors of a safetensors file (or .gz) or of a model directory: name, dtype, shape, smallest and\n"
    "largest value, root mean square, and number of NaN. Codes of 8 or 4 bits are shown with their scales applied,\n"
    "if they have scales. A model directory is first checked against its config. All missing and extra tensors,\n"
    "wrong shapes and wrong dtypes are reported.\n"
    "\n";

static const char end[] =
    "\n"
    "Exit status: 0 done; 3 a file without tensors; 64 wrong usage; 65 bad file or model; 66 missing file; 70\n"
    "internal error; 74 I/O error.\n";

#define M3_CLI_ARGUMENTS struct arguments
/* clang-format off */
static const struct m3_cli_option options[] = {
    M3_CLI_TEXT_OF("tensors", "GLOB,...", tensors,
      "only names that match: * is any text, ? any character"),
    M3_CLI_FLAG_OF("json", json,
      "print one JSON object per line"),
    M3_CLI_FLAG_OF("sha256", sha256,
      "print only the hash of each tensor's bytes, and its name"),
    M3_CLI_HELP_OF(help),
    M3_CLI_END,
};
/* clang-format on */

static const struct m3_cli_command command_line = { "inspect", about, options, 23, end };

struct statistics {
    double min, max, sum_of_squares;
    int64_t numbers, nans;
};

static void count_value(struct statistics *s, double x)
{
    if (x != x) {
        s->nans++;
        return;
    }
    if (s->numbers == 0 || x < s->min) s->min = x;
    if (s->numbers == 0 || x > s->max) s->max = x;
    s->sum_of_squares += x * x;
    s->numbers++;
}

/* The listed tensors: those of a file, or of all files of a model. */
struct listing {
    const char *path;
    struct m3_safetensors *file;
    struct m3_model *model;
};

static const struct m3_tensor *find_tensor(const void *self, const char *name, const char **path)
{
    const struct listing *l = self;
    if (!l->file) return m3_checkpoint_find(l->model->checkpoint, name, path);
    if (path) *path = l->path;
    return m3_safetensors_find(l->file, name);
}

static void count_problem(void *self, const char *path, const char *tensor, const char *what)
{
    (void)path, (void)tensor, (void)what;
    ++*(int *)self;
}

/* Finds the matrix whose codes these are. Returns 0 if they are no codes, or their scales do not fit. */
static int scaled(struct m3_weight *w, const struct listing *l, const struct m3_tensor *t)
{
    static const char end[] = "_packed";
    char name[512];
    const size_t length = strlen(t->name), packed = sizeof end - 1;
    const int is_packed = length > packed && strcmp(t->name + length - packed, end) == 0;
    struct m3_matrix matrix;
    int problems = 0;
    const struct m3_matrix_report report = { count_problem, &problems };
    const struct m3_tensor_source source = { find_tensor, l, l->path };
    if (length >= sizeof name || (t->dtype != M3_F8_E4M3 && t->dtype != M3_U8 && t->dtype != M3_I32)) return 0;
    snprintf(name, sizeof name, "%.*s", (int)(length - (is_packed ? packed : 0)), t->name);
    m3_matrix_find(&matrix, &source, name, 0, 0, &report);
    *w = matrix.weight;
    return matrix.count > 1 && !problems && matrix.of[0] == t;
}

static int measure(struct statistics *s, const struct listing *l, const struct m3_tensor *t, struct m3_error *error)
{
    struct m3_weight w;
    *s = (struct statistics){ 0 };
    if (!scaled(&w, l, t)) {
        for (int64_t i = 0; i < t->count; i++) count_value(s, m3_decode(t->dtype, t->data, i));
        return M3_OK;
    }
    double *row = malloc((size_t)w.cols * sizeof *row);
    if (!row) return m3_fail_memory(error, t->name, (size_t)w.cols * sizeof *row);
    for (int64_t r = 0; r < w.rows; r++) {
        m3_expand_f64(row, &w, r, 0, w.cols);
        for (int64_t i = 0; i < w.cols; i++) count_value(s, row[i]);
    }
    free(row);
    return M3_OK;
}

static int print_hash(const struct m3_tensor *t, const char *name, struct m3_error *error)
{
    char hex[65];
    struct m3_sha256 *hash = m3_sha256_new();
    if (!hash) return m3_fail_memory(error, "a hash", 0);
    m3_sha256_add(hash, t->data, t->bytes);
    if (m3_sha256_end(hash, hex)) return m3_fail(error, M3_INTERNAL, "%s: SHA-256 failed", t->name);
    printf("%s  %s\n", hex, name);
    return M3_OK;
}

static void print_text(const struct m3_tensor *t, const char *name, const struct statistics *s)
{
    char shape[200];
    int n = snprintf(shape, sizeof shape, "[");
    for (int i = 0; i < t->rank; i++)
        n += snprintf(shape + n, sizeof shape - (size_t)n, "%s%" PRId64, i ? "," : "", t->shape[i]);
    snprintf(shape + n, sizeof shape - (size_t)n, "]");

    printf("%-72s %-7s %-20s ", name, m3_dtype_name(t->dtype), shape);
    if (s->numbers)
        printf("min %-12.6g max %-12.6g rms %-12.6g ", s->min, s->max, sqrt(s->sum_of_squares / (double)s->numbers));
    else printf("no numbers ");
    printf("nan %" PRId64 "\n", s->nans);
}

/* null if there is none. */
static json_t *json_number(const struct statistics *s, double x)
{
    return s->numbers ? m3_json_number(x) : json_null();
}

static int print_tensor_json(const struct m3_tensor *t, const char *name, const struct statistics *s,
                             struct m3_error *error)
{
    json_t *shape = json_array();
    for (int i = 0; i < t->rank; i++) m3_json_append(shape, json_integer(t->shape[i]));
    double rms = s->numbers ? sqrt(s->sum_of_squares / (double)s->numbers) : 0;
    json_t *line = json_pack("{ss ss ss so so so so sI}", "type", "tensor", "name", name, "dtype",
                             m3_dtype_name(t->dtype), "shape", shape, "min", json_number(s, s->min), "max",
                             json_number(s, s->max), "rms", json_number(s, rms), "nan", (json_int_t)s->nans);
    return m3_json_line(stdout, line, error);
}

static int64_t tensor_count(const struct listing *l)
{
    return l->file ? m3_safetensors_count(l->file) : m3_checkpoint_count(l->model->checkpoint);
}

static const struct m3_tensor *tensor_at(const struct listing *l, int64_t i)
{
    return l->file ? m3_safetensors_at(l->file, i) : m3_checkpoint_at(l->model->checkpoint, i, NULL);
}

static int print_tensor(const struct arguments *a, const struct listing *l, const struct m3_tensor *t,
                        struct m3_error *error)
{
    struct statistics s = { 0 };
    char *name = strdup(t->name);
    if (!name) return m3_fail_memory(error, t->name, strlen(t->name));
    m3_make_printable(name, strlen(name));

    int status = a->sha256 ? print_hash(t, name, error) : measure(&s, l, t, error);
    if (!status && !a->sha256) {
        if (a->json) status = print_tensor_json(t, t->name, &s, error);
        else print_text(t, name, &s);
    }
    free(name);
    return status;
}

static int list(const struct arguments *a, const struct listing *l, struct m3_error *error)
{
    int64_t shown = 0;
    uint64_t bytes = 0;
    int status = M3_OK;
    for (int64_t i = 0; !status && i < tensor_count(l); i++) {
        const struct m3_tensor *t = tensor_at(l, i);
        if (!m3_tap_matches(a->tensors, t->name)) continue;
        status = print_tensor(a, l, t, error);
        m3_pages_release(t->data, t->bytes);
        shown++;
        bytes += t->bytes;
    }
    if (status) return status;
    if (shown == 0 && a->tensors)
        return m3_fail(error, M3_USAGE, "--tensors: got %s, expected a pattern that matches a tensor", a->tensors);
    if (shown == 0) return m3_fail(error, M3_NOT_COMPARABLE, "%s: got no tensors, expected at least one", a->path);
    if (a->json)
        return m3_json_line(
            stdout,
            json_pack("{ss sI sI}", "type", "summary", "tensors", (json_int_t)shown, "bytes", (json_int_t)bytes),
            error);
    if (!a->sha256) printf("%" PRId64 " tensor%s, %" PRIu64 " bytes\n", shown, shown == 1 ? "" : "s", bytes);
    return M3_OK;
}

static int check_paths(const struct arguments *a, struct m3_error *error)
{
    struct m3_cli_paths paths = m3_cli_paths(error);
    m3_cli_reads(&paths, "FILE_OR_MODEL", a->path);
    return m3_cli_paths_end(&paths);
}

static int inspect(const struct arguments *a, struct m3_error *notes, struct m3_error *error)
{
    struct listing l = { .path = a->path };
    int is_folder, status = m3_look_for_folder(&is_folder, a->path, error);
    if (!status && is_folder) status = m3_model_open(&l.model, a->path, notes, error);
    else if (!status) status = m3_safetensors_open(&l.file, a->path, error);
    if (!status) status = check_paths(a, error);
    if (!status) status = list(a, &l, error);
    m3_safetensors_close(l.file);
    m3_model_close(l.model);
    return status;
}

int m3_cli_inspect(int argc, char **argv)
{
    struct m3_error notes = { 0 }, error = { 0 };
    struct arguments a = { 0 };
    int status = m3_cli_options(&command_line, &a, NULL, argc, argv, &error);
    if (!status && a.help) return m3_cli_end(m3_cli_print_help(&command_line, &error), &notes, &error);
    if (!status && argc - optind != 1)
        status =
            m3_fail(&error, M3_USAGE, "inspect: got %d names, expected one file or model directory", argc - optind);
    if (!status) {
        a.path = argv[optind];
        status = inspect(&a, &notes, &error);
    }
    return m3_cli_end(status, &notes, &error);
}
