#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/estimate/estimate.h"
#include "cli/estimate/source.h"
#include "cli/options.h"
#include "cli/paths.h"
#include "estimate/chart.h"
#include "estimate/foreign.h"
#include "io/gzip.h"
#include "io/json.h"
#include "io/new_file.h"
#include "io/open.h"
#include "model/pictures.h"
#include "model/semantics.h"

enum format { TABLE, CSV, JSON };
enum { MOST_VALUES = 64, MOST_CARDS = 65536 };

struct list {
    int64_t values[MOST_VALUES];
    int count;
};

/* A picture as given in the options: in pixels, or in patches. */
struct picture {
    const char *text;
    int is_image;
};

struct arguments {
    struct picture pictures[MOST_VALUES];
    int picture_count;
    int64_t grids[MOST_VALUES][3];      /* of the pictures, in patches */
    const char *path, *contexts, *batches, *card_memory, *explain, *chart;
    struct m3_estimate_request request;
    enum format format;
    int formats, gpus_given, from_tensors, allow_long, documents, marks, help;
};

static int parse_dtype(const struct m3_format **format, const char *flag, const char *text, struct m3_error *error)
{
    *format = m3_format_named(text);
    if (*format) return M3_OK;
    return m3_fail(error, M3_USAGE, "%s: got %s, expected bf16, f16, f32, fp8, int4 or fp4", flag, text);
}

static int parse_format(struct arguments *a, const char *text, struct m3_error *error)
{
    static const char *const names[] = { "table", "csv", "json" };     /* in the order of the enumeration */
    a->formats++;
    for (int i = 0; i < 3; i++)
        if (strcmp(text, names[i]) == 0) {
            a->format = (enum format)i;
            return M3_OK;
        }
    return m3_fail(error, M3_USAGE, "--format: got %s, expected table, csv or json", text);
}

/* Reads the fields of the semantics that change a cost. */
static int parse_set(struct m3_estimate_request *r, const char *text, struct m3_error *error)
{
    struct m3_semantics s = { .mtp_join = r->mtp_join, .vision_boundary = r->boundary };
    if (strncmp(text, "mtp_join=", 9) != 0 && strncmp(text, "vision_boundary=", 16) != 0)
        return m3_fail(error, M3_USAGE,
                       "--set: got %s, expected mtp_join=... or vision_boundary=..., because no "
                       "other field changes a cost",
                       text);
    int status = m3_semantics_set_one(&s, text, error);
    r->mtp_join = s.mtp_join;
    r->boundary = s.vision_boundary;
    return status;
}

static int take_picture(struct arguments *a, const char *text, int is_image, struct m3_error *error)
{
    if (a->picture_count == MOST_VALUES)
        return m3_fail(error, M3_USAGE, "estimate: got more than %d pictures", MOST_VALUES);
    a->pictures[a->picture_count++] = (struct picture){ text, is_image };
    return M3_OK;
}

static int refuse_card(const char *got, struct m3_error *error)
{
    char names[512] = "";
    const char *name;
    for (int i = 0; (name = m3_gpu_name(i)); i++) {
        const size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", name);
    }
    return m3_fail(error, M3_USAGE, "--gpu: got %s, expected one of %s", got, names);
}

static int take_weights(void *arguments, const char *value, struct m3_error *error)
{
    struct arguments *a = arguments;
    a->request.weights_asked = 1;
    return parse_dtype(&a->request.weights, "--weights", value, error);
}

static int take_kv(void *arguments, const char *value, struct m3_error *error)
{
    return parse_dtype(&((struct arguments *)arguments)->request.kv, "--kv", value, error);
}

static int take_index_kv(void *arguments, const char *value, struct m3_error *error)
{
    return parse_dtype(&((struct arguments *)arguments)->request.index_kv, "--index-kv", value, error);
}

static int take_set(void *arguments, const char *value, struct m3_error *error)
{
    struct arguments *a = arguments;
    return parse_set(&a->request, value, error);
}

static int take_image(void *arguments, const char *value, struct m3_error *error)
{
    return take_picture(arguments, value, 1, error);
}

static int take_grid(void *arguments, const char *value, struct m3_error *error)
{
    return take_picture(arguments, value, 0, error);
}

