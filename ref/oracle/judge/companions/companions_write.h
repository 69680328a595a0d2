/* Writes the companions of every tap of a dump, by which it is judged without the model: bounds, gains, margins, the
 * small weights, the case. SPEC 7.13. The writer observes the pass, keeps the taps that later ones read, as doubles,
 * and drops them layer by layer. */
#ifndef M3_ORACLE_JUDGE_COMPANIONS_WRITE_H
#define M3_ORACLE_JUDGE_COMPANIONS_WRITE_H

#include "model/files/case.h"
#include "model/files/dump.h"
#include "model/engine.h"

struct m3_companions_writer;

/* Arguments about the run as for m3_dump_open, whose dump has not begun yet. The companions go into the dump, or into
 * their own file at `path`. *sink, the dump's, becomes the sink for the request. */
int m3_companions_open(struct m3_companions_writer **writer, struct m3_sink *sink, const char *path,
                       const struct m3_dump *dump, const struct m3_model *model, const struct m3_engine *engine,
                       const struct m3_case *c, const struct m3_request *request, const char *command,
                       struct m3_error *error);
/* The file of the companions, for other tensors beside taps: to be declared before m3_dump_begin. */
struct m3_writer *m3_companions_file(const struct m3_companions_writer *writer);
/* To be called after m3_dump_begin. */
int m3_companions_begin(struct m3_companions_writer *writer, struct m3_error *error);
/* To be called before a pass that goes on, after m3_companions_begin: gives what later taps read of those that the pass
 * does not compute again. */
int m3_companions_go_on(struct m3_companions_writer *writer, const struct m3_engine *engine, struct m3_error *error);
/* Both free the writer; commit makes the companions' own file appear, if there is one. */
int m3_companions_commit(struct m3_companions_writer *writer, struct m3_error *error);
void m3_companions_abandon(struct m3_companions_writer *writer);       /* NULL is fine */

#endif
