/* Cost against context, as an SVG picture. SPEC 14.10. */
#ifndef M3_ESTIMATE_CHART_H
#define M3_ESTIMATE_CHART_H

#include "estimate/estimate.h"

struct m3_chart_request {
    const char *title;
    int64_t last;               /* the axis of contexts ends here: the model's limit, or a mark beyond it */
    const int64_t *marks;       /* contexts to point out, each up to `last` */
    int mark_count;
};

/* *svg, to be freed by the caller, is XML without script or external reference. It has a panel each for the FLOPs of a
 * decoded token, the caches, and the bytes read in a step with their least time; panels without known values are left
 * out. Everything except the context is taken from `request`. M3_USAGE if no panel is left, or a figure exceeds 63
 * bits; M3_INTERNAL. */
int m3_estimate_chart(char **svg, const struct m3_config *config, const struct m3_estimate_request *request,
                      const struct m3_chart_request *chart, struct m3_error *error);

#endif
