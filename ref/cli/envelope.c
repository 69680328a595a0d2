#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/printable.h"
#include "cli/cli.h"
#include "cli/paths.h"
#include "model/files/case.h"
#include "model/engine.h"
#include "model/model.h"
#include "oracle/judge/rows/envelope.h"
#include "oracle/variants/envelope_make.h"
#include "oracle/variants/honest_rows.h"

static const char help[] =
    "usage: m3ref envelope MODEL (--case F | --ids 1,2,3 [--image A.png ...]) --profile P --out OUT [--runs N] ...\n"
    "\n"
    "Measures how far correct implementations are from the truth, which is the run in double. The model is run N\n"
    "times in float, with the truth's choices of blocks and experts. Each run adds the terms of its sums in a random\n"
    "order. Where the profile stores values in a coarser format, the run rounds up or down at random, and leaves out\n"
    "some of these roundings. OUT holds the sorted distances of each tap from the truth. `m3ref compare --envelope OUT` ranks a\n"
    "candidate among these distances.\n"
    "\n"
    "  --profile P            {profiles} or a JSON file (SPEC 7.3). P+WORD+WORD allows more\n"
    "                         roundings, such as\n"
    "                         {words}\n"
    "  --out OUT              safetensors file (or .gz). It appears only after all runs have succeeded\n"
    "  --runs N               number of runs, default 32. With fewer runs the ranks mean little\n"
    "  --row-runs N           number of further runs, which choose blocks and experts themselves. `m3ref compare`\n"
    "                         uses these runs to judge a dump row by row, if it holds only layer outputs or logits.\n"
    "                         Default 16, or 100 if the profile quantises inputs of linear operators; 0: none\n"
    "  --seed S               default 1; the same seed gives the same file\n"
    "  --taps GLOB,...        only these taps (\"layers.3.*,logits\"; * is any text, ? any character); default all\n"
    "  --case F, --ids 1,2,3, --image A.png, --video FOLDER, --linear blas|ordered, --threads N,\n"
    "  --set FIELD=VALUE, --allow-long, --progress    as for m3ref run\n"
    "  --help                 print this text\n"
    "\n"
    "During the run a temporary file next to OUT holds the truth's taps, 8 bytes per number.\n"
    "\n"
    "Exit status: 0 done; 1 the model's arithmetic gave NaN; 64 wrong usage; 65 bad file; 66 missing file; 70\n"
    "internal error; 74 I/O error.\n";

struct arguments {
    const char *model, *profile, *out, *taps;
    struct m3_cli_input input;
    int64_t runs, row_runs, seed;         /* row_runs -1: what the profile needs */
    int help;
};

enum { OPT_PROFILE = 256, OPT_OUT, OPT_RUNS, OPT_ROW_RUNS, OPT_SEED, OPT_TAPS, OPT_HELP };

static const struct option options[] = {
    { "case", required_argument, NULL, M3_CLI_CASE },
    { "ids", required_argument, NULL, M3_CLI_IDS },
    { "image", required_argument, NULL, M3_CLI_IMAGE },
    { "video", required_argument, NULL, M3_CLI_VIDEO },
    { "linear", required_argument, NULL, M3_CLI_LINEAR },
    { "threads", required_argument, NULL, M3_CLI_THREADS },
    { "progress", no_argument, NULL, M3_CLI_PROGRESS },
    { "set", required_argument, NULL, M3_CLI_SET },
    { "allow-long", no_argument, NULL, M3_CLI_ALLOW_LONG },
    { "profile", required_argument, NULL, OPT_PROFILE },
    { "out", required_argument, NULL, OPT_OUT },
    { "runs", required_argument, NULL, OPT_RUNS },
    { "row-runs", required_argument, NULL, OPT_ROW_RUNS },
    { "seed", required_argument, NULL, OPT_SEED },
    { "taps", required_argument, NULL, OPT_TAPS },
    { "help", no_argument, NULL, OPT_HELP },
    { NULL, 0, NULL, 0 },
};

static int take_option(void *arguments, int option, struct m3_error *error)
{
    struct arguments *a = arguments;
    switch (option) {
    case OPT_PROFILE: a->profile = optarg; break;
    case OPT_OUT: a->out = optarg; break;
    case OPT_TAPS: a->taps = optarg; break;
    case OPT_HELP: a->help = 1; break;
    case OPT_RUNS: return m3_cli_number(&a->runs, "--runs", optarg, 1, 100000, error);
    case OPT_ROW_RUNS: return m3_cli_number(&a->row_runs, "--row-runs", optarg, 0, 100000, error);
    case OPT_SEED: return m3_cli_number(&a->seed, "--seed", optarg, 0, INT64_MAX, error);
    default: return -1;
    }
    return M3_OK;
}

static int parse(struct arguments *a, int argc, char **argv, struct m3_error *error)
{
    *a = (struct arguments){ .runs = M3_ENVELOPE_RUNS, .row_runs = -1, .seed = 1 };
    int status = m3_cli_input_parse(&a->input, argc, argv, options, take_option, a, &a->help, error);
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
    if (!status && a.help) status = m3_cli_help(help, &error);
    else if (!status) status = run(&a, line, &notes, &error);
    m3_cli_input_end(&a.input);
    free(line);
    return m3_cli_end(status, &notes, &error);
}
