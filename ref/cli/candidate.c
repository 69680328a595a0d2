#include "cli/candidate.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>

#include "cli/paths.h"
#include "model/files/case.h"
#include "oracle/error/profile.h"
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

static int read_beside(struct m3_case *c, const char *path, const struct m3_model *model, struct m3_error *error)
{
    struct m3_safetensors *file = NULL;
    int status = m3_safetensors_open(&file, path, error);
    if (!status) status = m3_case_from_dump(c, file, &model->config, error);
    m3_safetensors_close(file);
    return status;
}

/* With `first` 0 if the layers before --layers must run too. */
static int open_model(struct m3_cli_candidate *c, const struct m3_cli_candidate_names *names, int64_t first,
                      struct m3_error *notes, struct m3_error *error)
{
    m3_model_close(c->model);
    c->model = NULL;
    if (names->end_layer == 0) return m3_model_open(&c->model, names->model, notes, error);
    return m3_model_open_layers(&c->model, names->model, first, names->end_layer, notes, error);
}

/* The input of the first layer of --layers. If the dump does not hold it, the layers before it run too. */
static int find_input(struct m3_cli_candidate *c, const struct m3_cli_candidate_names *names, struct m3_error *error)
{
    struct m3_error again = { 0 };
    if (names->first_layer == 0) return M3_OK;
    int status = m3_follow_input(&c->hidden, c->dump, names->first_layer, c->the_case.T, c->model->config.H, error);
    if (status || c->hidden) return status;
    status = open_model(c, names, 0, &again, error);
    if (status)
        m3_fail(error, status, "%s: holds no layers.%" PRId64 ".out in whole, so that the layers before are needed too",
                names->candidate, names->first_layer - 1);
    m3_error_free(&again);
    return status;
}

int m3_cli_candidate_open(struct m3_cli_candidate *c, const struct m3_cli_candidate_names *names,
                          const struct m3_cli_input *input, struct m3_error *notes, struct m3_error *error)
{
    *c = (struct m3_cli_candidate){ 0 };
    int status = m3_safetensors_open(&c->dump, names->candidate, error);
    if (!status) status = m3_profile_open(&c->profile, names->profile, error);
    if (!status) status = open_model(c, names, names->first_layer, notes, error);
    if (!status && names->map) {
        const struct m3_map_sizes sizes = m3_map_sizes_of_config(&c->model->config);
        status = m3_map_put(&c->dump, names->map, &sizes, &c->mapped, error);
    }
    if (!status) status = m3_cli_input_semantics(&c->semantics, input, &c->model->config, error);
    if (!status && names->case_beside) status = read_beside(&c->the_case, names->case_beside, c->model, error);
    else if (!status) status = m3_cli_input_read(&c->the_case, input, &c->model->config, 0, error);
    if (!status) status = find_input(c, names, error);
    if (!status && m3_ctx_init(&c->ctx, (int)input->threads, M3_LINEAR_BLAS))
        status = m3_fail_memory(error, "threads", 0);
    c->setting = (struct m3_setting){
        .model = c->model, .semantics = &c->semantics, .the_case = &c->the_case, .profile = c->profile, .ctx = &c->ctx
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
    m3_error_free(&c->mapped);
    m3_ctx_free(&c->ctx);
    m3_case_free(&c->the_case);
    m3_model_close(c->model);
    m3_profile_close(c->profile);
    m3_safetensors_close(c->dump);
}

void m3_cli_reads_candidate(struct m3_cli_paths *paths, const struct m3_cli_candidate_names *names,
                            const struct m3_cli_input *input, const struct m3_model *model)
{
    m3_cli_reads(paths, "CANDIDATE", names->candidate);
    m3_cli_reads_profile(paths, names->profile);
    m3_cli_reads_named(paths, "--map", names->map);
    m3_cli_reads_input(paths, input);
    m3_cli_reads_model(paths, names->model, model->checkpoint);
}
