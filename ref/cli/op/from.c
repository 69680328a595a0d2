#include "cli/op/from.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/printable.h"
#include "cli/standard.h"

int m3_cli_op_from_check(const struct m3_cli_op_from *from, int is_make, struct m3_error *error)
{
    const struct m3_from_dump *o = &from->options;
    if (!o->dump) {
        const char *alone = o->taps          ? "--tap"
                            : o->model       ? "--model"
                            : o->case_path   ? "--case"
                            : o->allow_large ? "--allow-large"
                                             : NULL;
        return alone ? m3_fail(error, M3_USAGE, "op: got %s without --from, expected both", alone) : M3_OK;
    }
    if (!is_make) return m3_fail(error, M3_USAGE, "op: got --from without --make, expected both");
    if (!o->taps) return m3_fail(error, M3_USAGE, "op: got --from without --tap, expected both");
    if (!o->model)
        return m3_fail(error, M3_USAGE,
                       "op: got --from without --model, expected both: a dump holds no weights and no parameters");
    if (from->drawn)
        return m3_fail(error, M3_USAGE, "op: got --sizes, --seed or --cases with --from, expected none of them");
    return M3_OK;
}

void m3_cli_op_from_paths(struct m3_cli_paths *paths, const struct m3_cli_op_from *from)
{
    m3_cli_reads(paths, "--from", from->options.dump);
    m3_cli_reads(paths, "--case", from->options.case_path);
    if (from->options.model && !paths->status) paths->status = m3_checkpoint_reads(from->options.model, paths->error);
}

static void print(FILE *to, const struct m3_cli_op_from *from, const struct m3_operator_row *op,
                  const struct m3_from_dump_summary *s)
{
    fprintf(to, "%s: %" PRId64 " case%s from %s, %.1f MB", op->name, s->cases, s->cases == 1 ? "" : "s",
            m3_printable(from->options.dump).text, (double)s->bytes / 1e6);
    if (s->others > 0) fprintf(to, "; %" PRId64 " other taps match, which other operators make", s->others);
    if (s->incomplete > 0) fprintf(to, "; %" PRId64 " lack operands in the dump", s->incomplete);
    fprintf(to, "\n");
}

int m3_cli_op_from(const struct m3_cli_op_from *from, const struct m3_operator_row *op, const char *cases,
                   struct m3_error *error)
{
    struct m3_from_dump_summary summary;
    struct m3_standard out;
    struct m3_error notes = { 0 };
    int status = m3_standard_output(&out, cases, error);
    if (!status) status = m3_cases_from_dump(op, out.path, &from->options, &summary, &notes, error);
    if (!status) status = m3_standard_send(&out, error);
    m3_standard_end(&out);
    if (!status) print(out.is_standard ? stderr : stdout, from, op, &summary);
    if (!status) m3_error_print(&notes, stderr);
    m3_error_free(&notes);
    return status;
}
