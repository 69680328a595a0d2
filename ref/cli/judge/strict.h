/* The command that judges a candidate more strictly than a comparison can. */
#ifndef M3_CLI_JUDGE_STRICT_H
#define M3_CLI_JUDGE_STRICT_H

#include "io/safetensors.h"
#include "oracle/judge/compare.h"

struct m3_cli_strict {
    const char *reference, *candidate, *profile, *map;  /* as given; map may be NULL */
    const struct m3_safetensors *dump;                  /* the reference, opened */
};

/* Adds a note with the command to the comparison, if some of its stages were judged by a tolerance wider than their
 * operator's bound. Model and case are those from which the reference was made, as far as it says, or as they lie
 * beside it. M3_INTERNAL if memory is short. */
int m3_cli_say_stricter(struct m3_judgement *result, const struct m3_cli_strict *of, struct m3_error *error);

#endif
