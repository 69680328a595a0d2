/* A finding in the words of the last line of a report: its place with the names of its dimensions, and its pattern. */
#include <inttypes.h>
#include <string.h>

#include "base/text.h"
#include "oracle/judge/finding/finding.h"

static const char *letters_of(const struct m3_finding *f)
{
    const char *letters = f->letters ? f->letters : f->id != M3_TAPS ? m3_tap_table[f->id].shape : "";
    return (int)strlen(letters) == f->reference->rank ? letters : NULL;
}

void m3_finding_say_place(struct m3_text *w, const struct m3_finding *f)
{
    const char *letters = f->rank > 0 ? letters_of(f) : NULL;
    if (f->rank > 0 && f->in_sequence > 0) m3_text_add(w, "sequence %" PRId64 ", ", f->in_sequence - 1);
    for (int i = 0; i < f->rank; i++) {
        const char *name = letters ? m3_axis_name(letters, i) : NULL;
        m3_text_add(w, i > 0 ? ", " : "");
        if (name || letters) m3_text_add(w, "%.*s ", name ? (int)strlen(name) : 1, name ? name : letters + i);
        m3_text_add(w, "%" PRId64, f->index[i]);
    }
}

void m3_finding_say_rows(struct m3_text *w, const struct m3_finding *f)
{
    /* Errors that are large enough by themselves are said. */
    const int is_large = !(f->row_error <= 2 * f->row_error_largest);
    if (!is_large && f->row_nearest * f->row_error_largest > f->row_error * f->row_nearest_largest)
        m3_text_add(w,
                    "the 75%% quantile of the rows' distances to the nearest honest implementation is %.3g, between "
                    "honest implementations at most %.3g",
                    f->row_nearest, f->row_nearest_largest);
    else
        m3_text_add(w, "the 75%% quantile of the rows' errors is %.3g, in honest implementations at most %.3g",
                    f->row_error, f->row_error_largest);
}

/* ---- the pattern */

/* Is the same wrong in another layer? */
static int is_alike(const struct m3_finding *a, const struct m3_finding *b)
{
    if (!m3_finding_is_wrong(b)) return 0;
    return strcmp(a->pattern.where, b->pattern.where) == 0 &&
           (a->pattern.where[0] || strcmp(a->pattern.what, b->pattern.what) == 0);
}

/* How many of the layers have it, where each is judged by its own inputs. */
static void say_layers(struct m3_text *w, const struct m3_judgement *all, const struct m3_finding *f)
{
    int64_t layers = 0, alike = 0;
    const char *join = w->length > 0 ? ", " : "";
    for (int64_t i = 0; i < all->count && all->is_recomputed; i++) {
        const struct m3_finding *other = &all->findings[i];
        if (other->id != f->id || (other->layer >= M3_MTP_LAYER) != (f->layer >= M3_MTP_LAYER)) continue;
        layers++, alike += is_alike(f, other);
    }
    /* Honest implementations judge a layer by more than its own inputs. */
    if (alike < 2 || (alike < layers && f->judged_by == M3_BY_ROWS)) return;
    if (alike == layers) m3_text_add(w, "%sin every layer", join);
    else m3_text_add(w, "%sin %" PRId64 " of %" PRId64 " layers", join, alike, layers);
}

void m3_judgement_say_pattern(struct m3_text *w, const struct m3_judgement *all, const struct m3_finding *f)
{
    char text[sizeof f->pattern + sizeof f->note + 64] = "";
    struct m3_text own = { text, sizeof text, 0 };
    if (!f->pattern.where[0] && !f->pattern.what[0]) {
        if (f->made_by && f->rank > 0 && !f->selection) m3_text_add(w, "%s", f->note);
        return;
    }
    if (f->pattern.where[0]) m3_text_add(&own, "only %s", f->pattern.where);
    say_layers(&own, all, f);
    const char *join = own.length > 0 ? "; " : "";
    if (f->pattern.what[0])
        m3_text_add(&own, "%s%s%s", join, f->selection ? "" : "the wrong values are ", f->pattern.what);
    else if (f->made_by && f->rank > 0 && !f->selection && f->note[0]) m3_text_add(&own, "%s%s", join, f->note);
    m3_text_add(w, "%s", text);
}
