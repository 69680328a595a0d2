/* One strict verdict on a dump: the truth of its case, a comparison with it, every operator recomputed from the dump's
 * own inputs, and what explains a failure: a known mistake, another reading, a word of a profile. SPEC 7.17. */
#ifndef M3_ORACLE_CHECK_CHECK_H
#define M3_ORACLE_CHECK_CHECK_H

#include "base/progress.h"
#include "model/semantics.h"
#include "oracle/judge/blame/blame.h"
#include "oracle/judge/batch/split.h"
#include "oracle/judge/check/truth.h"

struct m3_kept;
struct m3_resume_folder;

struct m3_check_plan {
    const struct m3_setting *setting;
    const char *candidate_name;         /* as the user gave it */
    const char *profile;                /* the text that names setting->profile */
    const char *truth;                  /* where the truth is kept; NULL: nowhere */
    const struct m3_safetensors *kept;  /* one that was kept; NULL: none */
    struct m3_resume_folder *resume;    /* where findings are kept until all are there; NULL: nowhere */
    int64_t sequence;                   /* its number, for the name of the file there */
    int64_t row_runs;                   /* of honest implementations; -1: as many as the profile needs */
    int64_t rows_judged;                /* the candidate holds so many rows of a longer dump; 0: all of it */
    int keeps;                          /* the caller keeps the truth */
    const struct m3_name_gaps *gaps;    /* of the map by which it is named; NULL: m3ref's names */
    int compares;                       /* every tap is also compared with the truth, for a report that shows both */
    struct m3_progress progress;
};

struct m3_check {
    struct m3_truth truth;              /* no file: nothing needed it */
    struct m3_judgement comparison;    /* with the truth, if there is one */
    struct m3_judgement blame;              /* taps that it cannot judge have the comparison's verdict, and say so */
    struct m3_kept *findings;           /* in the folder of `resume`; NULL: none */
    int64_t double_passes;              /* over the weights: the model run in double */
    int64_t rows_judged, rows;          /* of the case; fewer if a sample is judged */
    const char *mistake;                /* id of the known mistake that explains the culprit, or NULL */
    char reading[M3_SEMANTICS_TEXT];    /* "selection=shared": by this reading nothing is wrong; or "" */
    char profile_word[32];              /* "tp8": with this word nothing is wrong; or "" */
    struct m3_check *parts;             /* [part_count] of each sequence; NULL: there is one */
    int64_t part_count;
    struct m3_parts kept_parts;         /* of the truth that was kept for several sequences, in kept_file */
    struct m3_safetensors *kept_file;
    char sentence[2400];                /* what is wrong, where, how surely, what to look at; or that nothing is */
};

/* Does the dump hold everything that its taps are computed from, in all rows? Then each is judged by its own operator, in one pass. The
 * model may be without weights. */
int m3_check_is_full(const struct m3_setting *setting, const struct m3_safetensors *candidate);

/* Returns 0 if there is a verdict, whatever it is; otherwise the errors of truth, comparison and blame. Free it in any
 * case. */
int m3_check(struct m3_check *check, const struct m3_check_plan *plan, const struct m3_safetensors *candidate,
             struct m3_error *notes, struct m3_error *error);
/* The same for a case of one sequence, or of several: `parts` of the candidate are then the sequences. Of several, each
 * is checked alone, and the verdict is that of all. */
int m3_check_batch(struct m3_check *check, const struct m3_check_plan *plan, struct m3_batch *batch,
                   const struct m3_safetensors *candidate, const struct m3_parts *parts, struct m3_error *notes,
                   struct m3_error *error);
void m3_check_free(struct m3_check *check);

#endif
