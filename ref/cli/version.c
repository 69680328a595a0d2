/* m3ref --version. */
#include <cblas.h>
#include <stdio.h>

#include "base/version.h"
#include "cli/cli.h"
#include "model/engine.h"

/* Made by the Makefile. */
extern const char m3_cli_commit[];

int m3_cli_version(void)
{
    /* "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH ..": the rest says how it was built. */
    char blas[32] = "", number[32] = "";
    sscanf(openblas_get_config(), "%31s %31s", blas, number);
    printf(M3_PRODUCER "\n");
    printf("commit    %s\n", m3_cli_commit);
    printf("engines   %s, %s\n", m3_engine_f32()->precision, m3_engine_f64()->precision);
    printf("BLAS      %s %s, core type %s\n", blas, number, openblas_get_corename());
    printf("kernels   %s\n", m3_engine_f32()->kernels());
    return M3_OK;
}
