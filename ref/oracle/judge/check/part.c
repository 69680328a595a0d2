/* A part of the model as patterns of taps. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/memory_stream.h"
#include "oracle/judge/check/private/check.h"

int m3_part_taps(char **taps, const struct m3_setting *setting, struct m3_error *error)
{
    const struct m3_part *part = &setting->part;
    struct m3_memory_stream memory;
    *taps = NULL;
    if (part->end == 0) return M3_OK;
    FILE *out = m3_memory_open(&memory);
    for (int64_t l = part->judged; out && l < part->end; l++)
        fprintf(out, "%slayers.%" PRId64 ".*", l > part->judged ? "," : "", l);
    if (out && part->judged == 0) fputs(",embed,fused,vision.*,projector.*", out);
    if (out && part->end == setting->model->config.layers) fputs(",final_norm,logits,mtp.*", out);
    *taps = m3_memory_close(&memory);
    return *taps ? M3_OK : m3_fail_memory(error, "the taps of the layers", memory.length);
}
