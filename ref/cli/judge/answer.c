#include "cli/judge/answer.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/paths.h"
#include "model/files/case.h"
#include "oracle/error/profile.h"

int m3_cli_answer_given(const struct m3_cli_answer *a)
{
    return a->states_sampling || a->sampling.top_k > 0 || a->sampling.top_p < 1 || a->processed || a->no_causes;
}

static int check_options(const struct m3_cli_answer_plan *plan, struct m3_error *error)
{
    const struct m3_cli_answer *o = plan->options;
    if (plan->names->map)
        return m3_fail(error, M3_USAGE, "--map: got a server's answer, expected a dump: an answer has no tensors");
    if (o->processed && !(o->sampling.temperature > 0))
        return m3_fail(error, M3_USAGE, "--processed: got no --temperature above 0, expected the one that was used");
    if ((o->sampling.top_k > 0 || o->sampling.top_p < 1) && !(o->sampling.temperature > 0))
        return m3_fail(error, M3_USAGE,
                       "--top-k, --top-p: got no --temperature above 0, expected the one that was used");
    if (plan->row_runs == 0)
        return m3_fail(error, M3_USAGE,
                       "--row-runs: got 0, expected at least 2: an answer is judged among honest runs");
    return M3_OK;
}

/* The case of the prompt: that of the options, which the answer must agree with, or the answer's own ids. */
static int read_case(struct m3_case *c, struct m3_answer *answer, const struct m3_cli_input *input,
                     const struct m3_config *config, struct m3_error *error)
{
    const int is_stated = input->case_path || input->ids;
    const char *source = input->case_path ? input->case_path : "--ids";
    if (is_stated) {
        int status = m3_cli_input_read(c, input, config, 0, error);
        return status ? status : m3_answer_settle(answer, c->ids, c->T, source, error);
    }
    int status = m3_answer_settle(answer, NULL, 0, NULL, error);
    if (status) return status;
    int64_t *ids = malloc((size_t)answer->prompt_count * sizeof *ids + 1);
    if (!ids) return m3_fail_memory(error, "the prompt", (size_t)answer->prompt_count * sizeof *ids);
    for (int64_t t = 0; t < answer->prompt_count; t++) ids[t] = answer->prompt[t];
    status = m3_case_from_ids(c, ids, answer->prompt_count, NULL, config, error);
    free(ids);
    return status ? status : m3_case_check(c, config, input->allow_long, answer->path, M3_BAD_INPUT, error);
}

static int check_paths(const struct m3_cli_answer_plan *plan, struct m3_error *error)
{
    struct m3_cli_paths paths = m3_cli_paths(error);
    m3_cli_reads_candidate(&paths, plan->names, plan->input);
    return m3_cli_paths_end(&paths);
}

static int judge(const struct m3_cli_answer_plan *plan, const struct m3_setting *setting,
                 const struct m3_answer *answer, int64_t prompt, struct m3_error *notes, struct m3_error *error)
{
    const struct m3_cli_answer *o = plan->options;
    struct m3_server result = { 0 };
    struct m3_cli_watch watch = { 0 };
    m3_cli_watch_begin(&watch, plan->input->progress);
    const struct m3_server_plan how = { .setting = setting,
                                        .name = plan->names->candidate,
                                        .profile = plan->names->profile,
                                        .prompt = prompt,
                                        .runs = plan->row_runs,
                                        .seed = 1,
                                        .judges_tokens =
                                            answer->generated_count > 0 && (o->states_sampling || answer->count == 0),
                                        .processed = o->processed,
                                        .no_causes = o->no_causes,
                                        .sampling = o->sampling,
                                        .progress = m3_cli_watched(&watch) };
    int status = m3_server_check(&result, &how, answer, error);
    m3_cli_watch_end(&watch);
    if (!status) status = m3_cli_print_notes(notes, error);
    if (!status)
        status =
            plan->json ? m3_server_json(stdout, &result, error) : m3_server_text(stdout, &result, plan->all, error);
    if (!status) status = (int)result.status;
    m3_server_free(&result);
    return status;
}

int m3_cli_check_answer(const struct m3_cli_answer_plan *plan, struct m3_error *notes, struct m3_error *error)
{
    struct m3_model *model = NULL;
    struct m3_profile *profile = NULL;
    struct m3_answer answer = { 0 };
    struct m3_case c = { 0 };
    struct m3_semantics semantics = { 0 };
    struct m3_ctx ctx = { 0 };
    int64_t prompt = 0;
    int status = check_options(plan, error);
    if (!status) status = m3_profile_open(&profile, plan->names->profile, error);
    if (!status) status = m3_model_open(&model, plan->names->model, notes, error);
    if (!status) status = m3_cli_input_semantics(&semantics, plan->input, &model->config, error);
    if (!status) status = check_paths(plan, error);
    if (!status) status = m3_answer_read(&answer, plan->names->candidate, model->config.V, error);
    if (!status) status = read_case(&c, &answer, plan->input, &model->config, error);
    if (!status) {
        prompt = c.T;
        status = m3_server_case(&c, &answer, &model->config, error);
    }
    if (!status && !plan->input->allow_long && m3_case_reach(&c) >= model->config.max_positions)
        status = m3_fail(error, M3_BAD_INPUT,
                         "%s: got position %" PRId64 ", expected below max_position_embeddings %" PRId64
                         " (--allow-long allows it)",
                         answer.path, m3_case_reach(&c), model->config.max_positions);
    if (!status && m3_ctx_init(&ctx, (int)plan->input->threads, M3_LINEAR_BLAS))
        status = m3_fail_memory(error, "threads", 0);
    if (!status) {
        const struct m3_setting setting = {
            .model = model, .semantics = &semantics, .the_case = &c, .profile = profile, .ctx = &ctx
        };
        status = judge(plan, &setting, &answer, prompt, notes, error);
    }
    m3_ctx_free(&ctx);
    m3_case_free(&c);
    m3_answer_free(&answer);
    m3_model_close(model);
    m3_profile_close(profile);
    return status;
}
