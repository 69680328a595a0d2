/* What a comparison prints, word for word, and its JSON lines. */
#include "dumps.h"
#include "printed.h"

#include <jansson.h>
#include <math.h>

#include "oracle/report/report.h"

FIXTURE(dumps_setup, dumps_teardown);

/* The position after the next `words`, which must be there. */
__attribute__((noinline)) static const char *after(const char *at, const char *words)
{
    const char *found = strstr(at, words);
    ck_assert_msg(found != NULL, "no %s in %s", words, at);
    return found + strlen(words);
}

/* Line by line: Check cannot print all of it. */
static void check_text(const char *text, const char *expected)
{
    while (*expected != '\0') {
        size_t length = strcspn(text, "\n") + 1, wanted = strcspn(expected, "\n") + 1;
        ck_assert_msg(length == wanted && memcmp(text, expected, length) == 0, "got\n%.*sexpected\n%.*s", (int)length,
                      text, (int)wanted, expected);
        text += length;
        expected += wanted;
    }
    ck_assert_str_eq(text, "");
}

/* Goal:  each kind of stage, the notes, the divergence and the verdict, as people read them.
 * Claim: embed uses 2^-20 / (2^-18 + 1e-7) = 24.4% of what is allowed; attn_out 0.25 / 1e-5 = 2.5e+06%, its L2 is
 *        sqrt(2 / 16) / sqrt(2.328125) = 0.232. -0.75f is bf400000, -1 is bff0000000000000.
 * Seen to fail with got and want exchanged, and with the bits of a double for a float. */
TEST(as_text)
{
    write_kinds();
    ck_assert_int_eq(judge(), M3_OK);
    char *text = printed(m3_report_text, M3_REPORT_ALL);
    check_text(
        text,
        "fail  layers.3.attn_lse row 1, head 0, NaN, 1 of 2 elements; only row 1; the wrong values are NaN; next: m3ref blame MODEL CANDIDATE --case F; "
        "not held by the candidate: 1 stage, logits\n"
        "verdict         tap                      rel L2        max    allowed\n"
        "fail            layers.3.attn_lse             0          0     beyond\n"
        "FAIL  layers.3.attn_lse  [t=1, q=0]  got nan (7ff8000000000000)  want 0.5 (3fe0000000000000)  NaN; 1 of 2\n"
        "fail            layers.3.attn_out         0.232       0.25   2.5e+06%\n"
        "FAIL  layers.3.attn_out  [t=0, h=2]  got -0.75 (bf400000)  want -1 (bff0000000000000)  2.5e+06% of allowed; "
        "2 of 6; rel L2 2.32e+06% of allowed\n"
        "fail            layers.3.moe.experts  inadmissible: 1 of 2 sets differ, 1 permuted\n"
        "FAIL  layers.3.moe.experts  [t=1]  expert 9 in place of 2: INADMISSIBLE, another set; 1 of 2\n"
        "pass            embed                  9.54e-07   9.54e-07      24.4%\n"
        "not comparable  layers.0.mid          shapes differ: got [2,2] F64, expected [2,3] F64\n"
        "note  taps missing in the candidate: 1: logits\n"
        "note  taps whose fp32 error the reference does not state, judged at 1e-5: 3, first layers.0.mid\n"
        "note  first divergence layers.3.attn_lse; 1 of 2 stages before it pass; the worst, embed, used 24.4% of what is "
        "allowed\n"
        "fail  4 of 5 stages judged, 3 fail, 1 not comparable, 1 missing; the worst, layers.3.attn_lse, is "
        "wrong beyond measure; layers.3.attn_lse row 1, head 0, NaN, 1 of 2 elements; only row 1; the wrong values are NaN; next: m3ref blame MODEL CANDIDATE "
        "--case F\n");
    free(text);

    /* The first divergence, then the others by size, then what is not judged. */
    text = printed(m3_report_text, M3_REPORT_SHORT);
    const char *at = after(text, "fail  layers.3.attn_lse row 1");
    at = after(at, "fail            layers.3.attn_lse ");
    at = after(at, "fail            layers.3.attn_out ");
    at = after(at, "not comparable  layers.0.mid ");
    at = after(at, "note  taps missing");
    after(at, "\nfail  4 of 5 stages judged");
    ck_assert_ptr_null(strstr(text, "pass            embed"));
    free(text);
}

/* Goal:  however much is wrong, at most 25 lines, and a count of what is not shown; all of it where all is asked for.
 * Given: 40 taps that fail in execution order, the 20th by most, and notes of both kinds.
 * Seen to fail with the room for stages not reduced by the notes, and with stages in execution order. */
