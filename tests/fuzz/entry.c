#include <fcntl.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fuzz.h"
#include "io/json.h"

void fuzz_split(struct fuzz_bytes parts[FUZZ_MOST_PARTS], const uint8_t *input, size_t size)
{
    for (int i = 0; i < fuzz_parts; i++) {
        size_t length = size;
        if (i + 1 < fuzz_parts && size >= 4) {
            length = (size_t)input[0] | (size_t)input[1] << 8 | (size_t)input[2] << 16 | (size_t)input[3] << 24;
            input += 4;
            size -= 4;
            if (length > size) length = size;
        }
        parts[i] = (struct fuzz_bytes){ input, length };
        input += length;
        size -= length;
    }
}

/* Reports are written, but nobody reads them. */
static void discard_output(void)
{
    int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (nowhere < 0 || dup2(nowhere, STDOUT_FILENO) < 0) fuzz_broken("standard output cannot be discarded");
    close(nowhere);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    omp_set_num_threads(1);         /* inputs are small, and a team of threads for each costs more than they do */
    m3_json_watch();
    discard_output();
    fuzz_begin();
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size)
{
    struct fuzz_bytes parts[FUZZ_MOST_PARTS];
    fuzz_split(parts, input, size);
    fuzz_one(parts);
    return 0;
}

void fuzz_see(double value)
{
    static volatile int seen;
    if (value > 0) seen = 1;
    else seen = 0;
    (void)seen;
}

void fuzz_broken(const char *what)
{
    fprintf(stderr, "fuzz: %s\n", what);
    abort();
}

void fuzz_check(int status, struct m3_error *error)
{
    const int is_verdict = status == M3_OK || status == M3_WRONG || status == M3_SUSPECT;
    const int is_refusal =
        status == M3_NOT_COMPARABLE || status == M3_USAGE || status == M3_BAD_INPUT || status == M3_ABSENT;
    if (!is_verdict && !is_refusal) {
        fprintf(stderr, "fuzz: status %d: %s\n", status, error->text ? error->text : "");
        abort();
    }
    if (is_refusal && error->count == 0) fuzz_broken("a failure without a message");
    if (is_verdict && status != M3_WRONG && error->count > 0) {     /* M3_WRONG: also NaN in a pass, with a message */
        fprintf(stderr, "fuzz: status %d with the message: %s\n", status, error->text ? error->text : "");
        abort();
    }
    m3_error_free(error);
}
