#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/judge/answer.h"
#include "cli/judge/candidate.h"
#include "cli/cli.h"
#include "cli/options.h"
#include "cli/paths.h"
#include "cli/plan.h"
#include "cli/ranks.h"
#include "cli/judge/reports.h"
#include "io/open.h"
#include "io/reading.h"
#include "model/resume/resume.h"
#include "oracle/map/map.h"
#include "oracle/judge/check/blame_honest.h"
#include "oracle/judge/check/check.h"
#include "oracle/error/profile.h"
#include "oracle/report/report.h"
#include "oracle/variants/follow.h"

struct arguments {
    struct m3_cli_candidate_names names;
    struct m3_cli_input input;
    struct m3_cli_answer answer;
    struct m3_cli_reports reports;
    const char *spec;           /* NULL: the HTML page holds the sections */
    char *repeat;               /* the command line */
    enum m3_report_extent extent;
    const char *truth, *resume;
    struct m3_resume_folder *kept;      /* of --resume; NULL: none */
    int64_t row_runs;
    int json, all, only_failing, plan, help, is_answer;
};

static int take_layers(void *arguments, const char *value, struct m3_error *error)
{
    struct arguments *a = arguments;
    return m3_cli_layers(&a->names.first_layer, &a->names.end_layer, value, error);
}

static int take_rows(void *arguments, const char *value, struct m3_error *error)
{
    struct arguments *a = arguments;
    return m3_cli_candidate_rows(&a->names, value, error);
}

static int take_spec(void *arguments, const char *value, struct m3_error *error)
{
    struct arguments *a = arguments;
    return m3_cli_spec(&a->spec, value, error);
}

static int take_temperature(void *arguments, const char *value, struct m3_error *error)
{
    struct arguments *a = arguments;
    a->answer.states_sampling = 1;
    return m3_cli_real(&a->answer.sampling.temperature, "--temperature", value, 0, 1e6, 0, error);
}

static int take_top_p(void *arguments, const char *value, struct m3_error *error)
{
    struct arguments *a = arguments;
    return m3_cli_real(&a->answer.sampling.top_p, "--top-p", value, 0, 1, 1, error);
}

static const char about[] =
    "usage: m3ref check MODEL CANDIDATE [--case F] [--profile NAME|FILE] [--map NAME|FILE] [--truth F]\n"
    "                   [--layers A:B] [--rows N|LIST] [--resume FOLDER] [--plan] [--all | --only-failing] [--json]\n"
    "                   [--html OUT] [--junit OUT] [--spec PATH] [--set FIELD=VALUE ...] [--row-runs N]\n"
    "                   [--threads N]\n"
    "       m3ref check MODEL ANSWER [--case F | --ids 1,2,3] [--profile NAME|FILE] [--temperature T] ...\n"
    "\n"
    "The strict verdict on a dump, in one command. check runs the case in double (the truth), and meanwhile\n"
    "recomputes every operator from the dump's own inputs. A tap that cannot be recomputed is compared with the\n"
    "truth. If something is wrong, check looks for a cause: a known mistake, or another reading of the model. The\n"
    "last line says in plain words what is wrong, where, by how much, and what to look at. Or it says that nothing\n"
    "is wrong.\n"
    "\n";

static const char end[] =
    "\n"
    "Exit status: 0 everything in CANDIDATE or ANSWER was judged and passes; 1 something is wrong; 2 suspect (an error\n"
    "is larger than a correct implementation would usually make) or partial (nothing is wrong, but something could not\n"
    "be judged); 3 not comparable; 64 wrong usage; 65 bad file; 66 missing file; 69 the other ranks of mpirun cannot\n"
    "be reached; 70 internal error; 74 I/O error.\n";

