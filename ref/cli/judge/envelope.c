#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/printable.h"
#include "cli/cli.h"
#include "cli/options.h"
#include "cli/paths.h"
#include "model/files/case.h"
#include "model/engine.h"
#include "model/model.h"
#include "oracle/judge/rows/envelope.h"
#include "oracle/variants/envelope_make.h"
#include "oracle/variants/honest_rows.h"

struct arguments {
    const char *model, *profile, *out, *taps;
    struct m3_cli_input input;
    int64_t runs, row_runs, seed;         /* row_runs -1: what the profile needs */
    int help;
};

static const char about[] =
    "usage: m3ref envelope MODEL (--case F | --ids 1,2,3 [--image A.png ...]) --profile P --out OUT [--runs N] ...\n"
    "\n"
    "Measures how far correct implementations are from the truth, which is the run in double. The model is run N\n"
    "times in float, with the truth's choices of blocks and experts. Each run adds the terms of its sums in a random\n"
    "order. Where the profile stores values in a coarser format, the run rounds up or down at random, and leaves out\n"
    "some of these roundings. OUT holds the sorted distances of each tap from the truth. `m3ref compare --envelope OUT` ranks a\n"
    "candidate among these distances.\n"
    "\n";

static const char end[] =
    "\n"
    "During the run a temporary file next to OUT holds the truth's taps, 8 bytes per number.\n"
    "\n"
    "Exit status: 0 done; 1 the model's arithmetic gave NaN; 64 wrong usage; 65 bad file; 66 missing file; 70\n"
    "internal error; 74 I/O error.\n";

#define M3_CLI_ARGUMENTS struct arguments
/* clang-format off */
static const struct m3_cli_option options[] = {
    M3_CLI_TEXT_OF("profile", "P", profile,
      "{profiles} or a JSON file (SPEC 7.3). P+WORD+WORD allows more\n"
      "roundings, such as\n"
      "{words}"),
    M3_CLI_TEXT_OF("out", "OUT", out,
      "safetensors file (or .gz). It appears only after all runs have succeeded"),
    M3_CLI_NUMBER_OF("runs", "N", runs, 1, 100000,
      "number of runs, default 32. With fewer runs the ranks mean little"),
    M3_CLI_NUMBER_OF("row-runs", "N", row_runs, 0, 100000,
      "number of further runs, which choose blocks and experts themselves. `m3ref compare`\n"
      "uses these runs to judge a dump row by row, if it holds only layer outputs or logits.\n"
      "Default 16, or 100 if the profile quantises inputs of linear operators; 0: none"),
    M3_CLI_NUMBER_OF("seed", "S", seed, 0, INT64_MAX,
      "default 1; the same seed gives the same file"),
    M3_CLI_TEXT_OF("taps", "GLOB,...", taps,
      "only these taps (\"layers.3.*,logits\"; * is any text, ? any character); default all"),
    M3_CLI_ROW("--case F, --ids 1,2,3, --image A.png, --video FOLDER, --linear blas|ordered, --threads N,",
      ""),
    M3_CLI_ROW("--set FIELD=VALUE, --allow-long, --progress",
      "as for m3ref run"),
    M3_CLI_HELP_OF(help),
    M3_CLI_SHARED_OF("case", "VALUE", NULL),
    M3_CLI_SHARED_OF("ids", "VALUE", NULL),
    M3_CLI_SHARED_OF("image", "VALUE", NULL),
    M3_CLI_SHARED_OF("video", "VALUE", NULL),
    M3_CLI_SHARED_OF("linear", "VALUE", NULL),
    M3_CLI_SHARED_OF("threads", "VALUE", NULL),
    M3_CLI_SHARED_OF("progress", NULL, NULL),
    M3_CLI_SHARED_OF("set", "VALUE", NULL),
    M3_CLI_SHARED_OF("allow-long", NULL, NULL),
    M3_CLI_END,
};
/* clang-format on */

static const struct m3_cli_command command_line = { "envelope", about, options, 25, end };

