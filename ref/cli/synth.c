#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/printable.h"
#include "cli/cli.h"
#include "cli/options.h"
#include "cli/paths.h"
#include "model/weights/synth.h"

struct arguments {
    enum m3_synth_dtype dtype;
    int64_t seed, modules;
    int logs, help;
};

static int take_dtype(void *arguments, const char *value, struct m3_error *error)
{
    static const char *const names[M3_SYNTH_DTYPES] = {
        [M3_SYNTH_BF16] = "bf16",   [M3_SYNTH_F32] = "f32",     [M3_SYNTH_F8_BLOCK] = "f8_block",
        [M3_SYNTH_MXFP8] = "mxfp8", [M3_SYNTH_NVFP4] = "nvfp4", [M3_SYNTH_MXFP4] = "mxfp4",
        [M3_SYNTH_W4A16] = "w4a16",
    };
    for (int i = 0; i < M3_SYNTH_DTYPES; i++)
        if (strcmp(value, names[i]) == 0) {
            ((struct arguments *)arguments)->dtype = (enum m3_synth_dtype)i;
            return M3_OK;
        }
    return m3_fail(error, M3_USAGE, "--dtype: got %s, expected f32, bf16, f8_block, mxfp8, nvfp4, mxfp4 or w4a16",
                   value);
}

static const char about[] =
    "usage: m3ref synth CONFIG OUT [--seed S] [--dtype f32|bf16|f8_block|mxfp8|nvfp4|mxfp4|w4a16]\n"
    "       [--mtp N]\n"
    "\n"
    "Writes a model directory: a copy of CONFIG, and random weights. Each weight follows from the seed, the tensor's\n"
    "name and the index (SPEC 3.6), so a program in any language can reproduce it. OUT must be new or empty. Files\n"
    "over 5 GB are split into shards.\n"
    "\n";

static const char end[] =
    "\n"
    "Exit status: 0 done; 64 wrong usage; 65 bad config; 66 missing file; 70 internal error; 74 I/O error.\n";

#define M3_CLI_ARGUMENTS struct arguments
/* clang-format off */
static const struct m3_cli_option options[] = {
    M3_CLI_NUMBER_OF("seed", "S", seed, 0, INT64_MAX,
      "default 1"),
    M3_CLI_TAKEN("dtype", "T", take_dtype,
      "bf16      default; router and patch embedding in F32, as released\n"
      "f32       all weights in F32\n"
      "f8_block  E4M3 codes with F32 scales per 128x128\n"
      "mxfp8     E4M3 codes with ue8m0 scales per 32\n"
      "nvfp4     E2M1 codes with E4M3 scales per 16 and an F32 scale\n"
      "mxfp4     E2M1 codes with ue8m0 scales per 32\n"
      "w4a16     4-bit integers with BF16 scales per 32\n"
      "The last three have the layout of compressed-tensors. The number of columns of such a\n"
      "matrix must be a multiple of 16 (nvfp4) or of 32 (mxfp4, w4a16). Codes and scales are\n"
      "themselves random numbers: nothing is quantised. If CONFIG has no quantization_config for\n"
      "this dtype, its copy gets one."),
    M3_CLI_NUMBER_OF("mtp", "N", modules, 0, 1000,
      "number of MTP modules (multi-token prediction); default 0, because the releases hold none,\n"
      "whatever their config says"),
    M3_CLI_FLAG_OF("progress", logs,
      "without a terminal: write a line about progress every minute"),
    M3_CLI_HELP_OF(help),
    M3_CLI_END,
};
/* clang-format on */

static const struct m3_cli_command command_line = { "synth", about, options, 16, end };

int m3_cli_synth(int argc, char **argv)
{
    struct m3_error notes = { 0 }, error = { 0 };
    struct arguments a = { .dtype = M3_SYNTH_BF16, .seed = 1 };
    struct m3_synth_totals totals;
    int status = m3_cli_options(&command_line, &a, NULL, argc, argv, &error);
    if (!status && a.help) return m3_cli_end(m3_cli_print_help(&command_line, &error), &notes, &error);
    if (!status && argc - optind != 2)
        status = m3_fail(&error, M3_USAGE, "synth: got %d names, expected CONFIG OUT", argc - optind);
    if (!status) {
        struct m3_cli_paths paths = m3_cli_paths(&error);
        m3_cli_writes(&paths, "OUT", argv[optind + 1]);
        m3_cli_reads(&paths, "CONFIG", argv[optind]);
        status = m3_cli_paths_end(&paths);
    }
    struct m3_cli_watch watch = { 0 };
    m3_cli_watch_begin(&watch, a.logs);
    const struct m3_progress progress = m3_cli_watched(&watch);
    if (!status)
        status = m3_synth_write(argv[optind], argv[optind + 1], (uint64_t)a.seed, a.dtype, a.modules, &totals,
                                &progress, &notes, &error);
    m3_cli_watch_end(&watch);
    if (!status)
        printf("%s: %" PRId64 " tensor%s, %" PRIu64 " bytes, %" PRId64 " weight file%s, seed %" PRId64 "\n",
               m3_printable(argv[optind + 1]).text, totals.tensors, totals.tensors == 1 ? "" : "s", totals.bytes,
               totals.files, totals.files == 1 ? "" : "s", a.seed);
    return m3_cli_end(status, &notes, &error);
}
