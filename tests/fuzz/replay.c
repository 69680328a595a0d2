/* Runs a target over its kept inputs, tests/fuzz/corpus/NAME, or over those in the folder FUZZ_INPUTS: each is one test,
 * in a process of its own. NAME is that of the program after "fuzz_". */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* program_invocation_short_name */
#endif
#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fuzz.h"

static struct dirent **inputs;
static char folder[256];

static char path[512];

/* Says which input it was, then lets the signal end the process. */
static void say_path(int number)
{
    const ssize_t written = write(STDERR_FILENO, path, strlen(path)) + write(STDERR_FILENO, "\n", 1);
    signal(number, SIG_DFL);
    raise(written > 0 ? number : SIGKILL);
}

static void setup(void)
{
    static const int numbers[] = { SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) signal(numbers[i], say_path);
    LLVMFuzzerInitialize(NULL, NULL);
}

TIMEOUT(60);
FIXTURE(setup, NULL);

static int is_input(const struct dirent *entry) { return entry->d_name[0] != '.'; }

/* How many inputs there are. */
static int find_inputs(void)
{
    const char *name = program_invocation_short_name + strlen("fuzz_");
    const char *other = getenv("FUZZ_INPUTS");
    snprintf(folder, sizeof folder, "%s%s", other ? other : "tests/fuzz/corpus/", other ? "" : name);
    return scandir(folder, &inputs, is_input, alphasort);
}

LOOP_TEST(kept_input, find_inputs())
{
    snprintf(path, sizeof path, "%s/%s", folder, inputs[_i]->d_name);
    FILE *file = fopen(path, "rb");
    ck_assert_msg(file != NULL, "%s cannot be opened", path);
    fseek(file, 0, SEEK_END);
    const size_t size = (size_t)ftell(file);
    rewind(file);
    uint8_t *input = malloc(size ? size : 1); /* as in the fuzzer, nothing follows the input */
    ck_assert_ptr_nonnull(input);
    ck_assert_uint_eq(fread(input, 1, size, file), size);
    fclose(file);
    LLVMFuzzerTestOneInput(input, size);
    free(input);
}
