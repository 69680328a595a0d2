/* Pictures of a run, from its dump: which blocks and experts were chosen, and what became of the hidden states.
 *
 * A panel is drawn if the dump has the taps for it. The logit lens, and margins that the dump does not hold, need the
 * model. */
#ifndef M3_ORACLE_PICTURE_PICTURE_H
#define M3_ORACLE_PICTURE_PICTURE_H

#include <stdio.h>

#include "io/safetensors.h"
#include "model/model.h"

struct m3_picture_request {
    const struct m3_safetensors *dump;      /* of one sequence */
    const struct m3_model *model;           /* or NULL */
    int threads;
};

/* A drawing in SVG without its frame. */
struct m3_panel {
    char title[128], note[512];
    int width, height;
    char *drawing;
};

enum { M3_MOST_PANELS = 96 };

struct m3_picture {
    struct m3_panel panels[M3_MOST_PANELS];
    int count;
    struct m3_error notes;                  /* what could not be drawn, and why */
};

/* M3_BAD_INPUT if the dump has nothing to draw, several sequences, or a tap of another shape; M3_INTERNAL. Free the
 * picture in any case. */
int m3_picture_make(struct m3_picture *picture, const struct m3_picture_request *request, struct m3_error *error);
void m3_picture_free(struct m3_picture *picture);

/* A self-contained page, or one SVG with all panels, light and dark. M3_IO. */
int m3_picture_html(FILE *out, const struct m3_picture *picture, const char *name, struct m3_error *error);
int m3_picture_svg(FILE *out, const struct m3_picture *picture, const char *name, struct m3_error *error);

#endif
