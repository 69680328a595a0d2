#include "library/private.h"
#include "oracle/error/profile.h"
#include "oracle/judge/compare.h"
#include "oracle/map/map.h"

struct inputs {
    struct m3_safetensors *reference, *candidate, *companions;
    struct m3_profile *profile;
};

/* Files in memory have no name that says anything. */
static int open_inputs(struct inputs *in, const struct m3_library_compare *task, struct m3_error *notes,
                       struct m3_error *error)
{
    int status = m3_library_need(task->reference, "reference", error);
    if (!status) status = m3_library_need(task->candidate, "candidate", error);
    if (!status) status = m3_profile_open(&in->profile, task->profile ? task->profile : "fp32", error);
    if (!status) status = m3_safetensors_open_as(&in->reference, task->reference, "reference", error);
    if (!status) status = m3_safetensors_open_as(&in->candidate, task->candidate, "candidate", error);
    if (!status && task->companions)
        status = m3_safetensors_open_as(&in->companions, task->companions, "companions", error);
    if (status || !task->map) return status;
    const struct m3_map_sizes sizes = m3_map_sizes_of_dump(in->reference);
    return m3_map_put(&in->candidate, task->map, &sizes, notes, error);
}

static int compare(struct m3_library_report *report, const struct m3_library_compare *task, struct m3_error *error)
{
    struct inputs in = { 0 };
    struct m3_error notes = { 0 }, why = { 0 };
    struct m3_judgement comparison = { 0 };
    int status = open_inputs(&in, task, &notes, error);
    if (!status) {
        const struct m3_compare_options options = {
            .taps = task->taps, .force = task->force, .profile = in.profile, .companions = in.companions
        };
        status = m3_compare(&comparison, in.reference, in.candidate, &options, &why);
        m3_judgement_is_of(&comparison, in.reference, in.profile);
        m3_add_notes(&comparison.notes, &notes);
        /* Not comparable is a verdict too; why it is so belongs to the report. */
        if (status == M3_NOT_COMPARABLE) m3_add_notes(&comparison.notes, &why);
        if (status == M3_OK || status == M3_NOT_COMPARABLE) status = m3_library_report(report, &comparison, error);
        else m3_fail_because(error, (enum m3_status)status, &why);
        m3_judgement_free(&comparison);
    }
    m3_error_free(&notes);
    m3_error_free(&why);
    m3_safetensors_close(in.reference);
    m3_safetensors_close(in.candidate);
    m3_safetensors_close(in.companions);
    m3_profile_close(in.profile);
    return status;
}

int m3_library_compare(struct m3_library_report *report, const struct m3_library_compare *task, struct m3_error *error)
{
    struct m3_reading reading;
    struct m3_library_compare own;
    if (!report) return m3_fail(error, M3_USAGE, "report: got NULL, expected a structure");
    *report = (struct m3_library_report){ 0 };
    int status = m3_library_begin(&reading, &own, sizeof own, task, error);
    if (!status) status = compare(report, &own, error);
    m3_reading_end(&reading);
    return status;
}
