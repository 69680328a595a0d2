/* The verdict on an answer, for people and for programs. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "io/json.h"
#include "oracle/report/private/format.h"
#include "oracle/report/private/json_values.h"
#include "oracle/judge/server/private/judge.h"

enum { SHOWN = 8 };

static void print_place(FILE *out, const struct m3_server_place *p)
{
    fprintf(out, "  %-7s position %-6" PRId64, m3_verdict_text(p->verdict), p->place);
    if (p->ids > 0)
        fprintf(out, "  %4" PRId64 " ids, %.3g from the nearest run, honest %.3g; token %d %.6g, should be %.6g",
                p->ids, p->nearest, p->honest, p->worst, p->got, p->want);
    if (p->deficit > 0) fprintf(out, "  token %d: %.3g below, %.3g allowed", p->chosen, p->deficit, p->margin);
    fputc('\n', out);
}

static void print_places(FILE *out, const struct m3_server *r, int all)
{
    int64_t shown = 0, bad = 0;
    for (int64_t i = 0; i < r->count; i++) {
        const struct m3_server_place *p = &r->places[i];
        const int is_bad = p->verdict == M3_VERDICT_FAIL || p->verdict == M3_VERDICT_SUSPECT;
        bad += is_bad;
        if (!all && (!is_bad || shown >= SHOWN || r->status == M3_OK)) continue;
        print_place(out, p);
        shown++;
    }
    if (!all && r->status != M3_OK && bad > shown)
        fprintf(out, "  .. %" PRId64 " more; --all shows every position\n", bad - shown);
}

int m3_server_text(FILE *out, const struct m3_server *r, int all, struct m3_error *error)
{
    if (m3_notes_whole(&r->notes, error)) return M3_INTERNAL;
    static const char *const names[M3_SERVER_SHARES] = { "50 %", "75 %", "90 %", "100 %" };
    fprintf(out,
            "answer    %s, %" PRId64 " tokens, %" PRId64 " of %" PRId64 " positions judged among %" PRId64
            " honest runs\n",
            r->form, r->tokens, r->judged, r->stages, r->runs);
    for (int i = 0; r->by && i < M3_SERVER_SHARES; i++)
        fprintf(out, "nearest   %5s of the positions: within %.3g, honest runs at most %.3g\n", names[i], r->nearest[i],
                r->nearest_largest[i]);
    if (r->by)
        fprintf(out,
                "ranks     another most likely token at %" PRId64 " positions, at %" PRId64
                " of them than any honest run\n",
                r->rank_changes, r->rank_unexplained);
    if (r->generated > 0)
        fprintf(out, "tokens    %" PRId64 " judged, %" PRId64 " not allowed", r->generated, r->forbidden);
    if (r->generated > 0 && !isnan(r->z)) fprintf(out, "; likelihood z %+.2f", r->z);
    if (r->generated > 0) fputc('\n', out);
    if (r->z_toward > 0)
        fprintf(out, "toward    %s: %.0f %% of the way, %.1f standard deviations of honest runs\n",
                r->mistake ? r->mistake : r->reading, 100 * r->share, r->z_toward);
    print_places(out, r, all);
    m3_print_notes(out, &r->notes, all);
    fprintf(out, "%s: %s\n", m3_verdict_name(r->verdict), r->sentence);
    return m3_report_end(out, "report", error);
}

static json_t *place_json(const struct m3_server_place *p)
{
    return json_pack("{s:s, s:I, s:b, s:o, s:s, s:I, s:o, s:o, s:o, s:o, s:o, s:f, s:f}", "type", "position",
                     "position", (json_int_t)p->place, "generated", p->generated, "token",
                     p->chosen < 0 ? json_null() : json_integer(p->chosen), "verdict", m3_verdict_name(p->verdict),
                     "ids", (json_int_t)p->ids, "nearest", m3_json_known(p->nearest), "honest",
                     m3_json_known(p->honest), "worst", p->worst < 0 ? json_null() : json_integer(p->worst), "got",
                     m3_json_known(p->got), "want", m3_json_known(p->want), "deficit", p->deficit, "margin", p->margin);
}

static json_t *quantiles(const double *numbers, int is_known)
{
    static const char *const names[M3_SERVER_SHARES] = { "50", "75", "90", "100" };
    json_t *object = json_object();
    for (int i = 0; object && is_known && i < M3_SERVER_SHARES; i++)
        m3_json_set(object, names[i], m3_json_known(numbers[i]));
    return object;
}

static json_t *summary(const struct m3_server *r)
{
    json_t *object = json_pack(
        "{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o}", "type", "summary", "verdict",
        m3_verdict_name(r->verdict), "form", r->form, "tokens", (json_int_t)r->tokens, "stages", (json_int_t)r->stages,
        "judged", (json_int_t)r->judged, "failed", (json_int_t)r->failed, "suspect", (json_int_t)r->suspect, "runs",
        (json_int_t)r->runs, "first_position", r->first ? json_integer(r->first->place) : json_null(), "nearest",
        quantiles(r->nearest, r->by != NULL), "threshold", quantiles(r->nearest_largest, r->by != NULL), "quotient",
        m3_json_known(r->by ? r->quotient : NAN), "decided_by", m3_json_text(r->by));
    return m3_json_join(
        object,
        json_pack("{s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:f, s:f, s:i, s:o, s:s}", "rank_changes",
                  (json_int_t)r->rank_changes, "rank_unexplained", (json_int_t)r->rank_unexplained, "generated",
                  (json_int_t)r->generated, "forbidden", (json_int_t)r->forbidden, "z", m3_json_known(r->z), "mistake",
                  m3_json_text(r->mistake), "reading", m3_json_text(r->reading[0] ? r->reading : NULL), "temperature",
                  r->temperature > 0 ? m3_json_number(r->temperature) : json_null(), "z_toward", r->z_toward, "share",
                  r->share, "tried", r->tried, "notes", m3_json_notes(&r->notes), "sentence", r->sentence));
}

int m3_server_json(FILE *out, const struct m3_server *r, struct m3_error *error)
{
    int status = m3_notes_whole(&r->notes, error);
    for (int64_t i = 0; i < r->count && !status; i++) status = m3_json_line(out, place_json(&r->places[i]), error);
    if (!status) status = m3_json_line(out, summary(r), error);
    return status ? status : m3_json_end(out, error);
}
