#include "oracle/report/ledger.h"

#include "oracle/report/private/json_values.h"

static json_t *ids(const int64_t *list, int64_t width)
{
    json_t *array = json_array();
    for (int64_t i = 0; i < width; i++) m3_json_append(array, json_integer(list[i]));
    return array;
}

static json_t *id_or_null(int64_t id) { return id >= 0 ? json_integer(id) : json_null(); }

int m3_ledger_print(FILE *out, const struct m3_ledger_line *line, struct m3_error *error)
{
    const struct m3_decision *d = line->decision;
    const struct m3_certificate *c = line->certificate;
    json_t *object =
        json_pack("{s:s, s:s, s:I, s:o, s:o, s:o, s:o, s:o, s:s, s:o, s:o, s:b, s:o, s:o, s:o}",
                  "type", "decision", "tap", line->tap, "row", (json_int_t)line->row, "group", id_or_null(line->group),
                  "ids", ids(d->got, d->width), "want", ids(d->want, d->width),
                  "gap", m3_json_known(c->gap), "bound", m3_json_known(c->bound),
                  "verdict", line->tainted ? "tainted" : m3_choice_names[c->choice],
                  "scores", m3_json_text(line->scores), "bounded_by", m3_json_text(line->bounded_by),
                  "certified", c->certified,
                  "last", id_or_null(c->last), "runner_up", id_or_null(c->runner_up), "note", m3_json_text(c->fault));
    return m3_json_line(out, object, error);
}
