/* rope_table_3d, SPEC 5.18: against numbers from multi-precision arithmetic, against the formula in long double, and
 * to an ulp against the angles as SPEC forms them. */
#include "angle_twin.h"

/* Goal:  the table of exact arithmetic, each axis in its place.
 * Given: cosines and sines of place * theta^(-2i/(R/3)), computed with 60 decimal digits (mpmath 1.3); three different
 *        places up to 2^20 - 1, columns of all axes; R = 6, 12, 78; theta is M3's 10,000, or 5,000,000.
 * Claim: within SPEC's tolerance, either mode. Angles in float are outside that of f64.
 * Seen to fail with the axes in the order h w t, any two swapped, one for all, or taken in turn by column; two axes
 * of 20 frequencies over all channels (vision.rope_lost_w); 26 + 26 + 28 channels; frequencies over R, R + 2,
 * (R + 2) / 3 or R/6; i counted through all axes; f32 in place of f64; a cosine of a float; a sine of the wrong sign;
 * cosine and sine exchanged; places cut to 16 bits. */
START_TEST(multi_precision)
{
    static const struct {
        int64_t R;
        double theta;
        int64_t places[3];
        int j;
        long double cosine, sine;
    } exact[] = {
        { 78, 10000, { 5, 23, 41 }, 1, -0.7777919078826026232464L, 0.6285218755400172985335L },
        { 78, 10000, { 5, 23, 41 }, 7, 0.9993845778054777482723L, 0.0350779937363440566405L },
        { 78, 10000, { 5, 23, 41 }, 12, 0.9999994844217464408264L, 0.001015458635936201843944L },
        { 78, 10000, { 5, 23, 41 }, 14, 0.3234334879444510893562L, -0.9462509069354103461065L },
        { 78, 10000, { 5, 23, 41 }, 20, 0.9870045752339947417118L, 0.1606921543422752601755L },
        { 78, 10000, { 5, 23, 41 }, 25, 0.9999890903830539072857L, 0.004671093541393012843517L },
        { 78, 10000, { 5, 23, 41 }, 27, 0.230346222793021178118L, 0.9731087388596342528892L },
        { 78, 10000, { 5, 23, 41 }, 33, 0.9588994363241585442792L, 0.2837461383300414422171L },
        { 78, 10000, { 5, 23, 41 }, 38, 0.9999653327155570009941L, 0.008326666023408610331806L },
        { 78, 10000, { 1000, 65535, 1048575 }, 1, -0.6661337365536194689905L, 0.745832316962139347932L },
        { 78, 10000, { 1000, 65535, 1048575 }, 12, 0.9794476562933715125455L, 0.2016985091204731322524L },
        { 78, 10000, { 1000, 65535, 1048575 }, 14, -0.2027000800354507844923L, -0.979240867996031835496L },
        { 78, 10000, { 1000, 65535, 1048575 }, 25, 0.7362745705722840936884L, 0.6766829070758316780345L },
        { 78, 10000, { 1000, 65535, 1048575 }, 27, -0.5583506498717753352486L, -0.8296050577158785317596L },
        { 78, 10000, { 1000, 65535, 1048575 }, 38, 0.7829788822450510317714L, -0.6220482858736052414309L },
        { 12, 10000, { 3, 1000, 77 }, 1, 0.9995500337489875162722L, 0.02999550020249566076853L },
        { 12, 10000, { 3, 1000, 77 }, 3, -0.8390715290764524522589L, -0.5440211108893698134047L },
        { 12, 10000, { 3, 1000, 77 }, 5, 0.7179106696109433633713L, 0.6961352386273567470199L },
        { 12, 5000000, { 77, 3, 65535 }, 1, 0.99940715858608591148L, 0.03442864166484244821669L },
        { 12, 5000000, { 77, 3, 65535 }, 3, 0.9999991000001349999919L, 0.001341640384007674092183L },
        { 12, 5000000, { 77, 3, 65535 }, 5, -0.5115495815225919429961L, -0.8592537609135388938799L },
        { 6, 10000, { 9, 1000, 31 }, 0, -0.9111302618846769883683L, 0.4121184852417565697563L },
        { 6, 10000, { 9, 1000, 31 }, 1, 0.5623790762907029910782L, 0.8268795405320025602559L },
        { 6, 10000, { 9, 1000, 31 }, 2, 0.9147423578045312789624L, -0.4040376453230650060488L },
    };
    for (size_t e = 0; e < sizeof exact / sizeof *exact; e++)
        for (enum m3_rope_angle mode = M3_ANGLE_F64; mode <= M3_ANGLE_F32; mode++) {
            real cosines[39], sines[39];
            const int64_t R = exact[e].R;
            const int j = exact[e].j, a = j / (int)(R / 6), i = j % (int)(R / 6);
            const struct angles t = { 3, 1, R, exact[e].theta, mode, exact[e].places, cosines, sines };
            angle_run(&t);
            const long double angle = exact[e].places[a] * powl(exact[e].theta, -6.0L * i / R);
            const long double tolerance = angle_allowed(&t, angle);
            twin_check("cos", (int64_t)e, j, cosines[j], exact[e].cosine, tolerance);
            twin_check("sin", (int64_t)e, j, sines[j], exact[e].sine, tolerance);
        }
}
END_TEST

