/* `m3ref check` of a server's answer. */
#ifndef M3_CLI_ANSWER_H
#define M3_CLI_ANSWER_H

#include "cli/cli.h"
#include "cli/candidate.h"
#include "oracle/server/server.h"

struct m3_cli_answer {
    struct m3_server_sampling sampling;
    int states_sampling;        /* --temperature was given */
    int processed, no_causes;
};

/* The values that getopt_long returns for the options of answers alone. */
enum { M3_CLI_TEMPERATURE = 768, M3_CLI_TOP_K, M3_CLI_TOP_P, M3_CLI_PROCESSED, M3_CLI_NO_CAUSES };
#define M3_CLI_ANSWER_OPTIONS                                                                                          \
    { "temperature", required_argument, NULL, M3_CLI_TEMPERATURE },                                                    \
        { "top-k", required_argument, NULL, M3_CLI_TOP_K }, { "top-p", required_argument, NULL, M3_CLI_TOP_P },        \
        { "processed", no_argument, NULL, M3_CLI_PROCESSED },                                                          \
    {                                                                                                                  \
        "no-causes", no_argument, NULL, M3_CLI_NO_CAUSES                                                               \
    }

/* Takes such an option, whose value is optarg; -1: it is none. */
int m3_cli_answer_option(struct m3_cli_answer *a, int option, struct m3_error *error);
/* Was one of them given? */
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
