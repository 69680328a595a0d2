/* The library libm3ref_mpi.so: ranks by MPI. Bytes only: no datatype of MPI touches a number, and none of its sums is
 * used, whose order is not defined. */
#include <limits.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ranks/transport.h"

enum { TAG_DATA = 1, TAG_WORD = 2, PIECE = 1 << 30 }; /* MPI counts by int */

struct mpi {
    struct m3_transport transport;
    MPI_Request word_request;
    struct m3_word word;        /* that is being received */
    MPI_Request *requests;
    int room;
};

static int listen(struct mpi *m)
{
    return MPI_Irecv(&m->word, (int)sizeof m->word, MPI_BYTE, MPI_ANY_SOURCE, TAG_WORD, MPI_COMM_WORLD,
                     &m->word_request);
}

/* Did a word come? 1, 0, or -1. */
static int heard(struct mpi *m, struct m3_word *word, int *from)
{
    MPI_Status status;
    int came = 0;
    if (MPI_Test(&m->word_request, &came, &status)) return -1;
    if (!came) return 0;
    *word = m->word;
    *from = status.MPI_SOURCE;
    return listen(m) ? -1 : 1;
}

/* Waiting ranks leave the processor to those that compute. */
static void pause_after(int tries)
{
    const long ns = tries < 100 ? 0 : tries < 200 ? 20000 : 200000;
    if (ns) nanosleep(&(struct timespec){ .tv_nsec = ns }, NULL);
}

static uint64_t pieces_of(const struct m3_parcel *parcels, int count)
{
    uint64_t pieces = 0;
    for (int i = 0; i < count; i++) pieces += (parcels[i].bytes + PIECE - 1) / PIECE;
    return pieces;
}

/* Begins to send or to receive; returns the number of requests so far, or -1. */
static int begin(struct mpi *m, int n, const struct m3_parcel *parcels, int count, int receives)
{
    for (int i = 0; i < count; i++)
        for (uint64_t at = 0; at < parcels[i].bytes; at += PIECE) {
            char *data = (char *)parcels[i].data + at;
            const uint64_t left = parcels[i].bytes - at;
            const int bytes = left < PIECE ? (int)left : PIECE, peer = parcels[i].peer;
            const int status =
                receives ? MPI_Irecv(data, bytes, MPI_BYTE, peer, TAG_DATA, MPI_COMM_WORLD, &m->requests[n++])
                         : MPI_Isend(data, bytes, MPI_BYTE, peer, TAG_DATA, MPI_COMM_WORLD, &m->requests[n++]);
            if (status) return -1;
        }
    return n;
}

/* Ends what has not arrived, and leaves what was sent to itself. */
static void abandon(struct mpi *m, int receives, int all)
{
    for (int i = 0; i < all; i++) {
        if (m->requests[i] == MPI_REQUEST_NULL) continue;
        if (i < receives) {
            MPI_Cancel(&m->requests[i]);
            MPI_Wait(&m->requests[i], MPI_STATUS_IGNORE);
        } else {
            MPI_Request_free(&m->requests[i]);
        }
    }
}

static int exchange(struct m3_transport *transport, const struct m3_parcel *out, int outs, const struct m3_parcel *in,
                    int ins, struct m3_word *word, int *from)
{
    struct mpi *m = (struct mpi *)transport;
    const uint64_t needed = pieces_of(out, outs) + pieces_of(in, ins);
    if (needed > INT_MAX / 2) return -1;
    if ((int)needed > m->room) {
        MPI_Request *more = realloc(m->requests, (size_t)needed * sizeof *more);
        if (!more) return -1;
        m->requests = more;
        m->room = (int)needed;
    }
    const int receives = begin(m, 0, in, ins, 1);
    const int all = receives < 0 ? -1 : begin(m, receives, out, outs, 0);
    if (all < 0) return -1;
    for (int tries = 0;; tries += tries < INT_MAX) {
        int done = 0;
        if (MPI_Testall(all, m->requests, &done, MPI_STATUSES_IGNORE)) return -1;
        if (done) return 0;
        const int came = heard(m, word, from);
        if (came > 0) abandon(m, receives, all);
        if (came) return came;
        pause_after(tries);
    }
}

static int tell(struct m3_transport *transport, int to, const struct m3_word *word)
{
    (void)transport;
    return MPI_Send(word, (int)sizeof *word, MPI_BYTE, to, TAG_WORD, MPI_COMM_WORLD) ? -1 : 0;
}

static int hear(struct m3_transport *transport, struct m3_word *word, int *from)
{
    struct mpi *m = (struct mpi *)transport;
    int came = 0;
    for (int tries = 0; !came; tries += tries < INT_MAX) {
        came = heard(m, word, from);
        if (!came) pause_after(tries);
    }
    return came < 0 ? -1 : 0;
}

static void close_ranks(struct m3_transport *transport)
{
    struct mpi *m = (struct mpi *)transport;
    MPI_Cancel(&m->word_request);
    MPI_Wait(&m->word_request, MPI_STATUS_IGNORE);
    MPI_Finalize();
    free(m->requests);
    free(m);
}

struct m3_transport *m3_transport_open(void)
{
    struct mpi *m = calloc(1, sizeof *m);
    int provided;
    if (!m || MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided)) {
        free(m);
        return NULL;
    }
    m->transport = (struct m3_transport){ M3_TRANSPORT_ABI, 0, 0, exchange, tell, hear, close_ranks };
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (MPI_Comm_rank(MPI_COMM_WORLD, &m->transport.rank) || MPI_Comm_size(MPI_COMM_WORLD, &m->transport.count) ||
        listen(m)) {
        free(m);
        return NULL;
    }
    return &m->transport;
}
