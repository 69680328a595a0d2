/* The return value of every function that can fail, and the messages of a failure.
 *
 * A status is also the exit status of the program. A function that fails adds at least one line to the error it
 * received and returns the status; only cli/ prints. */
#ifndef M3_BASE_STATUS_H
#define M3_BASE_STATUS_H

#include <stddef.h>
#include <stdio.h>

enum m3_status {
    M3_OK = 0,
    M3_WRONG = 1,           /* a result is wrong, or the model's own arithmetic produced NaN */
    M3_SUSPECT = 2,
    M3_NOT_COMPARABLE = 3,
    M3_USAGE = 64,          /* wrong usage, or a value on the command line out of range */
    M3_BAD_INPUT = 65,      /* a file has contents that are not allowed */
    M3_ABSENT = 66,         /* a named file or shard does not exist */
    M3_UNAVAILABLE = 69,    /* device or plug-in */
    M3_INTERNAL = 70,       /* also: out of memory */
    M3_IO = 74,
};

/* Lines of text, one per message. Initialise to zero; call m3_error_free at the end. */
struct m3_error {
    enum m3_status status;  /* of the first line */
    int count;              /* lines added */
    int kept;               /* lines in `text`: fewer than `count` beyond M3_ERROR_LINES, or if memory ran out */
    char *text;             /* NUL-terminated lines, each ended by '\n'; NULL if none is kept */
    size_t length;
};

enum { M3_ERROR_LINES = 200 };

/* Adds one line, without its newline, and returns `status`. `what` names the file, then the thing:
 * "model.safetensors: lm_head.weight: got [3,4] F32, expected [3,5] BF16". Control characters in it become '?'.
 * `error` may be NULL: then only the status is returned. */
__attribute__((format(printf, 3, 4))) int m3_fail(struct m3_error *error, enum m3_status status, const char *what, ...);

/* Adds the line for a failed allocation and returns M3_INTERNAL. */
int m3_fail_memory(struct m3_error *error, const char *for_what, size_t bytes);

/* Writes every line to `out`, prefixed with "m3ref: ", then the number of lines that were not kept. */
void m3_error_print(const struct m3_error *error, FILE *out);
void m3_error_free(struct m3_error *error);

#endif