static int take_format(void *arguments, const char *value, struct m3_error *error)
{
    return parse_format(arguments, value, error);
}

static int take_json(void *arguments, const char *value, struct m3_error *error)
{
    (void)value;
    return parse_format(arguments, "json", error);
}

static int take_gpu(void *arguments, const char *value, struct m3_error *error)
{
    struct arguments *a = arguments;
    a->request.gpu = m3_gpu_named(value);
    if (a->request.gpu) return M3_OK;
    return refuse_card(value, error);
}

static int take_gpus(void *arguments, const char *value, struct m3_error *error)
{
    struct arguments *a = arguments;
    a->gpus_given = 1;
    return m3_cli_number(&a->request.gpus, "--gpus", value, 1, MOST_CARDS, error);
}

static const char about[] =
    "usage: m3ref estimate MODEL_OR_CONFIG [--context T,...] [--batch B,...] [--gpu NAME --gpus N] ...\n"
    "\n"
    "Computes what a MiniMax model costs, from its config.json alone or from a model directory: parameters, FLOPs of\n"
    "one decoded token and of a prefill, caches and memory. With --gpu it also computes how many cards can hold the\n"
    "model, the largest batch that fits, and a lower bound on the time of a step. Parameters, FLOPs and bytes are\n"
    "exact. SPEC 14 has the formulas, and --explain shows them with their numbers. For comparison, estimate also reads\n"
    "the config.json of LlamaForCausalLM, and files with a few published numbers of other models (SPEC 14.9). Some of\n"
    "these files are in golden/configs. Figures that do not follow from the given numbers are null, or left out.\n"
    "\n";

static const char end[] =
    "\n"
    "Exit status: 0 done; 64 wrong usage, unknown card or dtype, number out of range; 65 bad config or model, or a\n"
    "model family that estimate does not support; 66 missing file; 70 internal error; 74 I/O error.\n";

