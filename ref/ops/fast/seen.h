/* Runs of keys that an attention mask does not hide. SPEC 3.4. */
#ifndef M3_OPS_FAST_SEEN_H
#define M3_OPS_FAST_SEEN_H

#include <stdint.h>

/* Moves *j to the next key before `end` that `seen` [end] does not hide, and returns how many such keys follow one
 * another from there, at most `most`; 0 if there is none. NULL hides none.
 *     for (int64_t j = 0, n; (n = m3_seen_run(seen, &j, end, most)) > 0; j += n) keys j .. j+n-1 are seen; */
static inline int64_t m3_seen_run(const unsigned char *seen, int64_t *j, int64_t end, int64_t most)
{
    while (seen && *j < end && !seen[*j]) ++*j;
    if (end - *j > most) end = *j + most;
    int64_t last = seen ? *j : end;
    while (last < end && seen[last]) last++;
    return last - *j;
}

/* How many of the first `end` keys are seen. */
static inline int64_t m3_seen_count(const unsigned char *seen, int64_t end)
{
    int64_t count = seen ? 0 : end;
    for (int64_t j = 0; seen && j < end; j++) count += seen[j] != 0;
    return count;
}

#endif
