/* Declarations shared by the files of map: the map as read, and arrays as views of tensors. */
#ifndef M3_ORACLE_MAP_PRIVATE_MAP_H
#define M3_ORACLE_MAP_PRIVATE_MAP_H

#include <jansson.h>

#include "model/taps.h"
#include "oracle/map/map.h"

enum { M3_MAP_SOURCES = 8, M3_MAP_STEPS = 12, M3_MAP_PREFIXES = 4, M3_MAP_NAME = 200 };

/* clang-format off */
enum m3_map_step_kind {
    M3_STEP_ONLY, M3_STEP_DROP, M3_STEP_SHAPE, M3_STEP_AXES, M3_STEP_SLICE, M3_STEP_PICK,
    M3_STEP_UNREPEAT, M3_STEP_REPEAT, M3_STEP_JOIN, M3_STEP_SUM, M3_STEP_TIMES, M3_STEP_DIVIDE, M3_STEP_PLUS,
    M3_STEP_IDS, M3_STEP_BLOCKS, M3_STEP_SCORES, M3_STEP_SCATTER,
    M3_STEP_KINDS,
};
/* clang-format on */

/* Sizes are texts such as "QD+2GD", evaluated when the letters are known. All pointers are borrowed from the JSON. */
struct m3_map_step {
    enum m3_map_step_kind kind;
    int axis;                               /* drop, slice, pick, unrepeat, join */
    int count;                              /* of `sizes`, `axes`; of `order` */
    const char *sizes[M3_MAX_RANK];         /* only, shape; scatter: [0] */
    int axes[M3_MAX_RANK];
    const char *from, *to, *every;          /* slice; unrepeat, repeat: every is how many times */
    int64_t *order;                         /* pick; owned */
    const char *field;                      /* times, divide: of the config; NULL: by `number` */
    double number;                          /* times, divide, plus */
};

struct m3_map_recipe {
    const char *tap;                        /* "layers.{l}.q_proj" */
    const char *sources[M3_MAP_SOURCES];
    int source_count, step_count;
    struct m3_map_step steps[M3_MAP_STEPS];
};

/* What the files of a folder are. */
enum m3_map_files_are { M3_FILES_NONE, M3_FILES_RANKS, M3_FILES_CHUNKS };

/* How the parts of a tap, one from each file, become one. */
enum m3_map_rule_kind {
    M3_RULE_AUTO,                           /* ranks: along the axis of a divided letter, or equal; chunks: rows */
    M3_RULE_EQUAL,
    M3_RULE_SUM,
    M3_RULE_CONCAT,
    M3_RULE_ROWS,
    M3_RULE_ZIGZAG,
    M3_RULE_LAST,
};

struct m3_map_rule {
    const char *tap;                        /* pattern as of a recipe; NULL: of all others */
    enum m3_map_rule_kind kind;
    int axis;                               /* concat */
};

struct m3_map {
    char *path;
    enum m3_map_files_are files;
    const char *divided;                    /* letters whose sizes are divided among the ranks */
    struct m3_map_rule *rules;              /* [rule_count]; the first that fits counts */
    int64_t rule_count;
    int names_b;                            /* a size names the sequences */
    json_t *json;                           /* owns the texts */
    const char *prefixes[M3_MAP_PREFIXES];
    int prefix_count;
    struct m3_map_recipe *recipes;          /* in the order of the file: the first complete one is used */
    int64_t recipe_count;
};

/* A view of a tensor in another order. Strides count elements. */
struct m3_array {
    enum m3_dtype dtype;
    int rank;
    int64_t shape[M3_MAX_RANK], stride[M3_MAX_RANK];
    const unsigned char *data;              /* NULL: only shapes are needed */
    void *owned;                            /* NULL: data is borrowed */
};

/* Why a step failed. */
struct m3_map_trouble {
    char text[300];
    int unknown_size;
    int not_meant;                          /* `only`: the recipe is for other tensors */
};

enum { M3_MAP_SIZE_UNKNOWN = -1, M3_MAP_SIZE_BAD = -2 };

/* "QD+2GD", "Q/G", "3": M3_MAP_SIZE_UNKNOWN if a letter is unknown, M3_MAP_SIZE_BAD if it is not a size. */
int64_t m3_map_size(const char *text, const struct m3_map_sizes *sizes);

