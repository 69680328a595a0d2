#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/judge/candidate.h"
#include "cli/cli.h"
#include "cli/options.h"
#include "cli/paths.h"
#include "oracle/map/map.h"
#include "oracle/judge/batch/several.h"
#include "cli/judge/reports.h"
#include "oracle/judge/check/blame_honest.h"
#include "oracle/report/report.h"

struct arguments {
    struct m3_cli_candidate_names names;
    struct m3_cli_input input;
    struct m3_blame_options options;
    struct m3_cli_reports reports;
    const char *spec;           /* NULL: the HTML page holds the sections */
    char *repeat;               /* the command line */
    enum m3_report_extent extent;
    int64_t row_runs;
    int json, all, only_failing, help;
};

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

static const char about[] =
    "usage: m3ref blame MODEL CANDIDATE --case F [--profile NAME|FILE] [--taps GLOB,...] [--json]\n"
    "                   [--all | --only-failing] [--html OUT] [--junit OUT] [--spec PATH] [--map NAME|FILE]\n"
    "                   [--set FIELD=VALUE ...] [--row-runs N] [--threads N] [--force]\n"
    "\n"
    "Finds the operator that is wrong. blame recomputes every tap of a dump in double. The inputs of the tap's\n"
    "operator, and the chosen blocks and experts, are those in the dump. The tap's error against the recomputed value\n"
    "is called created: the tap's own operator made it. The difference between the recomputed value and the model's\n"
    "true value is called inherited. The culprit is the first tap whose created error is too large for any correct\n"
    "implementation. If there is none, the culprit is the first tap whose created error is improbable. A dump may hold\n"
    "only some taps and some rows. Missing inputs are recomputed where earlier taps allow it. Taps that still cannot\n"
    "be judged are named. If a known mistake (m3ref mistakes) explains a tap that does not pass, a note names the\n"
    "mistake. A mistake explains a tap if m3ref's operator with this mistake, run on the dump's own inputs, gives the\n"
    "dump's values (SPEC 7.12). If the dump also holds gradients, named as m3ref grad names them, each is recomputed\n"
    "from the dump's own values, and the wrong derivative is named (ref/train/TRAINING.md, section 19.20).\n"
    "\n";

