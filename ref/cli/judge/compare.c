#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/options.h"
#include "cli/paths.h"
#include "cli/judge/reports.h"
#include "cli/judge/strict.h"
#include "io/new_file.h"
#include "model/files/origin.h"
#include "model/semantics.h"
#include "oracle/judge/batch/several.h"
#include "oracle/judge/compare.h"
#include "oracle/judge/rows/envelope.h"
#include "oracle/map/map.h"
#include "oracle/error/profile.h"
#include "oracle/report/baseline.h"
#include "oracle/report/ledger.h"
#include "oracle/report/report.h"

struct arguments {
    const char *reference, *candidate;
    const char *html, *junit, *ledger, *profile;       /* profile: never NULL */
    const char *spec;                   /* NULL: the HTML page holds the sections */
    const char *companions;             /* NULL: in the reference, if any */
    const char *envelope;               /* NULL: no ranks */
    const char *baseline;               /* NULL: no changes are printed */
    const char *map;                    /* NULL: the candidate has m3ref's names */
    struct m3_compare_options options;
    enum m3_report_extent extent;
    char *repeat;                       /* the command line */
    int json, all, only_failing, fail_if_worse, progress, help;
};

static int take_spec(void *arguments, const char *value, struct m3_error *error)
{
    return m3_cli_spec(&((struct arguments *)arguments)->spec, value, error);
}

static const char about[] =
    "usage: m3ref compare REFERENCE CANDIDATE [--taps GLOB,...] [--all | --only-failing] [--json] [--html OUT]\n"
    "                     [--junit OUT] [--ledger OUT] [--spec PATH] [--map NAME|FILE] [--profile NAME|FILE]\n"
    "                     [--companions FILE] [--envelope FILE] [--force] [--baseline FILE [--fail-if-worse]]\n"
    "\n"
    "Compares two dumps, which are safetensors files (or .gz). A stage is one tap (named intermediate tensor). The\n"
    "stages are compared in execution order, and the first stage that diverges is named. Only taps and rows that both\n"
    "dumps hold are compared. A float tap passes if its error is within its tolerance. If REFERENCE has companions,\n"
    "the tolerance is the error bound of the tap's operator (SPEC 7.8). Otherwise, if REFERENCE is a golden, it states\n"
    "the error e of public fp32 code for each tap, and the tolerance is 4 e + 1e-7. If REFERENCE states no error, the\n"
    "tolerance is 1e-5. The tolerance is larger where the profile stores values in a coarser format. Chosen blocks and\n"
    "experts are compared as sets. A different set passes if rounding of the scores can explain it. Rows that the\n"
    "candidate computed from such a different set are judged only if the expected values can be computed from that\n"
    "set.\n"
    "\n";

static const char end[] =
    "\n"
    "Columns: rel L2 is the L2 norm of got - want, divided by the L2 norm of want, for the whole stage. max is the\n"
    "largest |got - want|, divided by the largest |want|. allowed says how much of its tolerance the\n"
    "worst element uses: above 100 % the stage fails. got is a value of CANDIDATE, want the value of REFERENCE.\n"
    "\n"
    "Exit status: 0 every stage of CANDIDATE was judged and passes; 1 a stage fails; 2 suspect (the error of a stage\n"
    "is larger than a correct implementation would usually make) or partial (nothing is wrong, but a stage could not\n"
    "be judged); 3 not comparable (nothing matched, another model or case, other shapes, NaN in the reference); 64\n"
    "wrong usage; 65 bad file; 66 missing file; 70 internal error; 74 I/O error.\n";

