/* Replacement operators for a pass: a user's shared library that replaces entries of the table (ops/ops.h says what it
 * exports), or the plain definitions. */
#ifndef M3_MODEL_PLUGIN_H
#define M3_MODEL_PLUGIN_H

#include "model/engine.h"

struct m3_plugin;

/* Opens the library for passes of one engine. `words` are passed to its m3_plugin_start; "" if there are none.
 * M3_UNAVAILABLE if the library cannot be loaded or refuses, or if there are words and it takes none. */
int m3_plugin_open(struct m3_plugin **plugin, const char *path, const char *words, const struct m3_engine *engine,
                   struct m3_error *error);
/* The plain definitions of the engine, as a plug-in. */
int m3_plugin_plain(struct m3_plugin **plugin, const struct m3_engine *engine, struct m3_error *error);
/* For struct m3_request, valid while the plug-in is open. NULL for NULL. */
const struct m3_replacement *m3_plugin_replacement(const struct m3_plugin *plugin);
void m3_plugin_close(struct m3_plugin *plugin);         /* NULL is fine */

#endif