static const char end[] =
    "\n"
    "Columns: inherited and created are errors: the L2 norm of the difference, divided by the L2 norm of the tap.\n"
    "usual is the size that the created error usually has if all rounding is correct. worst is the largest share of\n"
    "its error bound that an element uses (above 100 % the tap fails).\n"
    "\n"
    "Exit status: 0 every tap of CANDIDATE was judged and passes; 1 an operator is wrong; 2 suspect (an error is\n"
    "larger than a correct implementation would usually make) or partial (nothing is wrong, but a tap could not be\n"
    "judged); 3 not comparable (nothing matched or could be judged, another model or case, other shapes); 64 wrong\n"
    "usage; 65 bad file; 66 missing file; 70 internal error; 74 I/O error.\n";

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
      "the case that was run; --ids, --image and --video may replace it, as for m3ref run"),
    M3_CLI_TEXT_OF("profile", "NAME|FILE", names.profile,
      "where the candidate may round: {profiles} or a JSON file\n"
      "(default fp32; SPEC 7.3). NAME+WORD+WORD allows more roundings, such as\n"
      "{words}"),
    M3_CLI_TEXT_OF("taps", "GLOB,...", options.taps,
      "judge only taps that match (\"layers.3.*,logits\"). Other taps still serve as inputs"),
    M3_CLI_TEXT_OF("map", "NAME|FILE", names.map,
      "the program that named the dump's tensors, if it is not m3ref: {maps};\n"
      "or a map file for any other program (SPEC 7.11). `--map help` lists the versions that each\n"
      "map was tried with"),
    M3_CLI_TAKEN("rows", "N|LIST", take_rows,
      "of a full dump judge N rows: where operators fail, some of each expert, and random ones;\n"
      "or those of LIST, such as 0:8,100,4090:4096; or all. The default is all up to 1024 tokens,\n"
      "and 512 of longer ones. The verdict is about these rows, and nothing is inherited"),
    M3_CLI_FLAG_OF("all", all,
      "print every tap (failing taps come first) and every note. Without --all at most 25 lines\n"
      "are printed: the verdict, with the place and size of the worst error and the command to run\n"
      "next; then the taps that do not pass, worst first"),
    M3_CLI_FLAG_OF("only-failing", only_failing,
      "print only the taps that fail or are suspect, then the summary"),
    M3_CLI_TEXT_OF("html", "OUT", reports.html,
      "write a self-contained HTML page: the likely cause, every tap, and the sections of SPEC.md\n"
      "that the page links to"),
    M3_CLI_TEXT_OF("junit", "OUT", reports.junit,
      "write JUnit XML: one test case per tap. Taps missing from the dump count as skipped"),
    M3_CLI_TAKEN("spec", "PATH", take_spec,
      "let the HTML page link to SPEC.md at this path or address. Otherwise the page contains the\n"
      "sections that it refers to"),
    M3_CLI_FLAG_OF("json", json,
      "print one JSON object per tap, then one for the summary"),
    M3_CLI_SHARED_OF("set", "FIELD=VALUE",
      "the interpretation (*reading*) of the model that the candidate follows, where public\n"
      "engines disagree; as for m3ref run"),
    M3_CLI_NUMBER_OF("row-runs", "N", row_runs, 0, 100000,
      "run N correct implementations to judge taps whose inputs are missing from the dump, as when\n"
      "it holds only layer outputs or logits; 0: leave them unjudged. Such runs are made only\n"
      "under a profile coarser than fp32. If the dump holds the output of every layer (that of the\n"
      "last may be missing), the runs continue from these outputs, and the default is 8. Otherwise\n"
      "they start from the inputs of the case, and the default is 16. If the profile quantises\n"
      "inputs of linear operators, the defaults are 16 (instead of 8) and 100 (instead of 16).\n"
      "Each run takes about as long as a forward pass (SPEC 7.10)"),
    M3_CLI_SHARED_OF("threads", "N",
      "number of threads; default: the number of processors. Results do not depend on it"),
    M3_CLI_SHARED_OF("progress", NULL,
      "without a terminal: write a line about progress every minute"),
    M3_CLI_FLAG_OF("force", options.force,
      "accept a dump that names another model or case"),
    M3_CLI_SHARED_OF("allow-long", NULL,
      "allow positions >= max_position_embeddings"),
    M3_CLI_HELP_OF(help),
    M3_CLI_SHARED_OF("ids", "VALUE", NULL),
    M3_CLI_SHARED_OF("image", "VALUE", NULL),
    M3_CLI_SHARED_OF("video", "VALUE", NULL),
    M3_CLI_END,
};
/* clang-format on */

static const struct m3_cli_command command_line = { "blame", about, options, 22, end };

static int parse(struct arguments *a, int argc, char **argv, struct m3_error *error)
{
    int status = m3_cli_input_begin(&a->input, argc, error);
    if (!status) status = m3_cli_options(&command_line, a, &a->input, argc, argv, error);
    if (status || a->help) return status;
    a->names.force = a->options.force;
    status = m3_cli_candidate_take(&a->names, a->row_runs, argc, argv, error);
    if (!status) status = m3_cli_extent(&a->extent, a->all, a->only_failing, "blame", error);
    if (status) return status;
    a->input.quiet = 1;
    return m3_cli_input_check(&a->input, a->names.model, "blame", error);
}

/* Each sequence alone, then all of them together. */
static int blame_several(struct m3_judgement *result, const struct arguments *a, const struct m3_cli_candidate *c,
                         struct m3_error *error)
{
    const int64_t count = c->parts.count;
    struct m3_judgement *parts = calloc((size_t)count, sizeof *parts);
    int64_t held = 0;
    int status = parts ? M3_OK : m3_fail_memory(error, "sequences", (size_t)count * sizeof *parts);
    *result = (struct m3_judgement){ .status = M3_NOT_COMPARABLE, .verdict = M3_VERDICT_NOT_COMPARABLE };
    for (int64_t b = 0; b < count; b++) held += m3_holds_taps(c->parts.files[b]);
    for (int64_t b = 0; !status && b < count; b++) {
        struct m3_setting setting = c->setting;
        setting.the_case = &c->batch.cases[b];
        if (held > 0 && !m3_holds_taps(c->parts.files[b])) continue;
        status = m3_blame_honest(&parts[b], &setting, c->parts.files[b], &a->options, a->row_runs, error);
    }
    if (!status) return m3_judgement_together(result, parts, NULL, count, error);
    for (int64_t b = 0; parts && b < count; b++) m3_judgement_free(&parts[b]);
    free(parts);
    return status;
}

