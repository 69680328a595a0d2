#include "estimate/documents.h"

/* The layers of M3 in NeMo: hardly a figure. */
const struct m3_printed m3_printed_002[] = {
    { "module", "rotated channels", "m3", "64", "R", NULL },
    { "module", "channels of a head", "m3", "128", "D", NULL },
};
const int m3_printed_002_rows = sizeof m3_printed_002 / sizeof m3_printed_002[0];
