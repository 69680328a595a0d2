#include "cli/judge/candidate.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/paths.h"
#include "cli/ranks.h"
#include "model/files/origin.h"
#include "oracle/error/profile.h"
#include "oracle/judge/batch/steps.h"
#include "oracle/judge/check/check.h"
#include "oracle/map/map.h"
#include "oracle/variants/follow.h"

int m3_cli_candidate_take(struct m3_cli_candidate_names *names, int64_t row_runs, int argc, char **argv,
                          struct m3_error *error)
{
    if (argc - optind != 2)
        return m3_fail(error, M3_USAGE, "%s: got %d names, expected MODEL CANDIDATE", argv[0], argc - optind);
    names->model = argv[optind];
    names->candidate = argv[optind + 1];
    if (row_runs == 1) return m3_fail(error, M3_USAGE, "--row-runs: got 1, expected 0 or at least 2");
    return M3_OK;
}

/* The cases of a dump of several sequences. */
static int read_cases(struct m3_batch *batch, const struct m3_safetensors *file, const struct m3_model *model,
                      struct m3_error *error)
{
    const char *hash = m3_safetensors_metadata(file, "case_sha256");
    struct m3_parts parts = { 0 };
    batch->is_several = 1;
    int status = m3_layout_from_dump(&batch->layout, file, error);
    if (!status) status = m3_batch_split(&parts, &batch->layout, NULL, file, NULL, error);
    if (!status) batch->cases = calloc((size_t)batch->layout.count, sizeof *batch->cases);
    if (!status && !batch->cases) status = m3_fail_memory(error, "sequences", sizeof *batch->cases);
    for (int64_t b = 0; !status && b < batch->layout.count; b++) {
        status = m3_case_from_dump(&batch->cases[b], parts.files[b], &model->config, error);
        m3_case_unshift(&batch->cases[b]);
    }
    if (hash && strlen(hash) < sizeof batch->sha256) strcpy(batch->sha256, hash);
    m3_parts_free(&parts);
    return status;
}

static int read_beside(struct m3_batch *batch, const char *path, const struct m3_model *model,
                       const struct m3_semantics *semantics, struct m3_error *error)
{
    struct m3_safetensors *file = NULL;
    struct m3_case one = { 0 };
    int status = m3_safetensors_open(&file, path, error);
    if (!status && m3_is_dump_of_several(file)) {
        status = read_cases(batch, file, model, error);
        if (!status) status = m3_batch_anchor(batch, semantics->block_anchor, error);
    } else if (!status) {
        status = m3_case_from_dump(&one, file, &model->config, error);
        if (!status) status = m3_batch_of_case(batch, &one, error);
        m3_case_free(&one);
    }
    m3_safetensors_close(file);
    return status;
}

/* With `first` 0 if the layers before --layers must run too. */
static int open_model(struct m3_cli_candidate *c, const struct m3_cli_candidate_names *names, int64_t first,
                      struct m3_error *notes, struct m3_error *error)
{
    m3_model_close(c->model);
    c->model = NULL;
    const int status = names->end_layer == 0
                           ? m3_model_open(&c->model, names->model, notes, error)
                           : m3_model_open_layers(&c->model, names->model, first, names->end_layer, notes, error);
    const int64_t end = names->end_layer == 0 ? -1 : names->end_layer;
    return status ? status : m3_cli_ranks_join(c->model, names->model, first, end, error);
}

/* The input of the first layer of --layers. If the dump does not hold it, the layers before it run too. */
static int find_input(struct m3_cli_candidate *c, const struct m3_cli_candidate_names *names, struct m3_error *error)
{
    struct m3_error again = { 0 };
    if (names->first_layer == 0) return M3_OK;
    int status =
        m3_follow_input(&c->hidden, c->dump, names->first_layer, c->batch.cases[0].T, c->model->config.H, error);
    if (status || c->hidden) return status;
    status = open_model(c, names, 0, &again, error);
    if (status)
        m3_fail(error, status, "%s: holds no layers.%" PRId64 ".out in whole, so that the layers before are needed too",
                names->candidate, names->first_layer - 1);
    m3_error_free(&again);
    return status;
}

/* A dump of several sequences must be of this model and case, as far as it says. */
static int check_several(const struct m3_cli_candidate *c, int force, struct m3_error *error)
{
    const struct m3_origin_use use = { .verdict = "judged", .force = force, .status = M3_NOT_COMPARABLE };
    struct m3_origin expected;
    struct m3_error differences = { 0 };
    struct m3_case all = c->batch.cases[0];
    memcpy(all.sha256, c->batch.sha256, sizeof all.sha256);
    int status = m3_origin_of_model(&expected, c->model, &all, error);
    if (!status) status = m3_origin_check(c->dump, &expected, &use, &differences, error);
    m3_error_free(&differences);
    return status;
}

