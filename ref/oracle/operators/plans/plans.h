/* The structured cases of each operator, as data: what each covers, its sizes, parameters, and how its operands are
 * filled. Random cases follow them (make.h). */
#ifndef M3_ORACLE_OPERATORS_PLANS_H
#define M3_ORACLE_OPERATORS_PLANS_H

/* Names of cases, sizes and fills are comma-separated lists "T=5,H=7". */
struct m3_plan {
    const char *op;             /* names of operators, comma-separated */
    const char *what;           /* one line; "" for a case of drawn values */
    const char *sizes;          /* letters that differ from the defaults */
    const char *parameters;     /* that differ from the defaults */
    const char *fills;          /* operands that are not simply drawn: "x=zeros,w=ones" (fills.h) */
    int exact;                  /* every sum is exact in any order */
};

extern const struct m3_plan m3_plans[];
extern const int m3_plan_count;
/* Is the plan one of this operator's? */
int m3_plan_is_of(const struct m3_plan *plan, const char *op);
/* The value after "NAME=" in a list; "" if the list does not have it. At most `size` characters with the end. */
void m3_listed_value(char *value, unsigned long size, const char *list, const char *name);

#endif
