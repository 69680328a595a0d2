/* The figures that five documents about the model family print, each with the formula that computes ours. The data are
 * golden/documents/figures.tsv and models.tsv, which are built into the program; golden/documents/README.md shows all
 * of them. printed.c reads a printed number, setting.c what a figure depends on, models.c recognises the model,
 * formula.c computes ours, judge.c compares, marks.c finds the errata about an estimate.
 *
 * A formula is arithmetic in double over the summary of an estimate: + - * / ^ ( ), numbers ("0.5", "1e9"),
 * ceil(x) floor(x) min(x, y) max(x, y), dotted keys of the summary ("kv_bytes.index", "ratios.main_branch"), and names:
 *   letters of m3_config_size: H Q G D X V N K E F I J W A U L Y Z C
 *   R                          rotary channels of a head
 *   T batch                    the request
 *   layers full sparse dense moe cached indexed    layers, and those of each kind
 *   block keys                 keys of a block; keys of a sparse layer that the last token sees, n(T)
 *   max_positions theta eps scaling alpha limit    of the config: positions, rope_theta, norm epsilon, routed scaling,
 *                              SwiGLU-OAI
 *   patch merge temporal_patch channels segment vision_layers vision_theta image_token video_token
 *   local_blocks init_blocks   of the config
 *   vision modules             1 if there is a tower; MTP modules that the config announces
 *   mtp params_mtp             the request's MTP modules, their parameters
 *   weight_bits kv_bits index_bits gpus card peak bandwidth act    the request and its card
 * Its value is in base units: bytes, FLOP, parameters, seconds, a fraction for %, the plain number for x. */
#ifndef M3_ESTIMATE_DOCUMENTS_DOCUMENTS_H
#define M3_ESTIMATE_DOCUMENTS_DOCUMENTS_H

#include "estimate/estimate.h"

struct m3_printed {
    const char *place;      /* section or table of the document: "6.1 table" */
    const char *what;       /* "index keys of one sequence" */
    const char *setting;    /* "m3 T=1M": model, then what the figure depends on */
    const char *printed;    /* number and unit as printed: "14.3 GiB", "413.13B", "1,048,576", "9.8x", "96.6 %" */
    const char *formula;    /* ours; NULL: not computed */
    const char *erratum;    /* "E0-58" if ours differs in the printed digits, else NULL */
};

enum { M3_DOCUMENTS = 5 };

struct m3_document {
    const char *name;       /* "000" */
    const struct m3_printed *rows;
    int count;
};

/* The rows of golden/documents/figures.tsv. */
extern const struct m3_document m3_documents[M3_DOCUMENTS];

/* A printed number: an optional ~ or =, digits with optional thousands commas, an optional power ("1.2e15"), and an
 * optional unit, which may follow a blank. */
struct m3_printed_number {
    double value, half;     /* in base units; half a unit of the last digit */
    double scale;           /* of the unit: 1e9 for G, B and GB, 0x1p30 for GiB, 0.01 for %; 1 for x and for none */
    int decimals;
    const char *unit;       /* points into the text; "" for none */
};

/* Units: x, %, K M B G T P E (10^3 .. 10^18, B = G), KB MB GB TB PB, KiB MiB GiB TiB, bytes, us ms s. M3_BAD_INPUT. */
int m3_printed_parse(struct m3_printed_number *number, const char *text, struct m3_error *error);

/* "m3 T=1M B=4 w=fp8 kv=bf16 ikv=fp8 gpu=h200 gpus=8 card=vendor act=0 mtp=3": a model of models.tsv, then optional
 * words. K and M are 2^10 and 2^20; a card is in bytes, vendor or reported. */
struct m3_document_setting {
    char model[32];
    struct m3_estimate_request request;     /* context 0 if it is not named; the rest as `m3ref estimate` has it */
    unsigned named;                         /* bits of enum m3_document_setting_bit */
};

enum m3_document_setting_bit {
    M3_NAMES_CONTEXT = 1,
    M3_NAMES_BATCH = 2,
    M3_NAMES_WEIGHTS = 4,
    M3_NAMES_KV = 8,
    M3_NAMES_INDEX_KV = 16,
    M3_NAMES_GPU = 32,
    M3_NAMES_GPUS = 64,
    M3_NAMES_CARD = 128,
    M3_NAMES_ACTIVATIONS = 256,
    M3_NAMES_MTP = 512,
};

/* M3_BAD_INPUT if the text is no setting. */
int m3_document_setting_parse(struct m3_document_setting *setting, const char *text, struct m3_error *error);

/* The value of a formula. M3_BAD_INPUT names the place in the formula. */
int m3_figure_value(double *value, const char *formula, const struct m3_estimate *e, struct m3_error *error);

enum m3_reproduction { M3_REPRODUCTION_REPRODUCED, M3_REPRODUCTION_DIFFERS, M3_REPRODUCTION_NOT_COMPUTABLE };

struct m3_judgement {
    enum m3_reproduction verdict;
    struct m3_printed_number printed;
    double ours;            /* NaN if not computable */
};

/* The model that a row is about. */
struct m3_subject {
    const struct m3_config *config;
    const struct m3_census *census;         /* of the config, without MTP modules; NULL: counted for each row */
    const struct m3_foreign *foreign;       /* whose config it is; NULL: none */
};

/* The subject of an estimate. `room` receives the census if the estimate's own census includes MTP modules. */
struct m3_subject m3_subject_of(const struct m3_estimate *e, struct m3_census *room);

/* A figure is reproduced if ours differs from it by at most half a unit of the last printed digit. It is not computable
 * without a formula, or if ours is not finite. A row that cannot be read is an error: M3_BAD_INPUT. */
int m3_printed_judge(struct m3_judgement *judgement, const struct m3_printed *row, const struct m3_subject *subject,
                     struct m3_error *error);

/* The name of the model in settings; NULL: the documents print nothing about it. A model given by few numbers is
 * recognised by its name and all of these numbers, any other by its parameters, sizes, layers, RoPE and positions. */
const char *m3_document_model(const struct m3_estimate *e);

/* An erratum about one figure of an estimate. */
struct m3_mark {
    const char *document;
    const struct m3_printed *row;
    char key[64];                           /* of the summary */
    struct m3_judgement judgement;
};

enum { M3_MOST_MARKS = 256 };

/* The rows with an erratum whose formula is a key of the summary, possibly divided by layers or numbers, and whose
 * setting agrees with the request: all that the setting names was asked for, and the figure is the same. They are in
 * the order of the documents; a figure that a document prints again is left out. */
int m3_estimate_marks(struct m3_mark marks[M3_MOST_MARKS], int *count, const struct m3_estimate *e,
                      const json_t *summary, struct m3_error *error);

#endif
