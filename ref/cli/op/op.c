#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/options.h"
#include "cli/op/from.h"
#include "cli/op/perf.h"
#include "cli/op/plugin.h"
#include "cli/paths.h"
#include "cli/standard.h"
#include "cli/judge/reports.h"
#include "model/engine.h"
#include "model/plugin.h"
#include "oracle/error/profile.h"
#include "oracle/operators/check_file.h"
#include "oracle/operators/drawn/file.h"
#include "oracle/operators/list.h"
#include "oracle/operators/make.h"
#include "oracle/operators/results.h"
#include "oracle/report/report.h"

enum action { ACTION_NONE, ACTION_LIST, ACTION_MAKE, ACTION_RUN, ACTION_CHECK, ACTION_DRAW, ACTION_PERF };

struct arguments {
    enum action action;
    const struct m3_operator_row *op;
    const char *cases, *results, *profile, *only;
    struct m3_cli_reports reports;
    char *repeat;               /* the command line */
    struct m3_make_options make;
    struct m3_cli_op_from from;
    const struct m3_engine *engine;
    struct m3_cli_ops ops;
    int64_t threads, seed, drawn; /* -1: not given */
    int json, all, progress, help;
    int printed;                /* a child process has printed the error */
};

/* ---- the command line */

static int take_action(struct arguments *a, enum action action, const char *cases, struct m3_error *error)
{
    if (a->action != ACTION_NONE)
        return m3_fail(error, M3_USAGE,
                       "op: got two of --list, --make, --run, --check, --draw and --perf, expected one");
    a->action = action;
    a->cases = cases;
    return M3_OK;
}

static int take_list(void *arguments, const char *value, struct m3_error *error)
{
    return take_action(arguments, ACTION_LIST, value, error);
}

static int take_perf(void *arguments, const char *value, struct m3_error *error)
{
    return take_action(arguments, ACTION_PERF, value, error);
}

static int take_make(void *arguments, const char *value, struct m3_error *error)
{
    return take_action(arguments, ACTION_MAKE, value, error);
}

static int take_run(void *arguments, const char *value, struct m3_error *error)
{
    return take_action(arguments, ACTION_RUN, value, error);
}

static int take_check(void *arguments, const char *value, struct m3_error *error)
{
    return take_action(arguments, ACTION_CHECK, value, error);
}

static int take_draw(void *arguments, const char *value, struct m3_error *error)
{
    return take_action(arguments, ACTION_DRAW, value, error);
}

static int take_sizes(void *arguments, const char *value, struct m3_error *error)
{
    static const char *const classes[] = { "tiny", "small", "real" };
    struct arguments *a = arguments;
    (void)error;
    a->from.drawn = 1;
    for (int i = 0; i < 3; i++)
        if (strcmp(value, classes[i]) == 0) {
            a->make.sizes = (enum m3_size_class)i;
            return M3_OK;
        }
    a->make.given = value;
    return M3_OK;
}

static int take_dtype(void *arguments, const char *value, struct m3_error *error)
{
    const struct {
        const char *name;
        enum m3_dtype dtype;
    } dtypes[] = { { "f32", M3_F32 }, { "bf16", M3_BF16 }, { "f16", M3_F16 } };
    struct arguments *a = arguments;
    for (int i = 0; i < 3; i++)
        if (strcmp(value, dtypes[i].name) == 0) {
            a->make.dtype = a->from.options.dtype = dtypes[i].dtype;
            return M3_OK;
        }
    return m3_fail(error, M3_USAGE, "--dtype: got %s, expected f32, bf16 or f16", value);
}

static int take_precision(void *arguments, const char *value, struct m3_error *error)
{
    struct arguments *a = arguments;
    a->engine = strcmp(value, "f64") == 0 ? m3_engine_f64() : m3_engine_f32();
    if (strcmp(value, "f64") == 0 || strcmp(value, "f32") == 0) return M3_OK;
    return m3_fail(error, M3_USAGE, "--precision: got %s, expected f32 or f64", value);
}