static int write_reports(struct arguments *a, const struct m3_judgement *result, const struct m3_safetensors *candidate,
                         struct m3_error *error)
{
    struct m3_report_subject subject = { .judgement = result,
                                         .command = "blame",
                                         .candidate = candidate,
                                         .only_findings = 1,
                                         .spec = a->spec,
                                         .cause = m3_cause_of(result) };
    subject.cause.repeat = a->repeat;
    const int status = m3_cli_reports_write(&a->reports, &subject, error);
    return status ? status : m3_cli_reports_commit(&a->reports, error);
}

/* Judges and reports; returns the status of the verdict, or of the error that prevented one. */
static int blame(struct arguments *a, const struct m3_cli_candidate *c, struct m3_error *notes, struct m3_error *error)
{
    struct m3_cli_watch watch = { 0 };
    struct m3_judgement result;
    a->options.profile = a->names.profile;
    a->options.names_mistakes = 1;
    a->options.is_alone = c->sample.count > 0;
    m3_cli_watch_begin(&watch, a->input.progress);
    a->options.progress = m3_cli_watched(&watch);
    int status = c->parts.count > 0 ? blame_several(&result, a, c, error)
                                    : m3_blame_honest(&result, &c->setting, c->dump, &a->options, a->row_runs, error);
    result.rows_judged = c->sample.count;
    result.rows = c->sample.of;
    m3_add_notes(&result.notes, &c->mapped);
    if (a->names.map) result.gaps = &c->gaps;
    m3_map_note_gaps(&result.notes, a->names.map, &c->gaps);
    m3_cli_watch_end(&watch);
    if (status == M3_OK || status == M3_NOT_COMPARABLE) {
        int printed = m3_cli_print_notes(notes, error);
        if (!printed) printed = (a->json ? m3_report_json : m3_report_text)(stdout, &result, a->extent, error);
        if (!printed) printed = write_reports(a, &result, c->dump, error);
        status = printed ? printed : (int)result.status;
    }
    m3_judgement_free(&result);
    return status;
}

static int run(struct arguments *a, struct m3_error *notes, struct m3_error *error)
{
    struct m3_cli_candidate candidate;
    struct m3_cli_paths paths = m3_cli_paths(error);
    int status = m3_cli_candidate_open(&candidate, &a->names, &a->input, notes, error);
    if (!status) {
        m3_cli_writes_reports(&paths, &a->reports);
        m3_cli_reads_candidate(&paths, &a->names, &a->input);
        status = m3_cli_paths_end(&paths);
    }
    if (!status) status = m3_cli_reports_open(&a->reports, error);
    if (!status) status = blame(a, &candidate, notes, error);
    m3_cli_candidate_close(&candidate);
    return status;
}

int m3_cli_blame(int argc, char **argv)
{
    struct m3_error notes = { 0 }, error = { 0 };
    struct arguments a = {
        .names.profile = "fp32", .names.rows_of_long = M3_CLI_ROWS_OF_LONG, .row_runs = -1, .reports = M3_CLI_NO_REPORTS
    };
    int status = m3_cli_shell_line(&a.repeat, argc, argv, &error);
    if (!status) status = parse(&a, argc, argv, &error);
    if (!status && a.help) status = m3_cli_print_help(&command_line, &error);
    else if (!status) status = run(&a, &notes, &error);
    m3_cli_reports_end(&a.reports);
    m3_cli_input_end(&a.input);
    free(a.repeat);
    /* A verdict by itself is no error: it is in the report. */
    return m3_cli_end(status, &notes, &error);
}
