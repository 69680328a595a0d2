#include <stdio.h>
#include <stdlib.h>

#include "cli/cli.h"
#include "cli/options.h"
#include "cli/paths.h"
#include "cli/judge/reports.h"
#include "model/files/case.h"
#include "oracle/explain/explain.h"

struct arguments {
    struct m3_cli_input input;
    struct m3_cli_reports reports;
    struct m3_cli_watch watch;
    const char *model, *tap, *channel;
    char *repeat;               /* the command line */
    int64_t token;              /* -1: not given */
    int json, help;
};

static const char about[] =
    "usage: m3ref explain MODEL (--case F | --ids 1,2,3 | --prompt TEXT | --chat F.json) [--image A.png ...]\n"
    "                     --tap TAP --token T [--channel C] [--json] [--html OUT] [--set FIELD=VALUE ...]\n"
    "                     [--threads N] [--allow-long]\n"
    "\n"
    "Explains one element of a tap: the equation, the numbers that went in, each step to the result, and where the\n"
    "operator is defined. For a choice it shows the reasons: scores, forced blocks, ranking, margin, and what was\n"
    "rejected. For the logits of an MTP module it says which token was drafted, and whether the main model accepts it.\n"
    "The numbers are those of a pass in float with ordered sums, whose bits are those of m3ref run --ops plain. No\n"
    "layer after that of the tap is run. As a check, explain calls the plain operator on this row alone, and computes\n"
    "the printed steps. If one of the two gives other bits than the pass, explain reports an error instead.\n"
    "\n";

static const char end[] =
    "\n"
    "Exit status: 0 done; 1 the model's arithmetic gave NaN; 64 wrong usage: also a tap that does not exist, and a\n"
    "token or channel out of range; 65 bad file; 66 missing file; 69 the Python package that makes ids from words is not\n"
    "available; 70 internal error; 74 I/O error.\n";

#define M3_CLI_ARGUMENTS struct arguments
/* clang-format off */
static const struct m3_cli_option options[] = {
    M3_CLI_ROW("MODEL",
      "model directory, as for m3ref run"),
    M3_CLI_SHARED_OF("case", "F",
      "file with the inputs; --ids, --prompt or --chat, --image and --video may replace it, as for\n"
      "m3ref run. The case holds one sequence"),
    M3_CLI_TEXT_OF("tap", "TAP", tap,
      "the tap, such as layers.3.moe.weights (SPEC 6; m3ref run --dump writes all of them)"),
    M3_CLI_NUMBER_OF("token", "T", token, 0, INT32_MAX,
      "the row of the tap, counted from 0. A row is a token; in the vision tower it is a patch;\n"
      "from projector.merged on it is a merged token; in vision.grid it is a picture"),
    M3_CLI_TEXT_OF("channel", "C", channel,
      "the element of the row, from 0: one number, or an index for each dimension, such as 2,5 for\n"
      "channel 5 of head 2. For index.blocks it is a group and a block: --channel 0,3 asks why\n"
      "group 0 did or did not choose block 3. For moe.experts it is an expert. Default: the largest\n"
      "element. For these two taps the default explains the whole choice (of group 0), and\n"
      "does not ask about one block or expert"),
    M3_CLI_FLAG_OF("json", json,
      "print one JSON object for each step, table and note, then one for the summary. Arrays of\n"
      "more than 65,536 numbers are left out"),
    M3_CLI_TEXT_OF("html", "OUT", reports.html,
      "also write a self-contained HTML page"),
    M3_CLI_SHARED_OF("set", "FIELD=VALUE",
      "choose a reading of the model, as for m3ref run"),
    M3_CLI_SHARED_OF("threads", "N",
      "number of threads; default: the number of processors. Results do not depend on it"),
    M3_CLI_SHARED_OF("progress", NULL,
      "without a terminal: write a line about progress every minute"),
    M3_CLI_SHARED_OF("allow-long", NULL,
      "allow positions >= max_position_embeddings"),
    M3_CLI_HELP_OF(help),
    M3_CLI_SHARED_OF("ids", "VALUE", NULL),
    M3_CLI_SHARED_OF("prompt", "VALUE", NULL),
    M3_CLI_SHARED_OF("chat", "VALUE", NULL),
    M3_CLI_SHARED_OF("image", "VALUE", NULL),
    M3_CLI_SHARED_OF("video", "VALUE", NULL),
    M3_CLI_END,
};
/* clang-format on */

