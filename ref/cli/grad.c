#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/printable.h"
#include "cli/cli.h"
#include "cli/options.h"
#include "cli/paths.h"
#include "cli/plan.h"
#include "io/json.h"
#include "model/files/gradient_file.h"
#include "model/readings.h"

struct arguments {
    const char *model, *dump, *taps, *loss;
    struct m3_cli_input input;
    struct m3_loss_weights weights;     /* of the losses that --loss names; of the others 0 */
    struct m3_readings readings;
    int plan, json, help;
};

/* A finite number above 0. */
static int take_weight(double *weight, const char *flag, const char *value, struct m3_error *error)
{
    char *end;
    *weight = strtod(value, &end);
    if (end != value && !*end && isfinite(*weight) && *weight > 0) return M3_OK;
    return m3_fail(error, M3_USAGE, "%s: got %s, expected a number above 0", flag, value);
}

static int take_mtp_weight(void *arguments, const char *value, struct m3_error *error)
{
    return take_weight(&((struct arguments *)arguments)->weights.mtp, "--mtp-weight", value, error);
}

static int take_aux_weight(void *arguments, const char *value, struct m3_error *error)
{
    return take_weight(&((struct arguments *)arguments)->weights.aux, "--aux-weight", value, error);
}

static int take_kl_weight(void *arguments, const char *value, struct m3_error *error)
{
    return take_weight(&((struct arguments *)arguments)->weights.kl, "--kl-weight", value, error);
}

static const char about[] =
    "usage: m3ref grad MODEL --case F [--loss lm,mtp,aux,kl] [--dump OUT] [--taps GLOB,...] ...\n"
    "\n"
    "Computes losses over the labels of a case, and the gradient of their sum for every parameter that they reach and\n"
    "every tap (ref/train/TRAINING.md). One layer at a time is recomputed from its input and differentiated. So the\n"
    "memory needed is that of one layer, plus the hidden states of all layers.\n"
    "\n";

static const char end[] =
    "\n"
    "Exit status: 0 done; 1 the model's arithmetic gave NaN; 64 wrong usage; 65 bad file; 66 missing file; 70 internal\n"
    "error; 74 I/O error.\n";

#define M3_CLI_ARGUMENTS struct arguments
/* clang-format off */
static const struct m3_cli_option options[] = {
    M3_CLI_SHARED_OF("case", "F",
      "read the inputs from a safetensors file, as `m3ref run` does. It must also have the tensor\n"
      "`labels`, in I32 or I64 and of the shape of input_ids. Row t predicts the label of row\n"
      "t+1. A row whose next label is -100 is left out; the other rows are the scored rows.\n"
      "Several sequences are allowed; a loss is a mean over the scored rows of all of them"),
    M3_CLI_TEXT_OF("loss", "L,...", loss,
      "which losses to add; default lm:\n"
      "lm   cross-entropy of the next token, mean over the scored rows\n"
      "mtp  cross-entropy of the modules for multi-token prediction\n"
      "aux  balance of the router\n"
      "kl   alignment of the index branch with the main branch; only the index branch learns\n"
      "     from it"),
    M3_CLI_TAKEN("mtp-weight", "X", take_mtp_weight,
      "what the loss of the modules is multiplied with; default 0.1"),
    M3_CLI_TAKEN("aux-weight", "X", take_aux_weight,
      "the same for the balance of the router; default 0.001"),
    M3_CLI_TAKEN("kl-weight", "X", take_kl_weight,
      "the same for the alignment of the index branch; default 1"),
    M3_CLI_TEXT_OF("dump", "OUT", dump,
      "write gradients to OUT, a safetensors file (or .gz): d.param.TENSOR for parameters, d.TAP\n"
      "for taps if there is one sequence. OUT appears only after a successful run"),
    M3_CLI_TEXT_OF("taps", "GLOB,...", taps,
      "write only these gradients (\"param.*\", \"layers.3.*\"); default all"),
    M3_CLI_SHARED_OF("precision", "f32|f64",
      "f32 (default): compute in float; f64: compute in double"),
    M3_CLI_SHARED_OF("linear", "blas|ordered",
      "compute matrix products with the BLAS library (default), or with sums in ascending\n"
      "order of the index, which have the same bits on every machine"),
    M3_CLI_SHARED_OF("ops", "plain",
      "run the plain definitions of all operators and of their derivatives: slow, but with the\n"
      "bits of --linear ordered"),
    M3_CLI_SHARED_OF("threads", "N",
      "number of threads; default: the number of processors. Results do not depend on it"),
    M3_CLI_SHARED_OF("progress", NULL,
      "without a terminal: write a line about progress every minute"),
    M3_CLI_SHARED_OF("set", "FIELD=VALUE",
      "choose another reading of the model (SPEC 4), if its gradient is implemented; or one of a\n"
      "loss, default first (sections 19.16 and 19.17 of ref/train/TRAINING.md):\n"
      "kl_phase=sparse|warmup (over the chosen blocks, or over all keys in both branches)\n"
      "kl_teacher=prob|logit|all  kl_teacher_norm=support|cut|cutnorm  kl_over=tokens|blocks\n"
      "kl_direction=forward|reverse  kl_scale=rsqrt|1  kl_tau=NUMBER  kl_log_eps=NUMBER\n"
      "kl_count=rows_groups|rows  kl_rows=valid|all  aux=softmax|sigmoid"),
    M3_CLI_SHARED_OF("allow-long", NULL,
      "allow positions >= max_position_embeddings"),
    M3_CLI_FLAG_OF("plan", plan,
      "print what the computation will need (files, bytes, memory, disk, operations, time), then\n"
      "stop. The case must hold one sequence"),
    M3_CLI_FLAG_OF("json", json,
      "print one JSON object"),
    M3_CLI_HELP_OF(help),
    M3_CLI_END,
};
/* clang-format on */