#define M3_CLI_ARGUMENTS struct arguments
/* clang-format off */
static const struct m3_cli_option options[] = {
    M3_CLI_TEXT_OF("context", "T,...", contexts,
      "number of tokens in the context, including the decoded token; K means 1,024 and\n"
      "M means 1,048,576. Default: max_position_embeddings"),
    M3_CLI_FLAG_OF("allow-long", allow_long,
      "allow contexts beyond max_position_embeddings, with a note"),
    M3_CLI_TEXT_OF("batch", "B,...", batches,
      "number of sequences, each as long as --context says; default 1. Every context is\n"
      "combined with every batch"),
    M3_CLI_TAKEN("weights", "DTYPE", take_weights,
      "bf16, f16, f32, fp8, int4 or fp4: count every weight with the size of this dtype,\n"
      "without scales. Default: the stored size if there are weight files, otherwise bf16"),
    M3_CLI_TAKEN("kv", "DTYPE", take_kv,
      "dtype of keys and values, default bf16"),
    M3_CLI_TAKEN("index-kv", "DTYPE", take_index_kv,
      "dtype of index keys, default as --kv"),
    M3_CLI_ROW("--gpu NAME --gpus N",
      "which card, such as h200, mi355x or \"RTX PRO 6000\", and how many; default 1. An\n"
      "unknown name lists all cards"),
    M3_CLI_TEXT_OF("card-memory", "M", card_memory,
      "memory of a card: vendor (the advertised GB, the default), reported (what the driver\n"
      "reports), or a number of bytes"),
    M3_CLI_ROW("--tp N --pp N --dp N --ep N",
      "\n"
      "a layout: heads and widths of a layer are divided among tp cards, layers among pp\n"
      "stages, sequences among dp replicas. The tp * dp cards of a stage are divided\n"
      "into ep groups, and each group holds 1/ep of the experts. By default tp, pp and dp are 1,\n"
      "and ep is tp. With a layout the report also says what a card holds (SPEC 14.12)"),
    M3_CLI_NUMBER_OF("chunk", "N", request.layout.chunk, 1, INT64_C(1) << 32,
      "with a layout: tokens of a prefill that a replica processes at a time, default 8192;\n"
      "the activations are counted for them"),
    M3_CLI_NUMBER_OF("efficiency", "P", request.efficiency, 1, 100,
      "assumed percentage of a card's peak rates that is reached, default 50. It affects the\n"
      "expected times and tokens per second, not the lower bounds"),
    M3_CLI_NUMBER_OF("activations", "BYTES", request.activation_bytes, 0, INT64_C(1) << 50,
      "without a layout: assumed memory for the activations of one sequence, default 5 GiB"),
    M3_CLI_NUMBER_OF("mtp", "N", request.mtp_modules, 0, 16,
      "count N MTP modules in parameters, memory and caches, default 0"),
    M3_CLI_TAKEN("set", "FIELD=VALUE", take_set,
      "the reading of the model, as for m3ref run; here mtp_join=concat|additive and\n"
      "vision_boundary=segment|none"),
    M3_CLI_TAKEN("image", "WxH", take_image,
      "also count the FLOPs of an image of this size in pixels. It is first resized as the\n"
      "model's processor does. --image and --grid may be repeated"),
    M3_CLI_TAKEN("grid", "T,H,W", take_grid,
      "also count a picture of T x H x W patches. If T is above 1, it is a video"),
    M3_CLI_FLAG_OF("all-logits", request.all_logits,
      "a prefill applies lm_head to every token, not only to the last one"),
    M3_CLI_FLAG_OF("no-causal-skip", request.no_causal_skip,
      "a prefill also computes the masked half of full attention and of the index scores"),
    M3_CLI_FLAG_OF("from-tensors", from_tensors,
      "require weight files in the model directory, and count the parameters in them. The\n"
      "counts must agree with the config"),
    M3_CLI_TAKEN("format", "F", take_format,
      "table (default), csv or json"),
    M3_CLI_TAKEN("json", NULL, take_json,
      "the same as --format json"),
    M3_CLI_TEXT_OF("explain", "KEY", explain,
      "print formula, numbers and value of a figure. KEY is a key of the JSON output, or a\n"
      "group of keys. kv.X is short for kv_bytes.X"),
    M3_CLI_TEXT_OF("chart", "OUT.svg", chart,
      "also draw cost against context: FLOPs of a decoded token by part, caches, and bytes\n"
      "read. With --gpu, also draw the least time to read these bytes. The contexts of\n"
      "--context are marked"),
    M3_CLI_FLAG_OF("documents", documents,
      "print only the figures that documents state for this model, next to the computed ones\n"
      "(appendix C of golden/documents/README.md)"),
    M3_CLI_FLAG_OF("marks", marks,
      "mark the figures of the report that these documents state differently"),
    M3_CLI_HELP_OF(help),
    M3_CLI_TAKEN("gpu", "VALUE", take_gpu, NULL),
    M3_CLI_TAKEN("gpus", "VALUE", take_gpus, NULL),
    M3_CLI_NUMBER_OF("tp", "VALUE", request.layout.tp, 1, MOST_CARDS, NULL),
    M3_CLI_NUMBER_OF("pp", "VALUE", request.layout.pp, 1, MOST_CARDS, NULL),
    M3_CLI_NUMBER_OF("dp", "VALUE", request.layout.dp, 1, MOST_CARDS, NULL),
    M3_CLI_NUMBER_OF("ep", "VALUE", request.layout.ep, 1, MOST_CARDS, NULL),
    M3_CLI_END,
};
/* clang-format on */

static const struct m3_cli_command command_line = { "estimate", about, options, 25, end };

/* A part of a layout that is not given is 1; ep is tp. */
static int set_layout(struct arguments *a, struct m3_error *error)
{
    struct m3_estimate_request *r = &a->request;
    struct m3_layout *l = &r->layout;
    if (!l->tp && !l->pp && !l->dp && !l->ep) {
        if (l->chunk) return m3_fail(error, M3_USAGE, "--chunk: expected a layout with it: --tp, --pp, --dp or --ep");
        return M3_OK;
    }
    if (r->mtp_modules) return m3_fail(error, M3_USAGE, "estimate: --mtp cannot be combined with a layout");
    if (!l->tp) l->tp = 1;
    if (!l->pp) l->pp = 1;
    if (!l->dp) l->dp = 1;
    if (!l->ep) l->ep = l->tp;
    if (!l->chunk) l->chunk = M3_CHUNK;
    const double cards = (double)l->tp * (double)l->pp * (double)l->dp;
    if (cards > MOST_CARDS)
        return m3_fail(error, M3_USAGE, "estimate: got a layout of %.0f cards, expected at most %d", cards, MOST_CARDS);
    if (a->gpus_given && r->gpus != (int64_t)cards)
        return m3_fail(error, M3_USAGE, "--gpus: got %" PRId64 ", expected the %.0f cards of the layout, or no --gpus",
                       r->gpus, cards);
    r->gpus = (int64_t)cards;
    return M3_OK;
}

