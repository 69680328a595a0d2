/* How far long work is, told to whoever wants to know. */
#ifndef M3_BASE_PROGRESS_H
#define M3_BASE_PROGRESS_H

#include <stdint.h>

/* `what` is counted: "layer", "honest run"; part `done` of `all`, from 0, begins. Or it is in bytes, "bytes written", and
 * so many are done. */
struct m3_progress {
    void (*tell)(void *self, const char *what, int64_t done, int64_t all); /* NULL: nobody wants to */
    void *self;
};

/* progress NULL is fine. */
static inline void m3_tell(const struct m3_progress *progress, const char *what, int64_t done, int64_t all)
{
    if (progress && progress->tell) progress->tell(progress->self, what, done, all);
}

#endif
