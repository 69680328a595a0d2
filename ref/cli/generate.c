#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/options.h"
#include "cli/paths.h"
#include "cli/plan.h"
#include "cli/ranks.h"
#include "decode/generate.h"
#include "io/json.h"
#include "io/vocabulary.h"
#include "model/plugin.h"

struct arguments {
    const char *model, *stop;
    struct m3_cli_input input;
    int json, plan, help;
    int64_t seed;
    struct m3_generation how;
};

static int take_temperature(void *arguments, const char *value, struct m3_error *error)
{
    struct arguments *a = arguments;
    return m3_cli_real(&a->how.sampling.temperature, "--temperature", value, 0, 1e6, 0, error);
}

static int take_top_p(void *arguments, const char *value, struct m3_error *error)
{
    struct arguments *a = arguments;
    return m3_cli_real(&a->how.sampling.top_p, "--top-p", value, 0, 1, 1, error);
}

static const char about[] =
    "usage: m3ref generate MODEL (--ids 1,2,3 | --prompt TEXT | --chat F.json | --case F) [--image A.png ...]\n"
    "                      [--max-new N] [--speculative] ...\n"
    "\n"
    "Continues the given tokens one at a time. The keys and values of all tokens stay in memory. Decoding is greedy\n"
    "unless --temperature is above 0. Prints one line per token, as soon as the token is known: its number in the\n"
    "output, from 0, its id, the natural logarithm of its probability, and its logit minus the largest other logit. At\n"
    "the end all ids are printed on one line. If MODEL has a tokenizer.json, each line ends with the token's text, and\n"
    "a last line has all of it.\n"
    "\n";

static const char end[] =
    "\n"
    "Exit status: 0 done; 1 the model's arithmetic gave NaN; 64 wrong usage; 65 bad file; 66 missing file; 69\n"
    "plug-in, or the Python package that makes ids from words, not available; 70 internal error; 74 I/O error.\n";

#define M3_CLI_ARGUMENTS struct arguments
/* clang-format off */
static const struct m3_cli_option options[] = {
    M3_CLI_ROW("--ids, --prompt, --chat, --case, --image, --video, --allow-long",
      "as for m3ref run"),
    M3_CLI_NUMBER_OF("max-new", "N", how.max_new, 1, INT32_MAX,
      "stop after N tokens, default 16"),
    M3_CLI_TEXT_OF("stop", "IDS", stop,
      "stop after any of these ids, separated by commas. The id that stops is printed too"),
    M3_CLI_TAKEN("temperature", "T", take_temperature,
      "sample from softmax(logits / T); 0, the default, takes the most likely token"),
    M3_CLI_NUMBER_OF("top-k", "K", how.sampling.top_k, 0, INT32_MAX,
      "sample only from the K most likely tokens; 0, the default, means all"),
    M3_CLI_TAKEN("top-p", "P", take_top_p,
      "sample only from the smallest set of tokens whose probabilities sum to at least P;\n"
      "default 1"),
    M3_CLI_NUMBER_OF("seed", "S", seed, 0, INT64_MAX,
      "seed of the sampling, default 0. The same seed and logits give the same tokens on\n"
      "every machine"),
    M3_CLI_FLAG_OF("speculative", how.speculative,
      "the model's MTP modules draft tokens, and the model verifies the drafts in one pass.\n"
      "This needs fewer passes. Greedy tokens stay the same; sampled tokens keep their\n"
      "distribution"),
    M3_CLI_FLAG_OF("plan", plan,
      "print what the generation will need (files, bytes, memory, operations, time), then stop.\n"
      "As for m3ref run"),
    M3_CLI_FLAG_OF("json", json,
      "print JSON lines: one object per token, then a summary, and under mpirun\n"
      "one about the ranks"),
    M3_CLI_ROW("--precision f32|f64, --linear blas|ordered, --threads N, --set FIELD=VALUE, --ops LIB|plain|cuda,",
      ""),
    M3_CLI_ROW("--ops-guard, --timeout S, --progress",
      "\n"
      "as for m3ref run"),
    M3_CLI_HELP_OF(help),
    M3_CLI_SHARED_OF("case", "VALUE", NULL),
    M3_CLI_SHARED_OF("ids", "VALUE", NULL),
    M3_CLI_SHARED_OF("prompt", "VALUE", NULL),
    M3_CLI_SHARED_OF("chat", "VALUE", NULL),
    M3_CLI_SHARED_OF("image", "VALUE", NULL),
    M3_CLI_SHARED_OF("video", "VALUE", NULL),
    M3_CLI_SHARED_OF("allow-long", NULL, NULL),
    M3_CLI_SHARED_OF("precision", "VALUE", NULL),
    M3_CLI_SHARED_OF("linear", "VALUE", NULL),
    M3_CLI_SHARED_OF("threads", "VALUE", NULL),
    M3_CLI_SHARED_OF("progress", NULL, NULL),
    M3_CLI_SHARED_OF("set", "VALUE", NULL),
    M3_CLI_SHARED_OF("ops", "VALUE", NULL),
    M3_CLI_SHARED_OF("ops-guard", NULL, NULL),
    M3_CLI_SHARED_OF("timeout", "VALUE", NULL),
    M3_CLI_END,
};
/* clang-format on */

