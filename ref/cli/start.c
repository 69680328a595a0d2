/* How the program's threads wait. */
#include <stdlib.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "cli/cli.h"

/* What the user has not set. OpenMP's runtimes let a thread that waits spin for milliseconds; on a busy machine it
 * then keeps the processor from the thread that it waits for, and a command takes twenty times as long. With `passive`
 * the thread sleeps; libgomp looks SPINS times before, which takes microseconds and spares most calls to the kernel.
 * The program never multiplies with threads of OpenBLAS. */
static int set_defaults(void)
{
    static const struct {
        const char *name, *value;
        const char *unless;     /* these set, it stays unset */
    } settings[] = {
        { "GOMP_SPINCOUNT", "1000", "OMP_WAIT_POLICY" },
        { "OMP_WAIT_POLICY", "passive", "KMP_BLOCKTIME" },
        { "OPENBLAS_NUM_THREADS", "1", NULL },
    };
    int changed = 0;
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        if (getenv(settings[i].name) || (settings[i].unless && getenv(settings[i].unless))) continue;
        if (setenv(settings[i].name, settings[i].value, 0) != 0) return 0;
        changed = 1;
    }
    return changed;
}

void m3_cli_start(char **argv)
{
    /* The runtimes have read their settings before main: what is set now holds for a program that is started again, in
     * the same process. AT_BASE is 0 where AT_EXECFN is not this program but the loader that runs it. */
    const char *program = (const char *)getauxval(AT_EXECFN);
    if (set_defaults() && program && getauxval(AT_BASE)) execv(program, argv);
}