/* Numbers of the config that steps may name. Sizes have a letter. */
extern const struct m3_map_field {
    const char *name;
    char letter;                            /* 0: none, the number is sizes->fields[] */
} m3_map_fields[M3_MAP_FIELDS];
int m3_map_field(const char *name);         /* its index; -1: no such field */

/* ---- names.c. {l}, {v}, {m} stand for one number, {l+1} for the next, {i} for an independent number. A module may
 * return a tuple, of which the tensor is the first part: NAME is NAME.0 too; [.0] at the end says the same */

#define M3_MAP_FIRST ".0"

/* Are its braces and brackets of this form? The functions below take no others. */
int m3_map_is_pattern(const char *pattern);
/* Does `name` match the pattern? *number and *part: -1 until the first is found; later ones must be equal. */
int m3_map_name_fits(const char *pattern, const char *name, int64_t *number, int64_t *part);
/* Writes a name. Returns 0, or -1 if it is too long. */
int m3_map_name_write(char *name, size_t size, const char *prefix, const char *pattern, int64_t number, int64_t part);

/* ---- steps.c */

struct m3_array m3_array_of(const struct m3_tensor *tensor, int with_data);
void m3_array_free(struct m3_array *array);
void m3_array_drop_first(struct m3_array *array); /* its first axis, of size 1 */
int64_t m3_array_count(const struct m3_array *array);
/* Makes the array row-major without gaps; copies if necessary. M3_INTERNAL: out of memory. */
int m3_array_pack(struct m3_array *array);
int m3_array_is_integer(const struct m3_array *array);
int64_t m3_array_integer(const struct m3_array *array, int64_t at);
/* "[1,6,67,20] F32" */
const char *m3_array_text(char *text, size_t size, const struct m3_array *array);

/* Sets the text and returns M3_NOT_COMPARABLE. */
__attribute__((format(printf, 2, 3))) int m3_map_trouble_is(struct m3_map_trouble *trouble, const char *format, ...);

/* ---- map.c */

/* m3_map_apply. is_part: of several files: shapes are not checked, and no tap is left out for its rows. `gaps`: what is
 * left over is added to it; or NULL. */
int m3_map_convert(struct m3_safetensors **converted, const struct m3_map *map, const struct m3_map_sizes *sizes,
                   const struct m3_safetensors *foreign, int is_part, struct m3_name_gaps *gaps, struct m3_error *notes,
                   struct m3_error *error);

/* ---- numbers.c */

/* Has the tensor the name of what numbers rows? */
int m3_map_is_number(const char *name, const struct m3_map *map);
/* A view of the file with `rows`, and of several sequences `sequences`, as its own tensors say under the names of m3ref
 * or of engines, and without rows of padding; NULL if they say nothing, or that the file holds all rows in order. A map
 * that makes `rows` itself is left to do so. M3_BAD_INPUT: what they say cannot be. Close the view in any case. */
int m3_map_number(struct m3_safetensors **view, const struct m3_map *map, const struct m3_layout *layout,
                  const struct m3_safetensors *file, struct m3_error *error);

/* ---- combine.c */

/* Puts the taps of parts [count] together, as the rules of the map say. `sizes`: of the whole. Notes name taps that
 * some parts lack. M3_NOT_COMPARABLE: parts that do not fit. */
int m3_map_combine(struct m3_safetensors **whole, const struct m3_map *map, const struct m3_map_sizes *sizes,
                   struct m3_safetensors *const *parts, int64_t count, struct m3_error *notes, struct m3_error *error);
/* The rows of parts one after another. */
int m3_map_stack(struct m3_safetensors **whole, const struct m3_map *map, struct m3_safetensors *const *parts,
                 int64_t count, struct m3_error *notes, struct m3_error *error);

/* ---- steps.c */

/* Applies one step to all *count arrays; join and sum leave one. Returns M3_OK, M3_INTERNAL for memory, or
 * M3_NOT_COMPARABLE with *trouble set. */
int m3_map_do(struct m3_array *arrays, int *count, const struct m3_map_step *step, const struct m3_map_sizes *sizes,
              struct m3_map_trouble *trouble);

/* ---- scatter.c */

/* The first half of *count arrays are values [n,..], the second half their lists of rows [n]: leaves their sums, in
 * double, in the order of the arrays, as one array [rows,..]. Rows of no list are 0. Returns as m3_map_do. */
int m3_map_scatter(struct m3_array *arrays, int *count, int64_t rows, struct m3_map_trouble *trouble);

#endif
