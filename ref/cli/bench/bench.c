#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "cli/bench/items.h"
#include "cli/cli.h"
#include "cli/options.h"
#include "io/json.h"
#include "io/processors.h"

struct arguments {
    struct m3_bench_options how;
    const char *baseline;
    int help;
};

static const char about[] =
    "usage: m3ref bench ITEM [--threads N] [--runs N] [--model DIR] [--keys N] [--cpu-time]\n"
    "       m3ref bench --baseline FILE [--threads N] [--runs N] [--model DIR] [--cpu-time]\n"
    "\n"
    "Times one item in float, at the sizes of the released model. Prints a JSON line: the item, the seconds of the\n"
    "fastest run, GFLOP/s or GB/s, and the peak memory of the process. The line also has the item's limit (the\n"
    "speed of `sgemm`, `read` or `copy`, measured on this machine between the runs of the item), the share of the\n"
    "limit that the item reached (`ratio`), and the share that is its goal. The limit of a gradient is the forward\n"
    "pass: a ratio of 0.5 means that it takes twice as long (`times`). `make bench` measures all items, each in\n"
    "its own process. With --baseline, the items in a file that `make bench` wrote are measured again. One line per\n"
    "item says whether it became slower. Items with a limit are compared by their share of it, and so FILE may come\n"
    "from a slower or faster machine.\n"
    "\n"
    "  sgemm            the machine's limit for products: BLAS alone, 512 x 6144 x 6144; threads divide the outputs\n"
    "  read             the machine's limit for weights: a plain read of 1 GB\n"
    "  copy             the machine's limit for elementwise operators: y := x + 1, bytes read and written\n"
    "  linear           6144 x 6144 BF16, T = 512\n"
    "  linear-1, linear-4, linear-8, linear-64    the same at T = 1, 4, 8, 64\n"
    "  linear-f32       the same matrix stored as F32, T = 512\n"
    "  linear-mxfp8     the same matrix in E4M3 with ue8m0 scales, T = 512\n"
    "  linear-mxfp8-1, linear-fp8-1    in E4M3 with ue8m0 scales, or F32 scales per 128 x 128; T = 1, GB/s of stored bytes\n"
    "  linear-ordered   the same as linear with ordered sums\n"
    "  moe              router, shared expert, top 4 of 16 experts (instead of 128); BF16, T = 512\n"
    "  moe-1            the same at T = 1, in GB/s of weights read\n"
    "  attention        a sparse attention layer, 64/4 heads, BF16, T = 4096\n"
    "  attend-blocks    only the core of that layer: attending to chosen blocks\n"
    "  attend-full      the same core with full attention\n"
    "  scores           only the scores of blocks, for all rows\n"
    "  decode-index     choosing blocks for the last of --keys tokens (default 65536), in one layer, in GB/s\n"
    "                   of index keys read\n"
    "  decode-sparse    choosing the blocks and attending to them, in GB/s of index keys, keys and values read\n"
    "  decode-blocks    only attending to the chosen blocks\n"
    "  decode-dense     full attention of the same token\n"
    "  norm, head-norm, layer-norm, rope, swiglu, gelu    on 2048 rows of 6144 numbers; heads have 128\n"
    "  vision           tower and projector on a picture of 672 x 672 pixels, with the weights of --model DIR; its\n"
    "                   peak memory does not include mapped files\n"
    "  attend-blocks-back    the derivative of attend-blocks, beside attend-blocks itself (the limit `forward`)\n"
    "  grad             losses and gradients of --model DIR at T = 512, beside its forward pass\n"
    "\n";

static const char end[] =
    "\n"
    "Exit status: 0 done, even if items became slower; 64 wrong usage; 65 bad model or baseline; 66 missing model or\n"
    "baseline; 70 out of memory.\n";

#define M3_CLI_ARGUMENTS struct arguments
/* clang-format off */
static const struct m3_cli_option options[] = {
    M3_CLI_NUMBER_OF("threads", "N", how.threads, 1, 1024,
      "number of threads; default: the number of processors"),
    M3_CLI_NUMBER_OF("runs", "N", how.runs, 1, 1000,
      "number of runs, default 5"),
    M3_CLI_FLAG_OF("cpu-time", how.cpu_time,
      "measure the CPU time of the process instead of elapsed time; useful with one\n"
      "thread on a shared machine"),
    M3_CLI_TEXT_OF("baseline", "FILE", baseline,
      "measure the items of FILE again and compare"),
    M3_CLI_HELP_OF(help),
    M3_CLI_TEXT_OF("model", "VALUE", how.folder, NULL),
    M3_CLI_NUMBER_OF("keys", "VALUE", how.keys, 1, 1 << 24, NULL),
    M3_CLI_END,
};
/* clang-format on */

static const struct m3_cli_command command_line = { "bench", about, options, 19, end };

