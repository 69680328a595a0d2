/* Deliberate mistakes: what public code has got wrong, or easily could, each as a variation of a run of the double
 * engine. What compare, blame and diagnose must find. SPEC 7.12. */
#ifndef M3_ORACLE_VARIANTS_MISTAKES_H
#define M3_ORACLE_VARIANTS_MISTAKES_H

#include "model/files/case.h"
#include "model/engine.h"
#include "oracle/error/graph.h"

/* What model and case must have for a mistake to show, as far as it can be told without a run. */
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
};

struct m3_change;

struct m3_mistake {
    const char *id;             /* "rope.full"; a second form of the same slip has a colon: "moe.no_scale:twice" */
    const char *what;           /* one line */
    const char *first;          /* patterns of the tap where it first shows */
    enum m3_operator op;        /* that makes that tap; M3_OP_NONE: a choice */
    int needs;                  /* of enum m3_mistake_needs */
    const char *input;          /* what else the input must hold; NULL: nothing */
    const char *reading;        /* "selection=shared": a reading of which it is right; NULL: there is none */
    const struct m3_change *change;
};

/* By section, and there as SPEC 7.12 lists them. */
int m3_mistake_count(void);
const struct m3_mistake *m3_mistake_at(int i);
const struct m3_mistake *m3_mistake_named(const char *id);      /* NULL: unknown */

/* What the input has not and this mistake needs to show: "a sparse layer"; NULL: nothing that can be told. */
const char *m3_mistake_missing(const struct m3_mistake *mistake, const struct m3_model *model,
                               const struct m3_semantics *semantics, const struct m3_case *the_case);

/* A run of the double engine with one mistake. Each tap is rounded to float as it is made, and the run goes on from
 * that: but for the mistake, it is one that a conforming program in float could have made. */
struct m3_mistaken_run;

/* The arguments must outlive the run. `mistake` NULL: an honest run. *run is NULL on failure: M3_INTERNAL for memory,
 * M3_USAGE for a model that the mistake cannot be made on. */
int m3_mistake_install(struct m3_mistaken_run **run, const struct m3_mistake *mistake, const struct m3_model *model,
                       const struct m3_semantics *semantics, const struct m3_case *the_case, struct m3_error *error);
/* What m3_engine_f64()->forward takes. Threads, linear and sink of the request are the caller's to set. */
const struct m3_model *m3_mistaken_model(const struct m3_mistaken_run *run);
struct m3_request *m3_mistaken_request(struct m3_mistaken_run *run);
void m3_mistake_remove(struct m3_mistaken_run *run);            /* NULL is fine */

/* Makes the run; its taps that match `taps` (NULL: all) go to a dump at `path`, floats as F32. */
int m3_mistake_dump(struct m3_mistaken_run *run, const char *path, const char *taps, int threads,
                    struct m3_error *error);

#endif
