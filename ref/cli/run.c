#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/printable.h"
#include "cli/options.h"
#include "cli/plan.h"
#include "cli/ranks.h"
#include "cli/run_pass.h"
#include "io/mapped.h"
#include "model/files/cache_file.h"
#include "model/files/origin.h"
#include "oracle/judge/choices/decisions.h"
#include "oracle/variants/honest_rows.h"

static int take_layers(void *arguments, const char *value, struct m3_error *error)
{
    struct m3_cli_run *a = arguments;
    return m3_cli_layers(&a->first_layer, &a->end_layer, value, error);
}

static const char about[] =
    "usage: m3ref run MODEL (--case F | --ids 1,2,3 | --prompt TEXT | --chat F.json) [--image A.png ...]\n"
    "                 [--dump OUT] [--taps GLOB,...] ...\n"
    "\n"
    "Runs one forward pass of the model in directory MODEL over token ids, and over pictures if there are any.\n"
    "Prints shapes, time, peak memory and the most likely next tokens. With --dump, also writes the intermediate\n"
    "tensors (taps) to a file. On a terminal a line shows the layer that runs, the bytes read, and the time left.\n"
    "\n";

static const char end[] =
    "\n"
    "Exit status: 0 done; 1 the model's arithmetic gave NaN; 64 wrong usage; 65 bad file; 66 missing file; 69\n"
    "plug-in, or the Python package that makes ids from words, not available; 70 internal error; 74 I/O error.\n";