static void check_shape(int64_t P, int64_t R, double theta, enum m3_rope_angle mode, uint64_t *seed)
{
    static const int64_t first[][3] = {
        { 1, 2, 3 }, { 0, 1, 1000 }, { 1000, 0, 1 }, { 7, 1000, 0 }, { 31, 2047, 127 }, { 0, 65535, 1048575 },
    };
    int64_t *places = room(3 * P, sizeof *places);
    for (int64_t i = 0; i < 3 * P; i++)
        places[i] = i < 18 ? first[i / 3][i % 3] : twin_pick(seed, i % 2 ? 100 : 100000);
    const struct angles t = { 3, P, R, theta, mode, places, reals(P * R / 2), reals(P * R / 2) };
    angle_run(&t);
    angle_check(&t);
    rooms_free(0);
}

/* Goal:  every element of tables of any shape, in both modes.
 * Given: R 6 .. 126, P from 1 to enough for 13 threads; rows of three different places, each axis in turn 0 or large,
 *        then random ones below 100,000.
 * Claim: within SPEC's tolerance of the formula in long double; and for every i there is one frequency, at most an ulp
 *        of double from theta^(-2i/(R/3)) (none for i = 0), with which all rows and all three axes are within an ulp
 *        of real of cosine and sine of the angle formed by "Order"; threads change no bit.
 * Seen to fail with a frequency 4 ulp off, angles reduced by 2 pi in double (double), a frequency not rounded in f32,
 * the mode ignored, places read as [3,P], one element too many, 13 threads that differ, and all the above. */
START_TEST(shapes_modes_and_threads)
{
    static const struct {
        int64_t P, R;
        double theta;
    } shapes[] = {
        { 1, 6, 10000 },  { 67, 6, 10000 },   { 31, 12, 10000 },   { 32, 18, 500000 },
        { 2, 78, 10000 }, { 33, 126, 10000 }, { 1801, 78, 10000 },
    };
    uint64_t seed = 518;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (enum m3_rope_angle mode = M3_ANGLE_F64; mode <= M3_ANGLE_F32; mode++)
            check_shape(shapes[s].P, shapes[s].R, shapes[s].theta, mode, &seed);
}
END_TEST

/* Goal:  which axis turns which columns.
 * Given: (0,0,0), one axis of three at 5, and 5, 17, 1000 in three orders.
 * Claim: place 0 has cosine 1 and sine 0, exactly; the same place on another axis or row has the same bits.
 * Seen to fail with what multi_precision lists of axes and frequencies, and with places read as [3,P]. */
