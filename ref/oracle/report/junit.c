#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "io/markup.h"
#include "oracle/report/private/format.h"
#include "oracle/report/report.h"

static void print_property(FILE *out, const char *name, const char *value, size_t length)
{
    fprintf(out, "<property name=\"%s\" value=\"", name);
    m3_print_markup_part(out, value, length);
    fputs("\"/>\n", out);
}

static int print_properties(FILE *out, const struct m3_report_subject *subject, struct m3_error *error)
{
    const struct m3_judgement *comparison = subject->judgement;
    if (m3_report_whole(&comparison->notes, error)) return M3_INTERNAL;
    const char *verdict = m3_verdict_text(comparison->verdict), *at = comparison->notes.text, *line;
    const struct m3_report_cause *cause = &subject->cause;
    const struct {
        const char *name, *text;
    } properties[] = {
        { "verdict", verdict },
        { "reference", subject->reference != NULL ? m3_safetensors_path(subject->reference) : NULL },
        { "candidate", m3_safetensors_path(subject->candidate) },
        { "first_divergence", comparison->first != NULL ? comparison->first->tap : NULL },
        { "sentence", cause->sentence },
        { "culprit", cause->culprit },
        { "mistake", cause->mistake },
        { "reading", cause->reading },
        { "profile_word", cause->profile_word },
        { "command", cause->repeat },
    };
    size_t length;
    fputs("<properties>\n", out);
    for (size_t i = 0; i < sizeof properties / sizeof *properties; i++)
        if (properties[i].text != NULL && *properties[i].text != '\0')
            print_property(out, properties[i].name, properties[i].text, strlen(properties[i].text));
    char *ranks = comparison->envelope.runs > 0 ? m3_ranks(comparison) : NULL;
    if (ranks != NULL) print_property(out, "envelope", ranks, strlen(ranks));
    const int missing = comparison->envelope.runs > 0 && ranks == NULL;
    free(ranks);
    for (int i = 1; (line = m3_next_line(&at, &length)) != NULL; i++) {
        char name[32];          /* distinct: readers keep one property per name */
        snprintf(name, sizeof name, "note.%d", i);
        print_property(out, name, line, length);
    }
    fputs("</properties>\n", out);
    return missing ? m3_fail_memory(error, "ranks", 0) : M3_OK;
}

/* <testcase classname="layers.3" name="layers.3.mid", without its end. */
static void print_name(FILE *out, const char *tap)
{
    size_t group = m3_group_length(tap);
    fputs("<testcase classname=\"", out);
    m3_print_markup_part(out, group > 0 ? tap : "model", group > 0 ? group : strlen("model"));
    fputs("\" name=\"", out);
    m3_print_markup(out, tap);
}

static int print_case(FILE *out, const struct m3_finding *stage, struct m3_error *error)
{
    print_name(out, stage->tap);
    if (stage->verdict == M3_VERDICT_PASS) {
        fputs("\"/>\n", out);
        return M3_OK;
    }
    char *finding = m3_finding(stage);
    if (finding == NULL) return m3_fail_memory(error, stage->tap, 0);
    if (stage->verdict == M3_VERDICT_FAIL || stage->verdict == M3_VERDICT_SUSPECT)
        fprintf(out, "\"><failure type=\"%s\" message=\"", m3_verdict_text(stage->verdict));
    else fprintf(out, "\"><skipped message=\"%s: ", m3_verdict_text(stage->verdict));
    m3_print_markup(out, finding);
    fputs("\"/></testcase>\n", out);
    free(finding);
    return M3_OK;
}

static void print_missing(FILE *out, const char *tap)
{
    print_name(out, tap);
    fputs("\"><skipped message=\"missing: the candidate does not hold this tap\"/></testcase>\n", out);
}

/* Adds a case where a suite with skipped cases, or none, would look like a pass. */
static void print_verdict_case(FILE *out, const struct m3_judgement *comparison)
{
    if (comparison->verdict == M3_VERDICT_PARTIAL)
        fprintf(out,
                "<testcase classname=\"compare\" name=\"judged\"><failure type=\"partial\" message=\"stages that "
                "nothing could judge: %" PRId64 "\"/></testcase>\n",
                comparison->unjudged);
    if (comparison->verdict != M3_VERDICT_NOT_COMPARABLE) return;
    fputs("<testcase classname=\"compare\" name=\"comparable\"><error type=\"not comparable\" message=\"", out);
    if (comparison->count == 0) fputs("nothing was compared", out);
    else if (comparison->judged == 0) fputs("no tap could be judged", out);
    else fprintf(out, "taps that are not comparable: %" PRId64, comparison->not_comparable);
    fputs("\"/></testcase>\n", out);
}

int m3_report_junit(FILE *out, const struct m3_report_subject *subject, struct m3_error *error)
{
    const struct m3_judgement *comparison = subject->judgement;
    const int64_t errors = comparison->verdict == M3_VERDICT_NOT_COMPARABLE;
    const int64_t partial = comparison->verdict == M3_VERDICT_PARTIAL;
    const int64_t missing = comparison->missing_taps != NULL ? comparison->missing : 0;
    int64_t failures = partial;
    for (int64_t i = 0; i < comparison->count; i++)
        failures +=
            comparison->findings[i].verdict == M3_VERDICT_FAIL || comparison->findings[i].verdict == M3_VERDICT_SUSPECT;
    fprintf(out,
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n<testsuite name=\"m3ref %s\" tests=\"%" PRId64
            "\" failures=\"%" PRId64 "\" errors=\"%" PRId64 "\" skipped=\"%" PRId64 "\">\n",
            subject->command, comparison->count + missing + errors + partial, failures, errors,
            comparison->not_judged + comparison->not_comparable + missing);
    int status = print_properties(out, subject, error);
    for (int64_t i = 0; i < comparison->count && status == M3_OK; i++)
        status = print_case(out, &comparison->findings[i], error);
    for (int64_t i = 0; i < missing; i++) print_missing(out, comparison->missing_taps[i]);
    print_verdict_case(out, comparison);
    fputs("</testsuite>\n</testsuites>\n", out);
    return status != M3_OK ? status : m3_report_end(out, "JUnit report", error);
}
