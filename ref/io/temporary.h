/* Files without a name: nothing of them remains, however the program ends. */
#ifndef M3_IO_TEMPORARY_H
#define M3_IO_TEMPORARY_H

#include "base/status.h"

struct m3_nameless {
    int fd;                     /* keeps the file; -1: none */
    char path[32];              /* opens it, in this process and in its children, as long as `fd` is open */
};

/* Creates an empty file. It is in the folder of `beside`; if that is NULL or a nameless file, in TMPDIR or /tmp. Close
 * it in any case. M3_IO, M3_INTERNAL. */
int m3_temporary_nameless(struct m3_nameless *file, const char *beside, struct m3_error *error);
void m3_nameless_close(struct m3_nameless *file);

#endif