static void print_result(const struct m3_bench_result *r, const struct m3_bench_options *o)
{
    printf("{\"what\":\"%s\",\"seconds\":%.6f,\"%s\":%.1f", r->name, r->seconds, r->by_bytes ? "gb_per_s" : "gflops",
           r->rate / 1e9);
    if (r->limit)
        printf(",\"limit\":\"%s\",\"limit_rate\":%.1f,\"ratio\":%.3f", r->limit, r->limit_rate / 1e9,
               r->rate / r->limit_rate);
    if (r->limit && strcmp(r->limit, "forward") == 0) printf(",\"times\":%.2f", r->limit_rate / r->rate);
    if (r->goal > 0) printf(",\"goal\":%.2f", r->goal);
    if (strncmp(r->name, "decode-", 7) == 0) printf(",\"keys\":%lld", (long long)o->keys);
    printf(",\"peak_bytes\":%lld,\"threads\":%lld,\"runs\":%lld}\n", (long long)r->peak_bytes, (long long)o->threads,
           (long long)o->runs);
}

/* ---- --baseline */

/* Slower by more than this share is said to be slower: less is noise. */
static const double noise = 0.1;

/* The share of the limit, or the rate if there is none. */
static double measure_of(const json_t *record)
{
    const json_t *ratio = json_object_get(record, "ratio"), *rate = json_object_get(record, "gflops");
    if (!rate) rate = json_object_get(record, "gb_per_s");
    return json_number_value(ratio ? ratio : rate);
}

static int compare_one(int *compared, int *slower, const json_t *record, const struct m3_bench_options *o,
                       struct m3_error *error)
{
    const json_t *keys = json_object_get(record, "keys");
    struct m3_bench_options again = *o;
    struct m3_bench_result r;
    const char *name = json_string_value(json_object_get(record, "what"));
    const double before = measure_of(record);
    char label[64];
    if (keys) again.keys = json_integer_value(keys);
    snprintf(label, sizeof label, keys ? "%s, %lld keys" : "%s", name, (long long)again.keys);
    if ((strcmp(name, "vision") == 0 || strcmp(name, "grad") == 0) && !o->folder) {
        printf("%-28s left out: no --model\n", label);
        return M3_OK;
    }
    const int status = m3_bench_measure(&r, name, &again, error);
    if (status) return status;
    const double now = r.limit ? r.rate / r.limit_rate : r.rate / 1e9;
    const int is_slower = !(now >= before * (1 - noise));
    *slower += is_slower;
    ++*compared;
    printf("%-28s %9.3f %s%-8s was %9.3f  %+4.0f %%%s\n", label, now, r.limit ? "of " : "",
           r.limit      ? r.limit
           : r.by_bytes ? "GB/s"
                        : "GFLOP/s",
           before, 100 * (now / before - 1), is_slower ? "  slower" : "");
    fflush(stdout);
    return M3_OK;
}

static int compare(const char *path, const struct m3_bench_options *o, struct m3_error *error)
{
    json_t *root, *record;
    size_t i;
    int slower = 0, compared = 0, status = m3_json_load(&root, path, error);
    if (status) return status;
    const json_t *items = json_object_get(root, "items");
    if (!json_is_array(items))
        status = m3_fail(error, M3_BAD_INPUT, "%s: got no items, expected what make bench wrote", path);
    for (i = 0; !status && i < json_array_size(items); i++) {
        record = json_array_get(items, i);
        const char *name = json_string_value(json_object_get(record, "what"));
        const json_int_t keys = json_integer_value(json_object_get(record, "keys"));
        if (!name || !m3_bench_is_item(name)) continue;
        if (!(measure_of(record) > 0) || keys < 0 || keys > 1 << 24) {
            status = m3_fail(error, M3_BAD_INPUT, "%s: %s: got no usable rate or keys, expected what make bench wrote",
                             path, name);
            break;
        }
        status = compare_one(&compared, &slower, record, o, error);
    }
    if (!status) printf("%d items, %d slower by more than %.0f %%\n", compared, slower, 100 * noise);
    json_decref(root);
    return status;
}

int m3_cli_bench(int argc, char **argv)
{
    struct m3_error notes = { 0 }, error = { 0 };
    struct arguments a = { .how = { .threads = m3_processors(), .runs = 5, .keys = 65536 } };
    struct m3_bench_result result;
    int status = m3_cli_options(&command_line, &a, NULL, argc, argv, &error);
    if (!status && a.help) return m3_cli_end(m3_cli_print_help(&command_line, &error), &notes, &error);
    const int names = argc - optind;
    if (!status && names != !a.baseline)
        status = m3_fail(&error, M3_USAGE,
                         "bench: got %d items, expected one, or --baseline alone (m3ref bench --help)", names);
    if (!status && a.baseline) status = compare(a.baseline, &a.how, &error);
    else if (!status) status = m3_bench_measure(&result, argv[optind], &a.how, &error);
    if (!status && !a.baseline) print_result(&result, &a.how);
    return m3_cli_end(status, &notes, &error);
}