START_TEST(axes)
{
    enum { R = 78, HALF = 39, AXIS = 13, ROWS = 7 };
    static const int64_t places[3 * ROWS] = {
        0, 0, 0, 5, 0, 0, 0, 5, 0, 0, 0, 5, 5, 17, 1000, 1000, 5, 17, 17, 1000, 5,
    };
    for (enum m3_rope_angle mode = M3_ANGLE_F64; mode <= M3_ANGLE_F32; mode++) {
        real cosines[ROWS * HALF], sines[ROWS * HALF];
        angle_run(&(struct angles){ 3, ROWS, R, 10000, mode, places, cosines, sines });
        for (int p = 0; p < ROWS; p++)
            for (int a = 0; a < 3; a++)
                for (int i = 0; i < AXIS; i++) {
                    const int at = p * HALF + a * AXIS + i;
                    const double angle = formed(places[3 * p + a], pow(10000, -2.0 * i / (R / 3)), mode);
                    twin_check("cos", p, a * AXIS + i, cosines[at], cos(angle), 2 * twin_roundoff() + 0x1p-40);
                    twin_check("sin", p, a * AXIS + i, sines[at], sin(angle), 2 * twin_roundoff() + 0x1p-40);
                    for (int r = 0; r < ROWS; r++)
                        for (int c = 0; c < 3; c++) {           /* the same place on another axis: the same bits */
                            if (places[3 * r + c] != places[3 * p + a]) continue;
                            twin_check_same("cos", p, at, cosines[at], cosines[r * HALF + c * AXIS + i]);
                            twin_check_same("sin", p, at, sines[at], sines[r * HALF + c * AXIS + i]);
                        }
                    if (places[3 * p + a] != 0) continue;
                    twin_check_same("cos 0", p, a * AXIS + i, cosines[at], 1);
                    twin_check_same("sin 0", p, a * AXIS + i, sines[at], 0);
                }
    }
}
END_TEST

/* Goal:  what tells the two modes apart: places that no float holds.
 * Given: places from 2^24 + 1 to 1.2e9, one axis at a time, R = 12: the frequencies are 1 and 1/100.
 * Claim: an ulp from cosine and sine of the angle of "Order". In f64 only for i = 0, where the angle is the place: at
 *        these places the last bit of another frequency shows.
 * Seen to fail with the mode ignored, a place not rounded in f32, a place rounded in f64, a frequency 4 ulp off. */
START_TEST(beyond_float)
{
    enum { R = 12, HALF = 6 };
    static const int64_t large[] = {
        (1 << 24) + 1, (1 << 24) + 3, (1 << 25) + 2, (1 << 25) + 6, 123456789, 1234567891,
    };
    for (int a = 0; a < 3; a++)
        for (size_t n = 0; n < sizeof large / sizeof *large; n++)
            for (enum m3_rope_angle mode = M3_ANGLE_F64; mode <= M3_ANGLE_F32; mode++) {
                int64_t places[3] = { 0 };
                real cosines[HALF], sines[HALF];
                places[a] = large[n];
                angle_run(&(struct angles){ 3, 1, R, 10000, mode, places, cosines, sines });
                for (int i = 0; i < (mode == M3_ANGLE_F64 ? 1 : 2); i++) {
                    const long double angle = formed(large[n], i == 0 ? 1 : 0.01, mode);
                    const long double c = cosl(angle), s = sinl(angle);
                    twin_check("cos", (int64_t)n, 2 * a + i, cosines[2 * a + i], c, ulp_of_real(c));
                    twin_check("sin", (int64_t)n, 2 * a + i, sines[2 * a + i], s, ulp_of_real(s));
                }
            }
}
END_TEST

/* Goal:  an R below 6, or no multiple of 6, is an error, and nothing is written.
 * Seen to fail without the check, with 0 let through, and with multiples of 3 let through. */
START_TEST(widths_refused)
{
    static const int64_t widths[] = { 0, 4, 26, 1, 2, 3, 5, 7, 8, 9, 64, 77, 79, 80, -6, INT64_MIN, INT64_MAX };
    static const int64_t places[6] = { 1, 2, 3, 4, 5, 6 };
    for (size_t k = 0; k < sizeof widths / sizeof *widths; k++) {
        const struct angles t = { 3, 2, widths[k], 10000, M3_ANGLE_F64, places, reals(80), reals(80) };
        struct call c = CALL(angle_table, &t, 2, 1, OPERAND(t.cosines, 80), OPERAND(t.sines, 80), OPERAND(places, 6));
        c.checks_first = 1;
        call_refused(&c, ANY, ANY, ANY, ANY);
        rooms_free(0);
    }
}
END_TEST

Suite *m3_suite(void);
Suite *m3_suite(void)
{
    Suite *suite = suite_create("rope_table_3d");
    TCase *test = tcase_create("rope_table_3d");
    tcase_set_timeout(test, 60);
    tcase_add_test(test, multi_precision);
    tcase_add_test(test, shapes_modes_and_threads);
    tcase_add_test(test, axes);
    tcase_add_test(test, beyond_float);
    tcase_add_test(test, widths_refused);
    suite_add_tcase(suite, test);
    return suite;
}
