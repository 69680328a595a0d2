#include <math.h>

#include "estimate/documents/documents.h"

/* The value of a formula in an estimate for `request`. */
static int value_for(double *value, const struct m3_printed *row, const struct m3_config *config,
                     const struct m3_estimate_request *request, struct m3_error *error)
{
    struct m3_estimate e;
    int status = m3_estimate(&e, config, request, error);
    return status ? status : m3_figure_value(value, row->formula, &e, error);
}

struct m3_subject m3_subject_of(const struct m3_estimate *e, struct m3_census *room)
{
    if (e->request.mtp_modules) m3_census_of_config(room, e->config, 0, M3_MTP_CONCAT);
    return (struct m3_subject){ e->config, e->request.mtp_modules ? room : &e->census, e->request.foreign };
}

int m3_printed_judge(struct m3_judgement *judgement, const struct m3_printed *row, const struct m3_subject *subject,
                     struct m3_error *error)
{
    struct m3_document_setting setting;
    *judgement = (struct m3_judgement){ .verdict = M3_REPRODUCTION_NOT_COMPUTABLE, .ours = NAN };
    int status = m3_printed_parse(&judgement->printed, row->printed, error);
    if (!status) status = m3_document_setting_parse(&setting, row->setting, error);
    if (!status && row->formula) {
        struct m3_estimate_request *request = &setting.request;
        if (!request->context) request->context = subject->config->max_positions;
        if (!request->context) request->context = M3_UNKNOWN;
        if (!request->mtp_modules) request->config = subject->census;
        request->foreign = subject->foreign;
        status = value_for(&judgement->ours, row, subject->config, request, error);
    }
    if (status) return m3_fail(error, M3_BAD_INPUT, "%s: %s: cannot be judged", row->place, row->what);
    if (!isfinite(judgement->ours)) return M3_OK;
    const struct m3_printed_number *printed = &judgement->printed;
    int near = fabs(judgement->ours - printed->value) <= printed->half + 1e-12 * fabs(printed->value);
    judgement->verdict = near ? M3_REPRODUCTION_REPRODUCED : M3_REPRODUCTION_DIFFERS;
    return M3_OK;
}
