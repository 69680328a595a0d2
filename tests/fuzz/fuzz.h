/* What a fuzz target is, and what all of them share.
 *
 * A target is one file, targets/NAME.c, with the three definitions below. It is linked with entry.c and files.c, and
 * with libFuzzer and mutate.c (`make fuzz`) or with replay.c, which runs the kept inputs in `make test`. */
#ifndef M3_FUZZ_FUZZ_H
#define M3_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct fuzz_bytes {
    const uint8_t *bytes;
    size_t size;
};

/* ---- defined by the target */

/* The number of files in an input. One: the input is the file. More: each file but the last follows its size, 4 bytes,
 * little-endian. */
extern const int fuzz_parts;
/* Called once, before the first input. */
void fuzz_begin(void);
/* Gives the files to a reader. */
void fuzz_one(const struct fuzz_bytes *parts);

/* ---- entry.c */

enum { FUZZ_MOST_PARTS = 4 };
/* Finds the files of an input. A size that is larger than what is left means all of it. */
void fuzz_split(struct fuzz_bytes parts[FUZZ_MOST_PARTS], const uint8_t *input, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size);

/* Ends the process unless the contents of a file may lead to this status: an internal error or an I/O error is a
 * mistake of the reader, and so is a failure without a message, or a message without a failure. Frees the error. */
void fuzz_check(int status, struct m3_error *error);
/* Ends the process with a message: something that the reader promises does not hold. */
__attribute__((noreturn)) void fuzz_broken(const char *what);

/* Takes a value that was read, so that no compiler leaves the reading out. */
void fuzz_see(double value);

/* ---- files.c */

/* Puts contents into a file in memory, which keeps its name in the target's folder ("case.json", "video/0.png"), and
 * returns its path. The folder lies in TMPDIR, or else in /dev/shm, and goes at exit; the file is a link to memory. */
const char *fuzz_file(const char *name, struct fuzz_bytes contents);
/* The path of the folder, or of a name in it. Valid until eight more calls. */
const char *fuzz_path(const char *name);
/* The same for a file that a reader writes: empty, in memory. */
const char *fuzz_output(const char *name);

#endif