#define M3_CLI_ARGUMENTS struct arguments
/* clang-format off */
static const struct m3_cli_option options[] = {
    M3_CLI_ROW("MODEL",
      "model directory, as for m3ref run"),
    M3_CLI_ROW("CANDIDATE",
      "dump of a run over the case: a safetensors file (or .gz), or a folder of such files, one\n"
      "for each rank or for each chunk of the rows. For a folder, a map says how the files fit\n"
      "together (SPEC 7.11). A dump of several sequences may contain their padding (SPEC 7.19)"),
    M3_CLI_SHARED_OF("case", "F",
      "the case that was run; --ids, --image and --video may replace it, as for m3ref run.\n"
      "Without any of them the case is read from the file of --truth"),
    M3_CLI_TEXT_OF("profile", "NAME|FILE", names.profile,
      "where the candidate may round: {profiles} or a JSON file\n"
      "(default fp32; SPEC 7.3). NAME+WORD+WORD allows more roundings, such as\n"
      "{words}"),
    M3_CLI_TEXT_OF("map", "NAME|FILE", names.map,
      "the program that named the dump's tensors, if it is not m3ref: {maps};\n"
      "or a map file for any other program (SPEC 7.11). `--map help` lists the versions that each\n"
      "map was tried with"),
    M3_CLI_TEXT_OF("truth", "F", truth,
      "keep the truth in F. If F already holds the truth for this model, case, reading and\n"
      "profile, F is reused. It may also be a dump that `run --bounds` wrote in f64, which is never\n"
      "replaced"),
    M3_CLI_TEXT_OF("resume", "FOLDER", resume,
      "after every tap, keep in FOLDER what was found. If check is stopped, the same command\n"
      "judges only the taps that are left; the case runs again. FOLDER is emptied at the end"),
    M3_CLI_TAKEN("layers", "A:B", take_layers,
      "judge only the taps of layers A to B-1. If A is 0, also judge what comes before the\n"
      "layers. If B is the number of layers, also judge what comes after them. If the dump holds\n"
      "all rows of layers.(A-1).out, only the files with weights of these layers are needed.\n"
      "Otherwise the layers before A run too"),
    M3_CLI_TAKEN("rows", "N|LIST", take_rows,
      "of a full dump judge N rows: where operators fail, some of each expert, and random ones;\n"
      "or those of LIST, such as 0:8,100,4090:4096; or all. The default is all up to 1024 tokens,\n"
      "and 512 of longer ones, or all with --truth. The verdict is about these rows"),
    M3_CLI_FLAG_OF("plan", plan,
      "print what the check will need (files, bytes, memory, disk, passes, operations, time),\n"
      "then stop. As for m3ref run"),
    M3_CLI_FLAG_OF("all", all,
      "print every tap (failing taps come first) and every note"),
    M3_CLI_FLAG_OF("only-failing", only_failing,
      "print only the taps that fail or are suspect, then the summary"),
    M3_CLI_FLAG_OF("json", json,
      "print one JSON object per tap, as m3ref blame does, then one for the summary"),
    M3_CLI_TEXT_OF("html", "OUT", reports.html,
      "write a self-contained HTML page: the likely cause, every tap, maps of the errors, and the\n"
      "sections of SPEC.md that the page links to"),
    M3_CLI_TEXT_OF("junit", "OUT", reports.junit,
      "write JUnit XML: one test case per tap. Taps missing from the dump count as skipped"),
    M3_CLI_TAKEN("spec", "PATH", take_spec,
      "let the HTML page link to SPEC.md at this path or address. Otherwise the page contains the\n"
      "sections that it refers to"),
    M3_CLI_SHARED_OF("set", "FIELD=VALUE",
      "the interpretation (*reading*) of the model that the candidate follows, where public\n"
      "engines disagree; as for m3ref run"),
    M3_CLI_NUMBER_OF("row-runs", "N", row_runs, 0, 100000,
      "run N correct implementations to judge taps whose inputs were not dumped; 0: leave them\n"
      "unjudged. N applies to two sets of runs. One set starts from the inputs of the case (the\n"
      "default is that of m3ref run --runs); the other continues from the layer outputs in\n"
      "the dump (the default is that of m3ref blame --row-runs). For ANSWER: number\n"
      "of correct implementations with which the answer is compared; default 32, or 100 if the\n"
      "profile quantises inputs of linear operators"),
    M3_CLI_SHARED_OF("threads", "N",
      "number of threads; default: the number of processors. Results do not depend on it"),
    M3_CLI_SHARED_OF("progress", NULL,
      "without a terminal: write a line about progress every minute"),
    M3_CLI_SHARED_OF("allow-long", NULL,
      "allow positions >= max_position_embeddings"),
    M3_CLI_HELP_OF(help),
    M3_CLI_PARAGRAPH(
      "\n"
      "ANSWER is the JSON that a server sent: log-probabilities or generated tokens, with token ids. These forms are\n"
      "read: vLLM, other servers with OpenAI's API, llama.cpp's /completion, SGLang's /generate, and {\"prompt_ids\":\n"
      "[..], \"ids\": [..]} (SPEC 7.18). The log-probabilities are compared with those of correct implementations: runs of\n"
      "m3ref that round only where the profile allows it. The server's log-probabilities must be raw: taken before\n"
      "temperature, top-k and top-p. With --processed they may be taken after the temperature. --case or --ids gives the\n"
      "prompt. If neither is given, the answer must hold the ids of the prompt. Further options, for answers only:\n"
      "\n"),
    M3_CLI_TAKEN("temperature", "T", take_temperature,
      "the server sampled the generated tokens at this temperature (0: greedy); judge these\n"
      "tokens too. An answer that holds only generated tokens counts as greedy by default"),
    M3_CLI_NUMBER_OF("top-k", "K", answer.sampling.top_k, 0, INT32_MAX,
      "the server sampled from the K most likely tokens"),
    M3_CLI_TAKEN("top-p", "P", take_top_p,
      "the server sampled from the most likely tokens that together have probability P"),
    M3_CLI_FLAG_OF("processed", answer.processed,
      "the log-probabilities are not raw: the server divided the logits by the temperature first"),
    M3_CLI_FLAG_OF("no-causes", answer.no_causes,
      "do not try known mistakes and other readings. This is faster, but no cause is named. Under\n"
      "a profile coarser than fp32 the verdict is also weaker: fewer mistakes are found"),
    M3_CLI_SHARED_OF("ids", "VALUE", NULL),
    M3_CLI_SHARED_OF("image", "VALUE", NULL),
    M3_CLI_SHARED_OF("video", "VALUE", NULL),
    M3_CLI_END,
};
/* clang-format on */