TEST(at_most_25_lines)
{
    double want[2] = { 1, 0 }, got[2] = { 2, 0 };
    struct dump dump;
    char name[32];
    dump_begin(&dump, reference_path);
    for (int l = 0; l < 40; l++) {
        snprintf(name, sizeof name, "layers.%d.mid", l);
        dump_tensor(&dump, name, M3_F64, want, 1, 2, -1);
    }
    dump_tensor(&dump, "strange", M3_F64, want, 1, 2, -1);
    dump_tensor(&dump, "logits", M3_F64, want, 1, 2, -1);
    dump_end(&dump);
    const double worst[2] = { 4, 0 };
    dump_begin(&dump, candidate_path);
    for (int l = 0; l < 40; l++) {
        snprintf(name, sizeof name, "layers.%d.mid", l);
        dump_tensor(&dump, name, M3_F64, l == 20 ? worst : got, 1, 2, -1);
    }
    dump_end(&dump);
    ck_assert_int_eq(judge(), M3_OK);
    char *text = printed(m3_report_text, M3_REPORT_SHORT);
    int lines = 0;
    for (const char *c = text; *c != '\0'; c++) lines += *c == '\n';
    ck_assert(lines <= 25 && lines > 20);
    const char *at = after(text, "\nfail            layers.0.mid ");
    at = after(at, "\nfail            layers.20.mid ");
    at = after(at, "\nfail            layers.1.mid ");
    after(at, " more stages; --all shows every one\n");
    free(text);
    text = printed(m3_report_text, M3_REPORT_ALL);
    after(text, "\nfail            layers.39.mid ");
    free(text);
}

/* Seen to fail with "1 of 1" for "all", and with the verdict of a comparison without stages set to pass. */
TEST(text_of_a_pass_and_of_nothing)
{
    const double x[2] = { 1, 0 }, y[2] = { 2, 0 };
    for (int fail = 0; fail < 2; fail++) {
        struct dump dump;
        const char *paths[] = { reference_path, candidate_path };
        for (int side = 0; side < 2; side++) {
            dump_begin(&dump, paths[side]);
            dump_tensor(&dump, "embed", M3_F64, x, 1, 2, -1);
            dump_tensor(&dump, "fused", M3_F64, side && fail ? y : x, 1, 2, -1);
            dump_end(&dump);
        }
        ck_assert_int_eq(judge(), M3_OK);
        char *text = printed(m3_report_text, M3_REPORT_SHORT);
        const char *divergence =
            "divergence fused; the stage before it passes; the worst, embed, used 0% of what is allowed\n";
        if (fail) ck_assert_ptr_nonnull(strstr(text, divergence));
        else
            ck_assert_ptr_nonnull(
                strstr(text, "\npass  2 of 2 stages judged; the worst, embed, used 0% of what is allowed\n"));
        free(text);
    }
    dump_one(candidate_path, "logits", M3_F64, x, 1, 2, -1);
    ck_assert_int_eq(judge(), M3_NOT_COMPARABLE);
    char *text = printed(m3_report_text, M3_REPORT_SHORT);
    ck_assert_ptr_nonnull(strstr(text, "note  nothing matched\n"));
    ck_assert_ptr_nonnull(strstr(text, "\nnot comparable  0 of 0 stages judged, 1 not in the reference, 2 missing; "));
    free(text);
}

static const char *string_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "(no string)";
}

static double number_of(const json_t *object, const char *key)
{
    ck_assert_msg(json_is_number(json_object_get(object, key)), "%s is no number", key);
    return json_number_value(json_object_get(object, key));
}

static int is_null(const json_t *object, const char *key) { return json_is_null(json_object_get(object, key)); }

/* The i-th line, parsed; each line is one object. The caller drops it. */
static json_t *line(const char *text, int i)
{
    while (i-- > 0) text = strchr(text, '\n') + 1;
    const char *end = strchr(text, '\n');
    ck_assert_ptr_nonnull(end);
    json_t *object = json_loadb(text, (size_t)(end - text), JSON_REJECT_DUPLICATES, NULL);
    ck_assert_msg(json_is_object(object), "no object: %.*s", (int)(end - text), text);
    return object;
}

/* Goal:  the fixed keys, on the same two dumps; one object a line and nothing else.
 * Seen to fail with NaN given to json_real (no line at all), and with the failed count for `stages`. */