static int split(struct m3_cli_candidate *c, int force, struct m3_error *error)
{
    const int64_t count = c->batch.layout.count;
    if (!c->batch.is_several) return m3_batch_drop_ones(&c->dump, c->batch.layout.lengths[0], &c->mapped, error);
    int status = check_several(c, force, error);
    const char **hashes = calloc((size_t)count, sizeof *hashes);
    if (!status && !hashes) status = m3_fail_memory(error, "sequences", (size_t)count * sizeof *hashes);
    for (int64_t b = 0; !status && b < count; b++) hashes[b] = c->batch.cases[b].sha256;
    if (!status) status = m3_batch_split(&c->parts, &c->batch.layout, hashes, c->dump, &c->mapped, error);
    free(hashes);
    return status;
}

int m3_cli_candidate_rows(struct m3_cli_candidate_names *names, const char *value, struct m3_error *error)
{
    names->rows_of_long = 0;
    return m3_sample_parse(&names->rows, value, error);
}

/* The rows that are judged: those of --rows, some of a long dump, or all. */
static int sample(struct m3_cli_candidate *c, const struct m3_cli_candidate_names *names, struct m3_error *error)
{
    const int64_t T = c->batch.cases[0].T;
    struct m3_sample_wish wish = names->rows;
    const int is_asked = wish.count > 0 || wish.list;
    int status = m3_sample_count(&wish.count, &wish, names->rows_of_long, T, error);
    if (status || wish.count == 0) return status;
    const struct m3_setting whole = { .model = c->model, .semantics = &c->semantics, .the_case = c->batch.cases };
    if (c->batch.is_several || !m3_check_is_full(&whole, c->dump))
        return is_asked ? m3_fail(error, M3_USAGE,
                                  "--rows: got %s, expected a dump of one sequence that holds what all of its taps are "
                                  "computed from, in all rows",
                                  c->batch.is_several ? "several sequences" : "a dump without inputs of some taps")
                        : M3_OK;
    status = m3_sample_choose(&c->sample, &wish, c->dump, c->model, T, error);
    return status ? status : m3_sample_take(&c->dump, &c->sample, error);
}

int m3_cli_candidate_open(struct m3_cli_candidate *c, const struct m3_cli_candidate_names *names,
                          const struct m3_cli_input *input, struct m3_error *notes, struct m3_error *error)
{
    *c = (struct m3_cli_candidate){ 0 };
    int status = m3_profile_open(&c->profile, names->profile, error);
    if (!status) status = open_model(c, names, names->first_layer, notes, error);
    if (!status) status = m3_cli_input_semantics(&c->semantics, input, &c->model->config, error);
    if (!status && names->case_beside)
        status = read_beside(&c->batch, names->case_beside, c->model, &c->semantics, error);
    else if (!status) status = m3_cli_input_read_batch(&c->batch, input, &c->model->config, &c->semantics, 0, error);
    if (!status) {
        const struct m3_map_sizes sizes = m3_map_sizes_of_config(&c->model->config);
        const struct m3_map_files files = { names->candidate, names->map, &sizes, &c->batch.layout, &c->gaps };
        status = m3_map_open_files(&c->dump, &files, &c->mapped, error);
    }
    if (!status) status = m3_steps_unroll(&c->dump, &c->batch, &c->mapped, error);
    if (!status && c->batch.is_several && names->end_layer != 0)
        status = m3_fail(error, M3_USAGE, "--layers: got it with a case of several sequences, expected one");
    if (!status) status = split(c, names->force, error);
    if (!status && !c->batch.is_several) status = find_input(c, names, error);
    if (!status) status = sample(c, names, error);
    if (!status && m3_ctx_init(&c->ctx, (int)input->threads, M3_LINEAR_BLAS))
        status = m3_fail_memory(error, "threads", 0);
    c->setting = (struct m3_setting){
        .model = c->model, .semantics = &c->semantics, .the_case = c->batch.cases, .profile = c->profile, .ctx = &c->ctx
    };
    c->setting.part = (struct m3_part){ .first = c->hidden ? names->first_layer : 0,
                                        .judged = names->first_layer,
                                        .end = names->end_layer,
                                        .hidden = c->hidden };
    return status;
}

void m3_cli_candidate_close(struct m3_cli_candidate *c)
{
    free(c->hidden);
    m3_sample_free(&c->sample);
    m3_name_gaps_free(&c->gaps);
    m3_error_free(&c->mapped);
    m3_ctx_free(&c->ctx);
    m3_parts_free(&c->parts);
    m3_batch_free(&c->batch);
    m3_model_close(c->model);
    m3_profile_close(c->profile);
    m3_safetensors_close(c->dump);
}

void m3_cli_reads_candidate(struct m3_cli_paths *paths, const struct m3_cli_candidate_names *names,
                            const struct m3_cli_input *input)
{
    m3_cli_reads(paths, "CANDIDATE", names->candidate);
    m3_cli_reads_profile(paths, names->profile);
    m3_cli_reads_named(paths, "--map", names->map);
    m3_cli_reads_input(paths, input);
}
