/* What readers need besides the file that they read: a model of two layers, one of them sparse with experts, and a case
 * of six tokens. seeds.py writes its dumps with the same. */
#ifndef M3_FUZZ_WORLD_H
#define M3_FUZZ_WORLD_H

#include "fuzz.h"
#include "model/files/case.h"
#include "oracle/error/recompute.h"

struct fuzz_world {
    struct m3_model *model; /* synthetic, of little.json */
    struct m3_case the_case; /* ids 1 to 6 */
    struct m3_semantics semantics;
    struct m3_profile *profile;
    struct m3_ctx ctx;
    struct m3_setting setting; /* of all these */
};

/* Made at the first call. */
const struct fuzz_world *fuzz_world(void);
/* The config of a file, such as that of a golden. */
void fuzz_config_of(struct m3_config *config, const char *path);

/* Runs a command of the program, whose messages nobody reads; words end with NULL. Ends the process if its status
 * is that of an internal error or an I/O error. */
void fuzz_command(int (*command)(int argc, char **argv), const char *const *words);

#endif