static const char about[] =
    "usage: m3ref op --list [--json]\n"
    "       m3ref op NAME --make CASES [--sizes tiny|small|real|T=..,H=..] [--dtype f32|bf16|f16] [--seed S]\n"
    "                     [--cases N] [--rows LIST]\n"
    "       m3ref op NAME --make CASES --from DUMP --tap TAP --model MODEL [--case F] [--rows LIST] [--dtype DTYPE]\n"
    "                     [--allow-large]\n"
    "       m3ref op NAME --run CASES RESULTS [--precision f32|f64] [--ops LIB[,WORDS]] [--threads N]\n"
    "       m3ref op NAME --check CASES RESULTS [--profile NAME|FILE] [--all] [--json] [--junit OUT]\n"
    "                     [--html OUT] [--threads N]\n"
    "       m3ref op NAME --ops LIB[,WORDS] [--check CASES | options of --make] [options of --check] [--timeout S]\n"
    "       m3ref op NAME --perf [--ops LIB[,WORDS]] [options of --make] [--precision f32|f64] [--threads N] [--json]\n"
    "       m3ref op NAME --draw CASES OUT [--only TENSOR] [--threads N]\n"
    "\n"
    "Tests one operator, such as a kernel that you wrote, without a model. NAME_backward is the derivative of the\n"
    "operator NAME (ref/train/TRAINING.md, section 19.21). --make writes a file of cases. The\n"
    "operands are tensors \"0.x\", \"0.w\", \"1.x\", ..; the file's metadata says what each case covers. Your program\n"
    "reads the operands, and writes its results as tensors \"0.y\", \"1.y\", ... --check judges the results, as m3ref\n"
    "blame judges a whole model. Numbers are judged by the error that the profile's arithmetic may cause. Choices of\n"
    "blocks and experts are judged by the scores from which they were made. CASES and RESULTS are safetensors files.\n"
    "The name \"-\" means standard input or output.\n"
    "\n";

static const char end[] =
    "\n"
    "Exit status: 0 done, or every output passes; 1 an output is wrong, or a set of cases was refused; 2 an output is\n"
    "suspect, or could not be judged; 3 not comparable: a result is missing or has another shape or dtype; 64 wrong\n"
    "usage; 65 bad file; 66 missing file; 69 plug-in not available; 70 internal error; 74 I/O error.\n";