#define M3_CLI_ARGUMENTS struct arguments
/* clang-format off */
static const struct m3_cli_option options[] = {
    M3_CLI_TEXT_OF("taps", "GLOB,...", options.taps,
      "compare only taps that match (\"layers.3.*,logits\"; * is any text, ? any character)"),
    M3_CLI_FLAG_OF("all", all,
      "print every stage (failing stages come first) and every note. Without --all at most 25 lines\n"
      "are printed: the verdict, with the place and size of the worst error and the command to run\n"
      "next; then the stages that do not pass, worst first"),
    M3_CLI_FLAG_OF("only-failing", only_failing,
      "print only the stages that fail or are suspect, then the summary"),
    M3_CLI_FLAG_OF("json", json,
      "print one JSON object per stage, then one for the summary"),
    M3_CLI_TEXT_OF("html", "OUT", html,
      "write a self-contained HTML page: the likely cause, where the error grows, chosen blocks,\n"
      "load of the experts, heat maps (rows by channels) of the stages that fail, and the sections\n"
      "of SPEC.md that the page links to"),
    M3_CLI_TEXT_OF("junit", "OUT", junit,
      "write JUnit XML for continuous integration: one test case per stage. Stages that only\n"
      "REFERENCE holds count as skipped"),
    M3_CLI_TEXT_OF("ledger", "OUT", ledger,
      "write JSON lines: every choice of blocks, experts and next tokens, with its verdict, gap\n"
      "and bound"),
    M3_CLI_TAKEN("spec", "PATH", take_spec,
      "let the HTML page link to SPEC.md at this path or address. Otherwise the page contains the\n"
      "sections that it refers to"),
    M3_CLI_TEXT_OF("map", "NAME|FILE", map,
      "the program that named CANDIDATE's tensors, if it is not m3ref: {maps};\n"
      "or a JSON file that says how to make each tap from the tensors of any other program\n"
      "(SPEC 7.11). A map is also needed if CANDIDATE is a folder with a file for each rank or for\n"
      "each chunk of the rows. `--map help` lists the versions that each map was tried with"),
    M3_CLI_TEXT_OF("companions", "FILE", companions,
      "read companions from the file that `run --companions` wrote, if REFERENCE itself has none.\n"
      "With companions, taps are judged by the error bounds of their operators (SPEC 7.8)"),
    M3_CLI_TEXT_OF("envelope", "FILE", envelope,
      "read the file that m3ref envelope wrote for this model, case and profile. Float taps are\n"
      "also ranked among the correct implementations in FILE. The ranking ends at the first tap\n"
      "where the candidate chooses other blocks or experts than the truth. A stage becomes suspect\n"
      "if it is more than twice as far from the truth as the farthest implementation. No stage\n"
      "fails for this reason (SPEC 7.10)"),
    M3_CLI_TEXT_OF("baseline", "FILE", baseline,
      "before the report, list the stages that are worse than in FILE, better than in FILE, new, or\n"
      "missing. FILE is the output of an earlier --json. A stage is worse or better if its verdict is\n"
      "worse or better"),
    M3_CLI_FLAG_OF("fail-if-worse", fail_if_worse,
      "with --baseline: the exit status is 1 if a stage is worse or missing, otherwise 0, whatever\n"
      "the verdict. Dumps that are not comparable still give 3"),
    M3_CLI_FLAG_OF("force", options.force,
      "compare dumps of different models or cases"),
    M3_CLI_TEXT_OF("profile", "NAME|FILE", profile,
      "\n"
      "where the candidate may round: {profiles} or a JSON file (default\n"
      "fp32; SPEC 7.3). NAME+WORD+WORD allows more roundings, such as\n"
      "{words}"),
    M3_CLI_FLAG_OF("progress", progress,
      "without a terminal: write a line about progress every minute"),
    M3_CLI_HELP_OF(help),
    M3_CLI_END,
};
/* clang-format on */

static const struct m3_cli_command command_line = { "compare", about, options, 20, end };

/* The output files of a comparison, besides what it prints. */
struct outputs {
    struct m3_cli_reports reports;
    struct m3_new_file ledger;
    FILE *ledger_lines;         /* its own stream: the file's descriptor stays open for commit */
};

static int parse(struct arguments *arguments, struct outputs *outputs, int argc, char **argv, struct m3_error *error)
{
    const int status = m3_cli_options(&command_line, arguments, NULL, argc, argv, error);
    if (status || arguments->help) return status;
    outputs->reports.html = arguments->html;
    outputs->reports.junit = arguments->junit;
    if (argc - optind != 2)
        return m3_fail(error, M3_USAGE, "compare: got %d files, expected REFERENCE CANDIDATE", argc - optind);
    if (arguments->fail_if_worse && arguments->baseline == NULL)
        return m3_fail(error, M3_USAGE, "compare: got --fail-if-worse alone, expected --baseline FILE too");
    arguments->reference = argv[optind];
    arguments->candidate = argv[optind + 1];
    return m3_cli_extent(&arguments->extent, arguments->all, arguments->only_failing, "compare", error);
}