#define M3_CLI_ARGUMENTS struct m3_cli_run
/* clang-format off */
static const struct m3_cli_option options[] = {
    M3_CLI_SHARED_OF("case", "F",
      "read the inputs from a safetensors file. It holds input_ids [T], and it may hold:\n"
      "position_ids [T], default 0, 1, 2, ..;\n"
      "attention_mask [S], 0 for keys that no row may attend to;\n"
      "pixel_values [P,C] with image_grid_thw [n,3];\n"
      "pixel_values_videos with video_grid_thw.\n"
      "Padded sequences are input_ids [B,T] with attention_mask [B,T], 0 for padding. Packed\n"
      "sequences are input_ids [T] with cu_seqlens [B+1]: sequence b begins at cu_seqlens[b]\n"
      "and ends before cu_seqlens[b+1] (SPEC 3.4). Each sequence is run alone. The dump holds\n"
      "the rows of all sequences (SPEC 3.5)"),
    M3_CLI_SHARED_OF("ids", "1,2,3",
      "use these token ids; <image> and <video> stand for the model's placeholder ids.\n"
      "--ids @FILE reads them from a file, --ids - from standard input; there, commas or white\n"
      "space separate them"),
    M3_CLI_SHARED_OF("prompt", "TEXT",
      "use the ids of a text. `python3 -m m3ref.text` makes them with MODEL's tokenizer.json:\n"
      "pip install './scripts/python[text]'"),
    M3_CLI_SHARED_OF("chat", "F.json",
      "the same for messages, [{\"role\": .., \"content\": ..}, ..], with MODEL's chat template"),
    M3_CLI_SHARED_OF("image", "A.png",
      "add a still picture; may be repeated. --ids holds one image placeholder for each\n"
      "picture, or one for each token of the pictures"),
    M3_CLI_SHARED_OF("video", "FOLDER",
      "add a video in the same way. FOLDER holds one PNG file per frame, read in byte order\n"
      "of the file names"),
    M3_CLI_TEXT_OF("dump", "OUT", dump,
      "write taps to OUT, a safetensors file (or .gz). OUT appears only after a successful\n"
      "run"),
    M3_CLI_TEXT_OF("taps", "GLOB,...", taps,
      "write only these taps (\"layers.3.*,logits\"; * is any text, ? any character); default\n"
      "all"),
    M3_CLI_FLAG_OF("bounds", bounds,
      "also write companions into the dump: error bounds, gains (how much each operator\n"
      "amplifies an error), margins of choices, small weight tensors such as those of norms,\n"
      "and the case. They tell `m3ref compare`, which does not read the model, how large an\n"
      "error may be (SPEC 7.13)"),
    M3_CLI_TEXT_OF("companions", "OUT", companions,
      "write the companions to a separate file OUT"),
    M3_CLI_TEXT_OF("profile", "P", profile,
      "with --bounds or --companions: also run the model several times. Each of these runs\n"
      "rounds differently, but only where profile P allows it. Their errors are written row\n"
      "by row. `m3ref compare` uses these errors to judge a dump that holds only layer\n"
      "outputs or logits (SPEC 7.10).\n"
      "P is {profiles} or a JSON file.\n"
      "`--profile help` lists all names"),
    M3_CLI_NUMBER_OF("runs", "N", runs, 2, 100000,
      "number of runs for --profile; default 16, or 100 if the profile quantises inputs of\n"
      "linear operators"),
    M3_CLI_SHARED_OF("precision", "f32|f64",
      "f32 (default): compute in float; f64: compute in double, which gives the truth"),
    M3_CLI_SHARED_OF("linear", "blas|ordered",
      "compute matrix products with the BLAS library (default), or with sums in ascending\n"
      "order of the index, which have the same bits on every machine"),
    M3_CLI_TAKEN("layers", "A:B", take_layers,
      "run only layers A to B-1. If A > 0, --hidden gives the input of layer A. Only the\n"
      "weight files of these layers are opened (--plan lists the files). Other weight files\n"
      "may be absent. Without --taps, the dump holds the input of layer A too, as check needs it"),
    M3_CLI_TEXT_OF("hidden", "DUMP", hidden,
      "read layers.(A-1).out from a dump of this model and case. The dump must hold all rows\n"
      "of this tap"),
    M3_CLI_TEXT_OF("decisions", "DUMP", decisions,
      "take the chosen blocks, the chosen experts and their routing weights from a dump of\n"
      "this model and case, for all layers and rows in that dump"),
    M3_CLI_TEXT_OF("cache-in", "F", cache_in,
      "continue after the tokens of a cache file. Except for rounding, the taps equal those\n"
      "of one run over all tokens. With --linear ordered they have the same bits"),
    M3_CLI_TEXT_OF("cache-out", "F", cache_out,
      "save the keys and values of all tokens so far"),
    M3_CLI_TEXT_OF("resume", "FOLDER", resume,
      "keep the state of the run in FOLDER after each layer. If the run is killed or fails, the\n"
      "same command continues after the last complete layer and writes the same bytes. The\n"
      "vision tower, the head and MTP modules are computed again. A state of another model,\n"
      "case, option (except --threads) or build of m3ref is refused. FOLDER is made if it is\n"
      "missing. No output file may lie in FOLDER. After a successful run the files of the state\n"
      "are removed. The state includes a second copy of what has been dumped, so it needs that\n"
      "much disk. --profile is not allowed"),
    M3_CLI_SHARED_OF("threads", "N",
      "number of threads; default: the number of processors. Results do not depend on it"),
    M3_CLI_SHARED_OF("progress", NULL,
      "without a terminal: write a line about progress every minute"),
    M3_CLI_SHARED_OF("set", "FIELD=VALUE",
      "choose another reading (interpretation) of the model, where public engines disagree\n"
      "(SPEC 4); several are separated by commas:\n"
      "{readings}"),
    M3_CLI_SHARED_OF("ops", "LIB[,WORDS]",
      "load a shared library that replaces operators (ref/ops/ops.h). m3ref passes\n"
      "WORDS to the library, and runs it in a separate process. If an operator crashes, does not\n"
      "return, or writes outside its outputs or to its inputs, the message names the operator,\n"
      "and the status is 70. What the library prints goes to standard error"),
    M3_CLI_SHARED_OF("ops-guard", NULL,
      "--ops cuda (below) normally runs in m3ref's own process. With --ops-guard it runs in a\n"
      "separate process, with the same checks as any other LIB"),
    M3_CLI_SHARED_OF("timeout", "S",
      "seconds that one call of an operator of LIB may take; default 600"),
    M3_CLI_ROW("--ops plain",
      "run the plain loops of ref/ops, which define the operators (SPEC 5). They are slow,\n"
      "and give the same bits as --linear ordered"),
    M3_CLI_ROW("--ops cuda[,bf16]",
      "compute sparse attention and experts on a GPU (SPEC 15), in fp32. With `,bf16` compute\n"
      "in bf16, on the GPU's tensor cores; with `,bf16,partials=bf16` also keep the partial\n"
      "results of attention in bf16"),
    M3_CLI_FLAG_OF("plan", plan,
      "print what the run will need (files, bytes, memory, disk, operations, and the time of\n"
      "each kind of work), then stop. To measure the machine, layers with random weights are\n"
      "run for a second or two. To measure the disk, at most 64 MB of the model are read. A\n"
      "plug-in is not measured"),
    M3_CLI_SHARED_OF("allow-long", NULL,
      "allow positions >= max_position_embeddings"),
    M3_CLI_NUMBER_OF("top", "N", top, 0, 1000,
      "how many next tokens to print, default 5"),
    M3_CLI_HELP_OF(help),
    M3_CLI_END,
};
/* clang-format on */

