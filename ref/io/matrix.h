/* The tensors that hold one matrix, in every form in which checkpoints hold one: plain numbers, or codes beside tensors
 * of scales. Dtypes, names and shapes of the tensors decide, not config.json. SPEC 3.3.
 *
 * X.weight           X.weight_scale_inv, or X.weight_scale      F8_E4M3 codes, of MXFP8 or in blocks of 128 x 128
 * X.weight_packed    X.weight_scale, X.weight_global_scale      NVFP4, compressed-tensors
 * X.weight_packed    X.weight_scale                             MXFP4, compressed-tensors
 * X.weight_packed    X.weight_scale, X.weight_shape, perhaps X.weight_zero_point
 *                                                               W4A16, compressed-tensors
 * X.weight (U8)      X.weight_scale, X.weight_scale_2           NVFP4, ModelOpt
 * X.weight (U8)      X.weight_scale                             MXFP4 or W4A16, ModelOpt and others */
#ifndef M3_IO_MATRIX_H
#define M3_IO_MATRIX_H

#include "base/weight.h"
#include "io/safetensors.h"

/* Where tensors are looked up: a model directory, or one file. *path becomes the name of the file. */
struct m3_tensor_source {
    const struct m3_tensor *(*find)(const void *files, const char *name, const char **path);
    const void *files;
    const char *home; /* named in a message about a tensor that is missing */
};

enum { M3_MATRIX_TENSORS = 6 };

struct m3_matrix {
    struct m3_weight weight;
    const struct m3_tensor *of[M3_MATRIX_TENSORS]; /* all tensors of the matrix; the first are the numbers */
    int count; /* 0: there is no such matrix */
};

/* Receives the problems that are found: a file, a tensor and what is wrong with it. */
struct m3_matrix_report {
    void (*add)(void *self, const char *path, const char *tensor, const char *what);
    void *self;
};

/* Does the source hold the matrix "X.weight" in codes? Plain numbers are not looked at. */
int m3_matrix_is_coded(const struct m3_tensor_source *source, const char *name);

/* Finds a matrix [rows, cols] in codes; rows = 0: of whatever size the tensors say. The weight may be used only if no
 * problem was reported. */
void m3_matrix_find(struct m3_matrix *matrix, const struct m3_tensor_source *source, const char *name, int64_t rows,
                    int64_t cols, const struct m3_matrix_report *report);

/* Does a tensor of this name hold scales of activations, or of cached keys and values? Quantised checkpoints have them
 * beside their weights. */
int m3_is_of_activations(const char *name);

#endif
