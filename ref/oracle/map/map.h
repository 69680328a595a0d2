/* Dumps of other programs with their own names: a map says, tap by tap, from which of their tensors a tap is made, and
 * how. A map is data: a JSON file; those of ref/oracle/map/maps/ are built in. SPEC 7.11.
 *
 * The result of m3_map_apply is an ordinary dump with m3ref's tap names: compare and blame accept it as a candidate
 * (blame takes the sizes from the model's config). */
#ifndef M3_ORACLE_MAP_MAP_H
#define M3_ORACLE_MAP_MAP_H

#include <stdint.h>

#include "base/status.h"
#include "io/config.h"
#include "io/safetensors.h"
#include "model/files/batch.h"
#include "oracle/judge/finding/finding.h"

struct m3_map;

/* Name and text of every built-in map, named after its file; NULLs at the end. The build makes it of maps/. */
extern const char *const m3_built_in_maps[][2];
/* "llama_cpp, sglang, ..": their names. */
void m3_map_names(char *names, size_t size);
/* Calls `print` for every built-in map, with the versions that it was tried with, "; " between them. M3_INTERNAL. */
int m3_map_list(void (*print)(void *self, const char *name, const char *versions), void *self);

/* Opens a map by name ("transformers"), or from a file if `name` has a '/' or ends in ".json". M3_ABSENT, M3_BAD_INPUT
 * with the tap, the step and the field, M3_IO, M3_INTERNAL. *map is NULL on failure. */
int m3_map_open(struct m3_map **map, const char *name, struct m3_error *error);
void m3_map_close(struct m3_map *map);                              /* NULL is fine */

/* The sizes of the letters of SPEC 1, as far as known; 0: unknown. T: rows of the call; B: sequences; r: ranks. */
enum { M3_MAP_FIELDS = 17 };
struct m3_map_sizes {
    int64_t of[128];
    int64_t tokens;                     /* of a padded sequence that is converted alone; 0: none is */
    double fields[M3_MAP_FIELDS];       /* numbers of the config that are no sizes (private/map.h); 0: unknown */
};

/* From the taps that a dump holds, and from the config that it holds if it has companions. */
struct m3_map_sizes m3_map_sizes_of_dump(const struct m3_safetensors *dump);
struct m3_map_sizes m3_map_sizes_of_config(const struct m3_config *config);

/* `converted` has the taps that the map finds in `foreign`, and its hashes and semantics if it has any. It is a
 * separate file without a name, in $TMPDIR or /tmp, that disappears when it is closed; m3_safetensors_path returns the
 * path of `foreign`. dtypes stay the same unless a step calculates. Notes name tensors that no tap uses, taps that are
 * incomplete, and taps of unknown size. M3_NOT_COMPARABLE: nothing matched, or a tensor does not have the shape, type
 * or values that the map states (message: map, tap, tensor, value found, value expected). M3_IO; M3_INTERNAL for
 * memory. *converted is NULL on failure. */
int m3_map_apply(struct m3_safetensors **converted, const struct m3_map *map, const struct m3_map_sizes *sizes,
                 const struct m3_safetensors *foreign, struct m3_error *notes, struct m3_error *error);
void m3_name_gaps_free(struct m3_name_gaps *gaps);
/* Notes the taps of the map of which nothing is there. */
void m3_map_note_gaps(struct m3_error *notes, const char *map, const struct m3_name_gaps *gaps);

/* A candidate: a file, or a folder of files, one for each rank or for each chunk of the rows, in the order of the last
 * number in their names. */
struct m3_map_files {
    const char *path, *map;             /* map NULL: a file with m3ref's names */
    const struct m3_map_sizes *sizes;
    const struct m3_layout *layout;     /* of the sequences; NULL: one */
    struct m3_name_gaps *gaps;          /* set, if there is a map; NULL: not asked for */
};

/* Opens it, with m3ref's names. A padded batch is mapped one sequence after the other, unless the map names B; its taps
 * are then [B S,..]. M3_USAGE: a folder without a map; M3_BAD_INPUT: a map that does not say what a folder's files are;
 * M3_ABSENT: a folder without files; M3_NOT_COMPARABLE: files that do not fit together, and the errors of maps and files. */
int m3_map_open_files(struct m3_safetensors **candidate, const struct m3_map_files *files, struct m3_error *notes,
                      struct m3_error *error);

/* Opens the map `name` and replaces *candidate by its conversion. On failure *candidate is unchanged. */
int m3_map_put(struct m3_safetensors **candidate, const char *name, const struct m3_map_sizes *sizes,
               struct m3_error *notes, struct m3_error *error);

#endif
