/* main of every unit test: runs the tests of the file with which it is linked (check.h), each in its own process.
 *
 * Prints the failures, and finally "N passed, N failed", counted in tests. Exit status 1 if one failed or none ran. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* program_invocation_short_name */
#endif
#include <check.h>
#include <errno.h>
#include <stdio.h>

struct fixture {
    SFun setup, teardown;
};

static Suite *suite;
static TCase *open_case; /* takes the next test too: NULL, unless its fixture runs once for several */
static double timeout;
static struct fixture each, once;

void m3_set_timeout(double seconds)
{
    timeout = seconds;
    open_case = NULL;
}

void m3_set_fixture(SFun setup, SFun teardown)
{
    each = (struct fixture){ setup, teardown };
    open_case = NULL;
}

void m3_set_fixture_once(SFun setup, SFun teardown)
{
    once = (struct fixture){ setup, teardown };
    open_case = NULL;
}

static TCase *new_case(const char *name)
{
    if (!suite) suite = suite_create(program_invocation_short_name);
    TCase *made = tcase_create(name);
    if (timeout > 0) tcase_set_timeout(made, timeout);
    tcase_add_unchecked_fixture(made, once.setup, once.teardown);
    tcase_add_checked_fixture(made, each.setup, each.teardown);
    suite_add_tcase(suite, made);
    return made;
}

void m3_add_test(const TTest *test, int count)
{
    TCase *its = open_case ? open_case : new_case(test->name);
    tcase_add_loop_test(its, test, 0, count);
    open_case = once.setup || once.teardown ? its : NULL;
}

int main(void)
{
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int run = srunner_ntests_run(runner), failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    printf("%d passed, %d failed\n", run - failed, failed);
    return failed > 0 || run == 0;
}