static const struct m3_cli_command command_line = { "run", about, options, 25, end };

/* Honest implementations run all layers from place 0, and choose for themselves. */
static int check_profile(const struct m3_cli_run *a, struct m3_error *error)
{
    if (a->runs && !a->profile) return m3_fail(error, M3_USAGE, "run: got --runs without --profile, expected both");
    if (!a->profile) return M3_OK;
    if (!*a->profile) return m3_fail(error, M3_USAGE, "--profile: got an empty name, expected a name or a JSON file");
    if (!a->bounds && !a->companions)
        return m3_fail(error, M3_USAGE, "run: got --profile without --bounds or --companions, expected one of them");
    if (a->first_layer > 0 || a->end_layer >= 0 || a->cache_in || a->decisions)
        return m3_fail(error, M3_USAGE,
                       "run: got --profile with --layers, --cache-in or --decisions, expected neither");
    return M3_OK;
}

/* The runs of --profile come before the layers, and would all begin again. */
static int check_resume(const struct m3_cli_run *a, struct m3_error *error)
{
    if (!a->resume) return M3_OK;
    if (!*a->resume) return m3_fail(error, M3_USAGE, "--resume: got an empty name, expected a folder");
    if (a->profile) return m3_fail(error, M3_USAGE, "run: got --resume with --profile, expected one of them");
    return m3_cli_ranks_refuse("--resume", error);
}

static int parse(struct m3_cli_run *a, int argc, char **argv, struct m3_error *error)
{
    *a = (struct m3_cli_run){ .end_layer = -1, .top = 5 };
    int status = m3_cli_input_begin(&a->input, argc, error);
    if (!status) status = m3_cli_options(&command_line, a, &a->input, argc, argv, error);
    if (status || a->help) return status;
    status = m3_cli_input_model(&a->model, &a->input, argc, argv, error);
    if (status) return status;
    if (a->taps && !a->dump) return m3_fail(error, M3_USAGE, "run: got --taps without --dump, expected both");
    if ((a->bounds || a->companions) && !a->dump)
        return m3_fail(error, M3_USAGE, "run: got --bounds or --companions without --dump, expected --dump too");
    if (a->companions && !*a->companions)
        return m3_fail(error, M3_USAGE, "--companions: got an empty name, expected a file");
    if (a->dump && !*a->dump) return m3_fail(error, M3_USAGE, "--dump: got an empty name, expected a file");
    if (!a->hidden != (a->first_layer == 0))
        return m3_fail(error, M3_USAGE, "run: --hidden and --layers A:B with A > 0 need each other");
    if ((a->cache_in || a->cache_out) && (a->first_layer > 0 || a->end_layer >= 0))
        return m3_fail(error, M3_USAGE, "run: --cache-in and --cache-out need all layers, so --layers is not allowed");
    if (a->cache_out && !*a->cache_out)
        return m3_fail(error, M3_USAGE, "--cache-out: got an empty name, expected a file");
    status = check_resume(a, error);
    return status ? status : check_profile(a, error);
}

