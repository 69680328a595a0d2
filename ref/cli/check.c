#include <getopt.h>
#include <stdio.h>
#include <unistd.h>

#include "cli/candidate.h"
#include "cli/cli.h"
#include "cli/paths.h"
#include "oracle/check/check.h"
#include "oracle/report/report.h"

static const char help[] =
    "usage: m3ref check MODEL CANDIDATE [--case F] [--profile NAME|FILE] [--map NAME|FILE] [--truth F] [--all]\n"
    "                   [--json] [--set FIELD=VALUE ...] [--row-runs N] [--threads N]\n"
    "\n"
    "The strict verdict on a dump, in one command. Runs the case in double with error bounds (the truth), compares\n"
    "the dump with it, recomputes every operator from the dump's own inputs, and looks for a known mistake, or\n"
    "another reading of the model, that explains what is wrong. The last line says in plain words what is wrong,\n"
    "where, by how much, and what to look at, or that nothing is wrong.\n"
    "\n"
    "  MODEL               model directory, as for m3ref run\n"
    "  CANDIDATE           dump of a run over the case, safetensors or .gz; or, with a map that says how its files fit\n"
    "                      together, a folder with one for each rank or for each chunk of the rows (SPEC 7.11). A\n"
    "                      batch may keep its padding (SPEC 7.18)\n"
    "  --case F            the case that was run; --ids, --image and --video may replace it, as for m3ref run. Without\n"
    "                      any of them the case is taken from the file of --truth\n"
    "  --profile NAME|FILE where the candidate may round: {profiles} or a JSON file\n"
    "                      (default fp32; SPEC 7.3). NAME+WORD+WORD allows more roundings; the words are\n"
    "                      {words}\n"
    "  --map NAME|FILE     the dump was written by another program under its own names: transformers, vllm, sglang,\n"
    "                      llama_cpp, or a map file (SPEC 7.11)\n"
    "  --truth F           keep the truth in F, and reuse F if it belongs to this model, case, reading and profile\n"
    "  --all               print every tap and every note\n"
    "  --json              print one JSON object per line: every tap as m3ref blame does, then the summary\n"
    "  --set FIELD=VALUE   the reading of the model that the candidate follows, as for m3ref run\n"
    "  --row-runs N        number of correct implementations that are run to judge taps whose inputs were not dumped;\n"
    "                      0: none. Default: as for m3ref run --profile and m3ref blame\n"
    "  --threads N         number of threads; default: the number of processors. It changes no result\n"
    "  --allow-long        allow positions of max_position_embeddings and above\n"
    "  --help              print this text\n"
    "\n"
    "Exit status: 0 every tap of CANDIDATE was judged and passes; 1 something is wrong; 2 suspect (an error is\n"
    "possible, but improbable) or partial (nothing is wrong, but a tap could not be judged); 3 not comparable;\n"
    "64 wrong usage; 65 bad file; 66 missing file; 70 internal error; 74 I/O error.\n";

struct arguments {
    struct m3_cli_candidate_names names;
    struct m3_cli_input input;
    const char *truth;
    int64_t row_runs;
    int json, all, help;
};

enum { OPT_PROFILE = 256, OPT_MAP, OPT_TRUTH, OPT_ALL, OPT_JSON, OPT_ROW_RUNS, OPT_HELP };

static const struct option options[] = {
    { "case", required_argument, NULL, M3_CLI_CASE },
    { "ids", required_argument, NULL, M3_CLI_IDS },
    { "image", required_argument, NULL, M3_CLI_IMAGE },
    { "video", required_argument, NULL, M3_CLI_VIDEO },
    { "threads", required_argument, NULL, M3_CLI_THREADS },
    { "set", required_argument, NULL, M3_CLI_SET },
    { "allow-long", no_argument, NULL, M3_CLI_ALLOW_LONG },
    { "profile", required_argument, NULL, OPT_PROFILE },
    { "map", required_argument, NULL, OPT_MAP },
    { "truth", required_argument, NULL, OPT_TRUTH },
    { "all", no_argument, NULL, OPT_ALL },
    { "json", no_argument, NULL, OPT_JSON },
    { "row-runs", required_argument, NULL, OPT_ROW_RUNS },
    { "help", no_argument, NULL, OPT_HELP },
    { NULL, 0, NULL, 0 },
};