#define M3_CLI_ARGUMENTS struct arguments
/* clang-format off */
static const struct m3_cli_option options[] = {
    M3_CLI_ROW("NAME",
      "an operator or a composite of op --list"),
    M3_CLI_TAKEN("list", NULL, take_list,
      "print every operator: operands and outputs with their shapes, and parameters"),
    M3_CLI_TAKEN("make", "CASES", take_make,
      "write cases. Structured cases come first: edges, ties, masks, odd sizes, empty experts.\n"
      "Drawn cases, of random values, follow. Before CASES is written, several kinds of wrong results are\n"
      "judged on all cases: zeros, copies of operands, the results of the previous case, and\n"
      "known mistakes. If any kind of wrong result passes every case, CASES is not written"),
    M3_CLI_TAKEN("sizes", "CLASS", take_sizes,
      "sizes of the drawn cases: tiny (default), small, or real (the released sizes; for\n"
      "attention 65,536 tokens). Sizes may also be given by the letters of op --list, such as\n"
      "T=7,H=64, by R (rotated channels of a head) and by block (keys in a block); given after\n"
      "a class, as in --sizes real --sizes T=9, they replace those of the class. A large set of\n"
      "cases is announced with its bytes"),
    M3_CLI_TAKEN("dtype", "DTYPE", take_dtype,
      "how operands are stored: f32 (default), bf16 or f16. Results may have any float dtype"),
    M3_CLI_NUMBER_OF("seed", "S", seed, 0, INT64_MAX,
      "seed of the drawn values (default 1)"),
    M3_CLI_NUMBER_OF("cases", "N", drawn, 0, 10000,
      "number of drawn cases (default 4)"),
    M3_CLI_TEXT_OF("from", "DUMP", from.options.dump,
      "with --make: take the operands from a dump of m3ref run, instead of drawing them. The\n"
      "cases hold what the operator reads inside the model: activations of the dump, weights and\n"
      "parameters of the model. --dtype rounds activations and weights. Without --dtype they\n"
      "stay as stored"),
    M3_CLI_TEXT_OF("tap", "TAP", from.options.taps,
      "with --from: a tap that NAME makes, such as layers.3.index.blocks. A pattern such as\n"
      "\"layers.*.attn_norm\" gives one case for every tap that matches"),
    M3_CLI_TEXT_OF("model", "MODEL", from.options.model,
      "with --from: the model directory of the run"),
    M3_CLI_TEXT_OF("case", "F", from.options.case_path,
      "with --from: the case of the run, for operators that read ids, positions, a mask or\n"
      "pictures. It is not needed if the dump has companions, which hold the case"),
    M3_CLI_TEXT_OF("rows", "LIST", make.rows,
      "the rows that are judged, of cases of drawn values or from a dump: all, or numbers and\n"
      "ranges such as 0,5,128:130 (without 130). Default: all rows, but of large cases a sample\n"
      "that includes the first and last rows of blocks; a case lists its rows"),
    M3_CLI_FLAG_OF("allow-large", from.options.allow_large,
      "with --from: write the weights even if they have more than 1 GB"),
    M3_CLI_TAKEN("run", "CASES RESULTS", take_run,
      "write the results of the reference. With --precision f64 also write \"0.y.allowed\": how\n"
      "far a float implementation may be from these results"),
    M3_CLI_TAKEN("precision", "P", take_precision,
      "f32 (default) or f64"),
    M3_CLI_TEXT_OF("ops", "LIB[,WORDS]", ops.name,
      "take the operators from a plug-in, as m3ref run does; --ops plain takes the plain loops of\n"
      "ref/ops. Without --run and --perf the plug-in is judged, on the cases of --check CASES or on\n"
      "new cases. It runs in a separate process. A case fails if a call crashes, does not\n"
      "return, or writes outside its outputs or to its inputs"),
    M3_CLI_TAKEN("perf", NULL, take_perf,
      "time the operator on the drawn cases, and compare its time with the shortest time that\n"
      "the machine allows. That time follows from the machine's rates of reading memory and of\n"
      "matrix products. With --ops, time the plug-in too. Where a case lists rows, only these\n"
      "rows are computed"),
    M3_CLI_FLAG_OF("ops-guard", ops.guard_all,
      "with --ops cuda: run it in a separate process, like any other LIB, so that it can be\n"
      "judged. Without this option --ops cuda is not judged"),
    M3_CLI_NUMBER_OF("timeout", "S", ops.timeout, 1, 1000000,
      "seconds that one call of an operator of LIB may take (default 600)"),
    M3_CLI_TAKEN("check", "CASES RESULTS", take_check,
      "\n"
      "judge results. Where a case lists rows, RESULTS may hold all rows or only the listed rows"),
    M3_CLI_TEXT_OF("profile", "NAME|FILE", profile,
      "where the kernel may round: {profiles} or a JSON file (default\n"
      "fp32; SPEC 7.3). NAME+WORD+WORD allows more roundings, such as\n"
      "{words}"),
    M3_CLI_TAKEN("draw", "CASES OUT", take_draw,
      "draw the operands that CASES does not store, because they have more than 1 GiB, and write\n"
      "them to OUT"),
    M3_CLI_TEXT_OF("only", "TENSOR", only,
      "with --draw: write only this operand, such as 6.w1, or one expert of it, such as 6.w1.17"),
    M3_CLI_FLAG_OF("all", all,
      "print every output of every case; without it a verdict takes at most 25 lines"),
    M3_CLI_FLAG_OF("json", json,
      "print JSON lines"),
    M3_CLI_TEXT_OF("junit", "OUT", reports.junit,
      "write JUnit XML: one test case per output of a case"),
    M3_CLI_TEXT_OF("html", "OUT", reports.html,
      "write the verdict as an HTML page"),
    M3_CLI_NUMBER_OF("threads", "N", threads, 1, 4096,
      "number of threads; default: the number of processors. Results do not depend on it"),
    M3_CLI_FLAG_OF("progress", progress,
      "with --make and without a terminal: write a line about progress every minute"),
    M3_CLI_HELP_OF(help),
    M3_CLI_END,
};
/* clang-format on */

