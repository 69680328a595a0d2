/* Writes the taps of a run to a dump file. SPEC 3.5. */
#ifndef M3_MODEL_DUMP_H
#define M3_MODEL_DUMP_H

#include "model/case.h"
#include "model/engine.h"

struct m3_dump;

/* Opens `path` for the taps that match `patterns` (NULL: all) of a run of `engine` as `request` says, and gives the
 * sink that the request is to have. The file appears at commit. */
int m3_dump_open(struct m3_dump **dump, struct m3_sink *sink, const char *path, const char *patterns,
                 const struct m3_model *model, const struct m3_engine *engine, const struct m3_case *c,
                 const struct m3_request *request, const char *command, struct m3_error *error);
int64_t m3_dump_taps(const struct m3_dump *dump);
/* Both free the dump. */
int m3_dump_commit(struct m3_dump *dump, struct m3_error *error);
void m3_dump_abandon(struct m3_dump *dump);         /* NULL is fine */

#endif
