/* What a run of the program leaves: how it ended, what it printed, which files it wrote. */
#ifndef M3_TESTS_FAULTS_OUTCOME_H
#define M3_TESTS_FAULTS_OUTCOME_H

#include <stddef.h>

#include "faults.h"

enum { OUTCOME_FILES = 64 };

struct outcome_file {
    char path[600];         /* in the folder of outputs */
    char *bytes;
    size_t count;
};

struct outcome {
    int finished, leaks;
    int ended;              /* of waitpid */
    char *out, *err;
    int count;
    struct outcome_file files[OUTCOME_FILES];
};

/* Reads it from a folder with `stdout`, `stderr` and `out/`. Ends the program on failure. */
void outcome_read(struct outcome *outcome, const char *folder, const struct fault_record *record, int ended);
void outcome_free(struct outcome *outcome);

enum verdict { GOOD, WRONG_SUCCESS, CRASH, LEAK, LEFT_OVER, WRONG_STATUS, WRONG_MESSAGE, VERDICTS };
extern const char *const verdict_names[VERDICTS];

/* Judges a run that met a fault by a run that met none. `call` is 0 for memory. *why is a static text or a part of
 * the outcome. */
enum verdict outcome_judge(const struct outcome *run, const struct outcome *good, int call, int error, char *why,
                           size_t room);

/* The same for a run of the command after one that failed, which may say other things: only its status and its files
 * count. */
enum verdict outcome_judge_next(const struct outcome *run, const struct outcome *good, char *why, size_t room);

/* What a failed run with --resume {out}/state may leave in that folder. */
enum { OUTCOME_STATES = 3 };
extern const char *const outcome_states[OUTCOME_STATES];

#endif