static int set_card(struct arguments *a, struct m3_error *error)
{
    struct m3_estimate_request *r = &a->request;
    if (!r->gpu && (a->gpus_given || a->card_memory))
        return m3_fail(error, M3_USAGE, "estimate: %s needs --gpu", a->gpus_given ? "--gpus" : "--card-memory");
    if (!r->gpu) return M3_OK;
    r->card_bytes = r->gpu->vendor_bytes;
    if (!a->card_memory || strcmp(a->card_memory, "vendor") == 0) return M3_OK;
    if (strcmp(a->card_memory, "reported") != 0)
        return m3_cli_number(&r->card_bytes, "--card-memory", a->card_memory, 1, INT64_C(1) << 50, error);
    r->card_bytes = r->gpu->reported_bytes;
    if (r->card_bytes) return M3_OK;
    return m3_fail(error, M3_USAGE, "--card-memory: got reported, which is not known for %s, expected vendor or bytes",
                   r->gpu->name);
}

static int parse(struct arguments *a, int argc, char **argv, struct m3_error *error)
{
    *a = (struct arguments){ .request = { .weights = m3_format_named("bf16"),
                                          .kv = m3_format_named("bf16"),
                                          .activation_bytes = M3_ACTIVATION_BYTES,
                                          .efficiency = M3_EFFICIENCY,
                                          .gpus = 1 } };
    int status = m3_cli_options(&command_line, a, NULL, argc, argv, error);
    if (status || a->help) return status;
    if (argc - optind != 1)
        return m3_fail(error, M3_USAGE, "estimate: got %d names, expected one config.json or model directory",
                       argc - optind);
    a->path = argv[optind];
    if (!a->request.index_kv) a->request.index_kv = a->request.kv;
    size_t length = a->chart ? strlen(a->chart) : 0;
    if (a->chart && (length < 5 || strcmp(a->chart + length - 4, ".svg") != 0))
        return m3_fail(error, M3_USAGE, "--chart: got %s, expected a name that ends in .svg", a->chart);
    if (!!a->explain + !!a->formats + a->documents > 1)
        return m3_fail(error, M3_USAGE, "estimate: only one of --explain, --format and --documents is allowed");
    status = set_layout(a, error);
    return status ? status : set_card(a, error);
}

/* "4096,128K,1M" */
static int parse_list(struct list *list, const char *flag, const char *text, int64_t most, const char *what,
                      struct m3_error *error)
{
    const char *at = text;
    list->count = 0;
    for (;; at++) {
        char *end;
        errno = 0;
        long long value = *at >= '0' && *at <= '9' ? strtoll(at, &end, 10) : 0;
        int64_t unit = 1;
        if (value > 0 && (*end == 'K' || *end == 'M')) unit = *end++ == 'K' ? 1 << 10 : 1 << 20;
        int good = value > 0 && !errno && value <= most / unit && (*end == ',' || !*end) && list->count < MOST_VALUES;
        if (!good)
            return m3_fail(error, M3_USAGE, "%s: got %s, expected up to %d numbers from 1 to %" PRId64 "%s", flag, text,
                           MOST_VALUES, most, what);
        list->values[list->count++] = value * unit;
        at = end;
        if (!*at) return M3_OK;
    }
}

/* Prints one combination: the answer first, then the whole report; with --marks the errata of documents. */
static int print_report(const struct arguments *a, const struct m3_estimate *e, const json_t *summary,
                        struct m3_error *error)
{
    struct m3_mark found[M3_MOST_MARKS];
    struct m3_cli_marks marks = { found, 0 };
    int status = a->marks ? m3_estimate_marks(found, &marks.count, e, summary, error) : M3_OK;
    if (status) return status;
    m3_cli_estimate_answer(e);
    m3_cli_estimate_model(e, a->path, &marks);
    m3_cli_estimate_detail(e, &marks);
    m3_cli_estimate_errata(&marks);
    return M3_OK;
}