static int open_outputs(struct outputs *outputs, const struct arguments *arguments, struct m3_error *error)
{
    int status = m3_cli_reports_open(&outputs->reports, error);
    if (status == M3_OK && arguments->ledger != NULL)
        status = m3_new_file_open(&outputs->ledger, arguments->ledger, error);
    if (status == M3_OK && arguments->ledger != NULL)
        status = m3_cli_open_stream(&outputs->ledger_lines, &outputs->ledger, error);
    return status;
}

/* Writes all files, or none if one fails. */
static int write_outputs(struct outputs *outputs, const struct m3_report_subject *subject, struct m3_error *error)
{
    int status = m3_cli_reports_write(&outputs->reports, subject, error);
    if (status == M3_OK && outputs->ledger_lines != NULL) {
        status = m3_cli_close_stream(outputs->ledger_lines, &outputs->ledger, status, error);
        outputs->ledger_lines = NULL;
    }
    if (status == M3_OK) status = m3_cli_reports_commit(&outputs->reports, error);
    if (status == M3_OK && outputs->ledger.fd >= 0) status = m3_new_file_commit(&outputs->ledger, error);
    return status;
}

/* The inputs of a comparison. */
struct inputs {
    struct m3_safetensors *reference, *candidate, *companions;
    struct m3_layout layout;            /* of several sequences; count 0: there is one */
    struct m3_parts reference_parts, candidate_parts, companion_parts;
    struct m3_profile *profile;
    struct m3_envelope *envelope;
    struct m3_baseline *baseline;
    struct m3_name_gaps gaps;
};

/* Opens it for the reference's model and case, as far as stated. */
static int open_envelope(struct inputs *inputs, const char *path, struct m3_error *error)
{
    if (inputs->layout.count > 0)
        return m3_fail(error, M3_USAGE,
                       "--envelope: got it with a reference of several sequences, expected one: an "
                       "envelope is made of one sequence");
    const struct m3_origin origin = m3_origin_of_file(inputs->reference);
    return m3_envelope_open(&inputs->envelope, path, &origin, inputs->profile, error);
}

/* A candidate of several sequences must be of the reference's model and case, as far as both say. */
static int check_several(const struct inputs *inputs, int force, struct m3_error *error)
{
    const struct m3_origin expected = m3_origin_of_file(inputs->reference);
    const struct m3_origin_use use = { .verdict = "compared", .force = force, .status = M3_NOT_COMPARABLE };
    struct m3_error differences = { 0 };
    const int status = m3_origin_check(inputs->candidate, &expected, &use, &differences, error);
    m3_error_free(&differences);
    return status;
}

static int split(struct inputs *inputs, const struct arguments *arguments, struct m3_error *notes,
                 struct m3_error *error)
{
    const int64_t count = inputs->layout.count;
    if (count == 0 && m3_is_dump_of_several(inputs->candidate))
        return m3_fail(error, M3_NOT_COMPARABLE, "%s: got several sequences, but %s holds one, expected as many",
                       m3_safetensors_path(inputs->candidate), m3_safetensors_path(inputs->reference));
    if (count == 0) return m3_batch_drop_ones(&inputs->candidate, m3_batch_longest(inputs->reference), notes, error);
    const char **hashes = calloc((size_t)count, sizeof *hashes);
    int status = hashes != NULL ? check_several(inputs, arguments->options.force, error)
                                : m3_fail_memory(error, "sequences", (size_t)count * sizeof *hashes);
    if (!status)
        status = m3_batch_split(&inputs->reference_parts, &inputs->layout, NULL, inputs->reference, notes, error);
    for (int64_t b = 0; !status && b < count; b++)
        hashes[b] = m3_safetensors_metadata(inputs->reference_parts.files[b], "case_sha256");
    if (!status)
        status = m3_batch_split(&inputs->candidate_parts, &inputs->layout, hashes, inputs->candidate, notes, error);
    if (!status && inputs->companions != NULL)
        status = m3_batch_split(&inputs->companion_parts, &inputs->layout, NULL, inputs->companions, notes, error);
    free(hashes);
    return status;
}

static int read_layout(struct inputs *inputs, struct m3_error *error)
{
    struct m3_semantics semantics;
    if (!m3_is_dump_of_several(inputs->reference)) return M3_OK;
    m3_semantics_read(&semantics, m3_safetensors_metadata(inputs->reference, "semantics"));
    const int status = m3_layout_from_dump(&inputs->layout, inputs->reference, error);
    inputs->layout.by_slot = semantics.block_anchor == M3_ANCHOR_SLOT && inputs->layout.slots > 0;
    return status;
}

