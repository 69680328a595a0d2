/* m3ref check --resume FOLDER: what a judge has found, kept after every tap, so that one that was stopped goes on with
 * the same command. N.findings.safetensors of sequence N is replaced whole. It belongs to one program, one model, case
 * and profile, and one candidate. The pass beside which taps are judged runs again. */
#ifndef M3_ORACLE_JUDGE_FINDING_KEPT_H
#define M3_ORACLE_JUDGE_FINDING_KEPT_H

#include "model/resume/resume.h"
#include "oracle/error/recompute.h"
#include "oracle/judge/finding/finding.h"

struct m3_kept;

/* Reads the file if there is one. M3_BAD_INPUT if it belongs to something else or is damaged. M3_IO, M3_INTERNAL. */
int m3_kept_open(struct m3_kept **kept, struct m3_resume_folder *folder, int64_t sequence,
                 const struct m3_setting *setting, const struct m3_safetensors *candidate, struct m3_error *error);
void m3_kept_close(struct m3_kept *kept); /* NULL is fine; findings that were found point into it */
int64_t m3_kept_count(const struct m3_kept *kept); /* of the findings that were read */

/* 1: the tap of this finding of floats, which has begun, has been judged, and is filled in. *budget: of the known mistakes
 * that may still be tried. `kept` NULL: 0. */
int m3_kept_find(struct m3_finding *finding, int64_t *budget, const struct m3_kept *kept);
/* Keeps a finding of floats. `kept` NULL: nothing. M3_IO, M3_INTERNAL. */
int m3_kept_add(struct m3_kept *kept, const struct m3_finding *finding, int64_t budget, struct m3_error *error);

#endif
