/* All reports about two dumps, whose names and strings may be hostile. Nothing of them may become markup. */
#include <stdlib.h>
#include <string.h>

#include "compare.h"
#include "oracle/report/report.h"
#include "world.h"

const int fuzz_parts = 2;
void fuzz_begin(void) { fuzz_world(); }

/* An element of a report has one of the names that reports use. */
static void check_markup(const char *text)
{
    for (const char *at = text; (at = strstr(at, "<hostile")); at++) fuzz_broken("a name became an element");
}

static int report(const struct m3_report_subject *subject, struct m3_error *error)
{
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    if (!out) fuzz_broken("no stream");
    int status = m3_report_junit(out, subject, error);
    if (!status) status = m3_report_html(out, subject, error);
    fclose(out);
    if (!status) check_markup(text);
    free(text);
    out = open_memstream(&text, &size);
    if (!out) fuzz_broken("no stream");
    for (int extent = M3_REPORT_SHORT; !status && extent <= M3_REPORT_FAILING; extent++)
        status = m3_report_text(out, subject->judgement, (enum m3_report_extent)extent, error);
    if (!status) status = m3_report_json(out, subject->judgement, M3_REPORT_ALL, error);
    fclose(out);
    free(text);
    return status;
}

void fuzz_one(const struct fuzz_bytes *parts)
{
    struct m3_error error = { 0 }, failed = { 0 };
    struct m3_safetensors *files[2];
    struct m3_judgement result;
    const struct m3_compare_options options = { .profile = fuzz_world()->profile, .force = 1 };
    int status = open_two(files, parts, &error);
    if (!status) {
        status = m3_compare(&result, files[0], files[1], &options, &error);
        const struct m3_report_subject subject = {
            .judgement = &result, .reference = files[0], .candidate = files[1], .command = "compare", .spec = "S"
        };
        if (status == M3_OK || status == M3_NOT_COMPARABLE) fuzz_check(report(&subject, &failed), &failed);
        m3_judgement_free(&result);
    }
    close_two(files);
    fuzz_check(status, &error);
}