static const struct m3_cli_command command_line = { "grad", about, options, 25, end };

/* Sets the weights of losses that are not named to 0. */
static int choose_losses(struct m3_loss_weights *w, const char *names, struct m3_error *error)
{
    const char *const known[] = { "lm", "mtp", "aux", "kl" };
    double *weights[] = { &w->lm, &w->mtp, &w->aux, &w->kl };
    int named[4] = { 0 };
    for (const char *s = names;; s++) {
        const size_t length = strcspn(s, ",");
        int found = -1;
        for (int i = 0; i < 4; i++)
            if (strlen(known[i]) == length && strncmp(s, known[i], length) == 0) found = i;
        if (found < 0)
            return m3_fail(error, M3_USAGE, "--loss: got %s, expected lm, mtp, aux and kl separated by commas", names);
        named[found] = 1;
        s += length;
        if (!*s) break;
    }
    for (int i = 0; i < 4; i++)
        if (!named[i]) *weights[i] = 0;
    return M3_OK;
}

/* Those of --set that are of a loss; the others stay in the input, for the model. */
static int take_readings(struct arguments *a, struct m3_error *error)
{
    int left = 0, status = M3_OK;
    m3_readings_default(&a->readings);
    for (int i = 0; i < a->input.sets; i++) {
        char *one = a->input.set[i];
        if (status || !m3_readings_has(one)) {
            a->input.set[left++] = one;
            continue;
        }
        status = m3_readings_set(&a->readings, one, error);
        free(one);
    }
    a->input.sets = left;
    return status;
}

static int parse(struct arguments *a, int argc, char **argv, struct m3_error *error)
{
    *a = (struct arguments){ .loss = "lm", .weights = { 1, 0.1, 0.001, 1 } };
    int status = m3_cli_input_begin(&a->input, argc, error);
    if (!status) status = m3_cli_options(&command_line, a, &a->input, argc, argv, error);
    if (status || a->help) return status;
    a->input.quiet = a->json;
    if (!a->input.case_path) return m3_fail(error, M3_USAGE, "grad: got no --case, expected one with labels");
    status = m3_cli_input_model(&a->model, &a->input, argc, argv, error);
    if (status) return status;
    status = take_readings(a, error);
    if (status) return status;
    if (a->taps && !a->dump) return m3_fail(error, M3_USAGE, "grad: got --taps without --dump, expected both");
    if (a->dump && !*a->dump) return m3_fail(error, M3_USAGE, "--dump: got an empty name, expected a file");
    if (a->input.ops.name && !m3_cli_ops_plain(&a->input.ops))
        return m3_fail(error, M3_USAGE, "--ops: got %s, expected plain: no other library has derivatives",
                       a->input.ops.name);
    if (a->plan && a->json) return m3_fail(error, M3_USAGE, "grad: got --plan with --json, expected one of them");
    return choose_losses(&a->weights, a->loss, error);
}