static int parse(struct arguments *a, int argc, char **argv, struct m3_error *error)
{
    *a = (struct arguments){ .runs = M3_ENVELOPE_RUNS, .row_runs = -1, .seed = 1 };
    int status = m3_cli_input_begin(&a->input, argc, error);
    if (!status) status = m3_cli_options(&command_line, a, &a->input, argc, argv, error);
    if (status || a->help) return status;
    a->input.quiet = 1;
    status = m3_cli_input_model(&a->model, &a->input, argc, argv, error);
    if (status) return status;
    if (!a->profile || !*a->profile)
        return m3_fail(error, M3_USAGE, "envelope: got no --profile, expected a name or a JSON file");
    if (!a->out || !*a->out) return m3_fail(error, M3_USAGE, "envelope: got no --out, expected a file to write");
    return M3_OK;
}

static int check_paths(const struct arguments *a, struct m3_error *error)
{
    struct m3_cli_paths paths = m3_cli_paths(error);
    m3_cli_writes(&paths, "--out", a->out);
    m3_cli_reads_profile(&paths, a->profile);
    m3_cli_reads_input(&paths, &a->input);
    return m3_cli_paths_end(&paths);
}

/* Prints the taps with the largest distances, and the end of the pass. */
static int print_result(const struct arguments *a, const struct m3_profile *profile, double took,
                        struct m3_error *error)
{
    const char *const taps[] = { "embed", "layers.0.out", "final_norm", "logits" };
    struct m3_envelope *envelope;
    struct m3_envelope_rank rank;
    int status = m3_envelope_open(&envelope, a->out, NULL, profile, error);
    if (status) return status;
    printf("envelope: %" PRId64 " run%s, profile %s, seed %" PRId64 ", %.3f s, in %s\n", a->runs,
           a->runs == 1 ? "" : "s", m3_profile_name(profile), a->seed, took, m3_printable(a->out).text);
    for (size_t i = 0; i < sizeof taps / sizeof *taps; i++)
        if (m3_envelope_rank(&rank, envelope, taps[i], 0) == 0)
            printf("  %-12s relative L2 distance from the truth: median %.3g, largest %.3g\n", taps[i], rank.median,
                   rank.largest);
    m3_envelope_close(envelope);
    return M3_OK;
}

static int run(const struct arguments *a, const char *line, struct m3_error *notes, struct m3_error *error)
{
    struct m3_model *model = NULL;
    struct m3_profile *profile = NULL;
    struct m3_case c = { 0 };
    struct m3_semantics semantics = { 0 };
    struct m3_cli_watch watch = { 0 };
    m3_cli_watch_begin(&watch, a->input.progress);

    int status = m3_profile_open(&profile, a->profile, error);
    if (!status) status = m3_model_open(&model, a->model, notes, error);
    if (!status) status = m3_cli_input_semantics(&semantics, &a->input, &model->config, error);
    if (!status) status = m3_cli_input_read(&c, &a->input, &model->config, 0, error);
    if (!status) status = check_paths(a, error);
    if (!status && a->runs < M3_ENVELOPE_RUNS)
        m3_fail(notes, M3_OK, "--runs: got %" PRId64 ", with fewer than %d the ranks mean little", a->runs,
                M3_ENVELOPE_RUNS);
    if (!status) {
        const struct m3_envelope_plan plan = {
            .model = model,
            .c = &c,
            .semantics = &semantics,
            .profile = profile,
            .linear = a->input.linear,
            .threads = (int)a->input.threads,
            .runs = a->runs,
            .row_runs = a->row_runs < 0 ? m3_honest_rows_needed(profile) : a->row_runs,
            .seed = (uint64_t)a->seed,
            .taps = a->taps,
            .command = line,
            .progress = m3_cli_watched(&watch),
        };
        double start = m3_seconds();
        status = m3_envelope_make(&plan, a->out, error);
        m3_cli_watch_end(&watch);
        if (!status) status = print_result(a, profile, m3_seconds() - start, error);
    }
    m3_case_free(&c);
    m3_model_close(model);
    m3_profile_close(profile);
    return status;
}

int m3_cli_envelope(int argc, char **argv)
{
    struct m3_error notes = { 0 }, error = { 0 };
    struct arguments a = { 0 };
    char *line = m3_cli_line(argc, argv);       /* getopt_long reorders argv */

    int status = line ? parse(&a, argc, argv, &error) : m3_fail_memory(&error, "the command line", 0);
    if (!status && a.help) status = m3_cli_print_help(&command_line, &error);
    else if (!status) status = run(&a, line, &notes, &error);
    m3_cli_input_end(&a.input);
    free(line);
    return m3_cli_end(status, &notes, &error);
}
