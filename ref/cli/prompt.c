#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/options.h"
#include "cli/paths.h"
#include "io/json.h"
#include "io/new_file.h"
#include "io/safetensors.h"
#include "model/engine.h"
#include "model/model.h"
#include "oracle/judge/server/prompt.h"

struct arguments {
    const char *model, *out;
    struct m3_cli_input input;
    int64_t tokens, draws, seed;
    int selection, json, help;
};

static const char about[] =
    "usage: m3ref prompt MODEL [--tokens N] [--selection] [--seed S] [--out F] [--json] ...\n"
    "\n"
    "Makes a list of tokens to send to a server. With this list, rounding can change only few choices of blocks and\n"
    "experts, and many of its tokens reach the clamps of the activation. The list is built in parts. For each part\n"
    "several random lists are drawn, and the one with the fewest close choices and the most clamped tokens is kept.\n"
    "The list has no special tokens and no placeholders of pictures. The last line of the output has the ids.\n"
    "\n";

static const char end[] =
    "\n"
    "Exit status: 0 done; 1 the model's arithmetic gave NaN; 64 wrong usage; 65 bad file; 66 missing file; 70\n"
    "internal error; 74 I/O error.\n";

#define M3_CLI_ARGUMENTS struct arguments
/* clang-format off */
static const struct m3_cli_option options[] = {
    M3_CLI_NUMBER_OF("tokens", "N", tokens, 16, 1 << 20,
      "length of the list, at least 16; default 64"),
    M3_CLI_FLAG_OF("selection", selection,
      "make the list so long that sparse attention has to choose: it then has more tokens\n"
      "than fit into the blocks that one row may choose"),
    M3_CLI_NUMBER_OF("draws", "N", draws, 1, 1000,
      "number of draws for each part, default 8"),
    M3_CLI_NUMBER_OF("seed", "S", seed, 0, INT64_MAX,
      "default 1; the same seed gives the same list"),
    M3_CLI_TEXT_OF("out", "F", out,
      "write the list to F: a case (.safetensors), or as JSON (.json)"),
    M3_CLI_FLAG_OF("json", json,
      "print one JSON object instead of text"),
    M3_CLI_ROW("--threads N, --set FIELD=VALUE, --progress",
      "as for m3ref run"),
    M3_CLI_HELP_OF(help),
    M3_CLI_SHARED_OF("threads", "VALUE", NULL),
    M3_CLI_SHARED_OF("progress", NULL, NULL),
    M3_CLI_SHARED_OF("set", "VALUE", NULL),
    M3_CLI_END,
};
/* clang-format on */

static const struct m3_cli_command command_line = { "prompt", about, options, 25, end };

static int ends_in(const char *path, const char *end)
{
    const size_t n = strlen(path), m = strlen(end);
    return n > m && strcmp(path + n - m, end) == 0;
}

static int parse(struct arguments *a, int argc, char **argv, struct m3_error *error)
{
    *a = (struct arguments){ .draws = 8, .seed = 1 };
    int status = m3_cli_input_begin(&a->input, argc, error);
    if (!status) status = m3_cli_options(&command_line, a, &a->input, argc, argv, error);
    if (status || a->help) return status;
    if (argc - optind != 1)
        return m3_fail(error, M3_USAGE, "prompt: got %d model directories, expected one", argc - optind);
    a->model = argv[optind];
    if (a->out && !ends_in(a->out, ".safetensors") && !ends_in(a->out, ".json"))
        return m3_fail(error, M3_USAGE, "--out: got %s, expected a name that ends in .safetensors or .json", a->out);
    return M3_OK;
}

/* Tokens whose keys a list of blocks holds; 0: no layer chooses. */
static int64_t selected_tokens(const struct m3_config *c)
{
    for (int64_t l = 0; l < c->layers; l++)
        if (m3_config_sparse(c, l)) return c->N * c->block;
    return 0;
}

static int write_case(const char *path, const int32_t *ids, int64_t T, struct m3_error *error)
{
    struct m3_writer *writer = NULL;
    int64_t *wide = malloc((size_t)T * sizeof *wide);
    if (!wide) return m3_fail_memory(error, path, (size_t)T * sizeof *wide);
    for (int64_t t = 0; t < T; t++) wide[t] = ids[t];
    int status = m3_writer_new(&writer, path, error);
    if (!status) status = m3_writer_tensor(writer, "input_ids", M3_I64, 1, &T, error);
    if (!status) status = m3_writer_begin(writer, error);
    if (!status) status = m3_writer_write(writer, wide, (uint64_t)T * sizeof *wide, error);
    if (!status) status = m3_writer_commit(writer, error);
    else m3_writer_abandon(writer);
    free(wide);
    return status;
}

static json_t *as_json(const struct arguments *a, const int32_t *ids, int64_t T, const struct m3_prompt_figures *f,
                       int64_t beyond)
{
    json_t *list = json_array();
    for (int64_t t = 0; list && t < T; t++) m3_json_append(list, json_integer(ids[t]));
    return json_pack("{s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:I}", "prompt_ids", list, "tokens", (json_int_t)T,
                     "seed", (json_int_t)a->seed, "clamped", (json_int_t)f->clamped, "clamped_tokens",
                     (json_int_t)f->clamped_tokens, "decisions", (json_int_t)f->decisions, "narrow",
                     (json_int_t)f->narrow, "least_margin", isnan(f->least) ? json_null() : json_real(f->least),
                     "median_margin", isnan(f->median) ? json_null() : json_real(f->median), "beyond_selection",
                     (json_int_t)beyond);
}

