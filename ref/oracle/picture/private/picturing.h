/* What the panels share. */
#ifndef M3_ORACLE_PICTURE_PRIVATE_PICTURING_H
#define M3_ORACLE_PICTURE_PRIVATE_PICTURING_H

#include "base/memory_stream.h"
#include "model/taps.h"
#include "oracle/picture/picture.h"

enum { M3_PICTURE_LAYERS = 512, M3_PANEL_WIDTH = 1000 };

struct m3_picturing {
    const struct m3_picture_request *request;
    struct m3_picture *picture;
    struct m3_panel *panel;                 /* that is being drawn */
    struct m3_memory_stream stream;
    int status;                             /* not 0: a panel has failed, and later ones do nothing */
    struct m3_error *error;
};

/* The tensor of a tap, of its rank and kind; NULL if the dump lacks it or it has no rows. */
const struct m3_tensor *m3_picture_tap(struct m3_picturing *p, enum m3_tap tap, int64_t layer);
/* The layers, ascending, of which the dump has the tap; modules come last. Returns how many. */
int m3_picture_layers(struct m3_picturing *p, enum m3_tap tap, int64_t layers[M3_PICTURE_LAYERS]);
double m3_picture_at(const struct m3_tensor *tensor, int64_t i);
/* An id of a choice; -1 for one that no int32_t holds. */
int32_t m3_picture_id(const struct m3_tensor *ids, int64_t i);
/* The number of row r of the text taps: dumps may hold some rows only. */
int64_t m3_picture_row(const struct m3_picturing *p, int64_t r);
/* "layers.3", "mtp.0.layer" */
void m3_picture_layer_name(char *name, size_t size, int64_t layer);

/* Keys in a block, from the first row that sees block 1; 0: the dump does not say. */
int64_t m3_picture_block(struct m3_picturing *p, int64_t layer);

/* Begins a panel; returns its stream, or NULL after a failure or if there is no room. m3_panel_end must follow. */
FILE *m3_panel_begin(struct m3_picturing *p, int width, int height, const char *title);
__attribute__((format(printf, 2, 3))) void m3_panel_note(struct m3_picturing *p, const char *format, ...);
void m3_panel_end(struct m3_picturing *p);

/* Rows of cells in a rectangle; levels[rows,columns]: -1 for an empty cell, otherwise a place in m3_level_classes. */
struct m3_grid {
    int x, y, width, height, rows, columns;
    const signed char *levels;
};
void m3_draw_grid(FILE *out, const struct m3_grid *grid);
/* Classes of report/page.c by rising size, which says the same as the shade. */
enum { M3_LEVELS = 5 };
/* The level of a share of 0 to 1; -1 for 0. */
signed char m3_level_of(double share);

/* Lines over layers: `low` and `high` are a band, or NULL. Values that are not finite are left out. */
struct m3_lines {
    int x, y, width, height, points;
    const char *const *names;               /* of the points */
    const double *middle, *low, *high;
    int is_logarithmic;
};
void m3_draw_lines(FILE *out, const struct m3_lines *lines);

/* ---- the panels, in the order of the page */

void m3_picture_blocks(struct m3_picturing *p);         /* choices.c */
void m3_picture_experts(struct m3_picturing *p);
void m3_picture_mass(struct m3_picturing *p);           /* mass.c */
void m3_picture_margins(struct m3_picturing *p);        /* layers.c */
void m3_picture_norms(struct m3_picturing *p);
void m3_picture_lens(struct m3_picturing *p);           /* lens.c */
void m3_picture_drafts(struct m3_picturing *p);         /* drafts.c */
void m3_picture_patches(struct m3_picturing *p);        /* patches.c */

#endif
