#include <fcntl.h>
#include <omp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/printable.h"
#include "cli/cli.h"
#include "cli/ranks.h"
#include "io/json.h"
#include "io/mapped.h"
#include "io/processors.h"
#include "io/reading.h"

static const char help[] =
    "m3ref: the reference implementation of MiniMax-M3, operator by operator\n"
    "\n"
    "usage: m3ref COMMAND ...\n"
    "       m3ref COMMAND --help     all options of a command\n"
    "       m3ref --version          version, commit, BLAS library, instruction set of the processor that is used\n"
    "\n"
    "  run MODEL (--case F | --ids 1,2,3) [--dump OUT] ...   computes next tokens; writes any intermediate tensor\n"
    "  generate MODEL --ids 1,2,3 [--speculative] ...        generates tokens one by one, greedy or sampled\n"
    "  compare REFERENCE CANDIDATE ...                       compares two dumps; names the first diverging tensor\n"
    "  blame MODEL CANDIDATE --case F ...                    finds the operator that made a dump wrong\n"
    "  check MODEL CANDIDATE [--case F] ...                  the strict verdict on a dump, in one plain sentence\n"
    "  check MODEL ANSWER.json [--ids 1,2,3] ...             the same for a server's log-probabilities or tokens\n"
    "  prompt MODEL ...                                      makes a prompt for a server that is to be checked\n"
    "  envelope MODEL --case F --profile P --out OUT ...     measures how far correct runs are from a run in double\n"
    "  explain MODEL --case F --tap TAP --token T ...        shows how one number of a tap is computed, step by step\n"
    "  picture DUMP OUT.html|OUT.svg ...                     draws a run: choices, experts, residuals, drafts, patches\n"
    "  grad MODEL --case F [--loss lm,mtp,aux,kl] ...        computes gradients of parameters and of taps\n"
    "  estimate MODEL_OR_CONFIG ...                          computes costs: parameters, FLOPs, caches, memory, time\n"
    "  inspect FILE_OR_MODEL ...                             lists tensors: name, dtype, shape, min, max, rms, NaN\n"
    "  op NAME --make | --run | --check ...                  tests one operator, such as a kernel, on its own cases\n"
    "  mistakes [--show ID]                                  lists mistakes that compare, blame and op can find\n"
    "  synth CONFIG OUT ...                                  writes a model directory with reproducible weights\n"
    "  bench ITEM ...                                        measures the speeds that README.md quotes\n"
    "\n"
    "A dump is a file of intermediate tensors; `run --dump` writes one.\n"
    "`mpirun -n N m3ref run|generate|check ...` divides the rows and the experts of every pass among N processes.\n"
    "\n"
    "Exit status: 0 done, or pass; 1 a result is wrong, or the model's arithmetic gave NaN; 2 suspect (an error is\n"
    "larger than a correct implementation would usually make) or partial (nothing is wrong, but something could not be\n"
    "judged); 3 not comparable; 64 wrong usage, or an output file that is also an input or another output; 65 bad\n"
    "input file; 66 missing file; 69 plug-in or Python package not available; 70 internal error; 74 I/O error.\n";

/* Keeps the standard descriptors open, so that a file opened later cannot become standard output. The replacement of a
 * closed one cannot be written, so that a report that nobody receives is still an error. */
static int reserve_descriptors(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDONLY) != fd) return M3_IO;
    return M3_OK;
}

/* Has the program come to its end by itself? Otherwise a library has ended it: OpenMP's runtime does when there is no
 * memory for a thread, after a message of its own, with a status that would say that a result is wrong. How the child
 * of a plug-in ends is for ref/watch to say. */
struct life {
    pid_t process;
    int by_itself;
};

static void end(int status, void *self)
{
    const struct life *life = self;
    (void)status;
    if (life->by_itself || life->process != getpid()) return;
    fflush(NULL);
    _exit(M3_INTERNAL);
}

static int command(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(int argc, char **argv);
        int lists;              /* 1: the option --profile; 2: --map too. With `help` they list what there is */
        int divides;            /* its work among ranks */
    } commands[] = {
        { "run", m3_cli_run, 1, 1 },           { "generate", m3_cli_generate, 0, 1 },
        { "compare", m3_cli_compare, 2, 0 },   { "blame", m3_cli_blame, 2, 0 },
        { "envelope", m3_cli_envelope, 1, 0 }, { "estimate", m3_cli_estimate, 0, 0 },
        { "inspect", m3_cli_inspect, 0, 0 },   { "synth", m3_cli_synth, 0, 0 },
        { "bench", m3_cli_bench, 0, 0 },       { "op", m3_cli_op, 1, 0 },
        { "mistakes", m3_cli_mistakes, 0, 0 }, { "check", m3_cli_check, 2, 1 },
        { "prompt", m3_cli_prompt, 0, 0 },     { "explain", m3_cli_explain, 0, 0 },
        { "picture", m3_cli_picture, 0, 0 },   { "grad", m3_cli_grad, 0, 0 },
    };
    struct m3_error notes = { 0 }, error = { 0 };
    if (m3_cli_memory(&argc, argv, &error)) _exit(m3_cli_end((int)error.status, &notes, &error));
    int divides = argc < 2 || argv[1][0] == '-';
    for (size_t i = 0; !divides && i < sizeof commands / sizeof commands[0]; i++)
        divides = strcmp(argv[1], commands[i].name) == 0 && commands[i].divides;
    if (m3_cli_ranks_begin(argc >= 2 ? argv[1] : "m3ref", divides, &error)) return M3_OK;
    if (error.count) return m3_cli_end((int)error.status, &notes, &error);
    if (argc >= 2 && strcmp(argv[1], "--version") == 0) return m3_cli_end(m3_cli_version(), &notes, &error);
    if (argc >= 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0))
        return m3_cli_end(m3_cli_help(help, &error), &notes, &error);
    for (size_t i = 0; argc >= 2 && i < sizeof commands / sizeof commands[0]; i++) {
        if (strcmp(argv[1], commands[i].name) != 0) continue;
        if (commands[i].lists > 0 && m3_cli_asks_for_profiles(argc - 1, argv + 1))
            return m3_cli_end(m3_cli_list_profiles(&error), &notes, &error);
        if (commands[i].lists > 1 && m3_cli_asks_for_maps(argc - 1, argv + 1))
            return m3_cli_end(m3_cli_list_maps(&error), &notes, &error);
        return commands[i].run(argc - 1, argv + 1);
    }

    if (argc >= 2)
        fprintf(stderr,
                "m3ref: got the command %s, expected run, generate, compare, blame, check, prompt, "
                "envelope, explain, picture, grad, estimate, inspect, op, mistakes, synth or bench\n",
                argv[1]);
    else fputs(help, stderr);
    return M3_USAGE;
}

/* Before the disk is full. */
static void announce(const char *path, uint64_t bytes)
{
    fprintf(stderr, "m3ref: %s: %.1f GB will be written\n", m3_printable(path).text, (double)bytes / 1e9);
}

int main(int argc, char **argv)
{
    m3_cli_start(argv);
    struct life life = { .process = getpid() };
    signal(SIGXFSZ, SIG_IGN);       /* a file over its limit becomes an I/O error with a message */
    if (reserve_descriptors()) return M3_IO;
    m3_mapped_catch();
    on_exit(end, &life);
    omp_set_num_threads(m3_processors());
    m3_json_watch();
    struct m3_reading reading;
    m3_reading_begin(&reading);
    reading.announce = announce;
    const int status = command(argc, argv);
    m3_reading_end(&reading);
    m3_cli_ranks_end();
    life.by_itself = 1;
    exit(status);
}
