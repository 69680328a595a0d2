/* The line of long work: on a terminal a command tells what it does, its share and how long the rest will take, and erases
 * that at the end; in a pipe it tells nothing, unless a line a minute is asked for.
 *
 * Seen to fail with: the line written to a pipe; the line left at the end; the number of the model's layers for that of
 * those that run; a line for every layer in a log. */
#define _GNU_SOURCE /* posix_openpt */
#include "program.h"

#include "cli/cli.h"

#include <fcntl.h>
#include <regex.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

TIMEOUT(60);
FIXTURE(make_folder, remove_folder);

static char shown[64000]; /* by a program on a terminal */

/* Runs the program with standard error on a new terminal. */
static void run_on_terminal(const char *arguments)
{
    char command[1000], *name;
    const char *build = getenv("BUILD");
    const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
    size_t count = 0;
    ssize_t got;
    ck_assert_int_ge(terminal, 0);
    ck_assert(grantpt(terminal) == 0 && unlockpt(terminal) == 0);
    name = ptsname(terminal);
    ck_assert_ptr_nonnull(name);
    snprintf(command, sizeof command, "%s/m3ref %s >%s 2>%s", build ? build : "build", arguments, in_folder("out"),
             name);
    FILE *program = popen(command, "r");
    ck_assert_ptr_nonnull(program);
    while (count < sizeof shown - 1 && (got = read(terminal, shown + count, sizeof shown - 1 - count)) > 0)
        count += (size_t)got; /* its end is an error */
    shown[count] = '\0';
    ck_assert_int_eq(pclose(program), 0);
    close(terminal);
}

static int matches(const char *pattern)
{
    regex_t compiled;
    ck_assert_int_eq(regcomp(&compiled, pattern, REG_EXTENDED | REG_NOSUB), 0);
    const int found = regexec(&compiled, shown, 0, NULL, 0) == 0;
    regfree(&compiled);
    if (!found) fprintf(stderr, "no %s in: %s\n", pattern, shown);
    return found;
}

#define REST ", [0-9]+ %(, [0-9.]+ GB read at [0-9.]+ GB/s)?, [0-9]+:[0-5][0-9]:[0-5][0-9] left *"

TEST(on_a_terminal)
{
    run_on_terminal("run golden/tiny/model --ids '1,<image>,2' --image golden/pictures/rgb8.png");
    ck_assert(matches("^\rvision layer 1 of 2 \rvision layer 2 of 2" REST "\rlayer 1 of 5 *\rlayer 2 of 5" REST
                      "\rlayer 3 of 5" REST "\rlayer 4 of 5" REST "\rlayer 5 of 5" REST "\r +\r$"));
    run_on_terminal("run golden/tiny/model --ids 1,2,3 --layers 0:2");
    ck_assert(matches("^\rlayer 1 of 2 \rlayer 2 of 2" REST "\r +\r$"));
    run_on_terminal("run golden/tiny/model --case tests/candidates/packed_case.safetensors --layers 0:1");
    ck_assert(matches("^(\rlayer 1 of 1 \r +\r)+$"));
}

TEST(other_commands)
{
    ck_assert_int_eq(m3ref("run golden/tiny/model --case golden/tiny/case.safetensors --taps layers.2.out,logits "
                           "--dump %s",
                           in_folder("dump")),
                     0);
    char words[1000];
    snprintf(words, sizeof words, "check golden/tiny/model %s --case golden/tiny/case.safetensors --profile bf16",
             in_folder("dump"));
    run_on_terminal(words);
    ck_assert(matches("\rtap 1 of [0-9]+ +\rtap 2 of [0-9]+" REST));
    ck_assert(matches("\rhonest run 1 of 16 +\rhonest run 2 of 16" REST));
    ck_assert(matches("\r +\r$"));
    run_on_terminal("grad golden/tiny/model --case golden/train/case.safetensors");
    ck_assert(matches("\rbackward layer 1 of 5 +\rbackward layer 2 of 5" REST));
    ck_assert(matches("\r +\r$"));
}

/* What the watch writes to a file in place of standard error, while `told` is so long ago. */
static void tell(double ago, const char *what, int64_t done, int64_t all)
{
    static struct m3_cli_watch watch;
    const struct m3_progress line = m3_cli_watched(&watch);
    if (done == 0) m3_cli_watch_begin(&watch, 1);
    watch.told -= ago;
    m3_tell(&line, what, done, all);
    m3_cli_watch_end(&watch);
}

TEST(in_a_log)
{
    fflush(stderr);
    const int terminal = dup(STDERR_FILENO), log = open(in_folder("log"), O_CREAT | O_WRONLY, 0666);
    ck_assert(terminal >= 0 && log >= 0 && dup2(log, STDERR_FILENO) >= 0);
    tell(0, "layer", 0, 5);
    tell(30, "layer", 1, 5);
    tell(31, "layer", 2, 5);
    tell(0, "layer", 3, 5);
    tell(61, "bytes written", 500000000, 2000000000);
    tell(61, "bytes written", 1000000000, 2000000000);
    fflush(stderr);
    ck_assert_int_ge(dup2(terminal, STDERR_FILENO), 0);
    close(terminal);
    close(log);
    snprintf(shown, sizeof shown, "%s", (char *)read_bytes(in_folder("log"), &(size_t){ 0 }));
    ck_assert(matches("^m3ref: layer 3 of 5" REST "\nm3ref: 0.5 of 2.0 GB written\n"
                      "m3ref: 1.0 of 2.0 GB written, 50 %, [0-9.]+ GB/s, [0-9]:[0-5][0-9]:[0-5][0-9] left\n$"));
}

TEST(in_a_pipe)
{
    ck_assert_int_eq(m3ref("run golden/tiny/model --case golden/tiny/case.safetensors"), 0);
    ck_assert_int_eq(error_lines(), 0);
    ck_assert(!strstr((char *)read_bytes(in_folder("err"), &(size_t){ 0 }), "layer"));
}
