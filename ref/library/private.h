/* Declarations shared by the files of this folder. */
#ifndef M3_LIBRARY_PRIVATE_H
#define M3_LIBRARY_PRIVATE_H

#include "library/library.h"
#include "model/engine.h"
#include "ops/ops.h"

struct m3_comparison;

/* Names as in the options of the program. M3_USAGE for another one. */
int m3_library_engine(const struct m3_engine **engine, const char *precision, struct m3_error *error);

/* The table of a task. `replacement` and its table are valid as long as both structures. */
struct m3_library_table {
    struct m3_ops ops;
    struct m3_outside outside;
    struct m3_replacement replacement;
};
/* *replacement := NULL if the task replaces no operator. M3_USAGE for an unknown name. */
int m3_library_table(const struct m3_replacement **replacement, struct m3_library_table *table,
                     const struct m3_library_ops *ops, const struct m3_engine *engine, struct m3_error *error);

/* Text and lines of a finished comparison. */
int m3_library_report(struct m3_library_report *report, const struct m3_comparison *comparison, struct m3_error *error);

#endif
