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

/* Lines of text, one per message. Initialise to zero; call m3_error_free at the end. If memory is short for the first
 * line, it is cut to the room of `first`, and no other line is kept: they say less. */
enum { M3_ERROR_ROOM = 256 };
struct m3_error {
    enum m3_status status;  /* of the first line */
    int count;              /* lines added */
    int kept;               /* lines in `text`: fewer than `count` beyond M3_ERROR_LINES, or if memory is short */
    char *text;             /* NUL-terminated lines, each ended by '\n'; NULL if none is kept */
    char first[M3_ERROR_ROOM];      /* of a line without memory, ended by '\n'; otherwise "" */
    int lost;               /* lines that memory was short for */
    size_t length;
};

enum { M3_ERROR_LINES = 200 };

/* Adds one line, without its newline, and returns `status`. `what` names the file, then the thing:
 * "model.safetensors: lm_head.weight: got [3,4] F32, expected [3,5] BF16". What may steer a terminal becomes '?'
 * (printable.h). `error` may be NULL: then only the status is returned. */
__attribute__((format(printf, 3, 4))) int m3_fail(struct m3_error *error, enum m3_status status, const char *what, ...);

/* Adds the first line of `why`, if there is one, and returns `status`. */
int m3_fail_because(struct m3_error *error, enum m3_status status, const struct m3_error *why);

/* Adds the line for a failed allocation and returns M3_INTERNAL. */
int m3_fail_memory(struct m3_error *error, const char *for_what, size_t bytes);

/* Writes every line to `out`, prefixed with "m3ref: ", then the number of lines that were not kept. */
void m3_error_print(const struct m3_error *error, FILE *out);
/* The lines: `text`, or the line that memory was short for; NULL if there is none. */
const char *m3_error_lines(const struct m3_error *error);
/* Steps from line to line: *at stands on the first one at the beginning, of m3_error_lines. Returns the line and its
 * length without '\n', or NULL at the end. */
const char *m3_next_line(const char **at, size_t *length);
/* Adds the lines of `notes`, and how many were lost. */
void m3_add_notes(struct m3_error *to, const struct m3_error *notes);
/* Notes that are printed must be whole: M3_INTERNAL, with a line in `error`, if one was lost. */
int m3_notes_whole(const struct m3_error *notes, struct m3_error *error);
void m3_error_free(struct m3_error *error);

#endif
