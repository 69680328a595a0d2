#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/sha256.h"
#include "cli/cli.h"
#include "model/model.h"
#include "model/taps.h"

static const char help[] =
    "usage: m3ref inspect FILE_OR_MODEL [--tensors GLOB,...] [--json] [--sha256]\n"
    "\n"
    "Lists the tensors of a safetensors file (or .gz) or of a model directory: name, dtype, shape, smallest and largest\n"
    "value, root mean square, count of NaN. F8_E4M3 weights with scales are shown scaled. A model directory is checked\n"
    "against its config first: missing, extra, misshaped and mistyped tensors are all reported.\n"
    "\n"
    "  --tensors GLOB,...   only names that match: * is any text, ? any character\n"
    "  --json               one JSON object a line\n"
    "  --sha256             only hash and name, of each tensor's bytes\n"
    "  --help               this text\n"
    "\n"
    "Exit status: 0 done; 64 wrong usage; 65 bad file or model; 66 absent file; 70 internal error; 74 I/O error.\n";

struct arguments {
    const char *path, *tensors;
    int json, sha256;
};

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

/* A quantised weight with its scales, if both are there and fit each other. */
static int scaled(struct m3_weight *w, const struct m3_tensor *codes, const struct m3_tensor *scales)
{
    if (!scales || codes->dtype != M3_F8_E4M3 || codes->rank != 2 || scales->rank != 2) return 0;
    int64_t rows = codes->shape[0], cols = codes->shape[1], blocks = (cols + 127) / 128, groups = (cols + 31) / 32;
    *w = (struct m3_weight){ .data = codes->data, .scales = scales->data, .dtype = codes->dtype, .rows = rows, .cols = cols };
    if (scales->dtype == M3_F32) w->scaling = M3_SCALE_128X128;
    else w->scaling = M3_SCALE_MX32;
    return w->scaling == M3_SCALE_128X128
               ? scales->shape[0] == (rows + 127) / 128 && scales->shape[1] == blocks
               : (scales->dtype == M3_U8 || scales->dtype == M3_F8_E8M0) && scales->shape[0] == rows && scales->shape[1] == groups;
}

