#include <math.h>
#include <stdlib.h>

#include "base/minmax.h"
#include "oracle/error/tiers/tiers.h"
#include "oracle/judge/private/values.h"

void m3_pieces_free(struct m3_pieces *pieces)
{
    free(pieces->all);
    *pieces = (struct m3_pieces){ 0 };
}

/* Does the span continue where the last piece ends, in both files and in row numbers? */
static int goes_on(const struct m3_pieces *pieces, const struct m3_span *span)
{
    if (pieces->count == 0) return 0;
    const struct m3_piece *last = &pieces->all[pieces->count - 1];
    const int64_t end = last->want + last->length;
    if (span->want != end || span->got != last->got + last->length || last->length >= M3_PIECE) return 0;
    return span->row - last->row == end / pieces->width - last->want / pieces->width;
}

static int add(struct m3_pieces *pieces, int64_t *room, const struct m3_piece *piece)
{
    if (pieces->count == *room) {
        int64_t more = 2 * *room + 64;
        struct m3_piece *all = realloc(pieces->all, (size_t)more * sizeof *all);
        if (all == NULL) return 0;
        pieces->all = all;
        *room = more;
    }
    pieces->all[pieces->count++] = *piece;
    return 1;
}

int m3_pieces_of(struct m3_pieces *pieces, struct m3_span_walk walk, const char *tap, struct m3_error *error)
{
    struct m3_span span;
    int64_t room = 0;
    *pieces = (struct m3_pieces){ .width = walk.width };
    while (m3_span_walk_next(&walk, &span)) {
        pieces->elements += span.length;
        int64_t done = 0;
        if (goes_on(pieces, &span)) {
            struct m3_piece *last = &pieces->all[pieces->count - 1];
            done = m3_min(span.length, M3_PIECE - last->length);
            last->length += done;
        }
        for (int64_t length; done < span.length; done += length) {
            length = m3_min(span.length - done, M3_PIECE);
            const struct m3_piece piece = {
                .row = span.row, .want = span.want + done, .got = span.got + done, .length = length
            };
            if (!add(pieces, &room, &piece)) {
                m3_pieces_free(pieces);
                return m3_fail_memory(error, tap, (size_t)room * sizeof piece);
            }
        }
    }
    pieces->rows_left_out = walk.left_out;
    return M3_OK;
}

static void read_tensor(double *out, const struct m3_tensor *tensor, int64_t at, int64_t n)
{
    const struct m3_weight row = { .data = tensor->data, .dtype = tensor->dtype, .rows = 1, .cols = tensor->count };
    m3_expand_f64(out, &row, 0, at, n);
}

void m3_piece_read(double *want, double *got, const struct m3_finding *stage, const struct m3_piece *piece, int64_t i,
                   int64_t n)
{
    read_tensor(want, stage->reference, piece->want + i, n);
    read_tensor(got, stage->candidate, piece->got + i, n);
}

void m3_piece_show(struct m3_finding *stage, const struct m3_pieces *pieces, const struct m3_piece *piece, int64_t i)
{
    const struct m3_tensor *want = stage->reference;
    const int64_t at = piece->want + i;
    const int64_t number = piece->row + at / pieces->width - piece->want / pieces->width;
    m3_finding_place(stage, want, number, at % pieces->width, want->rank);
    stage->want = m3_decode(want->dtype, want->data, at);
    stage->got = m3_decode(stage->candidate->dtype, stage->candidate->data, piece->got + i);
    stage->off.max_abs = stage->got == stage->want ? 0 : fabs(stage->got - stage->want);      /* Inf - Inf is NaN */
}

/* Do all significant values of the stage lie on the grid, while some of the reference's do not? Stops at the first
 * value that is not on the grid. */
static int all_on_grid(const struct m3_finding *stage, const struct m3_pieces *pieces, double rounding,
                       enum m3_dtype grid)
{
    enum { LEAST = 64, SOME = 256 };
    double want[SOME], got[SOME];
    int64_t tell = 0, off = 0;
    for (int64_t p = 0; p < pieces->count; p++) {
        const struct m3_piece *piece = &pieces->all[p];
        for (int64_t i = 0; i < piece->length; i += SOME) {
            const int64_t n = m3_min(SOME, piece->length - i);
            m3_piece_read(want, got, stage, piece, i, n);
            for (int64_t j = 0; j < n; j++) {
                if (!isfinite(got[j]) || !isfinite(want[j]) || !m3_grid_tells(got[j], rounding, grid)) continue;
                if (!m3_on_grid(got[j], grid)) return 0;
                off += !m3_on_grid(m3_stored_as(want[j], stage->candidate->dtype), grid);
                tell++;
            }
        }
    }
    return tell >= LEAST && off > 0;
}

enum m3_dtype m3_pieces_grid(const struct m3_finding *stage, const struct m3_pieces *pieces, double rounding)
{
    static const enum m3_dtype grids[] = { M3_BF16, M3_F16 };
    for (int i = 0; i < 2; i++)
        if (all_on_grid(stage, pieces, rounding, grids[i])) return grids[i];
    return M3_DTYPES;
}
