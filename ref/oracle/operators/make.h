/* Makes files of cases: structured ones first, then random ones. SPEC 7.16. */
#ifndef M3_ORACLE_OPERATORS_MAKE_H
#define M3_ORACLE_OPERATORS_MAKE_H

#include "base/progress.h"
#include "base/weight.h"
#include "oracle/operators/operators.h"

struct m3_plan;

enum m3_size_class { M3_SIZES_TINY, M3_SIZES_SMALL, M3_SIZES_REAL };

/* What a set of cases is, and what it has shown: refused if a false result would pass it. */
struct m3_make_summary {
    int64_t cases, structured, mistakes, caught;
    uint64_t bytes, drawn;      /* of operands that are stored; of those that are drawn again by name and seed */
};

/* From so many bytes of operands on, a set of cases is announced. */
#define M3_LARGE_SET (UINT64_C(256) << 20)

struct m3_make_options {
    enum m3_size_class sizes;
    const char *given; /* "T=7,H=64,R=8": sizes of all random cases, instead of those of the class; or NULL */
    const char *rows; /* rows of the random cases that are judged: "all", or "0,5,128:130"; NULL: all, a sample
                                 * of large cases */
    enum m3_dtype dtype; /* of real operands: F32, BF16 or F16 */
    uint64_t seed;
    int64_t random; /* number of random cases */
    struct m3_progress progress; /* of writing */
    const struct m3_plan *plans; /* [plan_count] in place of m3_plans; NULL: those */
    int plan_count;
    /* Told before a large set is tried and written; NULL: nobody is. */
    void (*announce)(const struct m3_operator_row *op, const struct m3_make_summary *set);
};

/* Writes the file. M3_USAGE: sizes or rows that do not fit; M3_WRONG: the set is refused, because zeros, a copied
 * operand, the results of the case before or a known mistake would pass; M3_IO, also for a large set that the disk has
 * no room for; M3_INTERNAL. */
int m3_make_cases(const struct m3_operator_row *op, const char *path, const struct m3_make_options *options,
                  struct m3_make_summary *summary, struct m3_error *error);

#endif