/* layers.(A-1).out [T,H] of a dump, in the engine's `real`; the caller frees *hidden. */
static int read_hidden(void **hidden, const struct m3_cli_run *a, const struct m3_model *model, const struct m3_case *c,
                       struct m3_error *error)
{
    const struct m3_config *config = &model->config;
    struct m3_safetensors *file;
    const struct m3_origin_use use = { .status = M3_BAD_INPUT };
    struct m3_origin expected;
    char name[64];
    int status = m3_safetensors_open(&file, a->hidden, error);
    if (status) return status;
    status = m3_origin_of_model(&expected, model, c, error);
    snprintf(name, sizeof name, "layers.%" PRId64 ".out", a->first_layer - 1);

    const struct m3_tensor *x = m3_safetensors_find(file, name);
    if (!status) status = m3_origin_check(file, &expected, &use, NULL, error);
    if (status) {
        m3_safetensors_close(file);
        return status;
    }
    if (!x || x->rank != 2 || x->shape[0] != c->T || x->shape[1] != config->H ||
        (x->dtype != M3_F32 && x->dtype != M3_F64))
        status = m3_fail(error, M3_BAD_INPUT, "%s: %s: got %s, expected F32 or F64 [%" PRId64 ",%" PRId64 "]",
                         a->hidden, name, x ? "another shape or dtype" : "no such tensor", c->T, config->H);
    else if (!(*hidden = malloc((size_t)x->count * a->input.engine->real_bytes)))
        status = m3_fail_memory(error, "--hidden", (size_t)x->count * a->input.engine->real_bytes);

    for (int64_t i = 0; !status && i < x->count; i++) {
        if (a->input.engine->real_bytes == sizeof(double)) ((double *)*hidden)[i] = m3_decode(x->dtype, x->data, i);
        else ((float *)*hidden)[i] = (float)m3_decode(x->dtype, x->data, i);
        if (isnan(m3_decode(x->dtype, x->data, i)))
            status = m3_fail(error, M3_BAD_INPUT, "%s: %s: element %" PRId64 ": got nan, expected a number", a->hidden,
                             name, i);
    }
    m3_safetensors_close(file);
    return status;
}

static void print_model(const struct m3_config *c, uint64_t bytes)
{
    int64_t sparse = 0, moe = 0;
    for (int64_t l = 0; l < c->layers; l++) sparse += c->sparse[l] != 0, moe += c->moe[l] != 0;
    printf("model: %" PRId64 " layers (%" PRId64 " sparse attention, %" PRId64 " mixture of experts), H %" PRId64
           ", Q %" PRId64 ", G %" PRId64 ", D %" PRId64 ", V %" PRId64 "; %.1f MB\n",
           c->layers, sparse, moe, c->H, c->Q, c->G, c->D, c->V, (double)bytes / 1e6);
    if (sparse) printf("       blocks of %" PRId64 " keys, %" PRId64 " kept; ", c->block, c->N);
    if (moe) printf("%s%" PRId64 " of %" PRId64 " experts per token\n", sparse ? "" : "       ", c->K, c->E);
    else if (sparse) printf("\n");
    if (c->vision.present)
        printf("       vision: %" PRId64 " layers, W %" PRId64 ", A %" PRId64 ", patches of %" PRId64 " x %" PRId64
               " pixels\n",
               c->vision.layers, c->vision.W, c->vision.A, c->vision.patch, c->vision.patch);
}

