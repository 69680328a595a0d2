#include "cli/judge/reports.h"

#include <errno.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "cli/paths.h"
#include "io/open.h"

void m3_cli_writes_reports(struct m3_cli_paths *paths, const struct m3_cli_reports *reports)
{
    m3_cli_writes(paths, "--html", reports->html);
    m3_cli_writes(paths, "--junit", reports->junit);
}

int m3_cli_open_stream(FILE **out, const struct m3_new_file *file, struct m3_error *error)
{
    int fd = dup(file->fd);
    *out = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (*out != NULL) return M3_OK;
    const int why = errno;
    if (fd >= 0) close(fd);
    return m3_fail(error, m3_status_of(why), "%s: %s", file->path, strerror(why));
}

int m3_cli_close_stream(FILE *out, const struct m3_new_file *file, int status, struct m3_error *error)
{
    int failed = ferror(out);
    if ((fclose(out) != 0 || failed) && status == M3_OK)
        status = m3_fail(error, M3_IO, "%s: %s", file->path, strerror(errno));
    return status;
}

int m3_cli_reports_open(struct m3_cli_reports *reports, struct m3_error *error)
{
    int status = M3_OK;
    if (reports->html != NULL) status = m3_new_file_open(&reports->html_file, reports->html, error);
    if (status == M3_OK && reports->junit != NULL)
        status = m3_new_file_open(&reports->junit_file, reports->junit, error);
    return status;
}

static int write_report(const struct m3_new_file *file,
                        int (*report)(FILE *, const struct m3_report_subject *, struct m3_error *),
                        const struct m3_report_subject *subject, struct m3_error *error)
{
    if (file->fd < 0) return M3_OK;
    FILE *out;
    struct m3_error why = { 0 };
    int status = m3_cli_open_stream(&out, file, error);
    if (status != M3_OK) return status;
    status = report(out, subject, &why);
    const char *line = m3_error_lines(&why) != NULL ? m3_error_lines(&why) : "";
    if (status != M3_OK) m3_fail(error, (enum m3_status)status, "%s: %.*s", file->path, (int)strcspn(line, "\n"), line);
    m3_error_free(&why);
    return m3_cli_close_stream(out, file, status, error);
}

int m3_cli_reports_write(struct m3_cli_reports *reports, const struct m3_report_subject *subject,
                         struct m3_error *error)
{
    int status = write_report(&reports->html_file, m3_report_html, subject, error);
    return status ? status : write_report(&reports->junit_file, m3_report_junit, subject, error);
}

int m3_cli_reports_commit(struct m3_cli_reports *reports, struct m3_error *error)
{
    int status = M3_OK;
    if (reports->html_file.fd >= 0) status = m3_new_file_commit(&reports->html_file, error);
    if (status == M3_OK && reports->junit_file.fd >= 0) status = m3_new_file_commit(&reports->junit_file, error);
    return status;
}

void m3_cli_reports_end(struct m3_cli_reports *reports)
{
    m3_new_file_abandon(&reports->html_file);
    m3_new_file_abandon(&reports->junit_file);
}

int m3_cli_extent(enum m3_report_extent *extent, int all, int only_failing, const char *command, struct m3_error *error)
{
    *extent = only_failing ? M3_REPORT_FAILING : all ? M3_REPORT_ALL : M3_REPORT_SHORT;
    if (all && only_failing)
        return m3_fail(error, M3_USAGE, "%s: got --all and --only-failing, expected one of them", command);
    return M3_OK;
}

int m3_cli_spec(const char **spec, const char *text, struct m3_error *error)
{
    const size_t scheme = strcspn(text, ":/?#");
    int odd = text[0] == '\0' || text[0] == ' ';
    for (const char *c = text; *c; c++) odd |= (unsigned char)*c < ' ';
    if (text[scheme] == ':') odd |= strncasecmp(text, "http://", 7) != 0 && strncasecmp(text, "https://", 8) != 0;
    if (odd) return m3_fail(error, M3_USAGE, "--spec: got %s, expected a path, or an address of http or https", text);
    *spec = text;
    return M3_OK;
}