static const struct m3_cli_command command_line = { "check", about, options, 22, end };

/* Some options are for dumps alone, some for answers. */
static int check_kind(const struct arguments *a, struct m3_error *error)
{
    const struct {
        const char *option;
        int is_given;
    } of_dumps[] = {
        { "--truth", a->truth != NULL },
        { "--html", a->reports.html != NULL },
        { "--junit", a->reports.junit != NULL },
        { "--spec", a->spec != NULL },
        { "--only-failing", a->only_failing },
        { "--layers", a->names.end_layer > 0 },
        { "--plan", a->plan },
        { "--resume", a->resume != NULL },
        { "--rows", a->names.rows.count > 0 || a->names.rows.list },
    };
    if (!a->is_answer && m3_cli_answer_given(&a->answer))
        return m3_fail(
            error, M3_USAGE,
            "--temperature, --top-k, --top-p, --processed, --no-causes: got a dump, expected a server's answer");
    for (size_t i = 0; a->is_answer && i < sizeof of_dumps / sizeof *of_dumps; i++)
        if (of_dumps[i].is_given)
            return m3_fail(error, M3_USAGE, "%s: got a server's answer, expected a dump", of_dumps[i].option);
    return M3_OK;
}

static int parse(struct arguments *a, int argc, char **argv, struct m3_error *error)
{
    int status = m3_cli_input_begin(&a->input, argc, error);
    if (!status) status = m3_cli_options(&command_line, a, &a->input, argc, argv, error);
    if (status || a->help) return status;
    status = m3_cli_candidate_take(&a->names, a->row_runs, argc, argv, error);
    if (!status) status = m3_cli_extent(&a->extent, a->all, a->only_failing, "check", error);
    if (status) return status;
    a->input.quiet = 1;
    a->is_answer = m3_is_answer(a->names.candidate);
    status = check_kind(a, error);
    if (status) return status;
    if (a->is_answer && !a->input.case_path && !a->input.ids) return M3_OK;     /* the answer may hold the ids */
    if (a->truth && !*a->truth) return m3_fail(error, M3_USAGE, "--truth: got an empty name, expected a file");
    if (a->resume && !*a->resume) return m3_fail(error, M3_USAGE, "--resume: got an empty name, expected a folder");
    if (a->truth && (a->names.rows.count > 0 || a->names.rows.list))
        return m3_fail(error, M3_USAGE,
                       "--rows: got it with --truth, expected one of them: the rows are judged without the truth");
    if (a->truth) a->names.rows_of_long = 0;
    status = a->resume ? m3_cli_ranks_refuse("--resume", error) : M3_OK;
    if (status) return status;
    int exists = 0;
    if (!a->plan && !a->input.case_path && !a->input.ids && a->truth) status = m3_look_for(&exists, a->truth, error);
    if (exists) a->names.case_beside = a->truth;
    if (status || exists) return status;
    return m3_cli_input_check(&a->input, a->names.model, "check", error);
}

