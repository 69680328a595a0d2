/* Printed numbers, by hand.
 *
 * Seen to fail with: half a unit that is a whole one; GiB that is GB; a power of ten lost; a comma anywhere. */
#include <check.h>
#include <math.h>

#include "estimate/documents/documents.h"

TIMEOUT(120);

/* clang-format off */
static const struct {
    const char *text;
    double value, half, scale;
    int decimals;
} numbers[] = {
    { "0", 0, 0.5, 1, 0 },
    { "512x", 512, 0.5, 1, 0 },
    { "1,048,576", 1048576, 0.5, 1, 0 },
    { "12,345.60", 12345.6, 0.005, 1, 2 },
    { "9.8x", 9.8, 0.05, 1, 1 },
    { "96.6 %", 0.966, 0.0005, 0.01, 1 },
    { "17%", 0.17, 0.005, 0.01, 0 },
    { "413.13B", 413.13e9, 0.005e9, 1e9, 2 },
    { "~206 G", 206e9, 0.5e9, 1e9, 0 },
    { "=6.1 E", 6.1e18, 0.05e18, 1e18, 1 },
    { "18.0 P", 18e15, 0.05e15, 1e15, 1 },
    { "2T", 2e12, 0.5e12, 1e12, 0 },
    { "3.9M", 3.9e6, 0.05e6, 1e6, 1 },
    { "200K", 200e3, 0.5e3, 1e3, 0 },
    { "14.3 GiB", 15354508083.2, 53687091.2, 1073741824, 1 },
    { "14.3 GB", 14.3e9, 0.05e9, 1e9, 1 },
    { "1.13 TiB", 1.13 * 1099511627776, 0.005 * 1099511627776, 1099511627776, 2 },
    { "1.5 TB", 1.5e12, 0.05e12, 1e12, 1 },
    { "32 KiB", 32768, 512, 1024, 0 },
    { "4 MiB", 4194304, 524288, 1048576, 0 },
    { "4 MB", 4e6, 0.5e6, 1e6, 0 },
    { "4 KB", 4e3, 0.5e3, 1e3, 0 },
    { "1 PB", 1e15, 0.5e15, 1e15, 0 },
    { "15,300,820,992 bytes", 15300820992, 0.5, 1, 0 },
    { "3 B", 3e9, 0.5e9, 1e9, 0 },
    { "2.4 ms", 2.4e-3, 0.05e-3, 1e-3, 1 },
    { "27 us", 27e-6, 0.5e-6, 1e-6, 0 },
    { "324 s", 324, 0.5, 1, 0 },
    { "1.2e15", 1.2e15, 0.05e15, 1, 1 },
    { "1e-6", -1, 0, 0, 0 },            /* negative powers, and what follows: refused */
    { "", -1, 0, 0, 0 }, { "~", -1, 0, 0, 0 }, { "B", -1, 0, 0, 0 }, { "-3", -1, 0, 0, 0 }, { "1,04", -1, 0, 0, 0 },
    { "1048,576", -1, 0, 0, 0 }, { ",576", -1, 0, 0, 0 }, { "1,,576", -1, 0, 0, 0 }, { "1.", -1, 0, 0, 0 },
    { "1.5.2", -1, 0, 0, 0 }, { "3 gb", -1, 0, 0, 0 }, { "3  GB", -1, 0, 0, 0 }, { "3 GB ", -1, 0, 0, 0 },
    { "~~3", -1, 0, 0, 0 }, { "nan", -1, 0, 0, 0 }, { "0x10", -1, 0, 0, 0 }, { "3 -", -1, 0, 0, 0 },
    { "1e", -1, 0, 0, 0 }, { "1e100", -1, 0, 0, 0 },
    { "1111111111111111111111111111111111111111", -1, 0, 0, 0 },
};
/* clang-format on */

static int close_to(double got, double expected) { return fabs(got - expected) <= 1e-12 * fabs(expected); }

LOOP_TEST(printed_numbers, sizeof numbers / sizeof numbers[0])
{
    struct m3_error error = { 0 };
    struct m3_printed_number n;
    int status = m3_printed_parse(&n, numbers[_i].text, &error);
    m3_error_free(&error);
    ck_assert_msg(status == (numbers[_i].value < 0 ? M3_BAD_INPUT : M3_OK), "%s: %d", numbers[_i].text, status);
    if (status) return;
    ck_assert_msg(close_to(n.value, numbers[_i].value) && close_to(n.half, numbers[_i].half) &&
                      close_to(n.scale, numbers[_i].scale) && n.decimals == numbers[_i].decimals,
                  "%s: value %.15g half %.15g scale %.15g decimals %d", numbers[_i].text, n.value, n.half, n.scale,
                  n.decimals);
}
