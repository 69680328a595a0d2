/* Memory around each call of a plug-in's operator: a write outside its outputs, or to its inputs, is caught where it
 * happens. */
#ifndef M3_WATCH_GUARD_H
#define M3_WATCH_GUARD_H

#include "model/engine.h"
#include "watch/watch.h"

/* Operands are copied between pages that nobody may touch, inputs to pages that nobody may write. Inputs above this
 * size stay where they are, such as a long cache of keys; so do stored weights, which are mapped for reading only. */
enum { M3_GUARD_MOST_COPIED = 1 << 30 };

struct m3_guard;

/* Watches the operators that `inner` replaces in the engine's table, as m3_guard_replacement. The record is kept up to
 * date. The process ends at a forbidden access, with a description in the record; only one guard may exist at a time,
 * because a signal handler has no other way to find it. An operator that has written beside its outputs, or left some
 * of an output unwritten, fails with M3_INTERNAL, and the record says so. */
int m3_guard_open(struct m3_guard **guard, const struct m3_engine *engine, const struct m3_replacement *inner,
                  struct m3_watch_record *record, struct m3_error *error);
const struct m3_replacement *m3_guard_replacement(const struct m3_guard *guard);
void m3_guard_close(struct m3_guard *guard);            /* NULL is fine */

#endif