static int check_paths(const struct arguments *a, struct m3_error *error)
{
    struct m3_cli_paths paths = m3_cli_paths(error);
    /* It gave the case, and may be replaced. */
    const int status = a->names.case_beside ? m3_reading_forget(a->truth, error) : M3_OK;
    if (status) return status;
    m3_cli_writes(&paths, "--truth", a->truth);
    m3_cli_writes_reports(&paths, &a->reports);
    m3_cli_reads_candidate(&paths, &a->names, &a->input);
    m3_cli_keeps(&paths, a->resume);
    return m3_cli_paths_end(&paths);
}

static int write_reports(struct arguments *a, const struct m3_check *result, const struct m3_safetensors *candidate,
                         struct m3_error *error)
{
    struct m3_report_subject subject = { .judgement = &result->blame,
                                         .command = "check",
                                         .reference = result->truth.file,
                                         .candidate = candidate,
                                         .only_findings = result->comparison.count == 0,
                                         .spec = a->spec,
                                         .cause = m3_cause_of(&result->blame) };
    subject.cause.sentence = result->sentence;
    subject.cause.profile_word = result->profile_word[0] ? result->profile_word : NULL;
    if (!result->mistake) subject.cause.mistake = subject.cause.mistake_words = NULL;
    subject.cause.reading = result->reading[0] ? result->reading : NULL;
    subject.cause.repeat = a->repeat;
    const int status = m3_cli_reports_write(&a->reports, &subject, error);
    return status ? status : m3_cli_reports_commit(&a->reports, error);
}

/* What a check will run: known from the names in the dump, before any weight is read. */
static void plan_passes(struct m3_cli_plan *plan, const struct arguments *a, const struct m3_model *model,
                        const struct m3_safetensors *dump, const struct m3_profile *profile)
{
    enum { LONG = 1 << 20 };    /* a case with rows for every module */
    const struct m3_case any = { .T = LONG, .pictures = { .P = m3_safetensors_find(dump, "vision.pixels") != NULL } };
    const struct m3_setting setting = { .model = model, .semantics = &model->config.semantics, .the_case = &any };
    const int is_full = a->names.map || m3_check_is_full(&setting, dump),
              has_reports = a->reports.html || a->reports.junit;
    const int is_coarse = m3_profile_store(profile, "layers.0.out") > 0x1p-24;
    const struct m3_tensor *output = m3_safetensors_find(dump, "layers.0.out");
    const int64_t end = plan->end ? plan->end : model->config.layers, T = output && output->rank ? output->shape[0] : 0;
    int64_t runs = a->row_runs >= 0 ? a->row_runs : m3_honest_runs_of(profile);
    if (a->row_runs < 0 && is_coarse && !a->truth) runs = m3_follow_runs(profile, dump, model, plan->first, end, T);
    plan->recomputed = 1;
    plan->directions = is_full && is_coarse;
    plan->with_bounds = a->truth || has_reports;
    plan->writes_taps = plan->with_bounds ? 3 : 0;
    plan->rounded = (plan->first == 0 && a->truth) || !is_full ? (int)runs : 0;
    plan->f64_passes = 1 + (!is_full && plan->rounded > 0);
    if (is_full) plan->rows = a->names.rows, plan->rows_of_long = a->names.rows_of_long;
}

