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

/* The report: the model once, then each combination; if several, one line each. */
struct m3_cli_marks {
    const struct m3_mark *marks;    /* figures that differ in documents; their lines name the errata */
    int count;
};
void m3_cli_estimate_model(const struct m3_estimate *e, const char *path, const struct m3_cli_marks *marks);
void m3_cli_estimate_detail(const struct m3_estimate *e, const struct m3_cli_marks *marks);
void m3_cli_estimate_line(const struct m3_estimate *e, int first);
void m3_cli_estimate_csv(const json_t *summary, int first);     /* with a header before the first */

/* Prints the figures of documents about the model, and where an estimate differs. */
int m3_cli_estimate_documents(const struct m3_estimate *e, struct m3_error *error);
void m3_cli_estimate_errata(const struct m3_cli_marks *marks);

#endif
