/* Declarations shared by the files that implement companions_write.h. */
#ifndef M3_ORACLE_JUDGE_PRIVATE_COMPANIONS_WRITE_H
#define M3_ORACLE_JUDGE_PRIVATE_COMPANIONS_WRITE_H

#include "oracle/error/gain.h"
#include "oracle/error/recompute.h"
#include "oracle/judge/companions/companions_write.h"
#include "oracle/judge/companions/private/companions.h"

/* A tap of the call. */
struct m3_watched {
    enum m3_tap tap;
    int64_t layer;
    int is_dumped, is_read;                 /* read: by a tap with companions */
    int64_t index[M3_COMPANION_FIELDS];     /* of its companions in the file; -1: none */
    int64_t n, f;                           /* steps of its bound */
    enum m3_gain_kind gain;
};

struct m3_companions_writer {
    struct m3_writer *file, *own;           /* own: NULL if it is the dump's file */
    struct m3_sink dump_sink;
    const struct m3_dump *dump;
    const struct m3_request *request;
    const struct m3_case *the_case;
    size_t real_bytes;
    struct m3_ctx ctx;
    struct m3_setting setting;
    struct m3_trace *trace;
    struct m3_watched *taps;                   /* in execution order */
    int64_t count, at;                      /* at: the tap that arrived last */
    int64_t first_case;                     /* index of the first tensor of the case */
    double *pending;                        /* a tap that arrives in pieces: its rows so far */
};

/* NULL: no tap of the call. */
struct m3_watched *m3_companions_find(struct m3_companions_writer *c, enum m3_tap tap, int64_t layer);

/* ---- companions_declare.c */

int m3_companions_declare(struct m3_companions_writer *c, struct m3_error *error);
/* Writes the numbers of the case, which are known before the pass. */
int m3_companions_write_case(struct m3_companions_writer *c, struct m3_error *error);

/* ---- companions_values.c */

/* Writes the companions of rows that have just been computed, from the taps before them. ids: of selections. */
int m3_companions_write_rows(struct m3_companions_writer *c, const struct m3_watched *w, const int32_t *ids,
                             int64_t row, int64_t rows, struct m3_error *error);

#endif
