/* A candidate's dump, and the model, case and profile by which it is judged: what blame and check open. */
#ifndef M3_CLI_JUDGE_CANDIDATE_H
#define M3_CLI_JUDGE_CANDIDATE_H

#include "cli/cli.h"
#include "io/safetensors.h"
#include "model/files/batch.h"
#include "model/model.h"
#include "oracle/judge/batch/split.h"
#include "oracle/judge/finding/finding.h"
#include "oracle/judge/sample/sample.h"
#include "oracle/error/recompute.h"

struct m3_cli_candidate_names {
    const char *model, *candidate, *profile, *map;      /* map NULL: the dump has m3ref's names */
    int64_t first_layer, end_layer;                     /* of --layers A:B; end 0: all */
    const char *case_beside;    /* a dump that holds the case with its companions; NULL: the input says which */
    int force;                  /* the dump may be of another model or case */
    struct m3_sample_wish rows; /* of --rows */
    int64_t rows_of_long;       /* so many of a long full dump, if --rows says nothing; 0: all */
};

struct m3_cli_candidate {
    struct m3_safetensors *dump;
    struct m3_model *model;
    struct m3_profile *profile;
    struct m3_semantics semantics;
    struct m3_batch batch;
    struct m3_parts parts;      /* of the dump, if the case is of several sequences */
    struct m3_ctx ctx;
    struct m3_name_gaps gaps;
    struct m3_error mapped;     /* notes of the map, and of the shapes */
    struct m3_sample sample;    /* the rows that are judged; count 0: all */
    double *hidden;             /* the input of the first layer, from the dump; NULL: the token ids are */
    struct m3_setting setting;  /* of all these; of several sequences, that of the first */
};

enum { M3_CLI_ROWS_OF_LONG = 512 };    /* the default */
/* --rows VALUE */
int m3_cli_candidate_rows(struct m3_cli_candidate_names *names, const char *value, struct m3_error *error);
/* Takes the two names that are left after the options, MODEL CANDIDATE, and checks --row-runs. */
int m3_cli_candidate_take(struct m3_cli_candidate_names *names, int64_t row_runs, int argc, char **argv,
                          struct m3_error *error);
/* Close it in any case. */
int m3_cli_candidate_open(struct m3_cli_candidate *c, const struct m3_cli_candidate_names *names,
                          const struct m3_cli_input *input, struct m3_error *notes, struct m3_error *error);
void m3_cli_candidate_close(struct m3_cli_candidate *c);

/* Files that the command reads, for the check of paths. */
struct m3_cli_paths;
void m3_cli_reads_candidate(struct m3_cli_paths *paths, const struct m3_cli_candidate_names *names,
                            const struct m3_cli_input *input);

#endif