static const struct m3_cli_command command_line = { "op", about, options, 22, end };

/* A plug-in has no derivatives, and a dump of a forward pass has no gradients. */
static int check_derivative(const struct arguments *a, struct m3_error *error)
{
    const char *refused = a->from.options.dump       ? "--from"
                          : a->ops.name              ? "--ops"
                          : a->action == ACTION_PERF ? "--perf"
                          : a->action == ACTION_DRAW ? "--draw"
                                                     : NULL;
    if (!refused) return M3_OK;
    return m3_fail(error, M3_USAGE, "op: got %s for the derivative %s, expected it for a forward operator", refused,
                   a->op->name);
}

/* The names that are no options: the operator, and RESULTS of --run and --check, OUT of --draw. */
static int take_names(struct arguments *a, int argc, char **argv, struct m3_error *error)
{
    const int judges_plugin = a->ops.name && (a->action == ACTION_NONE || a->action == ACTION_CHECK);
    const int one_name = a->action == ACTION_MAKE || a->action == ACTION_PERF || judges_plugin;
    const int expected = a->action == ACTION_LIST ? 0 : one_name ? 1 : 2;
    if (a->action == ACTION_NONE && !judges_plugin)
        return m3_fail(error, M3_USAGE,
                       "op: got none of --list, --make, --run, --check, --draw, --perf and --ops, expected one");
    if (argc - optind != expected)
        return m3_fail(error, M3_USAGE, "op: got %d names, expected %s", argc - optind,
                       expected == 0                               ? "none with --list"
                       : a->action == ACTION_PERF || judges_plugin ? "NAME alone with --ops or --perf"
                       : expected == 1 ? "NAME --make CASES"
                                       : "NAME, and two files after --run, --check or --draw");
    if (a->ops.name && (a->action == ACTION_MAKE || a->action == ACTION_DRAW || a->action == ACTION_LIST))
        return m3_fail(error, M3_USAGE, "op: got --ops with --list, --make or --draw, expected it with none of them");
    if (a->action == ACTION_PERF && a->make.random == 0)
        return m3_fail(error, M3_USAGE, "op: got --perf with --cases 0, expected at least 1: drawn cases are timed");
    if (a->only && a->action != ACTION_DRAW) return m3_fail(error, M3_USAGE, "--only: expected it with --draw alone");
    if (expected == 0) return M3_OK;
    a->op = m3_operator_named(argv[optind]);
    if (expected == 2) a->results = argv[optind + 1];
    if (a->op && a->op->derivative) return check_derivative(a, error);
    if (a->op) return M3_OK;
    return m3_fail(error, M3_USAGE, "op: got the operator %s, expected one of op --list", argv[optind]);
}

/* Rows are chosen when cases are made. */
static int check_rows(const struct arguments *a, struct m3_error *error)
{
    const int makes = a->action == ACTION_MAKE || a->action == ACTION_PERF || a->action == ACTION_NONE;
    if (!a->make.rows || makes) return M3_OK;
    return m3_fail(error, M3_USAGE, "--rows: got %s without --make, --perf or --ops alone, expected one of them",
                   a->make.rows);
}

static int parse(struct arguments *a, int argc, char **argv, struct m3_error *error)
{
    int status = m3_cli_options(&command_line, a, NULL, argc, argv, error);
    if (status || a->help) return status;
    a->from.drawn |= a->seed >= 0 || a->drawn >= 0;
    if (a->seed >= 0) a->make.seed = (uint64_t)a->seed;
    if (a->drawn >= 0) a->make.random = a->drawn;
    a->from.options.rows = a->make.rows;
    status = take_names(a, argc, argv, error);
    if (!status) status = check_rows(a, error);
    return status ? status : m3_cli_op_from_check(&a->from, a->action == ACTION_MAKE, error);
}

/* ---- --list */

