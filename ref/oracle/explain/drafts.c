#include <inttypes.h>
#include <stdio.h>

#include "oracle/explain/private/explaining.h"

/* The token of the largest logit; the lower id on a tie. */
static int64_t best(const float *logits, int64_t V)
{
    int64_t id = 0;
    for (int64_t v = 1; v < V; v++)
        if (logits[v] > logits[id]) id = v;
    return id;
}

static void show(struct m3_explaining *e, const char *who, struct m3_explained_table *table, const float *logits,
                 int64_t draft, int64_t own)
{
    m3_cell_text(e, table, "%s", who);
    m3_cell_int(e, table, best(logits, e->config->V));
    m3_cell_float(e, table, (double)logits[draft]);
    m3_cell_float(e, table, (double)logits[own]);
}

void m3_explain_draft(struct m3_explaining *e)
{
    const char *const heads[] = { "", "its token", "logit of the draft", "logit of the main model's token" };
    const struct m3_case *c = e->how->the_case;
    const int64_t V = e->config->V, m = m3_mtp_module_of(e->layer), before = e->row + m + 1, place = before + 1;
    const float *module = m3_kept_row(e, M3_TAP_MTP_LOGITS, e->layer, e->row);
    const float *main = m3_kept_row(e, M3_TAP_LOGITS, -1, before);
    if (!module || !main) return;
    const int64_t draft = best(module, V), own = best(main, V);
    struct m3_explained_table *table = m3_table(e, 4, heads);
    if (table)
        snprintf(table->title, sizeof table->title, "the draft for place %" PRId64 ", and the main model's own token",
                 place);
    show(e, "module", table, module, draft, own);
    show(e, "main model", table, main, draft, own);
    m3_explain_note(e,
                    "Module %" PRId64 " joins the hidden state of row %" PRId64 " with token %" PRId64 " (id %d), and "
                    "drafts the token at place %" PRId64 ": id %" PRId64 ".",
                    m, e->row, before, c->ids[before], place, draft);
    if (draft == own)
        m3_explain_note(e,
                        "The main model gives the same id there, at row %" PRId64
                        " of logits: greedy decoding accepts the "
                        "draft, if those of the modules before it are accepted too.",
                        before);
    else
        m3_explain_note(e,
                        "The main model gives id %" PRId64 " there, at row %" PRId64
                        " of logits, by %.9g: the draft is "
                        "refused, and with it those of later modules.",
                        own, before, (double)main[own] - (double)main[draft]);
    if (place < c->T) m3_explain_note(e, "The case has id %d at place %" PRId64 ".", c->ids[place], place);
}
