/* The verdict on a file of results: every output of every case is a stage, "3.y". SPEC 7.16. */
#ifndef M3_ORACLE_OPERATORS_CHECK_FILE_H
#define M3_ORACLE_OPERATORS_CHECK_FILE_H

#include "oracle/judge/compare.h"
#include "oracle/operators/case_file.h"

struct m3_profile;

struct m3_file_check {
    struct m3_judgement comparison;    /* what reports print; `next` names the operator's section */
    char (*names)[64];                  /* of its stages */
    struct m3_tensor *results;          /* their tensors, then the true results, of which only the form is known */
    char next[96];
};

/* `faults` [cases] or NULL: why a case has no results, such as "rms_norm crashed"; then it is wrong. NULL entries have
 * some.
 * Judges the results of all cases that the file of cases holds. A case without any result is missing, and its outputs
 * are not comparable: a kernel must give all of them. Tensors of other names are counted and named in a note.
 * M3_BAD_INPUT: the cases are malformed; M3_INTERNAL. Free the check in any case. */
int m3_file_check(struct m3_file_check *check, const struct m3_case_file *cases, const struct m3_safetensors *results,
                  const char *const *faults, const struct m3_profile *profile, int threads, struct m3_error *error);
void m3_file_check_free(struct m3_file_check *check);

#endif