static int write_out(const struct arguments *a, const int32_t *ids, int64_t T, const struct m3_prompt_figures *f,
                     int64_t beyond, struct m3_error *error)
{
    if (!a->out) return M3_OK;
    if (ends_in(a->out, ".safetensors")) return write_case(a->out, ids, T, error);
    json_t *object = as_json(a, ids, T, f, beyond);
    char *text = object ? m3_json_dump(object, JSON_COMPACT) : NULL;
    json_decref(object);
    if (!text) return m3_fail_memory(error, a->out, 0);
    const int status = m3_new_file_write(a->out, text, strlen(text), error);
    free(text);
    return status;
}

static int print(const struct arguments *a, const int32_t *ids, int64_t T, const struct m3_prompt_figures *f,
                 int64_t selected, int64_t special, struct m3_error *error)
{
    const int64_t beyond = selected > 0 && T > selected ? T - selected : 0;
    if (a->json) return m3_json_line(stdout, as_json(a, ids, T, f, beyond), error);
    printf("prompt: %" PRId64 " tokens, seed %" PRId64 "; %" PRId64 " special tokens left out\n", T, a->seed, special);
    printf("  clamps      %" PRId64 " elements beyond the limit, in %" PRId64 " of the tokens\n", f->clamped,
           f->clamped_tokens);
    printf("  choices     %" PRId64 ", of which %" PRId64 " are narrow (margin below %.3g of the largest score)",
           f->decisions, f->narrow, m3_prompt_narrow);
    if (f->decisions > 0) printf("; least margin %.3g, median %.3g", f->least, f->median);
    printf("\n");
    if (selected > 0 && beyond > 0)
        printf("  selection   %" PRId64 " tokens more than the chosen blocks hold (%" PRId64 ")\n", beyond, selected);
    else if (selected > 0)
        printf("  selection   none: %" PRId64 " tokens are no more than the chosen blocks hold (%" PRId64
               "), so that mistakes of the selection have no effect; --selection makes the list longer\n",
               T, selected);
    printf("ids: ");
    for (int64_t t = 0; t < T; t++) printf("%s%d", t ? "," : "", ids[t]);
    printf("\n");
    return M3_OK;
}

static int search(const struct arguments *a, const struct m3_model *model, struct m3_error *error)
{
    const int64_t V = model->config.V, selected = selected_tokens(&model->config);
    const int64_t least = a->selection && selected > 0 ? selected + (selected / 4 < 64 ? 64 : selected / 4) : 64;
    const int64_t T = a->tokens > 0 ? a->tokens : least;
    struct m3_semantics semantics;
    struct m3_prompt_figures figures;
    unsigned char *left_out = malloc((size_t)V);
    int32_t *ids = malloc((size_t)T * sizeof *ids);
    struct m3_cli_watch watch = { 0 };
    int64_t special;
    int status = left_out && ids ? M3_OK : m3_fail_memory(error, "the prompt", (size_t)V);
    if (!status && T > model->config.max_positions)
        status =
            m3_fail(error, M3_USAGE, "--tokens: got %" PRId64 ", expected at most max_position_embeddings %" PRId64, T,
                    model->config.max_positions);
    if (!status && a->selection && T <= selected)
        status = m3_fail(error, M3_USAGE, "--tokens: got %" PRId64 ", expected more than %" PRId64 " for --selection",
                         T, selected);
    if (!status) status = m3_cli_input_semantics(&semantics, &a->input, &model->config, error);
    if (!status) status = m3_prompt_special(left_out, &special, model, a->model, error);
    if (!status) {
        const struct m3_prompt_plan plan = { .model = model,
                                             .semantics = &semantics,
                                             .tokens = T,
                                             .seed = (uint64_t)a->seed,
                                             .draws = a->draws,
                                             .threads = (int)a->input.threads,
                                             .left_out = left_out,
                                             .progress = m3_cli_watched(&watch) };
        m3_cli_watch_begin(&watch, a->input.progress);
        status = m3_prompt_search(ids, &figures, &plan, error);
        m3_cli_watch_end(&watch);
    }
    if (!status) status = write_out(a, ids, T, &figures, selected > 0 && T > selected ? T - selected : 0, error);
    if (!status) status = print(a, ids, T, &figures, selected, special, error);
    free(left_out);
    free(ids);
    return status;
}

int m3_cli_prompt(int argc, char **argv)
{
    struct m3_error notes = { 0 }, error = { 0 };
    struct arguments a = { 0 };
    struct m3_model *model = NULL;
    int status = parse(&a, argc, argv, &error);
    if (!status && a.help) status = m3_cli_print_help(&command_line, &error);
    else if (!status) {
        status = m3_model_open(&model, a.model, &notes, &error);
        if (!status) {
            struct m3_cli_paths paths = m3_cli_paths(&error);
            m3_cli_writes(&paths, "--out", a.out);
            status = m3_cli_paths_end(&paths);
        }
        if (!status) status = search(&a, model, &error);
        m3_model_close(model);
    }
    m3_cli_input_end(&a.input);
    return m3_cli_end(status, &notes, &error);
}
