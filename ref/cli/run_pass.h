/* The parts of `m3ref run`: its options, one pass with its output files, and the passes over several sequences. */
#ifndef M3_CLI_RUN_PASS_H
#define M3_CLI_RUN_PASS_H

#include "cli/cli.h"
#include "io/vocabulary.h"
#include "model/engine.h"
#include "model/files/batch.h"
#include "model/model.h"
#include "model/resume/resume.h"

/* The command line. */
struct m3_cli_run {
    const char *model, *dump, *taps, *hidden, *decisions, *cache_in, *cache_out, *companions, *profile;
    struct m3_cli_input input;
    int64_t first_layer, end_layer, top;        /* end_layer -1: all */
    int64_t runs;               /* of --profile; 0: as many as it needs */
    int help, bounds, plan;
    const char *resume;
    int64_t sequence;           /* of the case */
    struct m3_resume_folder *kept;      /* of --resume; NULL: none */
    struct m3_vocabulary *words;        /* of the model; NULL: none */
};

/* What a pass printed and measured. */
struct m3_cli_passed {
    struct m3_cli_watch watch;
    int64_t taps;
    double took;
};

/* Files that the command reads and writes must be different ones. */
int m3_cli_run_paths(const struct m3_cli_run *a, struct m3_error *error);
/* What a pass over a case needs besides the options. */
struct m3_request m3_cli_request(const struct m3_cli_run *a, const struct m3_model *model, const struct m3_case *c,
                                 const struct m3_semantics *semantics, double *logits);
/* One pass; its files are complete, or there are none. `line`: the command line that the dump states. */
int m3_cli_pass(struct m3_cli_passed *p, const struct m3_cli_run *a, const struct m3_model *model,
                const struct m3_case *c, struct m3_request *request, const char *line, struct m3_error *error);
/* `what`: "T 7" */
void m3_cli_print_passed(const struct m3_cli_passed *p, const struct m3_cli_run *a, const char *what);
/* The n largest logits, largest first, with the text of the tokens; the lower id first on a tie. */
void m3_cli_print_next(const double *logits, int64_t V, int64_t n, const struct m3_vocabulary *words);

/* run_several.c: each sequence is run alone, into a file without a name, and the files are then joined. */
int m3_cli_run_several(const struct m3_cli_run *a, const struct m3_model *model, const struct m3_batch *batch,
                       const struct m3_semantics *semantics, double *logits, const char *line, struct m3_error *error);

#endif
