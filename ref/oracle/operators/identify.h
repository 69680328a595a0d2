/* Which known mistake explains the results of a file of cases? SPEC 7.16. */
#ifndef M3_ORACLE_OPERATORS_IDENTIFY_H
#define M3_ORACLE_OPERATORS_IDENTIFY_H

#include "oracle/operators/case_file.h"
#include "oracle/variants/mistakes.h"

struct m3_identified {
    const struct m3_mistake *mistake;   /* NULL: none explains them */
    double distance, right; /* of the results from the mistake's, from the right ones (m3_results_distance) */
    char others[160]; /* further mistakes whose results are the same on these cases */
    int tried; /* mistakes of this operator; 0: there is none, or every case is too large */
};

/* A mistake explains results if over all cases they are within 30 % of its own, at least 20 times nearer to these than to the right ones,
 * and 4 times nearer than to those of any mistake with other results. M3_INTERNAL. */
int m3_identify(struct m3_identified *found, const struct m3_case_file *cases, const struct m3_safetensors *results,
                int threads, struct m3_error *error);

#endif
