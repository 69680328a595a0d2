#include "cli/ranks.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/json.h"
#include "model/divided/order.h"
#include "ranks/division.h"

/* A process is one rank as long as it lives, as it has one standard output. */
static struct m3_ranks *ranks;

static int refuse(const char *command, struct m3_error *error)
{
    return m3_fail(error, M3_USAGE, "%s: got %d ranks, expected 1: only run, generate and check divide their work",
                   command, m3_ranks_count(ranks));
}

/* What keeps one rank from the others usually keeps all: then rank 0 says so, and that ends them. */
static void wait_for_rank_0(void)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    if (rank && strcmp(rank, "0") != 0) sleep(2);
}

int m3_cli_ranks_begin(const char *command, int divides, struct m3_error *error)
{
    char path[4096];
    if (!m3_ranks_several()) return 0;
    int status = m3_cli_library(path, sizeof path, "libm3ref_mpi.so", "mpirun", "make MPI=1", error);
    if (!status) status = m3_ranks_open(&ranks, path, error);
    if (status) {
        wait_for_rank_0();
        ranks = NULL;
        return 0;
    }
    if (m3_ranks_rank(ranks) > 0) m3_obey(ranks);
    else if (!divides) refuse(command, error);
    return m3_ranks_rank(ranks) > 0;
}

void m3_cli_ranks_end(void)
{
    m3_ranks_close(ranks);
    ranks = NULL;
}

int m3_cli_ranks_join(struct m3_model *model, const char *path, int64_t first, int64_t end, struct m3_error *error)
{
    return ranks ? m3_order_open(ranks, model, path, first, end, error) : M3_OK;
}

int m3_cli_ranks_refuse_ops(const struct m3_cli_ops *ops, struct m3_error *error)
{
    if (!ranks || !ops->name || m3_cli_ops_plain(ops)) return M3_OK;
    return m3_fail(error, M3_USAGE, "--ops: got %s with %d ranks, expected plain, or one rank", ops->name,
                   m3_ranks_count(ranks));
}

int m3_cli_ranks_refuse(const char *option, struct m3_error *error)
{
    if (!ranks) return M3_OK;
    return m3_fail(error, M3_USAGE, "%s: got %d ranks, expected one", option, m3_ranks_count(ranks));
}

static int64_t sent_by_all(const struct m3_ranks_work *all, int count, int kind)
{
    int64_t bytes = 0;
    for (int r = 0; r < count; r++) bytes += all[r].sent[kind];
    return bytes;
}

static void print_text(const struct m3_ranks_work *all, int count, int64_t E)
{
    printf("ranks: %d, which sent", count);
    for (int kind = 0; kind < M3_SENT_KINDS; kind++)
        printf("%s %" PRId64 " bytes of %s", kind ? "," : "", sent_by_all(all, count, kind), m3_sent_names[kind]);
    printf("\n");
    for (int r = 0; r < count; r++) {
        const int64_t first = m3_experts_first(E, count, r), end = m3_experts_first(E, count, r + 1);
        printf("       rank %d: %" PRId64 " rows; ", r, all[r].rows);
        if (first < end)
            printf("experts %" PRId64 " to %" PRId64 ", for %" PRId64 " rows", first, end - 1, all[r].expert_rows);
        else printf("no experts");
        printf("; waited %.3f s\n", all[r].waited);
    }
}

static int print_json(const struct m3_ranks_work *all, int count, int64_t E, struct m3_error *error)
{
    json_t *sent = json_object(), *ranks_of = json_array();
    for (int kind = 0; kind < M3_SENT_KINDS; kind++)
        m3_json_set(sent, m3_sent_names[kind], json_integer((json_int_t)sent_by_all(all, count, kind)));
    for (int r = 0; r < count; r++) {
        const int64_t first = m3_experts_first(E, count, r), end = m3_experts_first(E, count, r + 1);
        m3_json_append(ranks_of, json_pack("{s:I,s:I,s:I,s:I,s:f}", "rows", (json_int_t)all[r].rows, "first_expert",
                                           (json_int_t)first, "experts", (json_int_t)(end - first), "expert_rows",
                                           (json_int_t)all[r].expert_rows, "waited", all[r].waited));
    }
    return m3_json_line(stdout, json_pack("{s:s,s:o,s:o}", "type", "ranks", "ranks", ranks_of, "sent", sent), error);
}

int m3_cli_ranks_print(const struct m3_config *config, int json, struct m3_error *error)
{
    if (!ranks) return M3_OK;
    const int count = m3_ranks_count(ranks);
    struct m3_ranks_work *all = calloc((size_t)count, sizeof *all);
    int status = all ? m3_order_work(ranks, all, error) : m3_fail_memory(error, "ranks", (size_t)count * sizeof *all);
    if (!status && json) status = print_json(all, count, config->E, error);
    else if (!status) print_text(all, count, config->E);
    free(all);
    return status;
}
