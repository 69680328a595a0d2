/* The ranks of a job: several processes, also on several machines, that run one command together. Rank 0 runs the
 * command; the others wait for its orders (model/divided/), and do their part. README.md says what is divided. */
#ifndef M3_RANKS_RANKS_H
#define M3_RANKS_RANKS_H

#include "base/status.h"
#include "ranks/transport.h"

struct m3_ranks;

/* What is sent, for the summary. */
enum m3_sent {
    M3_SENT_ORDERS,             /* what a pass is: ids, positions, masks, features of pictures */
    M3_SENT_HIDDEN,             /* hidden states from and to rank 0: --hidden, drafts */
    M3_SENT_KEYS,               /* keys, values and index keys */
    M3_SENT_TOKENS,             /* rows that an expert reads, with its number */
    M3_SENT_RESULTS,            /* what the expert makes of them */
    M3_SENT_TAPS,               /* taps and logits, to rank 0 */
    M3_SENT_KINDS
};
extern const char *const m3_sent_names[M3_SENT_KINDS];

/* What a rank has done. */
struct m3_ranks_work {
    int64_t rows, expert_rows;  /* rows of passes; rows that its experts read */
    int64_t sent[M3_SENT_KINDS];        /* bytes */
    double waited;              /* seconds in exchanges */
};

/* Was the program started as one of several ranks? */
int m3_ranks_several(void);
/* Opens the library at `path` and reaches the others. M3_UNAVAILABLE. */
int m3_ranks_open(struct m3_ranks **ranks, const char *path, struct m3_error *error);
int m3_ranks_rank(const struct m3_ranks *ranks);
int m3_ranks_count(const struct m3_ranks *ranks);
struct m3_ranks_work *m3_ranks_work(struct m3_ranks *ranks);
/* The model that all ranks have opened: passes over a copy with other weights are not divided. */
void m3_ranks_share(struct m3_ranks *ranks, const void *model);
int m3_ranks_shares(const struct m3_ranks *ranks, const void *model);

/* Sends and receives parcels. Every rank calls it in the same order, with parcels that fit together. If another rank
 * has failed, its status, with its message on rank 0; if rank 0 has ended the job, M3_INTERNAL. */
int m3_ranks_exchange(struct m3_ranks *ranks, enum m3_sent kind, const struct m3_parcel *out, int outs,
                      const struct m3_parcel *in, int ins, struct m3_error *error);

/* Tells the others that this rank has failed, unless one has said so before: their exchanges fail. No exchange is
 * possible afterwards. */
void m3_ranks_fail(struct m3_ranks *ranks, const struct m3_error *error);
int m3_ranks_ended(const struct m3_ranks *ranks);       /* has rank 0 ended the job? */
/* Rank 0 ends the job; the others wait for that. */
void m3_ranks_close(struct m3_ranks *ranks);            /* NULL is fine */

#endif
