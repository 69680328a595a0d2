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
    const struct m3_comparison *comparison = subject->comparison;
    const char *verdict = m3_verdict_text(comparison->verdict), *at = comparison->notes.text, *line;
    const char *files[] = { m3_safetensors_path(subject->reference), m3_safetensors_path(subject->candidate) };
    size_t length;
    fputs("<properties>\n", out);
    print_property(out, "verdict", verdict, strlen(verdict));
    print_property(out, "reference", files[0], strlen(files[0]));
    print_property(out, "candidate", files[1], strlen(files[1]));
    if (comparison->divergence != NULL)
        print_property(out, "first_divergence", comparison->divergence->tap, strlen(comparison->divergence->tap));
    char *ranks = comparison->envelope.runs > 0 ? m3_ranks(comparison) : NULL;
    if (ranks != NULL) print_property(out, "envelope", ranks, strlen(ranks));
    const int missing = comparison->envelope.runs > 0 && ranks == NULL;
    free(ranks);
    for (int i = 1; (line = m3_next_note(&at, &length)) != NULL; i++) {
        char name[32];          /* distinct: readers keep one property per name */
        snprintf(name, sizeof name, "note.%d", i);
        print_property(out, name, line, length);
    }
    fputs("</properties>\n", out);
    return missing ? m3_fail_memory(error, "ranks", 0) : M3_OK;
}

static int print_case(FILE *out, const struct m3_stage *stage, struct m3_error *error)
{
    size_t group = m3_group_length(stage->tap);
    fputs("<testcase classname=\"", out);
    m3_print_markup_part(out, group > 0 ? stage->tap : "model", group > 0 ? group : strlen("model"));
    fputs("\" name=\"", out);
    m3_print_markup(out, stage->tap);
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

/* Adds a case where a suite with skipped cases, or none, would look like a pass. */
static void print_verdict_case(FILE *out, const struct m3_comparison *comparison)
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
    const struct m3_comparison *comparison = subject->comparison;
    const int64_t errors = comparison->verdict == M3_VERDICT_NOT_COMPARABLE;
    const int64_t partial = comparison->verdict == M3_VERDICT_PARTIAL;
    int64_t failures = partial;
    for (int64_t i = 0; i < comparison->count; i++)
        failures +=
            comparison->stages[i].verdict == M3_VERDICT_FAIL || comparison->stages[i].verdict == M3_VERDICT_SUSPECT;
    fprintf(out,
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n<testsuite name=\"m3ref %s\" tests=\"%" PRId64
            "\" failures=\"%" PRId64 "\" errors=\"%" PRId64 "\" skipped=\"%" PRId64 "\">\n",
            subject->command, comparison->count + errors + partial, failures, errors,
            comparison->not_judged + comparison->not_comparable);
    int status = print_properties(out, subject, error);
    for (int64_t i = 0; i < comparison->count && status == M3_OK; i++)
        status = print_case(out, &comparison->stages[i], error);
    print_verdict_case(out, comparison);
    fputs("</testsuite>\n</testsuites>\n", out);
    return status != M3_OK ? status : m3_report_end(out, "JUnit report", error);
}