static int take_option(void *arguments, int option, struct m3_error *error)
{
    struct arguments *a = arguments;
    switch (option) {
    case OPT_PROFILE: a->names.profile = optarg; break;
    case OPT_MAP: a->names.map = optarg; break;
    case OPT_TRUTH: a->truth = optarg; break;
    case OPT_ALL: a->all = 1; break;
    case OPT_JSON: a->json = 1; break;
    case OPT_ROW_RUNS: return m3_cli_number(&a->row_runs, "--row-runs", optarg, 0, 100000, error);
    case OPT_HELP: a->help = 1; break;
    default: return -1;
    }
    return M3_OK;
}

static int parse(struct arguments *a, int argc, char **argv, struct m3_error *error)
{
    int status = m3_cli_input_parse(&a->input, argc, argv, options, take_option, a, &a->help, error);
    if (status || a->help) return status;
    status = m3_cli_candidate_take(&a->names, a->row_runs, argc, argv, error);
    if (status) return status;
    a->input.quiet = 1;
    if (a->truth && !*a->truth) return m3_fail(error, M3_USAGE, "--truth: got an empty name, expected a file");
    if (!a->input.case_path && !a->input.ids && a->truth && access(a->truth, F_OK) == 0) {
        a->names.case_beside = a->truth;
        return M3_OK;
    }
    return m3_cli_input_check(&a->input, "check", error);
}

static int check_paths(const struct arguments *a, const struct m3_model *model, struct m3_error *error)
{
    struct m3_cli_paths paths = m3_cli_paths(error);
    m3_cli_writes(&paths, "--truth", a->truth);
    m3_cli_reads_candidate(&paths, &a->names, &a->input, model);
    return paths.status;
}

static int check(const struct arguments *a, struct m3_error *notes, struct m3_error *error)
{
    struct m3_cli_watch watch = { 0, isatty(STDERR_FILENO) };
    struct m3_cli_candidate candidate;
    struct m3_check result = { 0 };
    int status = m3_cli_candidate_open(&candidate, &a->names, &a->input, notes, error);
    if (!status) status = check_paths(a, candidate.model, error);
    if (!status) {
        const struct m3_check_plan plan = { .setting = &candidate.setting,
                                            .candidate_name = a->names.candidate,
                                            .profile = a->names.profile,
                                            .truth = a->truth,
                                            .row_runs = a->row_runs,
                                            .progress = m3_cli_progress,
                                            .progress_self = &watch };
        status = m3_check_batch(&result, &plan, &candidate.batch, candidate.dump, &candidate.parts, notes, error);
        if (watch.terminal) fprintf(stderr, "\r%*s\r", 40, "");
    }
    if (!status) {
        m3_cli_add_notes(&result.blame.notes, &candidate.mapped);
        status = a->json  ? m3_report_check_json(stdout, &result, error)
                 : a->all ? m3_report_check_text_all(stdout, &result, error)
                          : m3_report_check_text(stdout, &result, error);
        if (!status) status = (int)result.status;
    }
    m3_check_free(&result);
    m3_cli_candidate_close(&candidate);
    return status;
}

int m3_cli_check(int argc, char **argv)
{
    struct m3_error notes = { 0 }, error = { 0 };
    struct arguments a = { .names.profile = "fp32", .row_runs = -1 };
    int status = parse(&a, argc, argv, &error);
    if (!status && a.help) status = m3_cli_help(help, &error);
    else if (!status) status = check(&a, &notes, &error);
    m3_cli_input_end(&a.input);
    return m3_cli_end(status, &notes, &error);
}