static int print(const struct arguments *a, const struct m3_estimate *e, int first, int several, struct m3_error *error)
{
    const struct m3_cli_marks none = { NULL, 0 };
    const int table = a->format == TABLE && !a->explain;
    if (a->documents) return first ? m3_cli_estimate_documents(e, error) : M3_OK;
    if (table && several) {
        if (first) m3_cli_estimate_model(e, a->path, &none);
        m3_cli_estimate_line(e, first);
        return M3_OK;
    }
    json_t *summary = m3_estimate_json(e);
    int status = M3_OK;
    if (!summary) status = m3_fail_memory(error, "the summary", 0);
    else if (table) status = print_report(a, e, summary, error);
    else if (a->explain) {
        if (several) printf("context %" PRId64 ", batch %" PRId64 "\n", e->request.context, e->request.batch);
        status = m3_estimate_explain(e, a->explain, stdout, error);
    } else if (a->format == CSV) m3_cli_estimate_csv(summary, first);
    else return m3_json_line(stdout, summary, error);
    json_decref(summary);
    return status;
}

/* "672x448", "2,48,48": `count` numbers from 1 to 2^20. */
static int parse_sides(int64_t *sides, int count, char between, const char *text)
{
    for (int i = 0; i < count; i++) {
        char *end = NULL;
        errno = 0;
        sides[i] = *text >= '1' && *text <= '9' ? strtoll(text, &end, 10) : 0;
        if (!end || errno || sides[i] > 1 << 20 || *end != (i < count - 1 ? between : '\0')) return -1;
        text = end + 1;
    }
    return 0;
}

static int parse_image(int64_t grid[3], const char *text, const struct m3_config *config, struct m3_error *error)
{
    struct m3_picture_size size;
    int64_t sides[2];
    if (parse_sides(sides, 2, 'x', text))
        return m3_fail(error, M3_USAGE, "--image: got %s, expected WIDTHxHEIGHT, each from 1 to 1048576", text);
    if (m3_pictures_image_size(&size, sides[1], sides[0], "--image", &config->vision, error)) return M3_USAGE;
    memcpy(grid, size.grid, sizeof size.grid);
    return M3_OK;
}

static int parse_grid(int64_t grid[3], const char *text, const struct m3_config *config, struct m3_error *error)
{
    int64_t merge = config->vision.spatial_merge;
    if (!parse_sides(grid, 3, ',', text) && grid[1] % merge == 0 && grid[2] % merge == 0) return M3_OK;
    return m3_fail(error, M3_USAGE,
                   "--grid: got %s, expected T,H,W, each from 1 to 1048576, H and W in multiples of %" PRId64, text,
                   merge);
}

static int parse_pictures(struct m3_cli_source *s, struct arguments *a, struct m3_error *error)
{
    double patches = 0;
    if (a->picture_count && !s->config->vision.present)
        return m3_fail(error, M3_USAGE, "%s: got pictures, expected none: the model has no vision part",
                       a->pictures[0].is_image ? "--image" : "--grid");
    for (int i = 0; i < a->picture_count; i++) {
        const char *text = a->pictures[i].text;
        int64_t *grid = a->grids[i];
        int status = a->pictures[i].is_image ? parse_image(grid, text, s->config, error)
                                             : parse_grid(grid, text, s->config, error);
        if (status) return status;
        patches += (double)grid[0] * (double)grid[1] * (double)grid[2];
    }
    if (patches > 0x1p40) return m3_fail(error, M3_USAGE, "--grid: got %.0f patches, expected at most 2^40", patches);
    a->request.grids = (const int64_t (*)[3])a->grids;
    a->request.grid_count = a->picture_count;
    return M3_OK;
}

/* Contexts up to the model's limit, or beyond it with a note. If nothing is known about attention, none is needed. */
static int parse_contexts(struct list *list, const struct arguments *a, const struct m3_config *config,
                          struct m3_error *notes, struct m3_error *error)
{
    const int64_t limit = config->max_positions ? config->max_positions : M3_MOST_CONTEXT;
    const int64_t most = a->allow_long || limit > M3_MOST_CONTEXT ? M3_MOST_CONTEXT : limit;
    *list = (struct list){ { !config->max_positions ? M3_UNKNOWN : limit < most ? limit : most }, 1 };
    if (!a->contexts) return M3_OK;
    int status = parse_list(list, "--context", a->contexts, most,
                            a->allow_long ? ", K and M allowed" : ", max_position_embeddings, K and M allowed", error);
    for (int i = 0; !status && i < list->count; i++)
        if (list->values[i] > limit)
            m3_fail(notes, M3_OK, "--context: %" PRId64 " is beyond max_position_embeddings, %" PRId64, list->values[i],
                    limit);
    return status;
}