static int forward(const struct m3_cli_run *a, const struct m3_model *model, const struct m3_case *c,
                   struct m3_request *request, const char *line, struct m3_error *error)
{
    struct m3_cli_passed p = { 0 };
    char what[80];
    int status = m3_cli_pass(&p, a, model, c, request, line, error);
    if (status) return status;
    snprintf(what, sizeof what, "T %" PRId64, c->T);
    if (c->p0) snprintf(what, sizeof what, "T %" PRId64 " after %" PRId64 " cached", c->T, c->p0);
    m3_cli_print_passed(&p, a, what);
    if (a->cache_out)
        printf("cache: %" PRId64 " token%s in %s\n", m3_cache_length(request->cache, M3_CACHE_MAIN),
               m3_cache_length(request->cache, M3_CACHE_MAIN) == 1 ? "" : "s", m3_printable(a->cache_out).text);
    return M3_OK;
}

static int run_one(const struct m3_cli_run *a, const struct m3_model *model, const struct m3_case *c,
                   const struct m3_semantics *semantics, struct m3_cache *cache, double *logits, const char *line,
                   struct m3_error *notes, struct m3_error *error)
{
    struct m3_request request = m3_cli_request(a, model, c, semantics, logits);
    struct m3_decisions *decisions = NULL;
    void *hidden = NULL;
    int status = a->hidden ? read_hidden(&hidden, a, model, c, error) : M3_OK;
    if (!status && a->decisions)
        status = m3_decisions_open(&decisions, a->decisions, model, c, a->input.engine, notes, error);
    request.hidden = hidden;
    request.cache = cache;
    if (!status && decisions) request.force = m3_decisions_force(decisions);
    if (!status) status = forward(a, model, c, &request, line, error);
    if (!status && request.end_layer == model->config.layers && a->top > 0)
        m3_cli_print_next(logits, model->config.V, a->top, a->words);
    free(hidden);
    m3_decisions_close(decisions);
    return status;
}

static int open_model(struct m3_model **model, const struct m3_cli_run *a, struct m3_error *notes,
                      struct m3_error *error)
{
    const int status = a->end_layer < 0
                           ? m3_model_open(model, a->model, notes, error)
                           : m3_model_open_layers(model, a->model, a->first_layer, a->end_layer, notes, error);
    return status ? status : m3_cli_ranks_join(*model, a->model, a->first_layer, a->end_layer, error);
}

/* A run that was killed may have replaced --cache-in by --cache-out already: what it has read is still the beginning. */
static int take_back(struct m3_cache *cache, const struct m3_cli_run *a, struct m3_error *error)
{
    struct stat in, out;
    int64_t places;
    int status = m3_resume_cached(&places, a->kept, error);
    if (status || places < 1 || !a->cache_out || places >= m3_cache_length(cache, M3_CACHE_MAIN)) return status;
    if (stat(a->cache_in, &in) != 0 || stat(a->cache_out, &out) != 0) return M3_OK;
    if (in.st_dev == out.st_dev && in.st_ino == out.st_ino) m3_cache_set_length(cache, M3_CACHE_MAIN, places);
    return M3_OK;
}

/* The state is removed after everything has been written, the text included. */
static int end_resume(const struct m3_cli_run *a, struct m3_error *error)
{
    if (fflush(stdout) != 0 || ferror(stdout)) return m3_fail(error, M3_IO, "standard output: cannot be written");
    const int status = m3_mapped_check(error);
    return status ? status : m3_resume_end(a->kept, error);
}

static int open_cache(struct m3_cache **cache, const struct m3_cli_run *a, const struct m3_model *model,
                      const struct m3_semantics *semantics, struct m3_error *error)
{
    if (!a->cache_in && !a->cache_out) return M3_OK;
    int status = m3_cache_new(cache, model, a->input.engine->real_bytes, error);
    if (!status && a->cache_in) status = m3_cache_load(*cache, a->cache_in, model, a->input.engine, semantics, error);
    return !status && a->cache_in && a->kept ? take_back(*cache, a, error) : status;
}

