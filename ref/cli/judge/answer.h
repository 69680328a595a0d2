/* `m3ref check` of a server's answer. */
#ifndef M3_CLI_JUDGE_ANSWER_H
#define M3_CLI_JUDGE_ANSWER_H

#include "cli/cli.h"
#include "cli/judge/candidate.h"
#include "oracle/judge/server/server.h"

struct m3_cli_answer {
    struct m3_server_sampling sampling;
    int states_sampling;        /* --temperature was given */
    int processed, no_causes;
};

/* Was an option of answers alone given? */
int m3_cli_answer_given(const struct m3_cli_answer *a);

struct m3_cli_answer_plan {
    const struct m3_cli_candidate_names *names;
    const struct m3_cli_input *input;
    const struct m3_cli_answer *options;
    int64_t row_runs;
    int json, all;
};
int m3_cli_check_answer(const struct m3_cli_answer_plan *plan, struct m3_error *notes, struct m3_error *error);

#endif
