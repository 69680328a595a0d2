/* The parts of `m3ref estimate`. Used only in this folder. */
#ifndef M3_CLI_ESTIMATE_ESTIMATE_H
#define M3_CLI_ESTIMATE_ESTIMATE_H

#include <jansson.h>

#include "cli/cli.h"
#include "estimate/documents/documents.h"
#include "estimate/estimate.h"

/* 1048576 as "1,048,576"; "" if unknown. */
struct m3_cli_digits {
    char text[32];
};
struct m3_cli_digits m3_cli_grouped(int64_t value);

struct m3_cli_marks {
    const struct m3_mark *marks;    /* figures that differ in documents; their lines name the errata */
    int count;
};

/* A line of the report: a figure by its key, with a name. Nothing is printed if the figure is unknown. */
void m3_cli_print_count(const struct m3_estimate *e, const struct m3_cli_marks *marks, const char *key,
                        const char *name, const char *unit);
/* Bytes may be an expectation. GB is 10^9 bytes, GiB 2^30: both, always with their names. */
void m3_cli_print_bytes(const struct m3_estimate *e, const struct m3_cli_marks *marks, const char *key,
                        const char *name);
void m3_cli_print_quantity(const struct m3_estimate *e, const struct m3_cli_marks *marks, const char *key,
                           const char *name, double scale, int decimals, const char *unit);

/* The report: the model once, then each combination; if several, one line each. */
void m3_cli_estimate_model(const struct m3_estimate *e, const char *path, const struct m3_cli_marks *marks);
void m3_cli_estimate_detail(const struct m3_estimate *e, const struct m3_cli_marks *marks);
/* With a card: does the model fit, how many cards and sequences, how fast. */
void m3_cli_estimate_answer(const struct m3_estimate *e);
/* With a layout: what one card holds, and the times that follow. */
void m3_cli_estimate_layout(const struct m3_estimate *e, const struct m3_cli_marks *marks);
void m3_cli_estimate_line(const struct m3_estimate *e, int first);
void m3_cli_estimate_csv(const json_t *summary, int first);     /* with a header before the first */

/* Prints the figures of documents about the model, and where an estimate differs. */
int m3_cli_estimate_documents(const struct m3_estimate *e, struct m3_error *error);
void m3_cli_estimate_errata(const struct m3_cli_marks *marks);

#endif