static int plan(const struct arguments *a, struct m3_error *notes, struct m3_error *error)
{
    char input[64], *path = NULL;
    struct m3_safetensors *dump = NULL;
    struct m3_profile *profile = NULL;
    struct m3_config config = { 0 };
    struct m3_model *model = NULL;
    struct m3_error again = { 0 };      /* the config's notes are those of the plan */
    int status = m3_safetensors_open(&dump, a->names.candidate, error);
    if (!status) status = m3_profile_open(&profile, a->names.profile, error);
    if (!status && asprintf(&path, "%s/config.json", a->names.model) < 0) {
        path = NULL;
        status = m3_fail_memory(error, a->names.model, 0);
    }
    if (!status) status = m3_config_read(&config, path, &again, error);
    if (!status) status = m3_model_without_weights(&model, &config, 0, error);
    snprintf(input, sizeof input, "layers.%" PRId64 ".out", a->names.first_layer - 1);
    if (!status) {
        const int has_input = m3_safetensors_find(dump, input) != NULL;
        struct m3_cli_plan all = { .model = a->names.model,
                                   .input = &a->input,
                                   .first = has_input || a->names.map ? a->names.first_layer : 0,
                                   .end = a->names.end_layer,
                                   .hashes = 1 };
        plan_passes(&all, a, model, dump, profile);
        status = m3_cli_plan(&all, notes, error);
    }
    m3_error_free(&again);
    free(path);
    m3_model_close(model);
    m3_profile_close(profile);
    m3_safetensors_close(dump);
    return status;
}

static int check(struct arguments *a, struct m3_error *notes, struct m3_error *error)
{
    struct m3_cli_watch watch = { .end_layer = a->names.end_layer };
    struct m3_cli_candidate candidate;
    struct m3_check result = { 0 };
    int status = m3_cli_candidate_open(&candidate, &a->names, &a->input, notes, error);
    if (!status && a->resume) status = m3_resume_open(&a->kept, a->resume, error);
    if (!status) status = check_paths(a, error);
    if (!status) status = m3_cli_reports_open(&a->reports, error);
    m3_cli_watch_begin(&watch, a->input.progress);
    if (!status) {
        const struct m3_check_plan plan = { .setting = &candidate.setting,
                                            .candidate_name = a->names.candidate,
                                            .profile = a->names.profile,
                                            .truth = a->truth,
                                            .resume = a->kept,
                                            .row_runs = a->row_runs,
                                            .rows_judged = candidate.sample.count,
                                            .gaps = a->names.map ? &candidate.gaps : NULL,
                                            .compares = a->reports.html || a->reports.junit,
                                            .progress = m3_cli_watched(&watch) };
        status = m3_check_batch(&result, &plan, &candidate.batch, candidate.dump, &candidate.parts, notes, error);
        m3_cli_watch_end(&watch);
    }
    if (!status) {
        m3_add_notes(&result.blame.notes, &candidate.mapped);
        if (a->names.map) result.blame.gaps = &candidate.gaps;
        m3_map_note_gaps(&result.blame.notes, a->names.map, &candidate.gaps);
        status = m3_cli_print_notes(notes, error);
        if (!status && !a->json) status = m3_cli_ranks_print(&candidate.model->config, 0, error);
        if (!status)
            status = (a->json ? m3_report_check_json : m3_report_check_text)(stdout, &result, a->extent, error);
        if (!status) status = write_reports(a, &result, candidate.dump, error);
        if (!status && a->kept) status = m3_resume_end(a->kept, error);
        if (!status) status = (int)result.blame.status;
    }
    m3_check_free(&result);
    m3_resume_close(a->kept);
    m3_cli_candidate_close(&candidate);
    return status;
}

static int check_answer(const struct arguments *a, struct m3_error *notes, struct m3_error *error)
{
    const struct m3_cli_answer_plan plan = { .names = &a->names,
                                             .input = &a->input,
                                             .options = &a->answer,
                                             .row_runs = a->row_runs,
                                             .json = a->json,
                                             .all = a->all };
    return m3_cli_check_answer(&plan, notes, error);
}

int m3_cli_check(int argc, char **argv)
{
    struct m3_error notes = { 0 }, error = { 0 };
    struct arguments a = { .names.profile = "fp32",
                           .names.rows_of_long = M3_CLI_ROWS_OF_LONG,
                           .row_runs = -1,
                           .answer.sampling.top_p = 1,
                           .reports = M3_CLI_NO_REPORTS };
    int status = m3_cli_shell_line(&a.repeat, argc, argv, &error);
    if (!status) status = parse(&a, argc, argv, &error);
    if (!status && a.help) status = m3_cli_print_help(&command_line, &error);
    else if (!status && a.plan) status = plan(&a, &notes, &error);
    else if (!status && a.is_answer) status = check_answer(&a, &notes, &error);
    else if (!status) status = check(&a, &notes, &error);
    m3_cli_reports_end(&a.reports);
    m3_cli_input_end(&a.input);
    free(a.repeat);
    return m3_cli_end(status, &notes, &error);
}
