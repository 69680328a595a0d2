/* The input of a run: token ids and, where used, their RoPE positions, a mask and pictures. SPEC 3.4. */
#ifndef M3_MODEL_FILES_CASE_H
#define M3_MODEL_FILES_CASE_H

#include <stdint.h>

#include "base/sha256.h"
#include "base/status.h"
#include "io/config.h"
#include "io/safetensors.h"
#include "model/pictures.h"
#include "model/request.h"
#include "model/taps.h"

struct m3_case {
    int64_t T;
    int32_t *ids;               /* [T] */
    int64_t misfit;             /* the first id that is below 0 or beyond int32_t; 0: none */
    int64_t p0;                 /* places before token 0: 0 until m3_case_continue or m3_case_shift sets it */
    int64_t shift;              /* of those, places that hold no token and that no row sees (block_anchor=slot) */
    int64_t *positions;         /* [T]; only RoPE uses them */
    int has_positions;          /* the file gave them */
    unsigned char *seen;        /* [places] 0: no row sees that place; NULL: the case has no mask */
    int64_t places;             /* of the mask: those before token 0, then the T tokens */
    struct m3_pictures pictures;
    char sha256[65];
};

/* Reads a case from a file: input_ids [T]; position_ids [T], attention_mask [S], pixel_values [P,C] with
 * image_grid_thw [n,3], pixel_values_videos with video_grid_thw, if the file has them. Labels are for labels.h. Tensors
 * that are not supported are refused by name. */
int m3_case_read(struct m3_case *c, const char *path, const struct m3_config *config, struct m3_error *error);
/* Makes a case from ids; positions are 0 .. T-1. Takes over *pictures, also on failure. If there are as many
 * placeholders as pictures of a kind, each becomes as many as its picture has tokens. The hash is that of a file with
 * input_ids [T] and grids. */
int m3_case_from_ids(struct m3_case *c, const int64_t *ids, int64_t T, struct m3_pictures *pictures,
                     const struct m3_config *config, struct m3_error *error);
/* Makes the case of one sequence of several; positions NULL: 0 .. T-1. */
int m3_case_from_values(struct m3_case *c, const int64_t *ids, const int64_t *positions, int64_t T,
                        struct m3_error *error);
/* Adds a tensor to the hash of a case: name, a zero byte, rank and dims as u64, values as I64, little-endian. */
void m3_case_hash_tensor(struct m3_sha256 *hash, const char *name, const int64_t *values, int rank,
                         const int64_t *shape);
/* Reads the case of a dump from the tensors stored with its taps (case.*): grids without pixels. */
int m3_case_from_dump(struct m3_case *c, const struct m3_safetensors *file, const struct m3_config *config,
                      struct m3_error *error);
/* Places the case after p0 cached places: positions that the file did not state begin at p0. */
void m3_case_continue(struct m3_case *c, int64_t p0);
/* Puts `shift` places without a token before the case, which has none before it and hides none. M3_INTERNAL. */
int m3_case_shift(struct m3_case *c, int64_t shift, struct m3_error *error);
void m3_case_unshift(struct m3_case *c);
/* Checks that ids are inside the vocabulary, that a mask covers every place, that there are as many placeholders as
 * the pictures have tokens, and that places and positions are below max_position_embeddings unless allow_long.
 * `source` names the file or flag; `status` is returned for an error in the case. */
int m3_case_check(const struct m3_case *c, const struct m3_config *config, int allow_long, const char *source,
                  enum m3_status status, struct m3_error *error);
/* The last token's position or place, whichever is greater: later tokens continue from both. */
int64_t m3_case_reach(const struct m3_case *c);
/* A pass over the tokens and pictures of the case; the rest of the request is zero. */
struct m3_request m3_case_request(const struct m3_case *c);
/* Does a pass over the case make this tap? Without pictures it makes none of the tower's. */
int m3_case_makes(const struct m3_case *c, enum m3_tap tap);
/* Rows of a tap in the whole call: T, P, M, or fewer in a module; and the number of elements in each. */
int64_t m3_case_rows(const struct m3_case *c, const struct m3_config *config, enum m3_tap tap, int64_t layer);
int64_t m3_case_width(const struct m3_case *c, const struct m3_config *config, enum m3_tap tap, int64_t layer);
void m3_case_free(struct m3_case *c);

#endif
