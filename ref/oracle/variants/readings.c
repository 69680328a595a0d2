#include "oracle/variants/readings.h"

enum { MOST_SINGLE = 40 };

static int can_show(const struct m3_other_reading *other, const struct m3_setting *s, const struct m3_shows_at *at)
{
    enum m3_tap tap;
    int64_t layer;
    char name[96];
    if (at->tap) return m3_reading_shows(other, at->tap);
    for (int64_t i = 0; m3_trace_tap(s, i, &tap, &layer); i++) {
        if (at->is_of_logits && m3_mtp_module_of(layer) >= 0) continue;
        if (!m3_tap_name(name, sizeof name, tap, layer) && m3_reading_shows(other, name)) return 1;
    }
    return 0;
}

/* Without noise its seed changes nothing. */
static int changes_something(const struct m3_semantics *other, const struct m3_semantics *own)
{
    return other->jitter != 0 || own->jitter != 0 || other->jitter_seed == own->jitter_seed;
}

int m3_list_readings(struct m3_semantics others[M3_MOST_READINGS], const struct m3_semantics *own,
                     const struct m3_setting *setting, const struct m3_shows_at *at)
{
    struct m3_other_reading single[MOST_SINGLE], other;
    int singles = 0, count = 0;
    for (int i = 0; singles < MOST_SINGLE && m3_other_reading(&other, own, i); i++)
        if (can_show(&other, setting, at)) single[singles++] = other;
    for (int i = 0; i < singles; i++)
        if (changes_something(&single[i].semantics, own)) others[count++] = single[i].semantics;
    for (int i = 0; i < singles; i++)
        for (int j = i + 1; j < singles && count < M3_MOST_READINGS; j++) {
            other = single[i];
            if (other.field == single[j].field) continue;
            /* At one tap any two may show together. */
            if (!at->tap && !m3_readings_belong(&other, &single[j])) continue;
            m3_readings_join(&other, &single[j]);
            if (changes_something(&other.semantics, own)) others[count++] = other.semantics;
        }
    return count;
}