static int run(struct m3_cli_run *a, const char *line, struct m3_error *notes, struct m3_error *error)
{
    struct m3_model *model = NULL;
    struct m3_batch batch = { 0 };
    struct m3_semantics semantics = { 0 };
    struct m3_cache *cache = NULL;
    double *logits = NULL;

    int status = m3_cli_ops_open(&a->input.ops, a->input.engine, error);
    if (!status) status = open_model(&model, a, notes, error);
    if (!status) print_model(&model->config, m3_checkpoint_bytes(model->checkpoint));
    if (!status) status = m3_cli_input_semantics(&semantics, &a->input, &model->config, error);
    if (!status && a->resume) status = m3_resume_open(&a->kept, a->resume, error);
    if (!status) status = open_cache(&cache, a, model, &semantics, error);
    if (!status && a->top > 0) status = m3_vocabulary_open(&a->words, a->model, model->config.V, notes, error);
    int64_t p0 = cache && !status ? m3_cache_length(cache, M3_CACHE_MAIN) : 0;
    if (!status) status = m3_cli_input_read_batch(&batch, &a->input, &model->config, &semantics, p0, error);
    if (!status && !(logits = malloc((size_t)model->config.V * sizeof *logits)))
        status = m3_fail_memory(error, "the logits", (size_t)model->config.V * sizeof *logits);
    if (!status)
        status = batch.is_several ? m3_cli_run_several(a, model, &batch, &semantics, logits, line, error)
                                  : run_one(a, model, &batch.cases[0], &semantics, cache, logits, line, notes, error);
    if (!status && a->kept) status = end_resume(a, error);
    m3_resume_close(a->kept);
    if (!status) status = m3_cli_ranks_print(&model->config, 0, error);
    m3_vocabulary_close(a->words);
    free(logits);
    m3_cache_free(cache);
    m3_batch_free(&batch);
    m3_model_close(model);
    return status;
}

struct command {
    struct m3_cli_run a;
    char *line;
};

static int plan(const struct m3_cli_run *a, struct m3_error *notes, struct m3_error *error)
{
    const int in_double = a->input.engine == m3_engine_f64(), bounds = a->bounds || a->companions;
    struct m3_profile *profile = NULL;
    int status = a->profile ? m3_profile_open(&profile, a->profile, error) : M3_OK;
    if (status) return status;
    int64_t cached = 0;
    const int64_t runs = !profile ? 0 : a->runs ? a->runs : m3_honest_rows_needed(profile);
    m3_profile_close(profile);
    if (a->cache_in) status = m3_cache_places(&cached, a->cache_in, error);
    if (status) return status;
    const struct m3_cli_plan all = { .model = a->model,
                                     .input = &a->input,
                                     .first = a->first_layer,
                                     .end = a->end_layer > 0 ? a->end_layer : 0,
                                     .f32_passes = !in_double,
                                     .rounded = (int)runs,
                                     .f64_passes = in_double + (a->profile != NULL),
                                     .with_bounds = bounds,
                                     .writes_taps = !a->dump ? 0
                                                    : bounds ? 3
                                                             : 1,
                                     .taps = a->taps,
                                     .has_cache = a->cache_in || a->cache_out,
                                     .cached = cached,
                                     .copies = a->resume ? 2 : 1,
                                     .hashes = a->dump || a->cache_out || a->resume };
    return m3_cli_plan(&all, notes, error);
}

static int run_command(void *self)
{
    struct m3_error notes = { 0 }, error = { 0 };
    struct command *command = self;
    const int status =
        command->a.plan ? plan(&command->a, &notes, &error) : run(&command->a, command->line, &notes, &error);
    m3_cli_ops_close(&command->a.input.ops);
    return m3_cli_end(status, &notes, &error);
}

int m3_cli_run(int argc, char **argv)
{
    struct m3_error notes = { 0 }, error = { 0 };
    struct command command = { .line = m3_cli_line(argc, argv) };       /* getopt_long reorders argv */
    struct m3_cli_run *a = &command.a;

    int status = command.line ? parse(a, argc, argv, &error) : m3_fail_memory(&error, "the command line", 0);
    if (!status && a->help) status = m3_cli_print_help(&command_line, &error);
    if (status || a->help) status = m3_cli_end(status, &notes, &error);
    else status = m3_cli_ops_run(&a->input.ops, run_command, &command);
    m3_cli_input_end(&a->input);
    free(command.line);
    return status;
}
