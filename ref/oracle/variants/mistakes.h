/* Deliberate mistakes: errors that public code has made, or easily could make, each as a variation of a run of the
 * double engine. compare, blame and diagnose must find them. SPEC 7.12. */
#ifndef M3_ORACLE_VARIANTS_MISTAKES_H
#define M3_ORACLE_VARIANTS_MISTAKES_H

#include "model/files/case.h"
#include "model/engine.h"
#include "model/graph/operators.h"
#include "oracle/error/profile.h"

/* The properties of model and case that a mistake needs to show, as far as known without a run. */
enum m3_mistake_needs {
    M3_NEEDS_SPARSE = 1 << 0,           /* a sparse layer */
    M3_NEEDS_CHOICE = 1 << 1,           /* and more blocks than a list holds */
    M3_NEEDS_TWO_SPARSE = 1 << 2,
    M3_NEEDS_PART_BLOCK = 1 << 3,       /* the last block is not full */
    M3_NEEDS_LOCAL_BLOCKS = 1 << 4,     /* two or more are forced */
    M3_NEEDS_GROUPS = 1 << 5,           /* two or more key heads */
    M3_NEEDS_HEAD_NORM = 1 << 6,        /* q and k are normalised head by head */
    M3_NEEDS_GEMMA = 1 << 7,
    M3_NEEDS_DENSE_MLP = 1 << 8,
    M3_NEEDS_EXPERTS = 1 << 9,
    M3_NEEDS_SHARED = 1 << 10,          /* a shared expert */
    M3_NEEDS_OAI = 1 << 11,
    M3_NEEDS_MX32 = 1 << 12,            /* matrices with a scale per 32 columns */
    M3_NEEDS_PICTURES = 1 << 13,
    M3_NEEDS_STILL = 1 << 14,
    M3_NEEDS_SEGMENTS = 1 << 15,        /* two pictures, or a video longer than a segment */
    M3_NEEDS_MODULE = 1 << 16,
    M3_NEEDS_TWO_MODULES = 1 << 17,
    M3_NEEDS_FAR = 1 << 18,             /* a position of 10,000 or more */
    M3_NEEDS_WHOLE_NORM = 1 << 19,      /* q and k are normalised over all heads */
    M3_NEEDS_SCALES = 1 << 20,          /* matrices with a scale per 32 columns, or per 128x128 */
};

struct m3_change;

struct m3_mistake {
    const char *id;             /* "rope.full"; a second form of the same mistake has a colon: "moe.no_scale:twice" */
    const char *what;           /* one line */
    const char *first;          /* patterns of the first tap that differs */
    enum m3_operator op;        /* the operator of that tap; M3_OP_NONE: a selection */
    int needs;                  /* of enum m3_mistake_needs */
    const char *input;          /* further requirements on the input; NULL: none */
    const char *reading;        /* "selection=shared": a reading in which it is right; NULL: none */
    const struct m3_change *change;
};

/* Ordered by section, then as in SPEC 7.12. */
int m3_mistake_count(void);
const struct m3_mistake *m3_mistake_at(int i);
const struct m3_mistake *m3_mistake_named(const char *id);      /* NULL: unknown */

/* What the mistake needs to show and the input does not have: "a sparse layer"; NULL: nothing known. */
const char *m3_mistake_missing(const struct m3_mistake *mistake, const struct m3_model *model,
                               const struct m3_semantics *semantics, const struct m3_case *the_case);

/* A run of the double engine with one mistake. Each tap is rounded to float when it is computed, and the run continues
 * from that: apart from the mistake, it is a run that a conforming program in float could produce. */
struct m3_mistaken_run;

/* The arguments must outlive the run. `mistake` NULL: a run without mistake. *run is NULL on failure: M3_INTERNAL for
 * memory, M3_USAGE for a model to which the mistake does not apply. */
int m3_mistake_install(struct m3_mistaken_run **run, const struct m3_mistake *mistake, const struct m3_model *model,
                       const struct m3_semantics *semantics, const struct m3_case *the_case, struct m3_error *error);
/* From now on each tap is rounded to what the profile stores there, instead of to float. It must outlive the run. */
void m3_mistake_store(struct m3_mistaken_run *run, const struct m3_profile *profile);
/* The same; and the last product of an expert reads its input rounded, as the first two do. largest: the largest number
 * of the tensor that the tap reads, for scales of whole tensors; 0: that of the rows which are computed. */
void m3_mistake_store_within(struct m3_mistaken_run *run, const struct m3_profile *profile, double largest);
/* `the_case` of the run is the beginning of a sequence with so many later rows: mistakes in its last rows know where
 * those are. */
void m3_mistake_is_followed(struct m3_mistaken_run *run, int64_t later);
/* Some mistakes keep a tap for a later one. *tap, *layer: that tap; 0: the mistake keeps none. Whoever runs single taps
 * calls the request's `force` with its values first. */
int m3_mistake_keeps(enum m3_tap *tap, int64_t *layer, const struct m3_mistake *mistake,
                     const struct m3_config *config);
/* Some mistakes take weights of the next layer. Whoever gives a run a part of `model` calls this before for each layer
 * of the part, number l of `model`; it changes nothing if the mistake takes none, or there is none. */
void m3_mistake_borrow(struct m3_layer *layer, const struct m3_mistake *mistake, const struct m3_model *model,
                       int64_t l);
/* How often the sum of the routed experts is multiplied by what it should be: 1 without such a mistake; NULL: none. */
double m3_mistake_routed_factor(const struct m3_mistake *mistake, const struct m3_config *config);
/* The arguments for m3_engine_f64()->forward. The caller sets threads, linear and sink of the request. */
const struct m3_model *m3_mistaken_model(const struct m3_mistaken_run *run);
struct m3_request *m3_mistaken_request(struct m3_mistaken_run *run);
void m3_mistake_remove(struct m3_mistaken_run *run);            /* NULL is fine */

/* Runs it; its taps that match `taps` (NULL: all) go to a dump at `path`, floats as F32. */
int m3_mistake_dump(struct m3_mistaken_run *run, const char *path, const char *taps, int threads,
                    struct m3_error *error);

#endif
