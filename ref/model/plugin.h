/* A user's shared library that replaces entries of the operator table. */
#ifndef M3_MODEL_PLUGIN_H
#define M3_MODEL_PLUGIN_H

#include "ops/ops.h"

/* Lets `path` replace entries of `ops`. M3_UNAVAILABLE if it cannot be loaded, or refuses. *library stays open until
 * m3_plugin_close. */
int m3_plugin_load(struct m3_ops *ops, void **library, const char *path, struct m3_error *error);
void m3_plugin_close(void *library);        /* NULL is fine */

#endif
