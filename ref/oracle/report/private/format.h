/* Words that the reports share. */
#ifndef M3_ORACLE_REPORT_PRIVATE_FORMAT_H
#define M3_ORACLE_REPORT_PRIVATE_FORMAT_H

#include <stddef.h>
#include <stdio.h>

#include "oracle/judge/compare.h"

extern const char *const m3_verdict_words[], *const m3_choice_words[];      /* by enum m3_verdict, enum m3_choice */
const char *m3_status_word(enum m3_status status);                          /* of a whole comparison */
enum m3_verdict m3_verdict_of_status(enum m3_status status);

/* "[t=17, h=1021]", or plain numbers where the tensor has not the rank of its tap. */
void m3_print_place(FILE *out, const struct m3_stage *stage);

/* "admissible: 2 of 60 sets differ, 1 permuted; least gap -0.4 of its bound, scores of the candidate" */
void m3_print_choices(FILE *out, const struct m3_stage *stage);

/* What is wrong with a stage that does not pass: the place, both values, how far off; or why it has no verdict. */
void m3_print_finding(FILE *out, const struct m3_stage *stage);

/* The same in memory, to be freed; NULL if there is none left. */
char *m3_finding(const struct m3_stage *stage);

/* Quantiles of a float stage's error, and the arithmetic that makes such errors. */
void m3_print_precision(FILE *out, const struct m3_stage *stage);

/* "first divergence layers.3.attn; all 41 stages before it pass, ..."; there must be one. */
void m3_print_divergence(FILE *out, const struct m3_comparison *comparison);
/* "40 of 42 stages judged, 1 fail, ..." */
void m3_print_summary(FILE *out, const struct m3_comparison *comparison);

/* "percentile 62 (median of 119 taps) among 32 legitimate bf16 implementations; farthest layers.3.out, ..."; there must
 * be an envelope. The second in memory, as m3_finding. */
void m3_print_ranks(FILE *out, const struct m3_comparison *comparison);
char *m3_ranks(const struct m3_comparison *comparison);

/* The next of the notes, which begin at notes->text: `*at` moves on. NULL at the end; else `length` bytes. */
const char *m3_next_note(const char **at, size_t *length);

/* Length of the part of a tap's name that names its layer: "layers.3", "mtp.0", "vision.layers.2"; outside layers the
 * part before the first dot, and 0 if there is none. */
size_t m3_group_length(const char *tap);

#endif
