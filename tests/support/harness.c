/* main of every unit test: runs m3_suite() of the test file with which it is linked, each test in its own process.
 *
 * Prints the failures, and finally "N passed, N failed", counted in tests. Exit status 1 if one failed or none ran. */
#include <check.h>
#include <stdio.h>

Suite *m3_suite(void);

int main(void)
{
    SRunner *runner = srunner_create(m3_suite());
    srunner_run_all(runner, CK_NORMAL);
    int run = srunner_ntests_run(runner), failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    printf("%d passed, %d failed\n", run - failed, failed);
    return failed > 0 || run == 0;
}