static int measure(struct statistics *s, const struct m3_tensor *t, const struct m3_tensor *scales, struct m3_error *error)
{
    struct m3_weight w;
    *s = (struct statistics){ 0 };
    if (!scaled(&w, t, scales)) {
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

static int print_hash(const struct m3_tensor *t, struct m3_error *error)
{
    char hex[65];
    struct m3_sha256 *hash = m3_sha256_new();
    if (!hash) return m3_fail_memory(error, "a hash", 0);
    m3_sha256_add(hash, t->data, t->bytes);
    if (m3_sha256_end(hash, hex)) return m3_fail(error, M3_INTERNAL, "%s: SHA-256 failed", t->name);
    printf("%s  %s\n", hex, t->name);
    return M3_OK;
}

static void shape_text(char text[200], const struct m3_tensor *t)
{
    int n = snprintf(text, 200, "[");
    for (int i = 0; i < t->rank; i++) n += snprintf(text + n, (size_t)(200 - n), "%s%" PRId64, i ? "," : "", t->shape[i]);
    snprintf(text + n, (size_t)(200 - n), "]");
}

/* A number of a JSON line: those that are not finite are strings. */
static void json_number(const char *key, double x)
{
    if (isfinite(x)) printf(",\"%s\":%.17g", key, x);
    else printf(",\"%s\":\"%s\"", key, isnan(x) ? "nan" : x > 0 ? "inf" : "-inf");
}

static int print_tensor(const struct arguments *a, const struct m3_tensor *t, const struct m3_tensor *scales,
                        struct m3_error *error)
{
    struct statistics s;
    char shape[200];
    if (a->sha256) return print_hash(t, error);
    int status = measure(&s, t, scales, error);
    if (status) return status;
    double rms = s.numbers ? sqrt(s.sum_of_squares / (double)s.numbers) : 0;
    shape_text(shape, t);
    if (!a->json) {
        printf("%-72s %-7s %-20s min %-12.6g max %-12.6g rms %-12.6g nan %" PRId64 "\n", t->name, m3_dtype_name(t->dtype),
               shape, s.min, s.max, rms, s.nans);
        return M3_OK;
    }
    printf("{\"type\":\"tensor\",\"name\":\"%s\",\"dtype\":\"%s\",\"shape\":%s", t->name, m3_dtype_name(t->dtype), shape);
    json_number("min", s.min);
    json_number("max", s.max);
    json_number("rms", rms);
    printf(",\"nan\":%" PRId64 "}\n", s.nans);
    return M3_OK;
}

static void print_summary(const struct arguments *a, int64_t shown, uint64_t bytes)
{
    if (a->json) printf("{\"type\":\"summary\",\"tensors\":%" PRId64 ",\"bytes\":%" PRIu64 "}\n", shown, bytes);
    else if (!a->sha256) printf("%" PRId64 " tensors, %" PRIu64 " bytes\n", shown, bytes);
}

static int inspect_file(const struct arguments *a, struct m3_error *error)
{
    struct m3_safetensors *file;
    int64_t shown = 0;
    uint64_t bytes = 0;
    int status = m3_safetensors_open(&file, a->path, error);
    for (int64_t i = 0; !status && i < m3_safetensors_count(file); i++) {
        const struct m3_tensor *t = m3_safetensors_at(file, i);
        char name[512];
        if (!m3_tap_matches(a->tensors, t->name)) continue;
        snprintf(name, sizeof name, "%s_scale_inv", t->name);
        status = print_tensor(a, t, m3_safetensors_find(file, name), error);
        shown++;
        bytes += t->bytes;
    }
    if (!status) print_summary(a, shown, bytes);
    m3_safetensors_close(file);
    return status;
}

static int inspect_model(const struct arguments *a, struct m3_error *notes, struct m3_error *error)
{
    struct m3_model *model;
    int64_t shown = 0;
    uint64_t bytes = 0;
    int status = m3_model_open(&model, a->path, notes, error);
    for (int64_t i = 0; !status && i < m3_checkpoint_count(model->checkpoint); i++) {
        const struct m3_tensor *t = m3_checkpoint_at(model->checkpoint, i, NULL);
        char name[512];
        if (!m3_tap_matches(a->tensors, t->name)) continue;
        snprintf(name, sizeof name, "%s_scale_inv", t->name);
        status = print_tensor(a, t, m3_checkpoint_find(model->checkpoint, name, NULL), error);
        m3_pages_release(t->data, t->bytes);
        shown++;
        bytes += t->bytes;
    }
    if (!status) print_summary(a, shown, bytes);
    m3_model_close(model);
    return status;
}

int m3_cli_inspect(int argc, char **argv)
{
    enum { OPT_TENSORS = 256, OPT_JSON, OPT_SHA256, OPT_HELP };
    static const struct option options[] = { { "tensors", required_argument, NULL, OPT_TENSORS },
                                             { "json", no_argument, NULL, OPT_JSON },
                                             { "sha256", no_argument, NULL, OPT_SHA256 },
                                             { "help", no_argument, NULL, OPT_HELP },
                                             { NULL, 0, NULL, 0 } };
    struct m3_error notes = { 0 }, error = { 0 };
    struct arguments a = { 0 };
    struct stat info;
    int option, status = M3_OK;

    optind = 0;
    opterr = 0;
    while (!status && (option = getopt_long(argc, argv, ":", options, NULL)) != -1) {
        switch (option) {
        case OPT_HELP: return m3_cli_help(help);
        case OPT_TENSORS: a.tensors = optarg; break;
        case OPT_JSON: a.json = 1; break;
        case OPT_SHA256: a.sha256 = 1; break;
        default: status = m3_cli_bad_option(option, argv, "inspect", &error);
        }
    }
    if (!status && argc - optind != 1)
        status = m3_fail(&error, M3_USAGE, "inspect: got %d names, expected one file or model directory", argc - optind);
    if (!status) {
        a.path = argv[optind];
        int is_folder = stat(a.path, &info) == 0 && S_ISDIR(info.st_mode);
        status = is_folder ? inspect_model(&a, &notes, &error) : inspect_file(&a, &error);
    }
    return m3_cli_end(status, &notes, &error);
}
