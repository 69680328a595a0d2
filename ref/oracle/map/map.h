/* Dumps of other programs under their own names: a map says, tap by tap, which of their tensors it is and what has to
 * be done to it. Data, not code: a JSON file; those of ref/oracle/map/maps/ are built in. SPEC 7.11.
 *
 * What m3_map_apply gives is a dump like any other, of taps under their own names: compare takes it as its candidate,
 * blame as well (sizes then come from the model's config). */
#ifndef M3_ORACLE_MAP_MAP_H
#define M3_ORACLE_MAP_MAP_H

#include <stdint.h>

#include "base/status.h"
#include "io/config.h"
#include "io/safetensors.h"

struct m3_map;

/* By name ("transformers"), or from a file if `name` has a '/' or ends in ".json". M3_ABSENT, M3_BAD_INPUT with the
 * tap, the step and the field, M3_IO, M3_INTERNAL. *map is NULL on failure. */
int m3_map_open(struct m3_map **map, const char *name, struct m3_error *error);
void m3_map_close(struct m3_map *map);                              /* NULL is fine */

/* What the letters of SPEC 1 stand for, as far as that is known; 0: it is not. */
struct m3_map_sizes {
    int64_t of[128];
};

/* From the taps that a dump holds. */
struct m3_map_sizes m3_map_sizes_of_dump(const struct m3_safetensors *dump);
struct m3_map_sizes m3_map_sizes_of_config(const struct m3_config *config);

/* `converted` has the taps that the map finds in `foreign`, and its hashes and semantics if it has any. It is a file
 * of its own without a name, in $TMPDIR or /tmp, that goes when it is closed; its path reads as that of `foreign`.
 * dtypes stay but where a step calculates. Adds notes: what no tap is made of, what is there in parts only, what has
 * no known size. M3_NOT_COMPARABLE: nothing matched, or a tensor is not of the shape, type or values that the map says
 * (map, tap, tensor, got, expected). M3_IO; M3_INTERNAL for memory. *converted is NULL on failure. */
int m3_map_apply(struct m3_safetensors **converted, const struct m3_map *map, const struct m3_map_sizes *sizes,
                 const struct m3_safetensors *foreign, struct m3_error *notes, struct m3_error *error);

/* Opens the map `name` and puts what it makes of *candidate in its place. On failure *candidate is as it was. */
int m3_map_put(struct m3_safetensors **candidate, const char *name, const struct m3_map_sizes *sizes,
               struct m3_error *notes, struct m3_error *error);

#endif