static void print_operands(const struct m3_operand_row *rows, int most)
{
    for (int i = 0; i < most && rows[i].role != M3_ROLE_NONE; i++) {
        printf("%s%s%s[", i > 0 ? " " : "", rows[i].name, rows[i].optional ? "?" : "");
        for (const char *at = rows[i].letters; *at; at++) {
            const int joined = at > rows[i].letters && at[-1] >= '0' && at[-1] <= '9';
            printf("%s%c", at > rows[i].letters && !joined ? "," : "", *at);
        }
        printf("]");
    }
}

static void print_row(const struct m3_operator_row *op)
{
    printf("%-17s %s\n", op->name, op->what);
    printf("%17s ", "");
    print_operands(op->operands, M3_OPERATOR_OPERANDS);
    printf(" -> ");
    print_operands(op->outputs, M3_OPERATOR_OUTPUTS);
    printf("%s%s  SPEC %s\n", op->parameters[0] ? "; " : "", op->parameters, op->section);
}

static int list(const struct arguments *a, struct m3_error *error)
{
    if (a->json) return m3_list_operators(stdout, error);
    for (int i = 0; i < m3_operator_rows(); i++) print_row(m3_operator_at(i));
    return fflush(stdout) ? m3_fail(error, M3_IO, "standard output: %s", strerror(errno)) : M3_OK;
}

/* ---- --make, --run, --check */

static void print_bytes(FILE *to, uint64_t bytes)
{
    if (bytes >= 1000000000) fprintf(to, "%.2f GB", (double)bytes / 1e9);
    else fprintf(to, "%.1f MB", (double)bytes / 1e6);
}

static void announce(const struct m3_operator_row *op, const struct m3_make_summary *set)
{
    fprintf(stderr, "m3ref: %s: %" PRId64 " cases, with ", op->name, set->cases);
    print_bytes(stderr, set->bytes);
    fprintf(stderr, " of operands to write");
    if (set->drawn > 0) fprintf(stderr, ", and ");
    if (set->drawn > 0) print_bytes(stderr, set->drawn);
    fprintf(stderr, "%s\n", set->drawn > 0 ? " that are drawn and not stored" : "");
}

static int make(const struct arguments *a, struct m3_error *error)
{
    struct m3_make_summary summary;
    struct m3_standard out;
    if (a->from.options.dump) return m3_cli_op_from(&a->from, a->op, a->cases, error);
    struct m3_make_options options = a->make;
    struct m3_cli_watch watch = { 0 };
    m3_cli_watch_begin(&watch, a->progress);
    options.progress = m3_cli_watched(&watch);
    int status = m3_standard_output(&out, a->cases, error);
    if (!status) status = m3_make_cases(a->op, out.path, &options, &summary, error);
    m3_cli_watch_end(&watch);
    if (!status) status = m3_standard_send(&out, error);
    m3_standard_end(&out);
    if (status) return status;
    fprintf(out.is_standard ? stderr : stdout,
            "%s: %" PRId64 " cases, %" PRId64 " of them structured, %.1f MB; %" PRId64
            " known mistakes change the results, and the judge finds %" PRId64 " of them\n",
            a->op->name, summary.cases, summary.structured, (double)summary.bytes / 1e6, summary.mistakes,
            summary.caught);
    return M3_OK;
}

static int open_cases(struct m3_case_file *cases, struct m3_safetensors **file, struct m3_standard *in,
                      const struct arguments *a, struct m3_error *error)
{
    int status = m3_standard_input(in, a->cases, error);
    if (!status) status = m3_safetensors_open_as(file, in->path, in->name, error);
    return status ? status : m3_case_file_open(cases, a->op, *file, error);
}

/* What --run does in a process that a plug-in may end: its files were opened before. */
struct running {
    struct arguments *a;
    struct m3_standard in, out;
};

