/* How the ranks of a job reach each other. The program opens a library that fills this in (mpi/mpi.c) only if it was
 * started as one of several ranks. Data comes in parcels, whose sizes both sides know; words come in between. */
#ifndef M3_RANKS_TRANSPORT_H
#define M3_RANKS_TRANSPORT_H

#include <stdint.h>

enum { M3_TRANSPORT_ABI = 1, M3_WORD_TEXT = 960 };

struct m3_parcel {
    int peer;                   /* to this rank, or from it */
    void *data;
    uint64_t bytes;
};

enum m3_word_kind { M3_WORD_FAILED, M3_WORD_STOPPED, M3_WORD_END };
struct m3_word {
    int32_t kind, status;       /* status, text: of M3_WORD_FAILED */
    char text[M3_WORD_TEXT];
};

struct m3_transport {
    int abi_version;            /* M3_TRANSPORT_ABI */
    int rank, count;
    /* Sends all of `out` and receives all of `in`; two ranks' parcels arrive in the order in which they were sent.
     * Returns 0 when all are through; 1 if a word came before, in *word from rank *from: parcels that have not arrived
     * never will, and `out` must stay as it is until every other rank has said a word; or -1. */
    int (*exchange)(struct m3_transport *, const struct m3_parcel *out, int outs, const struct m3_parcel *in, int ins,
                    struct m3_word *word, int *from);
    int (*tell)(struct m3_transport *, int to, const struct m3_word *word);     /* 0, or -1 */
    int (*hear)(struct m3_transport *, struct m3_word *word, int *from);        /* waits for a word; 0, or -1 */
    void (*close)(struct m3_transport *);
};

/* What the library exports: its only function. NULL if the ranks cannot be reached. */
struct m3_transport *m3_transport_open(void);

#endif
