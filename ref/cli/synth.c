#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/printable.h"
#include "cli/cli.h"
#include "cli/paths.h"
#include "model/weights/synth.h"

static const char help[] =
    "usage: m3ref synth CONFIG OUT [--seed S] [--dtype f32|bf16|f8_block|mxfp8|nvfp4|mxfp4|w4a16]\n"
    "       [--mtp N]\n"
    "\n"
    "Writes a model directory: a copy of CONFIG, and random weights. Each weight follows from the seed, the tensor's\n"
    "name and the index (SPEC 3.6), so a program in any language can reproduce it. OUT must be new or empty. Files\n"
    "over 5 GB are split into shards.\n"
    "\n"
    "  --seed S      default 1\n"
    "  --dtype T     bf16      default; router and patch embedding in F32, as released\n"
    "                f32       all weights in F32\n"
    "                f8_block  E4M3 codes with F32 scales per 128x128\n"
    "                mxfp8     E4M3 codes with ue8m0 scales per 32\n"
    "                nvfp4     E2M1 codes with E4M3 scales per 16 and an F32 scale\n"
    "                mxfp4     E2M1 codes with ue8m0 scales per 32\n"
    "                w4a16     4-bit integers with BF16 scales per 32\n"
    "                The last three have the layout of compressed-tensors. The number of columns of such a\n"
    "                matrix must be a multiple of 16 (nvfp4) or of 32 (mxfp4, w4a16). Codes and scales are\n"
    "                themselves random numbers: nothing is quantised. If CONFIG has no quantization_config for\n"
    "                this dtype, its copy gets one.\n"
    "  --mtp N       number of MTP modules (multi-token prediction); default 0, because the releases hold none,\n"
    "                whatever their config says\n"
    "  --progress    without a terminal: write a line about progress every minute\n"
    "  --help        print this text\n"
    "\n"
    "Exit status: 0 done; 64 wrong usage; 65 bad config; 66 missing file; 70 internal error; 74 I/O error.\n";

static int dtype_named(enum m3_synth_dtype *dtype, const char *name, struct m3_error *error)
{
    static const char *const names[M3_SYNTH_DTYPES] = {
        [M3_SYNTH_BF16] = "bf16",   [M3_SYNTH_F32] = "f32",     [M3_SYNTH_F8_BLOCK] = "f8_block",
        [M3_SYNTH_MXFP8] = "mxfp8", [M3_SYNTH_NVFP4] = "nvfp4", [M3_SYNTH_MXFP4] = "mxfp4",
        [M3_SYNTH_W4A16] = "w4a16",
    };
    for (int i = 0; i < M3_SYNTH_DTYPES; i++)
        if (strcmp(name, names[i]) == 0) {
            *dtype = (enum m3_synth_dtype)i;
            return M3_OK;
        }
    return m3_fail(error, M3_USAGE, "--dtype: got %s, expected f32, bf16, f8_block, mxfp8, nvfp4, mxfp4 or w4a16",
                   name);
}

int m3_cli_synth(int argc, char **argv)
{
    enum { OPT_SEED = 256, OPT_DTYPE, OPT_MTP, OPT_PROGRESS, OPT_HELP };
    static const struct option options[] = {
        { "seed", required_argument, NULL, OPT_SEED }, { "dtype", required_argument, NULL, OPT_DTYPE },
        { "mtp", required_argument, NULL, OPT_MTP },   { "progress", no_argument, NULL, OPT_PROGRESS },
        { "help", no_argument, NULL, OPT_HELP },       { NULL, 0, NULL, 0 }
    };
    struct m3_error notes = { 0 }, error = { 0 };
    enum m3_synth_dtype dtype = M3_SYNTH_BF16;
    struct m3_synth_totals totals;
    int64_t seed = 1, modules = 0;
    int option, logs = 0, status = M3_OK;

    optind = 0;
    opterr = 0;
    while (!status && (option = getopt_long(argc, argv, ":", options, NULL)) != -1) {
        switch (option) {
        case OPT_HELP: return m3_cli_end(m3_cli_help(help, &error), &notes, &error);
        case OPT_PROGRESS: logs = 1; break;
        case OPT_SEED: status = m3_cli_number(&seed, "--seed", optarg, 0, INT64_MAX, &error); break;
        case OPT_DTYPE: status = dtype_named(&dtype, optarg, &error); break;
        case OPT_MTP: status = m3_cli_number(&modules, "--mtp", optarg, 0, 1000, &error); break;
        default: status = m3_cli_bad_option(option, argv, "synth", &error);
        }
    }
    if (!status && argc - optind != 2)
        status = m3_fail(&error, M3_USAGE, "synth: got %d names, expected CONFIG OUT", argc - optind);
    if (!status) {
        struct m3_cli_paths paths = m3_cli_paths(&error);
        m3_cli_writes(&paths, "OUT", argv[optind + 1]);
        m3_cli_reads(&paths, "CONFIG", argv[optind]);
        status = m3_cli_paths_end(&paths);
    }
    struct m3_cli_watch watch = { 0 };
    m3_cli_watch_begin(&watch, logs);
    const struct m3_progress progress = m3_cli_watched(&watch);
    if (!status)
        status = m3_synth_write(argv[optind], argv[optind + 1], (uint64_t)seed, dtype, modules, &totals, &progress,
                                &notes, &error);
    m3_cli_watch_end(&watch);
    if (!status)
        printf("%s: %" PRId64 " tensor%s, %" PRIu64 " bytes, %" PRId64 " weight file%s, seed %" PRId64 "\n",
               m3_printable(argv[optind + 1]).text, totals.tensors, totals.tensors == 1 ? "" : "s", totals.bytes,
               totals.files, totals.files == 1 ? "" : "s", seed);
    return m3_cli_end(status, &notes, &error);
}
