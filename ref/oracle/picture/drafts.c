#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/minmax.h"
#include "oracle/picture/private/picturing.h"

enum { MODULES = 16, SHOWN_ROWS = 128 };

static int64_t best(const struct m3_tensor *logits, int64_t row)
{
    const int64_t V = logits->shape[1];
    int64_t id = 0;
    for (int64_t v = 1; v < V; v++)
        if (m3_picture_at(logits, row * V + v) > m3_picture_at(logits, row * V + id)) id = v;
    return id;
}

/* Levels: the largest for an accepted draft, a small one for a draft that agrees after one that was refused. */
static void judge(signed char *levels, int64_t *accepted, int64_t *drafts, int modules, int64_t rows,
                  const struct m3_tensor *main, const struct m3_tensor *const *of)
{
    for (int64_t t = 0; t < rows; t++) {
        int all = 1;
        for (int m = 0; m < modules; m++) {
            signed char *level = &levels[m * SHOWN_ROWS + t];
            *level = -1;
            if (t >= of[m]->shape[0] || t + m + 1 >= main->shape[0]) continue;
            const int agrees = best(of[m], t) == best(main, t + m + 1);
            all = all && agrees;
            *level = (signed char)(all ? M3_LEVELS - 1 : agrees ? 1 : -1);
            *accepted += all;
            ++*drafts;
        }
    }
}

void m3_picture_drafts(struct m3_picturing *p)
{
    const struct m3_tensor *main = m3_picture_tap(p, M3_TAP_LOGITS, -1), *of[MODULES] = { NULL };
    int64_t layers[M3_PICTURE_LAYERS], accepted = 0, drafts = 0;
    const int modules = (int)m3_min(m3_picture_layers(p, M3_TAP_MTP_LOGITS, layers), MODULES);
    signed char levels[MODULES * SHOWN_ROWS], packed[MODULES * SHOWN_ROWS];
    if (!main || modules <= 0 || m3_safetensors_find(p->request->dump, "rows")) return;
    for (int m = 0; m < modules; m++) {
        of[m] = m3_picture_tap(p, M3_TAP_MTP_LOGITS, layers[m]);
        if (of[m]->shape[1] != main->shape[1]) return;
    }
    const int rows = (int)m3_min(of[0]->shape[0], SHOWN_ROWS), wide = (int)m3_max(6, m3_min(24, 880 / rows)), high = 18;
    judge(levels, &accepted, &drafts, modules, rows, main, of);
    for (int m = 0; m < modules; m++) memcpy(packed + m * rows, levels + m * SHOWN_ROWS, (size_t)rows);
    FILE *out = m3_panel_begin(p, (int)m3_max(80 + rows * wide, 420), 36 + modules * high, "drafts of the MTP modules");
    if (!out) return;
    for (int m = 0; m < modules; m++)
        fprintf(out, "<text class=\"end\" x=\"66\" y=\"%d\">module %d</text>\n", 33 + m * high, m);
    fprintf(out, "<text x=\"72\" y=\"14\">row 0 .. %d</text>\n", rows - 1);
    m3_draw_grid(out, &(struct m3_grid){ 72, 20, rows * wide, modules * high, modules, rows, packed });
    m3_panel_note(
        p,
        "After each row, what the modules draft on the tokens of the case, against the main model's own tokens: a "
        "large bar is an accepted draft, a small one agrees after a refused draft, an empty cell is refused. "
        "Accepted: %" PRId64 " of %" PRId64 ".",
        accepted, drafts);
    m3_panel_end(p);
}