static int run_body(void *self)
{
    struct running *r = self;
    struct arguments *a = r->a;
    struct m3_error notes = { 0 }, error = { 0 };
    struct m3_safetensors *file = NULL;
    struct m3_case_file cases = { 0 };
    int status = m3_safetensors_open_as(&file, r->in.path, r->in.name, &error);
    if (!status) status = m3_case_file_open(&cases, a->op, file, &error);
    if (!status) status = m3_cli_ops_open(&a->ops, a->engine, &error);
    if (!status)
        status = m3_write_results(&cases, r->out.path, a->engine, m3_cli_ops_replacement(&a->ops), (int)a->threads,
                                  a->engine == m3_engine_f64(), &error);
    m3_cli_ops_close(&a->ops);
    m3_case_file_close(&cases);
    m3_safetensors_close(file);
    return m3_cli_end(status, &notes, &error);
}

static int run(struct arguments *a, struct m3_error *error)
{
    struct running r = { .a = a };
    int status = m3_standard_input(&r.in, a->cases, error);
    if (!status) status = m3_standard_output(&r.out, a->results, error);
    if (!status) {
        status = m3_cli_ops_run(&a->ops, run_body, &r);
        a->printed = status != M3_OK;
    }
    if (!status) status = m3_standard_send(&r.out, error);
    m3_standard_end(&r.in);
    m3_standard_end(&r.out);
    return status;
}

static int draw(const struct arguments *a, struct m3_error *error)
{
    struct m3_safetensors *file = NULL;
    struct m3_case_file cases = { 0 };
    struct m3_standard in = { 0 }, out = { 0 };
    int status = open_cases(&cases, &file, &in, a, error);
    if (!status) status = m3_standard_output(&out, a->results, error);
    if (!status) status = m3_write_drawn(&cases, out.path, a->only, (int)a->threads, error);
    if (!status) status = m3_standard_send(&out, error);
    m3_case_file_close(&cases);
    m3_safetensors_close(file);
    m3_standard_end(&in);
    m3_standard_end(&out);
    return status;
}

static int report(struct arguments *a, const struct m3_judgement *result, const struct m3_safetensors *cases,
                  const struct m3_safetensors *results, struct m3_error *error)
{
    char command[64];
    snprintf(command, sizeof command, "op %s", a->op->name);
    const struct m3_report_subject subject = {
        .command = command,
        .judgement = result,
        .reference = cases,
        .candidate = results,
        .only_findings = 1,
        .cause = { .mistake = result->mistake, .section = a->op->section, .repeat = a->repeat }
    };
    const enum m3_report_extent extent = a->all ? M3_REPORT_ALL : M3_REPORT_SHORT;
    int status = (a->json ? m3_report_json : m3_report_text)(stdout, result, extent, error);
    if (!status) status = m3_cli_reports_open(&a->reports, error);
    if (!status) status = m3_cli_reports_write(&a->reports, &subject, error);
    return status ? status : m3_cli_reports_commit(&a->reports, error);
}

/* `plugin` has the results if a plug-in is judged. */
static int check_results(struct arguments *a, const struct m3_plugin_results *plugin, struct m3_error *error)
{
    struct m3_safetensors *file = NULL, *results = NULL;
    struct m3_case_file cases = { 0 };
    struct m3_standard in = { 0 }, given = { 0 };
    struct m3_profile *profile = NULL;
    struct m3_file_check checked = { 0 };
    int status = M3_OK;
    if (strcmp(a->cases, "-") == 0 && strcmp(a->results, "-") == 0)
        status = m3_fail(error, M3_USAGE, "op: got - for two inputs, expected it once");
    if (!status) status = m3_profile_open(&profile, a->profile, error);
    if (!status) status = open_cases(&cases, &file, &in, a, error);
    if (!status) status = m3_standard_input(&given, a->results, error);
    if (!status) status = m3_safetensors_open_as(&results, given.path, given.name, error);
    if (!status) status = m3_file_check(&checked, &cases, results, plugin->faults, profile, (int)a->threads, error);
    if (!status) {
        status = report(a, &checked.comparison, file, results, error);
        if (!status) status = (int)checked.comparison.status;
    }
    m3_file_check_free(&checked);
    m3_case_file_close(&cases);
    m3_safetensors_close(file);
    m3_safetensors_close(results);
    m3_profile_close(profile);
    m3_standard_end(&in);
    m3_standard_end(&given);
    return status;
}

