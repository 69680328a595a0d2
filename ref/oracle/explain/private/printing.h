/* What the text and the page of an explanation share. */
#ifndef M3_ORACLE_EXPLAIN_PRIVATE_PRINTING_H
#define M3_ORACLE_EXPLAIN_PRIVATE_PRINTING_H

#include "oracle/explain/explain.h"

enum { M3_PRINTED = 160 };

/* Is it among the given numbers, or among the steps, that are printed? Constants such as 1 are not. */
int m3_is_printed(const struct m3_explained_step *step, int given);
/* Digits that give the number back. */
void m3_print_value(char text[M3_PRINTED], enum m3_step_type type, double value);
/* The same with the bits of a float: "0.25 (3e800000)". */
void m3_print_bits(char text[M3_PRINTED], enum m3_step_type type, double value);
/* A number, a few of them, or how many there are and between which values. */
void m3_print_values(char text[M3_PRINTED], const struct m3_explained_step *step);
void m3_print_cell(char text[M3_PRINTED], const struct m3_cell *cell);
/* "[t=17, h=2]" */
void m3_print_element(char text[M3_PRINTED], const struct m3_explanation *explanation);
/* The result: one number with its bits, or a list of ids. */
void m3_print_result(char text[M3_PRINTED], const struct m3_explanation *explanation);

#endif
