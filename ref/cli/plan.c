#ifndef _GNU_SOURCE
#define _GNU_SOURCE             /* asprintf */
#endif
#include "cli/plan.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "estimate/plan.h"
#include "model/files/case.h"

/* How long work takes, in single-precision passes of the same operations: measured on models of 96 to 768 channels. The
 * double engine multiplies at half the rate; bounds and recomputed operators add in double with plain loops. */
enum { F64_PASS = 2, BOUNDS = 20, RECOMPUTED = 6 };

/* The share of the rate of plain products that a whole pass reaches. */
static const double pass_share = 0.4;

static int64_t work_of(const struct m3_cli_plan *p)
{
    return p->f32_passes + F64_PASS * p->f64_passes + BOUNDS * p->with_bounds + RECOMPUTED * p->recomputed;
}

/* The rates of the machine, per second. */
struct rates {
    double flops, bytes;
};

static int measure(struct rates *rates, const struct m3_cli_plan *p, struct m3_error *error)
{
    enum { RUNS = 3 };
    int status = m3_cli_bench_rate(&rates->flops, "sgemm", p->input->threads, RUNS, error);
    rates->flops *= pass_share;
    return status ? status : m3_cli_bench_rate(&rates->bytes, "read", p->input->threads, RUNS, error);
}

static double longer(double a, double b) { return a > b ? a : b; }

static double passes_time(const struct m3_cli_plan *p, const struct m3_pass_plan *pass, const struct rates *rates)
{
    return longer((double)work_of(p) * (double)pass->flops / rates->flops,
                  (double)pass->bytes * (p->f32_passes + p->f64_passes + p->recomputed) / rates->bytes);
}

/* Weights stay as stored: BF16, or fewer bytes. */
static double token_time(const struct m3_cli_plan *p, const struct m3_pass_plan *pass,
                         const struct m3_token_plan *token, const struct rates *rates)
{
    const double stored = pass->absent ? 1 : (double)pass->bytes / token->all_weights;
    const double bytes = stored * token->weights + token->keys * (p->f64_passes ? 2 : 1);
    return longer((double)work_of(p) * (double)token->flops / rates->flops, bytes / rates->bytes);
}

static int print(const struct m3_cli_plan *p, const struct m3_pass_plan *pass, const struct m3_token_plan *token,
                 struct m3_error *error)
{
    struct rates rates;
    const int status = measure(&rates, p, error);
    if (status) return status;
    const double each = p->new_tokens ? token_time(p, pass, token, &rates) : 0;
    const double cache = p->new_tokens ? token->all_keys * (p->f64_passes ? 2 : 1) : 0;
    const double time = passes_time(p, pass, &rates) + each * (double)(p->new_tokens - (p->new_tokens > 0));
    printf("files: %" PRId64 " of %" PRId64 " needed, %" PRId64 " of them absent; %.3f GB\n", pass->needed, pass->all,
           pass->absent, (double)pass->bytes / 1e9);
    printf("layers: %" PRId64 " to %" PRId64 ", T %" PRId64 "\n", pass->first, pass->end - 1, pass->T);
    printf("passes: %d in float, %d in double, %d of these with error bounds; operators recomputed from the dump: %s\n",
           p->f32_passes, p->f64_passes, p->with_bounds, p->recomputed ? "yes" : "no");
    printf("operations: %.3g in one pass\n", (double)pass->flops);
    if (p->new_tokens)
        printf("tokens: %" PRId64 ", after the first %.3g operations and about %.2g s each, without drafts\n",
               p->new_tokens, (double)token->flops, each);
    printf("memory: about %.2f GB of its own, besides the mapped files\n",
           (6 * (double)pass->widest + cache) / 1e9 + 0.02);
    printf("disk: about %.2f GB for taps\n", p->writes_taps ? 3 * 8 * (double)pass->tap_elements / 1e9 : 0);
    printf("time: about %.2g s at %.3g operations a second and %.3g bytes a second, measured now\n", time, rates.flops,
           rates.bytes);
    return M3_OK;
}

int m3_cli_plan(const struct m3_cli_plan *p, struct m3_error *notes, struct m3_error *error)
{
    struct m3_config config = { 0 };
    struct m3_case c = { 0 };
    struct m3_pass_plan pass;
    struct m3_token_plan token = { 0 };
    char *path = NULL;
    if (asprintf(&path, "%s/config.json", p->model) < 0) return m3_fail_memory(error, p->model, 0);
    int status = m3_config_read(&config, path, notes, error);
    if (!status) status = m3_cli_input_read(&c, p->input, &config, 0, error);
    if (!status) status = m3_plan_pass(&pass, stdout, p->model, &config, p->first, p->end, c.T, error);
    if (!status && p->new_tokens) status = m3_plan_token(&token, &config, c.T + p->new_tokens - 1, error);
    if (!status) status = print(p, &pass, &token, error);
    m3_case_free(&c);
    m3_config_free(&config);
    free(path);
    return status;
}
