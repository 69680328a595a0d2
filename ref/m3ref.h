/* m3ref: the public interface for C and C++, and the only header that a user includes. After `make install`, pkg-config
 * knows how to compile and link: cc user.c $(pkg-config --cflags --libs m3ref), or with --static --libs for libm3ref.a.
 * A plug-in (m3ref run --ops) includes ops/ops.h instead.
 *
 *     struct m3_error notes = { 0 }, error = { 0 };
 *     struct m3_model *model;
 *     if (m3_model_open(&model, "folder", &notes, &error)) { m3_error_print(&error, stderr); ... }
 *
 *     double *logits = malloc(model->config.V * sizeof *logits);
 *     struct m3_request request = { .ids = ids, .positions = positions, .T = T, .end_layer = model->config.layers,
 *                                   .semantics = &model->config.semantics, .threads = 4, .logits = logits,
 *                                   .logit_rows = 1 };
 *     m3_engine_f32()->forward(model, &request, &error);
 *
 * Status codes are the program's exit statuses (base/status.h). Taps arrive through request.sink (model/engine.h) or
 * go into a file (model/files/dump.h). With a cache (model/cache.h) one call continues another; m3_generate
 * (decode/generate.h) generates tokens one by one; m3_compare (oracle/judge/compare.h) judges two files. Whole tasks
 * on files, for callers in other languages, are in library/library.h; libm3ref.so has them and all of the above.
 */
#ifndef M3REF_H
#define M3REF_H

/* These have their own declarations for C++; all of m3ref's headers are C. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "base/semantics.h"
#include "base/status.h"
#include "decode/generate.h"
#include "io/safetensors.h"
#include "library/library.h"
#include "model/cache.h"
#include "model/files/cache_file.h"
#include "model/files/case.h"
#include "model/files/dump.h"
#include "model/engine.h"
#include "model/model.h"
#include "oracle/judge/compare.h"
#include "oracle/report/report.h"

#ifdef __cplusplus
}
#endif

#endif
