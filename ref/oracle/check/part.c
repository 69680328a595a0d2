/* A part of the model as patterns of taps. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "oracle/check/private/check.h"

int m3_part_taps(char **taps, const struct m3_setting *setting, struct m3_error *error)
{
    const struct m3_part *part = &setting->part;
    size_t length;
    *taps = NULL;
    if (part->end == 0) return M3_OK;
    FILE *out = open_memstream(taps, &length);
    if (!out) return m3_fail_memory(error, "the taps of the layers", 0);
    for (int64_t l = part->judged; l < part->end; l++)
        fprintf(out, "%slayers.%" PRId64 ".*", l > part->judged ? "," : "", l);
    if (part->judged == 0) fputs(",embed,fused,vision.*,projector.*", out);
    if (part->end == setting->model->config.layers) fputs(",final_norm,logits,mtp.*", out);
    const int failed = ferror(out);
    if (fclose(out) == 0 && !failed) return M3_OK;
    free(*taps);
    *taps = NULL;
    return m3_fail_memory(error, "the taps of the layers", length);
}
