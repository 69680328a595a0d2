#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "io/markup.h"
#include "model/taps.h"
#include "oracle/judge/logits.h"
#include "oracle/report/private/format.h"
#include "oracle/report/private/html.h"

void m3_html_verdict(FILE *out, enum m3_verdict verdict)
{
    static const char *const signs[] = { "&#10003;", "!", "&#10007;", "&#8211;", "?", "&#8211;" };
    fprintf(out, "<span class=\"verdict v%d\">%s %s</span>", (int)verdict, signs[verdict], m3_verdict_text(verdict));
}

void m3_html_note(FILE *out, const char *text) { fprintf(out, "<p class=\"quiet\">%s</p>\n", text); }

int m3_html_finding(FILE *out, const struct m3_finding *stage, struct m3_error *error)
{
    char *finding = m3_finding(stage);
    if (finding == NULL) return m3_fail_memory(error, stage->tap, 0);
    m3_print_markup(out, finding);
    free(finding);
    return M3_OK;
}

/* The judgement whose findings have tensors of both sides. */
static const struct m3_judgement *compared(const struct m3_html *html)
{
    const struct m3_judgement *all = html->subject->judgement;
    return all->compared != NULL ? all->compared : all;
}

const struct m3_finding *m3_html_numbers(const struct m3_finding *f) { return f->compared != NULL ? f->compared : f; }

struct m3_matched m3_html_matched(const struct m3_html *html, const struct m3_finding *stage)
{
    const struct m3_judgement *all = compared(html);
    const struct m3_finding *numbers = m3_html_numbers(stage);
    const int64_t b = stage->in_sequence - 1;
    struct m3_matched matched = { .reference = b < 0 ? &html->reference : &all->sides[2 * b],
                                  .candidate = b < 0 ? &html->candidate : &all->sides[2 * b + 1],
                                  .want = numbers->reference,
                                  .got = numbers->candidate,
                                  .tap = (int)stage->id,
                                  .layer = stage->layer,
                                  .taint = b < 0 ? all->taint : all->parts[b].taint };
    if (numbers->logits) matched.candidate = &numbers->logits->side;
    return matched;
}

static int print_ranks(FILE *out, const struct m3_judgement *comparison, struct m3_error *error)
{
    char *ranks = m3_ranks(comparison);
    if (ranks == NULL) return m3_fail_memory(error, "ranks", 0);
    fputs("<p>Envelope: ", out);
    m3_print_markup(out, ranks);
    fputs(".</p>\n", out);
    free(ranks);
    return M3_OK;
}

static void print_item(FILE *out, const char *term, const char *text)
{
    if (text == NULL || *text == '\0') return;
    fprintf(out, "<dt>%s</dt><dd>", term);
    m3_print_markup(out, text);
    fputs("</dd>\n", out);
}

/* What is most likely the cause, and how to see it again. */
static void print_cause(const struct m3_html *html)
{
    const struct m3_report_cause *cause = &html->subject->cause;
    FILE *out = html->out;
    if (cause->sentence != NULL) {
        fputs("<p class=\"sentence\">", out);
        m3_print_markup(out, cause->sentence);
        fputs("</p>\n", out);
    }
    fputs("<dl>\n", out);
    if (cause->culprit != NULL) {
        fputs("<dt>first wrong operator</dt><dd><a href=\"#stage-", out);
        m3_print_markup(out, cause->culprit);
        fputs("\">", out);
        m3_print_markup(out, cause->culprit);
        fputs("</a>", out);
        if (cause->operator_name != NULL) fprintf(out, ", made by %s", cause->operator_name);
        if (cause->section != NULL) fputs("; see ", out), m3_html_link(html, cause->section);
        fputs("</dd>\n", out);
    }
    print_item(out, "known mistake that explains it", cause->mistake);
    print_item(out, "what this mistake is", cause->mistake_words);
    print_item(out, "reading of the model by which it passes", cause->reading);
    print_item(out, "word of the profile with which it passes", cause->profile_word);
    if (cause->repeat != NULL) {
        fputs("<dt>to repeat it</dt><dd><pre>", out);
        m3_print_markup(out, cause->repeat);
        fputs("</pre></dd>\n", out);
    }
    fputs("</dl>\n", out);
}

