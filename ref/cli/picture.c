#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "base/printable.h"
#include "cli/cli.h"
#include "cli/options.h"
#include "cli/paths.h"
#include "cli/judge/reports.h"
#include "io/processors.h"
#include "oracle/picture/picture.h"

struct arguments {
    const char *dump, *out, *model;
    int64_t threads;
    int help, is_svg;
};

static const char about[] =
    "usage: m3ref picture DUMP OUT.html|OUT.svg [--model DIR] [--threads N]\n"
    "\n"
    "Draws a run from its dump, into one self-contained page or picture, for light and for dark screens. The\n"
    "list below names each panel and, in parentheses, what it needs: taps of DUMP (m3ref run --dump writes them),\n"
    "companions, or --model. A panel is drawn if all that it needs is there.\n"
    "  the blocks that each token chose, by layer and group (index.blocks); the attention mass of the blocks that the\n"
    "  last row chose (q_rope, k_rope, v_proj, attn_lse, index.block_scores); the load of the experts (moe.experts);\n"
    "  margins of the router (companions of m3ref run --bounds, or moe.router_scores and --model); the size of the\n"
    "  residual stream (out); the logit lens, the next token after each layer (out and --model); drafts of the MTP\n"
    "  modules against the main model's tokens (logits); the patches of pictures, and how often later tokens choose\n"
    "  the key blocks with the pictures' tokens (vision.pixels, projector.out, fused).\n"
    "\n";

static const char end[] =
    "\n"
    "Exit status: 0 done; 64 wrong usage; 65 bad file: also a dump with nothing to draw, or of several sequences; 66\n"
    "missing file; 70 internal error; 74 I/O error.\n";

#define M3_CLI_ARGUMENTS struct arguments
/* clang-format off */
static const struct m3_cli_option options[] = {
    M3_CLI_ROW("DUMP",
      "dump of one sequence: a safetensors file (or .gz)"),
    M3_CLI_ROW("OUT",
      "the file to write: a page if its name ends in .html, a picture if it ends in .svg"),
    M3_CLI_TEXT_OF("model", "DIR", model,
      "model directory of the run"),
    M3_CLI_NUMBER_OF("threads", "N", threads, 1, 1024,
      "number of threads; default: the number of processors. Results do not depend on it"),
    M3_CLI_HELP_OF(help),
    M3_CLI_END,
};
/* clang-format on */

static const struct m3_cli_command command_line = { "picture", about, options, 19, end };

static int ends_in(const char *name, const char *end)
{
    const size_t length = strlen(name), own = strlen(end);
    return length >= own && strcmp(name + length - own, end) == 0;
}

static int parse(struct arguments *a, int argc, char **argv, struct m3_error *error)
{
    const int status = m3_cli_options(&command_line, a, NULL, argc, argv, error);
    if (status || a->help) return status;
    if (argc - optind != 2) return m3_fail(error, M3_USAGE, "picture: got %d names, expected DUMP OUT", argc - optind);
    a->dump = argv[optind];
    a->out = argv[optind + 1];
    a->is_svg = ends_in(a->out, ".svg");
    if (a->is_svg || ends_in(a->out, ".html")) return M3_OK;
    return m3_fail(error, M3_USAGE, "picture: got %s, expected a name that ends in .html or .svg", a->out);
}

static int write(const struct arguments *a, const struct m3_picture *picture, struct m3_error *error)
{
    struct m3_cli_paths paths = m3_cli_paths(error);
    struct m3_new_file file = M3_NO_FILE;
    FILE *out;
    m3_cli_writes(&paths, "OUT", a->out);
    m3_cli_reads(&paths, "DUMP", a->dump);
    int status = m3_cli_paths_end(&paths);
    if (!status) status = m3_new_file_open(&file, a->out, error);
    if (!status) status = m3_cli_open_stream(&out, &file, error);
    if (!status) {
        status = (a->is_svg ? m3_picture_svg : m3_picture_html)(out, picture, a->dump, error);
        status = m3_cli_close_stream(out, &file, status, error);
    }
    if (!status) return m3_new_file_commit(&file, error);
    m3_new_file_abandon(&file);
    return status;
}

int m3_cli_picture(int argc, char **argv)
{
    struct m3_error notes = { 0 }, error = { 0 };
    struct arguments a = { .threads = m3_processors() };
    struct m3_safetensors *dump = NULL;
    struct m3_model *model = NULL;
    struct m3_picture picture = { 0 };
    int status = parse(&a, argc, argv, &error);
    if (!status && a.help) {
        status = m3_cli_print_help(&command_line, &error);
    } else if (!status) {
        status = m3_safetensors_open(&dump, a.dump, &error);
        if (!status && a.model) status = m3_model_open(&model, a.model, &notes, &error);
        const struct m3_picture_request request = { dump, model, (int)a.threads };
        if (!status) status = m3_picture_make(&picture, &request, &error);
        if (!status) status = write(&a, &picture, &error);
        if (!status)
            printf("picture: %d panel%s in %s\n", picture.count, picture.count == 1 ? "" : "s",
                   m3_printable(a.out).text);
    }
    m3_picture_free(&picture);
    m3_model_close(model);
    m3_safetensors_close(dump);
    return m3_cli_end(status, &notes, &error);
}
