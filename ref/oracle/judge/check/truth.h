/* The truth of a case, with companions and with honest implementations of a profile: what `run --precision f64 --bounds
 * --profile P --dump F` writes, made or reused. SPEC 7.13. */
#ifndef M3_ORACLE_CHECK_TRUTH_H
#define M3_ORACLE_CHECK_TRUTH_H

#include "oracle/variants/envelope_make.h"

struct m3_truth {
    struct m3_safetensors *file; /* NULL: `kept` is the truth, of one sequence of a file that is open elsewhere */
    const struct m3_safetensors *kept;
    int reused;
};

static inline const struct m3_safetensors *m3_truth_file(const struct m3_truth *truth)
{
    return truth->file ? truth->file : truth->kept;
}

/* *whole: has a file that was kept its seal still? If not, a note says so. M3_IO, M3_INTERNAL; M3_BAD_INPUT instead of
 * the note for a file of m3ref run. */
int m3_truth_check_seal(int *whole, const struct m3_safetensors *file, struct m3_error *notes, struct m3_error *error);

/* Is it a dump with companions that m3ref run wrote? It serves as a truth, and is never replaced. */
int m3_truth_is_of_run(const struct m3_safetensors *file);

/* *fits: is the open file the truth that the plan asks for? M3_BAD_INPUT: it is no truth that m3ref check wrote, nor
 * one that m3ref run wrote of the same model, case and reading. */
int m3_truth_fits(int *fits, const struct m3_safetensors *file, const struct m3_envelope_plan *plan,
                  struct m3_error *error);

/* Something else that runs the pass of the truth; `request` has the sink for its taps. */
struct m3_truth_pass {
    int (*run)(void *self, const struct m3_request *request, struct m3_error *error);
    void *self;
};

/* `plan` as for envelopes; row_runs 0: no honest implementations. `path` NULL: a file without a name. A file that this
 * function has written for the same plan is reused; one that it has written for another is replaced, with a note. A dump
 * of `run --precision f64 --bounds` is used, too. `pass` NULL: the engine runs it. M3_BAD_INPUT: any other file;
 * otherwise the errors of passes and files. Close it in any case. */
int m3_truth_open(struct m3_truth *truth, const struct m3_envelope_plan *plan, const char *path,
                  const struct m3_truth_pass *pass, struct m3_error *notes, struct m3_error *error);
void m3_truth_close(struct m3_truth *truth);

#endif