static const struct m3_cli_command command_line = { "generate", about, options, 25, end };

static int parse(struct arguments *a, int argc, char **argv, struct m3_error *error)
{
    *a = (struct arguments){ .how = { .max_new = 16, .sampling = { .top_p = 1 } } };
    int status = m3_cli_input_begin(&a->input, argc, error);
    if (!status) status = m3_cli_options(&command_line, a, &a->input, argc, argv, error);
    if (status || a->help) return status;
    a->input.quiet = a->json;
    status = m3_cli_input_model(&a->model, &a->input, argc, argv, error);
    a->how.engine = a->input.engine;
    a->how.linear = a->input.linear;
    a->how.threads = (int)a->input.threads;
    a->how.sampling.seed = (uint64_t)a->seed;
    return status;
}

/* The data shared by the callbacks. */
struct printer {
    int json, status;           /* status: of the lines of JSON */
    struct m3_cli_watch watch;
    struct m3_error *error;
    int64_t tokens;             /* printed */
    int32_t *ids;               /* [max_new] */
    struct m3_vocabulary *words;        /* of the model; NULL: none */
};

/* Shown for the prompt only, because passes over one token are short. */
static void tell(void *self, const char *what, int64_t done, int64_t all)
{
    struct printer *p = self;
    const struct m3_progress line = m3_cli_watched(&p->watch);
    if (!p->tokens) m3_tell(&line, what, done, all);
}

static void print_json(struct printer *p, json_t *object)
{
    if (p->status) json_decref(object);
    else p->status = m3_json_line(stdout, object, p->error);
}

/* null without a text. */
static json_t *json_text(const char *text, size_t length)
{
    size_t whole;
    if (!text) return json_null();
    char *own = m3_whole_characters(text, length, &whole);
    json_t *value = own ? json_stringn(own, whole) : NULL;
    free(own);
    return value;
}

static void print_token(void *self, const struct m3_token *t)
{
    struct printer *p = self;
    size_t length;
    const char *text = m3_vocabulary_text(p->words, t->id, &length);
    if (!p->tokens) m3_cli_watch_end(&p->watch);
    p->ids[p->tokens++] = t->id;
    if (p->json)
        print_json(p, json_pack("{s:s,s:I,s:I,s:o,s:o,s:o,s:f}", "type", "token", "index", (json_int_t)t->index, "id",
                                (json_int_t)t->id, "text", json_text(text, length), "logprob",
                                m3_json_number(t->logprob), "margin", m3_json_number(t->margin), "time", t->seconds));
    else {
        printf("%6" PRId64 " %8d  %12.6f %12.6f", t->index, t->id, t->logprob, t->margin);
        if (text) printf("  "), m3_print_quoted(stdout, text, length);
        printf("\n");
    }
    fflush(stdout);
}

/* The largest number of drafts that one main call kept. */
static int last_step(const struct m3_generated *g)
{
    int last = M3_MOST_DRAFTS;
    while (last > 0 && g->steps[last] == 0) last--;
    return last;
}

/* "0: 5, 1: 3, 2: 8": numbers of main calls that kept 0, 1, 2 drafts. */
static void print_steps(const struct m3_generated *g)
{
    for (int i = 0; i <= last_step(g); i++) printf("%s%" PRId64 " with %d", i ? ", " : "", g->steps[i], i);
}

/* Tokens may hold parts of characters: the text is that of all of them together. */
static void print_words(struct printer *p, int64_t n)
{
    char *text;
    size_t length;
    if (!p->words || p->status) return;
    p->status = m3_vocabulary_join(&text, &length, p->words, p->ids, n, p->error);
    if (p->status) return;
    printf("text: ");
    m3_print_quoted(stdout, text, length);
    printf("\n");
    free(text);
}

static void print_summary(struct printer *p, const struct m3_generated *g, int speculative)
{
    if (p->json) {
        json_t *summary = json_pack("{s:s,s:I}", "type", "summary", "tokens", (json_int_t)g->tokens);
        json_t *steps = speculative ? json_array() : NULL;
        for (int i = 0; steps && i <= last_step(g); i++) m3_json_append(steps, json_integer(g->steps[i]));
        if (speculative)
            m3_json_update(summary,
                           json_pack("{s:I,s:I,s:I,s:o}", "drafted", (json_int_t)g->drafted, "accepted",
                                     (json_int_t)g->accepted, "main_calls", (json_int_t)g->main_calls, "steps", steps));
        print_json(p, summary);
        return;
    }
    printf("tokens:");
    for (int64_t i = 0; i < g->tokens; i++) printf("%s%d", i ? "," : " ", p->ids[i]);
    printf("\n");
    print_words(p, g->tokens);
    if (!speculative) return;
    printf("drafted %" PRId64 ", accepted %" PRId64 ", main calls %" PRId64 " after the prefill, %.2f tokens each\n",
           g->drafted, g->accepted, g->main_calls, g->main_calls ? (double)(g->tokens - 1) / (double)g->main_calls : 0);
    printf("main calls by the number of drafts that they accepted: ");
    print_steps(g);
    printf("\n");
}

