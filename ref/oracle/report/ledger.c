#include "oracle/report/ledger.h"

#include "oracle/report/private/format.h"
#include "oracle/report/private/json_values.h"

static json_t *ids(const int64_t *list, int64_t width)
{
    json_t *array = json_array();
    for (int64_t i = 0; i < width; i++) m3_json_append(array, json_integer(list[i]));
    return array;
}

static json_t *id_or_null(int64_t id) { return id >= 0 ? json_integer(id) : json_null(); }

void m3_ledger_begin(void *ledger, int64_t sequence) { ((struct m3_ledger *)ledger)->sequence = sequence; }

int m3_ledger_write(void *ledger, const struct m3_judged_decision *judged, struct m3_error *error)
{
    const struct m3_ledger *lines = ledger;
    const struct m3_decision *d = judged->decision;
    const struct m3_certificate *c = judged->certificate;
    json_t *object = json_pack(
        "{s:s, s:s, s:I, s:o, s:o, s:o, s:o, s:o, s:s, s:o, s:o, s:b, s:o, s:o, s:o}", "type", "decision", "tap",
        judged->tap, "row", (json_int_t)judged->row, "group", id_or_null(judged->group), "ids", ids(d->got, d->width),
        "want", ids(d->want, d->width), "gap", m3_json_known(c->gap), "bound", m3_json_known(c->bound), "verdict",
        judged->tainted ? "tainted" : m3_choice_text(c->choice), "scores", m3_json_text(judged->scores), "bounded_by",
        m3_json_text(judged->bounded_by), "certified", c->certified, "last", id_or_null(c->last), "runner_up",
        id_or_null(c->runner_up), "note", m3_json_text(c->fault));
    if (lines->sequence >= 0) m3_json_set(object, "sequence", json_integer((json_int_t)lines->sequence));
    return m3_json_line(lines->out, object, error);
}
