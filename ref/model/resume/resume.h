/* --resume FOLDER: what a run has done, kept after every layer, so that a run that was killed goes on with the
 * same command and ends with the same bytes.
 *
 * Sequence N of the run has two files in the folder, and no others are written or removed:
 *
 * N.state.safetensors  what the state belongs to (identity.h), the command line, the next layer, its input `hidden`
 *                      [T,H], and name, length and hash of the other file. It is replaced whole after each layer
 * N.outputs            what the layers so far have written to the dump and to its companions, and the cache rows that
 *                      they made (journal.h). Only the part that the state knows counts
 *
 * A state without `hidden` says that nothing has been done. It is the first thing that a run writes, and at the end of a
 * run the last one before both files are removed, so that the outputs file never stands without a state that names it.
 * The outputs of the command are written again from the outputs file, which is why they may lie anywhere. */
#ifndef M3_MODEL_RESUME_RESUME_H
#define M3_MODEL_RESUME_RESUME_H

#include "io/safetensors.h"
#include "model/engine.h"
#include "model/files/case.h"

/* The label for the number of cached places before the run. */
#define M3_RESUME_CACHED "cached_places"

/* One sequence of a run. */
struct m3_resume_run {
    const struct m3_model *model;
    const struct m3_engine *engine;
    const struct m3_case *c;
    const struct m3_request *request; /* its cache holds the places before the run */
    int64_t sequence;
    const char *ops, *ops_path; /* of --ops, and its library; NULL: none */
    const char *decisions; /* a dump; NULL: none */
    int dumps;
    const char *taps; /* patterns of the dump; NULL: all */
    const char *companions; /* where they are: "none", "dump" or "file" */
    const char *command;
};

struct m3_resume_folder;
struct m3_resume_state;

/* Opens the folder, or makes it. M3_USAGE if another process uses it; M3_IO, M3_INTERNAL. */
int m3_resume_open(struct m3_resume_folder **folder, const char *path, struct m3_error *error);
/* Frees the folder with its states; removes it if it was made and no state begun. NULL is fine. */
void m3_resume_close(struct m3_resume_folder *folder);
/* FOLDER/N.KIND.safetensors: another file that is kept for sequence N, and removed at the end; to be freed. M3_INTERNAL. */
int m3_resume_name(char **path, struct m3_resume_folder *folder, int64_t sequence, const char *kind,
                   struct m3_error *error);
/* The number of cached places before the run that is kept; -1 if none is. */
int m3_resume_cached(int64_t *places, const struct m3_resume_folder *folder, struct m3_error *error);

/* Reads the state of a sequence, or begins it. `run`, with what it points to, must stay until the end of the pass.
 * M3_BAD_INPUT if the state is of another run or damaged; M3_USAGE if a file that no state names has the name of the
 * outputs file. Nothing is changed then. M3_IO, M3_INTERNAL. */
int m3_resume_begin(struct m3_resume_state **state, struct m3_resume_folder *folder, const struct m3_resume_run *run,
                    struct m3_error *error);
/* The command that began the run, which the outputs state. */
const char *m3_resume_command(const struct m3_resume_state *state);
/* Writes what is kept to the files of the dump and of the companions (NULL: none), which have begun, and to the cache;
 * from then on keeps what is written to them. */
int m3_resume_follow(struct m3_resume_state *state, struct m3_writer *dump, struct m3_writer *companions,
                     struct m3_error *error);
/* For the request, after m3_resume_follow. */
const struct m3_resume *m3_resume_of(const struct m3_resume_state *state);

/* After the run: removes the files of all sequences. A process that is killed meanwhile leaves a state of the same run. */
int m3_resume_end(struct m3_resume_folder *folder, struct m3_error *error);

#endif