static int check(struct arguments *a, struct m3_error *error)
{
    struct m3_plugin_results plugin = { 0 };
    const struct m3_plugin_task task = { .op = a->op,
                                         .cases = a->cases,
                                         .make = &a->make,
                                         .ops = &a->ops,
                                         .engine = a->engine,
                                         .threads = (int)a->threads };
    int status = M3_OK;
    if (!a->ops.name) return check_results(a, &plugin, error);
    if (!m3_cli_ops_foreign(&a->ops))
        return m3_fail(error, M3_USAGE, "op: --ops: got %s, expected the file of a plug-in to judge", a->ops.name);
    if (a->cases && strcmp(a->cases, "-") == 0)
        return m3_fail(error, M3_USAGE, "op: got - for the cases of a plug-in, expected a file");
    status = m3_plugin_results_make(&plugin, &task, error);
    a->cases = plugin.cases;
    a->results = plugin.results;
    if (!status) status = check_results(a, &plugin, error);
    a->printed = plugin.printed;
    m3_plugin_results_close(&plugin);
    return status;
}

static int perf(struct arguments *a, struct m3_error *error)
{
    const struct m3_perf_task task = {
        .op = a->op, .make = &a->make, .ops = &a->ops, .engine = a->engine, .threads = (int)a->threads, .json = a->json
    };
    return m3_perf(&task, &a->printed, error);
}

static int check_paths(struct arguments *a, struct m3_error *error)
{
    struct m3_cli_paths paths = m3_cli_paths(error);
    if (m3_cli_ops_foreign(&a->ops)) paths.status = m3_cli_ops_find(&a->ops, error);
    const char *cases = a->cases && strcmp(a->cases, "-") == 0 ? NULL : a->cases;
    const char *results = a->results && strcmp(a->results, "-") == 0 ? NULL : a->results;
    m3_cli_writes_reports(&paths, &a->reports);
    if (a->action == ACTION_MAKE) m3_cli_writes(&paths, "--make", cases);
    if (a->action == ACTION_RUN) m3_cli_writes(&paths, "RESULTS", results);
    if (a->action == ACTION_DRAW) m3_cli_writes(&paths, "OUT", results);
    if (a->action != ACTION_MAKE) m3_cli_reads(&paths, "CASES", cases);
    if (a->action == ACTION_CHECK) m3_cli_reads(&paths, "RESULTS", results);
    m3_cli_reads(&paths, "--ops", a->ops.path);
    m3_cli_reads_profile(&paths, a->profile);
    m3_cli_op_from_paths(&paths, &a->from);
    return m3_cli_paths_end(&paths);
}

int m3_cli_op(int argc, char **argv)
{
    struct m3_error notes = { 0 }, error = { 0 };
    struct arguments a = { .profile = "fp32",
                           .engine = m3_engine_f32(),
                           .threads = sysconf(_SC_NPROCESSORS_ONLN),
                           .seed = -1,
                           .drawn = -1,
                           .reports = M3_CLI_NO_REPORTS };
    a.make = (struct m3_make_options){ .dtype = M3_F32, .seed = 1, .random = 4, .announce = announce };
    a.from.options.dtype = M3_DTYPES;
    int status = m3_cli_shell_line(&a.repeat, argc, argv, &error);
    if (!status) status = parse(&a, argc, argv, &error);
    if (!status && a.help) status = m3_cli_print_help(&command_line, &error);
    else if (!status) status = check_paths(&a, &error);
    if (!status && !a.help) {
        switch (a.action) {
        case ACTION_LIST: status = list(&a, &error); break;
        case ACTION_MAKE: status = make(&a, &error); break;
        case ACTION_PERF: status = perf(&a, &error); break;
        case ACTION_RUN: status = run(&a, &error); break;
        case ACTION_DRAW: status = draw(&a, &error); break;
        default: status = check(&a, &error);
        }
    }
    m3_cli_reports_end(&a.reports);
    free(a.repeat);
    return a.printed ? status : m3_cli_end(status, &notes, &error);
}