TEST(json_stages)
{
    write_kinds();
    ck_assert_int_eq(judge(), M3_OK);
    char *text = printed(m3_report_json, M3_REPORT_ALL);
    int lines = 0;
    for (const char *c = text; *c != '\0'; c++) lines += *c == '\n';
    ck_assert_int_eq(lines, 6);

    json_t *embed = line(text, 0), *mid = line(text, 1), *lse = line(text, 2), *out = line(text, 3);
    ck_assert_str_eq(string_of(embed, "type"), "stage");
    ck_assert_str_eq(string_of(embed, "tap"), "embed");
    ck_assert_str_eq(string_of(embed, "verdict"), "pass");
    ck_assert(number_of(embed, "rel_l2") == 0x1p-20 && number_of(embed, "max_abs") == 0x1p-20);
    ck_assert(number_of(embed, "got") == 1 + 0x1p-20 && number_of(embed, "want") == 1);
    ck_assert_int_eq(json_array_size(json_object_get(embed, "index")), 2);

    ck_assert_str_eq(string_of(mid, "verdict"), "not_comparable");
    ck_assert(is_null(mid, "rel_l2") && is_null(mid, "max_abs") && is_null(mid, "got") && is_null(mid, "want"));
    ck_assert(json_is_array(json_object_get(mid, "index")));
    ck_assert_str_eq(string_of(mid, "note"), "shapes differ");

    ck_assert_str_eq(string_of(lse, "verdict"), "fail");
    ck_assert_str_eq(string_of(lse, "got"), "nan");
    ck_assert_str_eq(string_of(lse, "max_abs"), "nan");
    ck_assert_str_eq(string_of(lse, "headroom"), "inf");

    ck_assert(number_of(out, "max_abs") == 0.25 && number_of(out, "got") == -0.75 && number_of(out, "want") == -1);
    ck_assert_int_eq(json_integer_value(json_array_get(json_object_get(out, "index"), 1)), 2);
    ck_assert(number_of(out, "violations") == 2 && number_of(out, "elements") == 6);
    json_decref(embed);
    json_decref(mid);
    json_decref(lse);
    json_decref(out);
    free(text);
}

TEST(json_selection_and_summary)
{
    write_kinds();
    ck_assert_int_eq(judge(), M3_OK);
    char *text = printed(m3_report_json, M3_REPORT_ALL);
    json_t *experts = line(text, 4), *summary = line(text, 5);
    ck_assert_str_eq(string_of(experts, "type"), "selection");
    ck_assert_str_eq(string_of(experts, "tap"), "layers.3.moe.experts");
    ck_assert_str_eq(string_of(experts, "verdict"), "inadmissible");
    ck_assert(number_of(experts, "rows") == 2 && number_of(experts, "differing") == 1);
    ck_assert(number_of(experts, "permuted") == 1 && number_of(experts, "inadmissible") == 1);
    ck_assert(number_of(experts, "got") == 9 && number_of(experts, "want") == 2 && is_null(experts, "gap"));

    ck_assert_str_eq(string_of(summary, "type"), "summary");
    ck_assert_str_eq(string_of(summary, "verdict"), "fail");
    ck_assert_str_eq(string_of(summary, "first_divergence"), "layers.3.attn_lse");
    ck_assert(number_of(summary, "stages") == 5 && number_of(summary, "missing") == 1);
    ck_assert_int_eq(json_array_size(json_object_get(summary, "notes")), 2);
    json_decref(experts);
    json_decref(summary);
    free(text);

    dump_one(candidate_path, "fused", M3_F64, "12345678", 1, 1, -1);
    ck_assert_int_eq(judge(), M3_NOT_COMPARABLE);
    text = printed(m3_report_json, M3_REPORT_ALL);
    summary = line(text, 0);
    ck_assert_str_eq(string_of(summary, "verdict"), "not_comparable");
    ck_assert(is_null(summary, "first_divergence") && number_of(summary, "stages") == 0);
    json_decref(summary);
    free(text);
}

/* Goal:  a report that cannot be written says so.
 * Seen to fail with the stream's error not checked. */
TEST(full_disk)
{
    write_kinds();
    ck_assert_int_eq(judge(), M3_OK);
    for (int json = 0; json < 2; json++) {
        FILE *out = fopen("/dev/full", "w");
        if (out == NULL) return;
        ck_assert_int_eq((json ? m3_report_json : m3_report_text)(out, &result, M3_REPORT_ALL, &error), M3_IO);
        fclose(out);
    }
}
