/* The report files of a verdict, --html and --junit: what compare, blame, check and op share. */
#ifndef M3_CLI_JUDGE_REPORTS_H
#define M3_CLI_JUDGE_REPORTS_H

#include "io/new_file.h"
#include "oracle/report/report.h"

struct m3_cli_paths;

struct m3_cli_reports {
    const char *html, *junit;   /* paths, as given; NULL: not asked for */
    struct m3_new_file html_file, junit_file;
};
#define M3_CLI_NO_REPORTS { .html_file = M3_NO_FILE, .junit_file = M3_NO_FILE }

void m3_cli_writes_reports(struct m3_cli_paths *paths, const struct m3_cli_reports *reports);
/* Opened before the work, so that an error in a path is reported at once. */
int m3_cli_reports_open(struct m3_cli_reports *reports, struct m3_error *error);
int m3_cli_reports_write(struct m3_cli_reports *reports, const struct m3_report_subject *subject,
                         struct m3_error *error);
/* Gives the files their names, after all of them are complete. */
int m3_cli_reports_commit(struct m3_cli_reports *reports, struct m3_error *error);
void m3_cli_reports_end(struct m3_cli_reports *reports);

/* A stream of its own for a file, whose descriptor stays open for commit. */
int m3_cli_open_stream(FILE **out, const struct m3_new_file *file, struct m3_error *error);
int m3_cli_close_stream(FILE *out, const struct m3_new_file *file, int status, struct m3_error *error);

/* The value of --spec, which becomes a link: a path, or an address of http or https. M3_USAGE for another scheme, such as
 * one that a browser would execute. */
int m3_cli_spec(const char **spec, const char *text, struct m3_error *error);

/* The extent that --all and --only-failing ask for. M3_USAGE for both. */
int m3_cli_extent(enum m3_report_extent *extent, int all, int only_failing, const char *command,
                  struct m3_error *error);

#endif