/* Checks all places that the model will read, not only those of the prompt. */
static int check_length(const struct arguments *a, const struct m3_case *c, const struct m3_config *config,
                        struct m3_error *error)
{
    int64_t last = m3_case_reach(c) + a->how.max_new - 1;
    if (last > INT64_C(1) << 53)
        return m3_fail(error, M3_USAGE,
                       "--max-new: got %" PRId64 ", which reaches position %" PRId64 ", expected at "
                       "most 2^53: beyond that, neighbours have the same angle",
                       a->how.max_new, last);
    if (a->input.allow_long || last < config->max_positions) return M3_OK;
    return m3_fail(error, M3_USAGE,
                   "--max-new: got %" PRId64 ", which reaches position %" PRId64
                   ", expected below max_position_embeddings %" PRId64 " (--allow-long allows it)",
                   a->how.max_new, last, config->max_positions);
}

static int check_paths(const struct arguments *a, struct m3_error *error)
{
    struct m3_cli_paths paths = m3_cli_paths(error);
    m3_cli_reads_input(&paths, &a->input);
    return m3_cli_paths_end(&paths);
}

static int generate(struct arguments *a, struct m3_error *notes, struct m3_error *error)
{
    struct m3_model *model = NULL;
    struct m3_case c = { 0 };
    struct m3_semantics semantics = { 0 };
    struct m3_generated result;
    struct printer printer = { .json = a->json, .error = error };
    int32_t *stop = NULL;

    int status = m3_cli_ops_open(&a->input.ops, a->input.engine, error);
    if (!status) status = m3_model_open(&model, a->model, notes, error);
    if (!status) status = m3_cli_ranks_join(model, a->model, 0, -1, error);
    if (!status) status = m3_cli_input_semantics(&semantics, &a->input, &model->config, error);
    if (!status) status = m3_vocabulary_open(&printer.words, a->model, model->config.V, notes, error);
    if (!status && a->stop) status = m3_cli_ids(&stop, &a->how.stops, "--stop", a->stop, model->config.V, error);
    if (!status) status = m3_cli_input_read(&c, &a->input, &model->config, 0, error);
    if (!status) status = check_paths(a, error);
    if (!status) status = check_length(a, &c, &model->config, error);
    if (!status && !(printer.ids = malloc((size_t)a->how.max_new * sizeof *printer.ids)))
        status = m3_fail_memory(error, "the ids", (size_t)a->how.max_new * sizeof *printer.ids);
    if (!status) {
        a->how.semantics = &semantics;
        a->how.replacement = m3_cli_ops_replacement(&a->input.ops);
        a->how.stop = stop;
        a->how.token = print_token;
        m3_cli_watch_begin(&printer.watch, a->input.progress);
        a->how.progress = (struct m3_progress){ tell, &printer };
        a->how.self = &printer;
        status = m3_generate(&result, model, &c, &a->how, error);
        if (!printer.tokens) m3_cli_watch_end(&printer.watch);
        if (!status) print_summary(&printer, &result, a->how.speculative);
        if (!status) status = printer.status;
        if (!status) status = m3_cli_ranks_print(&model->config, a->json, error);
    }
    free(stop);
    free(printer.ids);
    m3_vocabulary_close(printer.words);
    m3_case_free(&c);
    m3_model_close(model);
    return status;
}

static int check_plan(const void *self, const struct m3_case *c, const struct m3_config *config, struct m3_error *error)
{
    return check_length(self, c, config, error);
}

static int plan(const struct arguments *a, struct m3_error *notes, struct m3_error *error)
{
    const int in_double = a->input.engine == m3_engine_f64();
    const struct m3_cli_plan all = { .model = a->model,
                                     .input = &a->input,
                                     .f32_passes = !in_double,
                                     .f64_passes = in_double,
                                     .new_tokens = a->how.max_new,
                                     .has_cache = 1,
                                     .check = check_plan,
                                     .self = a };
    if (a->json) return m3_fail(error, M3_USAGE, "generate: got --plan with --json, expected one of them");
    return m3_cli_plan(&all, notes, error);
}

static int generate_command(void *arguments)
{
    struct m3_error notes = { 0 }, error = { 0 };
    struct arguments *a = arguments;
    const int status = a->plan ? plan(a, &notes, &error) : generate(a, &notes, &error);
    m3_cli_ops_close(&a->input.ops);
    return m3_cli_end(status, &notes, &error);
}

int m3_cli_generate(int argc, char **argv)
{
    struct m3_error notes = { 0 }, error = { 0 };
    struct arguments a = { 0 };
    int status = parse(&a, argc, argv, &error);
    if (!status && a.help) status = m3_cli_print_help(&command_line, &error);
    if (status || a.help) status = m3_cli_end(status, &notes, &error);
    else status = m3_cli_ops_run(&a.input.ops, generate_command, &a);
    m3_cli_input_end(&a.input);
    return status;
}