static const struct m3_cli_command command_line = { "explain", about, options, 21, end };

static int parse(struct arguments *a, int argc, char **argv, struct m3_error *error)
{
    int status = m3_cli_input_begin(&a->input, argc, error);
    if (!status) status = m3_cli_options(&command_line, a, &a->input, argc, argv, error);
    if (status || a->help) return status;
    a->input.quiet = 1;
    status = m3_cli_input_model(&a->model, &a->input, argc, argv, error);
    if (!status && !a->tap) status = m3_fail(error, M3_USAGE, "explain: got no --tap, expected one");
    if (!status && a->token < 0) status = m3_fail(error, M3_USAGE, "explain: got no --token, expected one");
    return status ? status : m3_cli_shell_line(&a->repeat, argc, argv, error);
}

static int open_page(struct arguments *a, struct m3_error *error)
{
    struct m3_cli_paths paths = m3_cli_paths(error);
    m3_cli_writes_reports(&paths, &a->reports);
    m3_cli_reads_input(&paths, &a->input);
    const int status = m3_cli_paths_end(&paths);
    return status ? status : m3_cli_reports_open(&a->reports, error);
}

static int print(struct arguments *a, const struct m3_explanation *explanation, struct m3_error *error)
{
    FILE *page;
    int status = M3_OK;
    if (a->reports.html) {
        status = m3_cli_open_stream(&page, &a->reports.html_file, error);
        if (status) return status;
        status = m3_explanation_html(page, explanation, a->repeat, error);
        status = m3_cli_close_stream(page, &a->reports.html_file, status, error);
    }
    if (!status) status = (a->json ? m3_explanation_json : m3_explanation_text)(stdout, explanation, error);
    return status ? status : m3_cli_reports_commit(&a->reports, error);
}

static int explain(struct arguments *a, struct m3_explain_how how, struct m3_case *c, struct m3_error *error)
{
    const struct m3_model *model = how.model;
    struct m3_semantics semantics;
    struct m3_explanation explanation = { 0 };
    int status = m3_cli_input_semantics(&semantics, &a->input, &model->config, error);
    if (!status) status = m3_cli_input_read(c, &a->input, &model->config, 0, error);
    if (!status) status = open_page(a, error);
    if (status) return status;
    a->watch.end_layer = m3_explain_end_layer(&model->config, how.tap, how.layer);
    how.the_case = c;
    how.semantics = &semantics;
    how.threads = (int)a->input.threads;
    how.row = a->token;
    how.channel = a->channel;
    m3_cli_watch_begin(&a->watch, a->input.progress);
    how.progress = m3_cli_watched(&a->watch);
    status = m3_explain_tap(&explanation, &how, error);
    m3_cli_watch_end(&a->watch);
    if (!status) status = print(a, &explanation, error);
    m3_explanation_free(&explanation);
    return status;
}

int m3_cli_explain(int argc, char **argv)
{
    struct m3_error notes = { 0 }, error = { 0 };
    struct arguments a = { .token = -1, .reports = M3_CLI_NO_REPORTS };
    struct m3_explain_how how = { 0 };
    struct m3_model *model = NULL;
    struct m3_case c = { 0 };
    int status = parse(&a, argc, argv, &error);
    if (!status && a.help) {
        status = m3_cli_print_help(&command_line, &error);
    } else if (!status) {
        status = m3_explain_open(&how, &model, a.model, a.tap, &notes, &error);
        if (!status) status = explain(&a, how, &c, &error);
    }
    m3_case_free(&c);
    m3_model_close(model);
    m3_cli_reports_end(&a.reports);
    m3_cli_input_end(&a.input);
    free(a.repeat);
    return m3_cli_end(status, &notes, &error);
}
