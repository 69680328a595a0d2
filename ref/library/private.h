/* Declarations shared by the files of this folder. */
#ifndef M3_LIBRARY_PRIVATE_H
#define M3_LIBRARY_PRIVATE_H

#include "io/reading.h"
#include "library/library.h"
#include "model/engine.h"
#include "ops/ops.h"

struct m3_judgement;

/* Begins a call: *own := the task, as this library knows it, whatever the caller's size; and what the call reads is noted
 * until m3_reading_end, which follows in any case. M3_USAGE for a task that is NULL, or says what is not known here. */
int m3_library_begin(struct m3_reading *reading, void *own, size_t bytes, const void *task, struct m3_error *error);
/* M3_USAGE if a needed field is NULL. */
int m3_library_need(const char *value, const char *field, struct m3_error *error);
/* *threads := the usual number for 0. M3_USAGE for less. */
int m3_library_set_threads(int *threads, struct m3_error *error);

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
int m3_library_report(struct m3_library_report *report, const struct m3_judgement *comparison, struct m3_error *error);

#endif
