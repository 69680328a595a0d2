/* Check, with tests that register themselves: the runner (harness.c) runs those of a file in the order of the file.
 *
 *     TEST(name) { ... }                 a test
 *     TEST_IF(name, condition) { ... }   the same, which is left out where the condition is false
 *     LOOP_TEST(name, count) { ... }     the same, once for each _i from 0 to count - 1
 *
 * These hold for the tests after them, each until its next one:
 *
 *     TIMEOUT(seconds);                  4 seconds without one
 *     FIXTURE(setup, teardown);          run before and after each test, in its process
 *     FIXTURE_ONCE(setup, teardown);     run once, before the first and after the last of them
 *
 * CK_RUN_CASE=name runs that test alone; tests after a FIXTURE_ONCE run together, by the name of the first.
 *
 * Assertions cost nothing where they hold: Check's own write a line to a file each time, so that a test that crashes can
 * say which assertion came last. A quarter of the time of the tests went there. */
#pragma GCC system_header /* as Check's own, so that its macros are not warned about */
#include_next <check.h>

#ifdef __cplusplus
extern "C" {
#endif
void m3_add_test(const TTest *test, int count);
void m3_set_timeout(double seconds);
void m3_set_fixture(SFun setup, SFun teardown);
void m3_set_fixture_once(SFun setup, SFun teardown);
#ifdef __cplusplus
}
#endif

/* Without a priority, the order in which constructors run would be the compiler's choice. */
#define M3_BEFORE_MAIN __attribute__((constructor(1000 + __COUNTER__))) static void
#define M3_JOIN(a, b) a##b
#define M3_NAMED(prefix, line) M3_JOIN(prefix, line)
#define M3_SETTING M3_BEFORE_MAIN M3_NAMED(m3_setting_, __LINE__)(void)

#define TEST(name) LOOP_TEST(name, 1)
#define TEST_IF(name, condition) LOOP_TEST(name, (condition) ? 1 : 0)
#define LOOP_TEST(name, count)                                                                                         \
    static void name##_fn(int _i CK_ATTRIBUTE_UNUSED);                                                                 \
    M3_BEFORE_MAIN name##_registers(void)                                                                              \
    {                                                                                                                  \
        static const TTest test = { #name, name##_fn, __FILE__, __LINE__ };                                            \
        m3_add_test(&test, count);                                                                                     \
    }                                                                                                                  \
    static void name##_fn(int _i CK_ATTRIBUTE_UNUSED)
#undef START_TEST /* would compile, and never run */

#define TIMEOUT(seconds)                                                                                               \
    M3_SETTING { m3_set_timeout(seconds); }
#define FIXTURE(setup, teardown)                                                                                       \
    M3_SETTING { m3_set_fixture(setup, teardown); }
#define FIXTURE_ONCE(setup, teardown)                                                                                  \
    M3_SETTING { m3_set_fixture_once(setup, teardown); }

#undef ck_assert_msg
#define ck_assert_msg(expr, ...)                                                                                       \
    ((expr) ? (void)0 : _ck_assert_failed(__FILE__, __LINE__, "Assertion '" #expr "' failed", ##__VA_ARGS__))
