#include "estimate/documents.h"

/* An introduction of M2. */
const struct m3_printed m3_printed_004[] = {
    { "intro", "parameters", "m2", "230B", "params_total", "E4-01" },
    { "intro", "active parameters", "m2", "10B", "params_active_by_convention.layers", NULL },
};
const int m3_printed_004_rows = sizeof m3_printed_004 / sizeof m3_printed_004[0];