static int open_candidate(struct inputs *inputs, const struct arguments *arguments, struct m3_error *notes,
                          struct m3_error *error)
{
    const struct m3_map_sizes sizes = m3_map_sizes_of_dump(inputs->reference);
    const struct m3_map_files files = { arguments->candidate, arguments->map, &sizes,
                                        inputs->layout.count > 0 ? &inputs->layout : NULL, &inputs->gaps };
    return m3_map_open_files(&inputs->candidate, &files, notes, error);
}

static int open_inputs(struct inputs *inputs, const struct arguments *arguments, struct m3_error *notes,
                       struct m3_error *error)
{
    int status = m3_profile_open(&inputs->profile, arguments->profile, error);
    if (status == M3_OK) status = m3_safetensors_open(&inputs->reference, arguments->reference, error);
    if (status == M3_OK) status = read_layout(inputs, error);
    if (status == M3_OK) status = open_candidate(inputs, arguments, notes, error);
    if (status == M3_OK && arguments->companions != NULL)
        status = m3_safetensors_open(&inputs->companions, arguments->companions, error);
    if (status == M3_OK && arguments->envelope != NULL) status = open_envelope(inputs, arguments->envelope, error);
    if (status == M3_OK && arguments->baseline != NULL)
        status = m3_baseline_open(&inputs->baseline, arguments->baseline, error);
    return status == M3_OK ? split(inputs, arguments, notes, error) : status;
}

static int check_paths(const struct arguments *a, const struct outputs *outputs, struct m3_error *error)
{
    struct m3_cli_paths paths = m3_cli_paths(error);
    m3_cli_writes_reports(&paths, &outputs->reports);
    m3_cli_writes(&paths, "--ledger", a->ledger);
    m3_cli_reads(&paths, "REFERENCE", a->reference);
    m3_cli_reads(&paths, "CANDIDATE", a->candidate);
    m3_cli_reads(&paths, "--companions", a->companions);
    m3_cli_reads(&paths, "--envelope", a->envelope);
    m3_cli_reads(&paths, "--baseline", a->baseline);
    m3_cli_reads_named(&paths, "--map", a->map);
    m3_cli_reads_profile(&paths, a->profile);
    return m3_cli_paths_end(&paths);
}

static void close_inputs(struct inputs *inputs)
{
    m3_parts_free(&inputs->reference_parts);
    m3_parts_free(&inputs->candidate_parts);
    m3_parts_free(&inputs->companion_parts);
    m3_layout_free(&inputs->layout);
    m3_safetensors_close(inputs->reference);
    m3_safetensors_close(inputs->candidate);
    m3_safetensors_close(inputs->companions);
    m3_envelope_close(inputs->envelope);
    m3_baseline_close(inputs->baseline);
    m3_profile_close(inputs->profile);
    m3_name_gaps_free(&inputs->gaps);
}

/* What judges more than a comparison can. */
static int say_next(struct m3_judgement *result, const struct arguments *arguments, const struct inputs *inputs,
                    struct m3_error *error)
{
    const struct m3_cli_strict strict = { .reference = arguments->reference,
                                          .candidate = arguments->candidate,
                                          .profile = arguments->profile,
                                          .map = arguments->map,
                                          .dump = inputs->reference };
    const int status = m3_cli_say_stricter(result, &strict, error);
    if (result->verdict == M3_VERDICT_FAIL)
        m3_fail(&result->notes, M3_OK,
                "m3ref blame, which has the weights, names the known mistake that explains a failure, if there is one");
    return status;
}

/* Prints what changed since the baseline, if there is one, and the report. *worse: may the run not pass for that? */
static int print_report(int *worse, const struct m3_judgement *result, const struct arguments *arguments,
                        const struct inputs *inputs, struct m3_error *error)
{
    int64_t changes[M3_BASELINE_KINDS] = { 0 };
    int status = M3_OK;
    if (inputs->baseline != NULL)
        status =
            m3_baseline_report(stdout, changes, inputs->baseline, result, arguments->extent, arguments->json, error);
    *worse = changes[M3_BASELINE_WORSE] + changes[M3_BASELINE_MISSING] > 0;
    if (status != M3_OK) return status;
    return (arguments->json ? m3_report_json : m3_report_text)(stdout, result, arguments->extent, error);
}

