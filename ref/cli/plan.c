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

static int print(const struct m3_cli_plan *p, const struct m3_pass_plan *pass, struct m3_error *error)
{
    enum { RUNS = 3 };
    double rate, read;
    int status = m3_cli_bench_rate(&rate, "sgemm", p->input->threads, RUNS, error);
    if (!status) status = m3_cli_bench_rate(&read, "read", p->input->threads, RUNS, error);
    if (status) return status;
    const double passes = (double)work_of(p), bytes = (double)pass->bytes;
    const double computing = passes * (double)pass->flops / (pass_share * rate);
    const double reading = bytes * (p->f32_passes + p->f64_passes + p->recomputed) / read;
    printf("files: %" PRId64 " of %" PRId64 " needed, %" PRId64 " of them absent; %.3f GB\n", pass->needed, pass->all,
           pass->absent, bytes / 1e9);
    printf("layers: %" PRId64 " to %" PRId64 ", T %" PRId64 "\n", pass->first, pass->end - 1, pass->T);
    printf("passes: %d in float, %d in double, %d of these with error bounds; operators recomputed from the dump: %s\n",
           p->f32_passes, p->f64_passes, p->with_bounds, p->recomputed ? "yes" : "no");
    printf("operations: %.3g in one pass\n", (double)pass->flops);
    printf("memory: about %.2f GB of its own, besides the mapped files\n", 6 * (double)pass->widest / 1e9 + 0.02);
    printf("disk: about %.2f GB for taps\n", p->writes_taps ? 3 * 8 * (double)pass->tap_elements / 1e9 : 0);
    printf("time: about %.2g s at %.3g operations a second and %.3g bytes a second, measured now\n",
           computing > reading ? computing : reading, pass_share * rate, read);
    return M3_OK;
}

int m3_cli_plan(const struct m3_cli_plan *p, struct m3_error *notes, struct m3_error *error)
{
    struct m3_config config = { 0 };
    struct m3_case c = { 0 };
    struct m3_pass_plan pass;
    char *path = NULL;
    if (asprintf(&path, "%s/config.json", p->model) < 0) return m3_fail_memory(error, p->model, 0);
    int status = m3_config_read(&config, path, notes, error);
    if (!status) status = m3_cli_input_read(&c, p->input, &config, 0, error);
    if (!status) status = m3_plan_pass(&pass, stdout, p->model, &config, p->first, p->end, c.T, error);
    if (!status) status = print(p, &pass, error);
    m3_case_free(&c);
    m3_config_free(&config);
    free(path);
    return status;
}
