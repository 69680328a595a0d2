/* "-" as a file name: standard input or output, through a temporary file, because files of tensors are mapped. */
#ifndef M3_CLI_STANDARD_H
#define M3_CLI_STANDARD_H

#include "io/temporary.h"

struct m3_standard {
    int is_standard;
    const char *path;           /* to open */
    const char *name;           /* for messages: "standard input", or the path */
    struct m3_nameless own;
};

/* Copies standard input to a temporary file if `given` is "-". Call m3_standard_end in any case. */
int m3_standard_input(struct m3_standard *file, const char *given, struct m3_error *error);
/* A path to write to; m3_standard_send copies it to standard output if `given` is "-". */
int m3_standard_output(struct m3_standard *file, const char *given, struct m3_error *error);
int m3_standard_send(const struct m3_standard *file, struct m3_error *error);
/* Gives up the temporary file. */
void m3_standard_end(struct m3_standard *file);

#endif