/* Compares and reports; returns the status of the verdict, or of the error that prevented one. */
static int compare(struct outputs *outputs, const struct arguments *arguments, const struct inputs *inputs,
                   const struct m3_error *notes, struct m3_error *error)
{
    struct m3_judgement result;
    struct m3_compare_options options = arguments->options;
    struct m3_ledger lines = { outputs->ledger_lines, -1 };
    const struct m3_decision_sink ledger = { &lines, m3_ledger_write };
    const struct m3_compared_parts parts = { .reference = &inputs->reference_parts,
                                             .candidate = &inputs->candidate_parts,
                                             .companions = &inputs->companion_parts,
                                             .begin = m3_ledger_begin,
                                             .self = &lines };
    struct m3_cli_watch watch = { 0 };
    m3_cli_watch_begin(&watch, arguments->progress);
    options.progress = m3_cli_watched(&watch);
    if (outputs->ledger_lines != NULL) options.decisions = &ledger;
    options.profile = inputs->profile;
    options.profile_text = arguments->profile;
    options.companions = inputs->companions;
    options.envelope = inputs->envelope;
    int status = inputs->layout.count > 0 ? m3_compare_several(&result, &parts, &options, error)
                                          : m3_compare(&result, inputs->reference, inputs->candidate, &options, error);
    m3_cli_watch_end(&watch);
    m3_judgement_is_of(&result, inputs->reference, inputs->profile);
    m3_add_notes(&result.notes, notes);
    if (arguments->map) result.gaps = &inputs->gaps;
    m3_map_note_gaps(&result.notes, arguments->map, &inputs->gaps);
    const int said =
        status == M3_OK || status == M3_NOT_COMPARABLE ? say_next(&result, arguments, inputs, error) : M3_OK;
    if (said != M3_OK) status = said;
    if (status == M3_OK || status == M3_NOT_COMPARABLE) {
        const struct m3_report_subject subject = {
            .command = "compare",
            .judgement = &result,
            .reference = inputs->reference,
            .candidate = inputs->candidate,
            .spec = arguments->spec,
            .cause = { .culprit = result.first != NULL ? result.first->tap : NULL,
                       .mistake = result.mistake,
                       .profile_word = result.explained_by,
                       .repeat = arguments->repeat },
        };
        int worse, printed = print_report(&worse, &result, arguments, inputs, error);
        if (printed == M3_OK) printed = write_outputs(outputs, &subject, error);
        status = printed != M3_OK ? printed : (int)result.status;
        if (arguments->fail_if_worse && printed == M3_OK && status != M3_NOT_COMPARABLE)
            status = worse ? M3_WRONG : M3_OK;
    }
    m3_judgement_free(&result);
    return status;
}

int m3_cli_compare(int argc, char **argv)
{
    struct arguments arguments = { .profile = "fp32" };
    struct outputs outputs = { M3_CLI_NO_REPORTS, M3_NO_FILE, NULL };
    struct m3_error notes = { 0 }, error = { 0 };
    struct inputs inputs = { 0 };

    int status = m3_cli_shell_line(&arguments.repeat, argc, argv, &error);
    if (status == M3_OK) status = parse(&arguments, &outputs, argc, argv, &error);
    if (status == M3_OK && !arguments.help) status = open_inputs(&inputs, &arguments, &notes, &error);
    if (status == M3_OK && !arguments.help) status = check_paths(&arguments, &outputs, &error);
    if (status == M3_OK && !arguments.help) status = open_outputs(&outputs, &arguments, &error);
    if (status == M3_OK && !arguments.help) status = compare(&outputs, &arguments, &inputs, &notes, &error);
    else if (status == M3_OK) status = m3_cli_print_help(&command_line, &error);
    m3_cli_reports_end(&outputs.reports);
    if (outputs.ledger_lines != NULL) fclose(outputs.ledger_lines);
    m3_new_file_abandon(&outputs.ledger);
    close_inputs(&inputs);
    free(arguments.repeat);
    /* A verdict by itself is no error: it is in the report. */
    if (error.count == 0) m3_error_free(&notes);
    return m3_cli_end(status, &notes, &error);
}
