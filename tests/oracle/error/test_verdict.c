/* The verdict on a whole run, and its exit status. SPEC 7, "Exit status". */
#include <check.h>

#include "oracle/error/tiers/verdict.h"

/* Goal:  a run passes only if everything was judged; worse verdicts take precedence as SPEC 7 lists them.
 * Claim: fail before not comparable, that before suspect, that before partial; the statuses are 1, 3, 2, 2.
 * Seen to fail with stages that nothing judged left out of account. */
LOOP_TEST(precedence, 7)
{
    static const struct {
        struct m3_tally tally;
        enum m3_verdict verdict;
        int status;
    } cases[] = {
        { { 5, 0, 0, 0, 0 }, M3_VERDICT_PASS, 0 },           { { 5, 0, 0, 0, 1 }, M3_VERDICT_PARTIAL, 2 },
        { { 5, 0, 1, 0, 1 }, M3_VERDICT_SUSPECT, 2 },        { { 5, 0, 1, 1, 1 }, M3_VERDICT_NOT_COMPARABLE, 3 },
        { { 5, 1, 1, 1, 1 }, M3_VERDICT_FAIL, 1 },           { { 0, 0, 0, 0, 5 }, M3_VERDICT_NOT_COMPARABLE, 3 },
        { { 0, 0, 0, 0, 0 }, M3_VERDICT_NOT_COMPARABLE, 3 },
    };
    ck_assert_int_eq(m3_run_verdict(&cases[_i].tally), cases[_i].verdict);
    ck_assert_int_eq((int)m3_run_status(cases[_i].verdict), cases[_i].status);
}
