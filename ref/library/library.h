/* Whole tasks for callers in other languages: files in, files and text out. Every structure has plain types of C only,
 * nothing is printed, and no state is kept between calls, which may run in several threads at once.
 *
 * A structure may be zero but for the fields that say "needed": the others have the default that is named, and a needed one
 * that is NULL is M3_USAGE. `size` is sizeof of the caller's structure, so that fields can be added at its end: those
 * that an older caller lacks are zero. 0 stands for the layout of this header, the first one with sizes.
 *
 * No output replaces a file that the same call reads: M3_USAGE, and nothing is written.
 *
 * A path may be /proc/self/fd/N of a file in memory (memfd_create), so arrays need not pass through a disk.
 * Text that a function returns is freed by m3_library_free, an error by m3_error_free. Results do not depend on
 * `threads`; small work uses one thread. How threads wait is up to the process: its OpenMP runtime reads
 * OMP_WAIT_POLICY when it is loaded. scripts/python calls these functions by ctypes; change both together.
 */
#ifndef M3_LIBRARY_LIBRARY_H
#define M3_LIBRARY_LIBRARY_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "ops/outside.h"

/* The number in the library's soname and in the version of its symbols. It changes when an old caller would no longer
 * run. */
enum { M3_LIBRARY_ABI = 4 };

int m3_library_abi(void);
size_t m3_library_error_size(void);     /* of struct m3_error: a caller that declares it otherwise must not call */
const char *m3_library_version(void);
void m3_library_free(char *text);       /* NULL is fine */
int m3_library_threads(void);           /* the usual value of `threads`: the processors that the process may use */

/* *lines := what `m3ref op --list --json` prints. */
int m3_library_operators(char **lines, struct m3_error *error);

/* Operators that a function outside computes, in a call of m3_library_run or m3_library_model. */
struct m3_library_ops {
    const char *names;          /* entries of the table of ops/ops.h, "rms_norm,route"; NULL: none */
    void *self;
    m3_outside_function *function;
};

/* Writes the cases of an operator to a file. Statuses and options are those of `m3ref op NAME --make`. */
struct m3_library_make {
    size_t size;
    const char *op, *cases;     /* needed */
    const char *sizes;          /* "tiny", "small", "real", or sizes by letter, "T=7,H=64"; NULL: "small" */
    const char *dtype;          /* "f32", "bf16", "f16"; NULL: "f32" */
    uint64_t seed;
    int64_t count;              /* of drawn cases */
};
int m3_library_make(const struct m3_library_make *task, struct m3_error *error);

/* Writes the cases of an operator with operands that are cut out of a dump, as `m3ref op NAME --make --from`. */
struct m3_library_from {
    size_t size;
    const char *op, *cases;     /* needed */
    const char *dump, *taps;    /* needed: the dump, and patterns of the taps that the operator makes */
    const char *model;          /* needed: its directory */
    const char *case_path;      /* NULL: the case that the dump holds, if any */
    const char *rows;           /* "all", "0,5,128:130"; NULL: all, or a sample of many */
    int allow_large;            /* weights above 1 GB */
};
int m3_library_from(const struct m3_library_from *task, struct m3_error *error);

/* Writes what the reference, or replaced operators, give for a file of cases. */
struct m3_library_run {
    size_t size;
    const char *cases, *results; /* needed */
    const char *precision;      /* "f32", "f64"; NULL: "f32" */
    int64_t only;               /* number of the one case to run; -1: all. 0 is the first case */
    int bounds;                 /* also write "i.OUTPUT.allowed" */
    int threads;                /* 0: m3_library_threads() */
    struct m3_library_ops ops;
};
int m3_library_run(const struct m3_library_run *task, struct m3_error *error);

/* Writes drawn operands of a file of cases: `m3ref op NAME --draw`. */
struct m3_library_draw {
    size_t size;
    const char *cases, *drawn;  /* needed */
    const char *only;           /* "6.w1", or one expert of it, "6.w1.17"; NULL: all */
    int threads;                /* 0: m3_library_threads() */
};
int m3_library_draw(const struct m3_library_draw *task, struct m3_error *error);

/* A verdict. */
struct m3_library_report {
    enum m3_status status;      /* the exit status that the program would have */
    char *lines;                /* JSON lines: a stage each, then the summary */
    char *text;                 /* for people */
};
void m3_library_report_free(struct m3_library_report *report);

/* Judges a file of results. Returns 0 if there is a verdict, whatever it is. */
struct m3_library_check {
    size_t size;
    const char *cases, *results; /* needed */
    const char *profile;        /* NULL: "fp32" */
    int64_t only;               /* number of the one case to judge; -1: all. 0 is the first case */
    int threads;                /* 0: m3_library_threads() */
};
int m3_library_check(struct m3_library_report *report, const struct m3_library_check *task, struct m3_error *error);

/* Compares two dumps. Returns 0 if there is a verdict, whatever it is. */
struct m3_library_compare {
    size_t size;
    const char *reference, *candidate;          /* needed */
    const char *profile;                        /* NULL: "fp32" */
    const char *companions, *map, *taps;        /* or NULL */
    int force;
};
int m3_library_compare(struct m3_library_report *report, const struct m3_library_compare *task, struct m3_error *error);

/* Runs a model and writes a dump. */
struct m3_library_model {
    size_t size;
    const char *model, *dump;   /* needed */
    const char *the_case;       /* a file; NULL: the ids */
    const int64_t *ids;         /* [T] */
    int64_t T;
    const char *taps;           /* patterns; NULL: all */
    const char *set;            /* fields of the semantics, "selection=shared,pool=lse"; NULL: as the config says */
    const char *precision;      /* "f32", "f64"; NULL: "f32" */
    const char *linear;         /* "blas", "ordered"; NULL: "blas" */
    int bounds;                 /* also write the companions of each tap */
    int allow_long;
    int threads;                /* 0: m3_library_threads() */
    const char *command;        /* for the metadata of the dump; NULL: "libm3ref" */
    struct m3_library_ops ops;
};
/* `notes` receives remarks on the model's files; it may be NULL, as `error` may in every function. */
int m3_library_model(const struct m3_library_model *task, struct m3_error *notes, struct m3_error *error);

#endif