static int check_losses(const struct arguments *a, const struct m3_model *model, struct m3_error *error)
{
    const struct m3_config *c = &model->config;
    int sparse = 0, moe = 0;
    for (int64_t l = 0; l < c->layers; l++) sparse |= m3_config_sparse(c, l), moe |= m3_config_moe(c, l);
    if (a->weights.mtp != 0 && model->mtp_modules == 0)
        return m3_fail(error, M3_USAGE, "--loss: got mtp, expected others: the model has no modules");
    if (a->weights.mtp != 0 && model->mtp_modules > M3_MOST_MODULES)
        return m3_fail(error, M3_USAGE, "--loss: got mtp with %" PRId64 " modules, expected at most %d",
                       model->mtp_modules, M3_MOST_MODULES);
    if (a->weights.aux != 0 && !moe)
        return m3_fail(error, M3_USAGE, "--loss: got aux, expected others: no layer has a router");
    if (a->weights.kl != 0 && !sparse)
        return m3_fail(error, M3_USAGE, "--loss: got kl, expected others: no layer has an index branch");
    return M3_OK;
}

static int check_paths(const struct arguments *a, struct m3_error *error)
{
    struct m3_cli_paths paths = m3_cli_paths(error);
    m3_cli_writes(&paths, "--dump", a->dump);
    m3_cli_reads_input(&paths, &a->input);
    return m3_cli_paths_end(&paths);
}

static struct m3_request request_of(const struct arguments *a, const struct m3_model *model, const struct m3_case *c,
                                    const struct m3_semantics *semantics)
{
    struct m3_request r = m3_case_request(c);
    r.end_layer = model->config.layers;
    r.semantics = semantics;
    r.linear = a->input.linear;
    r.threads = (int)a->input.threads;
    r.replacement = m3_cli_ops_replacement(&a->input.ops);
    return r;
}

/* What was computed, for the report. */
struct result {
    struct m3_losses losses;
    int64_t tokens, sequences, scored, tensors;
    double seconds;
};

static void print_text(const struct arguments *a, const struct result *r)
{
    const struct m3_loss_weights *w = &a->weights;
    const struct m3_losses *l = &r->losses;
    struct rusage usage;
    const struct {
        const char *name;
        double weight, value;
    } all[] = { { "lm", w->lm, l->lm }, { "mtp", w->mtp, l->mtp }, { "aux", w->aux, l->aux }, { "kl", w->kl, l->kl } };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (all[i].weight == 0) continue;
        printf("loss:  %s %.9g, times %g", all[i].name, all[i].value, all[i].weight);
        for (int64_t m = 0; all[i].value == l->mtp && i == 1 && m < l->modules; m++)
            printf("%s%.9g", m ? ", " : "; by module ", l->module[m]);
        printf("\n");
    }
    printf("total: %.9g over %" PRId64 " labels\n", l->total, r->scored);
    getrusage(RUSAGE_SELF, &usage);
    printf("grad:  %" PRId64 " sequence%s, %" PRId64 " tokens, %s, linear %s, %" PRId64
           " threads, %.3f s, memory %.1f MB with mapped files\n",
           r->sequences, r->sequences == 1 ? "" : "s", r->tokens, a->input.engine->precision,
           a->input.linear == M3_LINEAR_ORDERED ? "ordered" : "blas", a->input.threads, r->seconds,
           (double)usage.ru_maxrss * 1024 / 1e6);
    if (a->dump)
        printf("dump:  %" PRId64 " gradient%s in %s\n", r->tensors, r->tensors == 1 ? "" : "s",
               m3_printable(a->dump).text);
}

static int print_json(const struct arguments *a, const struct result *r, struct m3_error *error)
{
    const struct m3_loss_weights *w = &a->weights;
    const struct m3_losses *l = &r->losses;
    json_t *losses = json_object(), *modules = json_array();
    if (w->lm != 0) m3_json_set(losses, "lm", m3_json_number(l->lm));
    if (w->mtp != 0) m3_json_set(losses, "mtp", m3_json_number(l->mtp));
    if (w->aux != 0) m3_json_set(losses, "aux", m3_json_number(l->aux));
    if (w->kl != 0) m3_json_set(losses, "kl", m3_json_number(l->kl));
    for (int64_t m = 0; m < l->modules; m++) m3_json_append(modules, m3_json_number(l->module[m]));
    return m3_json_line(stdout,
                        json_pack("{s:s,s:o,s:o,s:o,s:I,s:I,s:I,s:I,s:f}", "type", "summary", "losses", losses,
                                  "modules", modules, "total", m3_json_number(l->total), "labels",
                                  (json_int_t)r->scored, "sequences", (json_int_t)r->sequences, "tokens",
                                  (json_int_t)r->tokens, "tensors", (json_int_t)r->tensors, "seconds", r->seconds),
                        error);
}

