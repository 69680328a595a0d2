/* A folder in which a run keeps its state between layers, so that a later run of the same command goes on after the last
 * whole layer and ends with the same bits: m3ref run --resume.
 *
 * m3ref-state.safetensors      hidden [T,H], the input of the next layer; its metadata say which layer that is, and what
 *                              the state belongs to. It is replaced whole after each layer, after the files below
 * m3ref-start.safetensors      hidden [T,H] of layer 0, if MTP modules read it
 * m3ref-keys.L.safetensors     k, v and index_k of the run's rows in layer L, if the run has a cache
 * m3ref-dump.part              the dump as far as it is written; at the end also the dump */
#ifndef M3_MODEL_FILES_RESUME_H
#define M3_MODEL_FILES_RESUME_H

#include "model/files/case.h"
#include "model/files/dump.h"

/* A run; a state belongs to it only if all of this is the same, except for the command. */
struct m3_resume_run {
    const struct m3_model *model;
    const struct m3_engine *engine;
    const struct m3_case *c;
    const struct m3_request *request; /* its cache holds the places before the run */
    const char *ops; /* of --ops; NULL: the default operators */
    int dumps;
    const char *taps; /* patterns of the dump; NULL: all */
    const char *command; /* must stay as long as the folder */
};

struct m3_resume_folder;

/* Opens the folder, or makes it, and reads what is kept in it. The keys of the layers that are done go into the run's
 * cache. M3_BAD_INPUT if the state is of another run or is damaged; M3_USAGE if the folder holds anything else, or
 * another process uses it. Nothing is changed then. M3_IO, M3_INTERNAL. */
int m3_resume_open(struct m3_resume_folder **folder, const char *path, const struct m3_resume_run *run,
                   struct m3_error *error);
/* For the run's request. */
const struct m3_resume *m3_resume_of(const struct m3_resume_folder *folder);
/* The command that began the run, which the dump states. */
const char *m3_resume_command(const struct m3_resume_folder *folder);
/* The writer of a dump that is kept in the folder; then, after the dump has begun, skips what it has already. */
int m3_resume_writer(struct m3_writer **writer, const struct m3_resume_folder *folder, const char *path,
                     struct m3_error *error);
int m3_resume_dump(struct m3_resume_folder *folder, struct m3_dump *dump, struct m3_error *error);
/* After the run: removes the files, but not the folder. M3_IO. */
int m3_resume_remove(const struct m3_resume_folder *folder, struct m3_error *error);
void m3_resume_close(struct m3_resume_folder *folder); /* NULL is fine */

#endif
