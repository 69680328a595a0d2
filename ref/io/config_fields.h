/* The fields of config.json as a table, and the code that reads values by it. Used only by config.c. */
#ifndef M3_IO_CONFIG_FIELDS_H
#define M3_IO_CONFIG_FIELDS_H

#include <jansson.h>

#include "io/config.h"

/* The JSON objects that hold fields. In a text-only file TEXT is the same object as ROOT. */
enum config_object {
    ROOT,
    TEXT,
    SPARSE,
    ROPE,
    VISION,
    VISION_ROPE,
    MERGE,
    QUANTISATION,
    CONFIG_OBJECTS,
};

enum { ACT_SWIGLUOAI, ACT_SILU };
enum { QK_NORM_PER_HEAD, QK_NORM_PER_LAYER };

struct config_reading {
    struct m3_config config;
    const char *path;
    json_t *objects[CONFIG_OBJECTS];    /* borrowed; NULL: absent */
    int flat;                           /* the form that transformers writes */
    int any_sparse, any_moe, any_dense;

    /* Values that a rule converts before they are stored in config. */
    int64_t index_heads, rotary_dim;    /* 0: absent */
    double rotary_factor;               /* 0: absent */
    int act, qk_norm, tied_root, use_sparse;
    int ignored;
    double ignored_number;
    int64_t ignored_count;

    struct m3_error *notes, *error;
    int status;
};

/* "text_config.", or "" for ROOT. */
const char *m3_config_prefix(const struct config_reading *reading, enum config_object object);

/* NULL if the object or the field is absent, or null. */
json_t *m3_config_field(const struct config_reading *reading, enum config_object object, const char *key);

/* Adds the error "FILE: OBJECT.KEY: got VALUE, expected WHAT". */
void m3_config_refuse(struct config_reading *reading, enum config_object object, const char *key, const char *expected);

/* Reads every field of the table that is present and checks its type, its range, and agreement if it is given twice.
 * An absent field gets its released value, or 0. Fields that only some kinds of layers need are checked later. */
void m3_config_read_fields(struct config_reading *reading);
/* To be called when the kinds of the layers are known: refuses fields they cannot use, and refuses or notes absent
 * ones. */
void m3_config_check_fields(struct config_reading *reading);
void m3_config_note_unknown(struct config_reading *reading);

/* config_quantised.c */
void m3_config_read_quantised(struct config_reading *reading);

#endif
