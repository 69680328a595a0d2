/* Writes the taps of a run to a dump file. SPEC 3.5. */
#ifndef M3_MODEL_FILES_DUMP_H
#define M3_MODEL_FILES_DUMP_H

#include "io/safetensors.h"
#include "model/files/case.h"
#include "model/engine.h"

struct m3_dump;

/* Opens `path` and declares the taps that match `patterns` (NULL: all) of a run of `engine` with `request`. *sink
 * becomes the sink for that request after the dump has begun. The file appears at commit. */
int m3_dump_open(struct m3_dump **dump, struct m3_sink *sink, const char *path, const char *patterns,
                 const struct m3_model *model, const struct m3_engine *engine, const struct m3_case *c,
                 const struct m3_request *request, const char *command, struct m3_error *error);
int m3_dump_begin(struct m3_dump *dump, struct m3_error *error);
int64_t m3_dump_taps(const struct m3_dump *dump);
/* For tensors besides the taps: declare them before the dump begins, append them afterwards. */
struct m3_writer *m3_dump_writer(const struct m3_dump *dump);
int m3_dump_wants(const struct m3_dump *dump, enum m3_tap tap, int64_t layer);
int m3_dump_shape(int64_t shape[M3_MAX_RANK], const struct m3_dump *dump, enum m3_tap tap, int64_t layer);  /* rank */
/* Writes the metadata of a file of this run: format, producer, precision, hashes, .. */
int m3_dump_describe(struct m3_writer *writer, const struct m3_model *model, const struct m3_engine *engine,
                     const struct m3_case *c, const struct m3_request *request, const char *command,
                     struct m3_error *error);
/* Both free the dump. */
int m3_dump_commit(struct m3_dump *dump, struct m3_error *error);
void m3_dump_abandon(struct m3_dump *dump);         /* NULL is fine */

#endif