/* The axis goes up to the model's limit, or to the largest requested context. `file` is not committed yet. */
static int draw(struct m3_new_file *file, const struct arguments *a, const struct m3_cli_source *s,
                const struct list *contexts, const struct list *batches, struct m3_error *error)
{
    struct m3_estimate_request r = a->request;
    struct m3_chart_request chart = { .title = s->foreign.few ? s->foreign.name : a->path,
                                      .last = s->config->max_positions < M3_MOST_CONTEXT ? s->config->max_positions
                                                                                         : M3_MOST_CONTEXT };
    char *svg;
    if (batches->count != 1) return m3_fail(error, M3_USAGE, "--chart: got %d batches, expected one", batches->count);
    if (a->contexts) {
        chart.marks = contexts->values;
        chart.mark_count = contexts->count;
    }
    for (int i = 0; i < chart.mark_count; i++)
        if (chart.marks[i] > chart.last && chart.last) chart.last = chart.marks[i];
    r.batch = batches->values[0];
    int status = m3_estimate_chart(&svg, s->config, &r, &chart, error);
    if (!status) status = m3_new_file_open(file, a->chart, error);
    if (!status) status = m3_write_all(file->fd, svg, strlen(svg), a->chart, error);
    free(svg);
    return status;
}

/* A chart replaces an older one only when everything else is done. */
static int finish(struct m3_new_file *chart, int status, struct m3_error *error)
{
    if (!status && (fflush(stdout) || ferror(stdout)))
        status = m3_fail(error, M3_IO, "standard output: cannot be written");
    if (!status && chart->fd >= 0) return m3_new_file_commit(chart, error);
    m3_new_file_abandon(chart);
    return status;
}

static int check_paths(const struct arguments *a, struct m3_error *error)
{
    struct m3_cli_paths paths = m3_cli_paths(error);
    m3_cli_writes(&paths, "--chart", a->chart);
    m3_cli_reads(&paths, "MODEL_OR_CONFIG", a->path);
    return m3_cli_paths_end(&paths);
}

static int estimate(struct arguments *a, struct m3_error *notes, struct m3_error *error)
{
    struct m3_cli_source source = { 0 };
    struct list contexts = { .count = 0 }, batches = { { 1 }, 1 };
    struct m3_new_file chart = M3_NO_FILE;
    struct m3_estimate e;

    const struct m3_cli_source_request request = { a->path, a->from_tensors, &a->request };
    int status = m3_cli_source_open(&source, &request, notes, error);
    if (!status) status = check_paths(a, error);
    if (!status) status = parse_pictures(&source, a, error);
    if (!status) status = parse_contexts(&contexts, a, source.config, notes, error);
    if (!status && a->batches) status = parse_list(&batches, "--batch", a->batches, M3_MOST_BATCH, "", error);
    if (!status && a->chart) status = draw(&chart, a, &source, &contexts, &batches, error);
    for (int i = 0; !status && i < contexts.count * batches.count; i++) {
        a->request.context = contexts.values[i / batches.count];
        a->request.batch = batches.values[i % batches.count];
        status = m3_estimate(&e, source.config, &a->request, error);
        if (!status) status = print(a, &e, i == 0, contexts.count * batches.count > 1, error);
    }
    status = finish(&chart, status, error);
    a->request.files = NULL;
    m3_cli_source_close(&source);
    return status;
}

int m3_cli_estimate(int argc, char **argv)
{
    struct m3_error notes = { 0 }, error = { 0 };
    struct arguments a;
    int status = parse(&a, argc, argv, &error);
    if (!status && a.help) status = m3_cli_print_help(&command_line, &error);
    else if (!status) status = estimate(&a, &notes, &error);
    return m3_cli_end(status, &notes, &error);
}
