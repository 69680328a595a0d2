/* Texts shared by the reports. */
#ifndef M3_ORACLE_REPORT_PRIVATE_FORMAT_H
#define M3_ORACLE_REPORT_PRIVATE_FORMAT_H

#include <stddef.h>
#include <stdio.h>

#include "oracle/judge/finding/finding.h"
#include "oracle/report/page.h"

/* Before anything is printed: M3_INTERNAL if memory was short for a note, or for JSON that it rests on. */
int m3_report_whole(const struct m3_error *notes, struct m3_error *error);

/* "not judged" for people, "not_judged" for programs. */
const char *m3_verdict_text(enum m3_verdict verdict);
const char *m3_verdict_name(enum m3_verdict verdict);
const char *m3_choice_text(enum m3_choice choice);

/* "sequence 2, row 17 [t=17, h=1021]", without the sequence if there is one; plain numbers if the tensor does not have
 * the rank of its tap; nothing if there is no place. */
void m3_print_place(FILE *out, const struct m3_finding *stage);

/* "admissible: 2 of 60 sets differ, 1 permuted; least gap -0.4 of its bound, scores of the candidate" */
void m3_print_choices(FILE *out, const struct m3_finding *stage);

/* Has it failed because the candidate gave nothing? The note says why (oracle/operators/check_file.h). */
int m3_is_without_result(const struct m3_finding *stage);
/* Prints what is wrong with a tap that does not pass: place, both values, error; or why it has no verdict. */
void m3_print_finding(FILE *out, const struct m3_finding *stage);
/* "; with the operator of layers.1.mid, which was not dumped", the first words as given, if several were judged together. */
void m3_print_other_operators(FILE *out, const struct m3_finding *stage, const char *one, const char *several);

/* The same in memory, to be freed; NULL if memory is short. */
char *m3_finding(const struct m3_finding *stage);

/* "; alpha looks like .."; nothing if no parameter does. */
void m3_print_parameter(FILE *out, const struct m3_parameter *parameter);
/* Quantiles of a float stage's error, and the arithmetic that causes such errors. */
void m3_print_precision(FILE *out, const struct m3_finding *stage);

/* "first divergence layers.3.attn; all 41 stages before it pass, ..."; there must be one. */
void m3_print_divergence(FILE *out, const struct m3_judgement *comparison);
/* "; the worst, layers.3.attn, used 40% of what is allowed" */
void m3_print_tightest(FILE *out, const struct m3_finding *stage);
/* What a report calls its findings: "stages" of a comparison, "taps" that were recomputed. */
const char *m3_noun_of(const struct m3_judgement *judgement);
/* "40 of 42 stages judged, 1 fail"; the same with what is missing, and the worst. */
void m3_print_counts(FILE *out, const struct m3_judgement *judgement);
void m3_print_summary(FILE *out, const struct m3_judgement *comparison);

/* "percentile 62 (median of 119 taps) among 32 legitimate bf16 implementations; farthest layers.3.out, ..."; there
 * must be an envelope. The second returns the text in memory, like m3_finding. */
void m3_print_ranks(FILE *out, const struct m3_judgement *comparison);
char *m3_ranks(const struct m3_judgement *comparison);

/* One line per note; unless `all`, only the first few, and how many there are more. The second returns the number of
 * lines of the latter form. */
void m3_print_notes(FILE *out, const struct m3_error *notes, int all);
int m3_count_notes(const struct m3_error *notes);
/* One line that says what the words of these tiers mean; nothing if there are none. */
void m3_print_legend(FILE *out, int tiers);
/* What a tier says of a tap, as the end of a sentence: "an error is larger than ..". */
const char *m3_tier_words(enum m3_tier tier);
/* The names of the tiers that fail, in capitals as in SPEC 7.2. */
void m3_print_tiers(FILE *out, int tiers, const char *between);
/* At most this many lines are printed unless all are asked for. */
enum { M3_REPORT_LINES = 25 };
/* "; explained by +tp8 ..", or nothing for an empty word. */
void m3_print_explained(FILE *out, const char *word);
/* "..  3 more stages; --all shows every one" */
void m3_print_more(FILE *out, int64_t count, const char *what);
/* The first line: place, size and next step, unless the run passes; then what the candidate does not hold. */
void m3_print_headline(FILE *out, const struct m3_judgement *comparison);
void m3_print_place_and_next(FILE *out, const struct m3_judgement *comparison);
/* "row" for 1 "rows"; only words that reports use. */
const char *m3_plural(int64_t count, const char *plural);
/* The sets that were judged, not those that follow from other choices; those of them that differ. */
int64_t m3_decisions(const struct m3_finding *stage);
int64_t m3_differing(const struct m3_finding *stage);
/* A share in percent, in `width` columns. */
void m3_print_share(FILE *out, double share, int width);

/* Length of the part of a tap's name that names its layer: "layers.3", "mtp.0", "vision.layers.2"; outside layers the
 * part before the first dot, 0 if there is no dot. */
size_t m3_group_length(const char *tap);

#endif