static int print_top(const struct m3_html *html, struct m3_error *error)
{
    const struct m3_judgement *c = html->subject->judgement;
    enum m3_verdict verdict = c->verdict;
    int status = M3_OK;
    fprintf(html->out, "<div class=\"top v%d\">\n<h1>", (int)verdict);
    m3_html_verdict(html->out, verdict);
    fputs("</h1>\n", html->out);
    print_cause(html);
    if (c->first != NULL) {
        fprintf(html->out, "<p><a href=\"#stage-%s\"><strong>", c->first->tap);
        m3_print_divergence(html->out, c);
        fputs("</strong></a></p>\n<p class=\"bits\">", html->out);
        status = m3_html_finding(html->out, c->first, error);
        fputs("</p>\n", html->out);
    }
    fputs("<p>", html->out);
    m3_print_summary(html->out, c);
    fputs(".</p>\n", html->out);
    if (status == M3_OK && c->envelope.runs > 0) status = print_ranks(html->out, c, error);
    fputs("</div>\n", html->out);
    return status;
}

/* Prints the metadata of the two files. */
static void print_files(const struct m3_html *html)
{
    static const char *const keys[] = {
        "producer", "precision", "command", "semantics", "model_sha256", "case_sha256"
    };
    const struct m3_safetensors *files[] = { html->subject->reference, html->subject->candidate };
    FILE *out = html->out;
    fputs("<table class=\"files\"><thead><tr><th></th><th>reference</th><th>candidate</th></tr></thead>\n<tbody>\n"
          "<tr><td class=\"quiet\">file</td>",
          out);
    for (int side = 0; side < 2; side++) {
        fputs("<td><code>", out);
        m3_print_markup(out, files[side] != NULL ? m3_safetensors_path(files[side]) : "-");
        fputs("</code></td>", out);
    }
    fputs("</tr>\n", out);
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
        fprintf(out, "<tr><td class=\"quiet\">%s</td>", keys[k]);
        for (int side = 0; side < 2; side++) {
            const char *value = files[side] != NULL ? m3_safetensors_metadata(files[side], keys[k]) : NULL;
            fputs("<td><code>", out);
            m3_print_markup(out, value != NULL ? value : "-");
            fputs("</code></td>", out);
        }
        fputs("</tr>\n", out);
    }
    fputs("</tbody></table>\n", out);
}

static void print_notes(const struct m3_html *html)
{
    const char *at = html->subject->judgement->notes.text, *line;
    size_t length;
    if (at == NULL || *at == '\0') return;
    fputs("<h2>Notes</h2>\n<ul>\n", html->out);
    while ((line = m3_next_line(&at, &length)) != NULL) {
        fputs("<li>", html->out);
        m3_print_markup_part(html->out, line, length);
        fputs("</li>\n", html->out);
    }
    fputs("</ul>\n", html->out);
}

static int print_page(struct m3_html *html, struct m3_error *error)
{
    const struct m3_report_subject *subject = html->subject;
    const int has_sides = !subject->only_findings && !compared(html)->sides;
    int status = has_sides ? m3_side_begin(&html->reference, subject->reference, error) : M3_OK;
    if (status == M3_OK && has_sides) status = m3_side_begin(&html->candidate, subject->candidate, error);
    if (status != M3_OK) return status;
    char title[128], line[128];
    snprintf(title, sizeof title, "m3ref %s: %s", subject->command, m3_verdict_text(subject->judgement->verdict));
    snprintf(line, sizeof line, "m3ref %s", subject->command);
    m3_page_begin(html->out, title, line);
    status = print_top(html, error);
    print_files(html);
    print_notes(html);
    if (status == M3_OK) status = m3_html_stages(html, error);
    if (status == M3_OK && !subject->only_findings) status = m3_html_heat_maps(html, error);
    if (status == M3_OK && !subject->only_findings) status = m3_html_selections(html, error);
    m3_html_sections(html);
    m3_page_end(html->out);
    return status;
}

int m3_report_html(FILE *out, const struct m3_report_subject *subject, struct m3_error *error)
{
    struct m3_html html = { .out = out, .subject = subject };
    if (m3_report_whole(&subject->judgement->notes, error)) return M3_INTERNAL;
    int status = m3_graph_record_every_tap(&html.every_tap, error);
    if (status == M3_OK) status = print_page(&html, error);
    m3_graph_free(&html.every_tap);
    return status != M3_OK ? status : m3_report_end(out, "HTML report", error);
}