/* Computes, and writes the file. */
static int differentiate(struct result *result, const struct arguments *a, struct m3_model *model,
                         const struct m3_batch *batch, const struct m3_labels *labels,
                         struct m3_gradient_request request, const char *line, struct m3_error *error)
{
    struct m3_gradient_file *file = NULL;
    struct m3_gradient_sink sink;
    const struct m3_gradient_run run = { .model = model,
                                         .engine = a->input.engine,
                                         .batch = batch,
                                         .labels = labels,
                                         .request = &request,
                                         .patterns = a->taps,
                                         .command = line };
    int status = a->dump ? m3_gradient_file_open(&file, &sink, a->dump, &run, error) : M3_OK;
    if (file) request.sink = &sink, result->tensors = m3_gradient_file_tensors(file);
    const double start = m3_seconds();
    if (!status) status = a->input.engine->gradient(model, &request, &result->losses, error);
    result->seconds = m3_seconds() - start;
    if (!file) return status;
    if (status) m3_gradient_file_abandon(file);
    else status = m3_gradient_file_commit(file, error);
    return status;
}

static int with_case(const struct arguments *a, struct m3_model *model, const struct m3_batch *batch,
                     const struct m3_labels *labels, const struct m3_semantics *semantics, const char *line,
                     struct m3_error *error)
{
    const int64_t count = batch->layout.count;
    struct result result = { .sequences = count, .scored = labels->scored };
    struct m3_cli_watch watch = { 0 };
    struct m3_request *requests = calloc((size_t)count, sizeof *requests);
    if (!requests) return m3_fail_memory(error, "sequences", (size_t)count * sizeof *requests);
    m3_cli_watch_begin(&watch, a->input.progress);
    for (int64_t b = 0; b < count; b++) {
        requests[b] = request_of(a, model, &batch->cases[b], semantics);
        requests[b].progress = m3_cli_watched(&watch);
        result.tokens += batch->cases[b].T;
    }
    struct m3_gradient_request request = { .sequences = requests,
                                           .labels = labels->of,
                                           .count = count,
                                           .scored = labels->scored,
                                           .weights = a->weights,
                                           .readings = a->readings,
                                           .progress = m3_cli_watched(&watch) };
    if (batch->layout.slots > 0) request.padding = count * batch->layout.slots - result.tokens;
    int status = differentiate(&result, a, model, batch, labels, request, line, error);
    m3_cli_watch_end(&watch);
    free(requests);
    if (status) return status;
    if (a->json) return print_json(a, &result, error);
    print_text(a, &result);
    return M3_OK;
}

static int grad(struct arguments *a, const char *line, struct m3_error *notes, struct m3_error *error)
{
    struct m3_model *model = NULL;
    struct m3_semantics semantics;
    struct m3_batch batch = { 0 };
    struct m3_labels labels = { 0 };
    int status = m3_cli_ops_open(&a->input.ops, a->input.engine, error);
    if (!status) status = m3_model_open(&model, a->model, notes, error);
    if (!status) status = m3_cli_input_semantics(&semantics, &a->input, &model->config, error);
    if (!status) status = m3_gradient_check(&semantics, error);
    if (!status) status = check_losses(a, model, error);
    if (!status) status = m3_cli_input_read_batch(&batch, &a->input, &model->config, &semantics, 0, error);
    if (!status) status = m3_labels_read(&labels, a->input.case_path, &batch, &model->config, error);
    if (!status) status = check_paths(a, error);
    if (!status) status = with_case(a, model, &batch, &labels, &semantics, line, error);
    m3_labels_free(&labels);
    m3_batch_free(&batch);
    m3_model_close(model);
    return status;
}

static int plan(const struct arguments *a, struct m3_error *notes, struct m3_error *error)
{
    const int in_double = a->input.engine == m3_engine_f64();
    const struct m3_cli_plan all = { .model = a->model,
                                     .input = &a->input,
                                     .f32_passes = !in_double,
                                     .f64_passes = in_double,
                                     .gradients = 1,
                                     .writes_taps = a->dump != NULL,
                                     .taps = a->taps,
                                     .hashes = a->dump != NULL };
    return m3_cli_plan(&all, notes, error);
}

int m3_cli_grad(int argc, char **argv)
{
    struct arguments a;
    struct m3_error notes = { 0 }, error = { 0 };
    char *line = m3_cli_line(argc, argv);
    int status = line ? parse(&a, argc, argv, &error) : m3_fail_memory(&error, "the command line", 0);
    if (!line) a = (struct arguments){ 0 };
    if (!status && a.help) status = m3_cli_print_help(&command_line, &error);
    else if (!status) status = a.plan ? plan(&a, &notes, &error) : grad(&a, line, &notes, &error);
    m3_cli_input_end(&a.input);
    free(line);
    return m3_cli_end(status, &notes, &error);
}
