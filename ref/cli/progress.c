/* The line that long work shows on a terminal: what is being done, its share, how fast it is, how long the rest will take;
 * with --progress a line of it each minute, where there is no terminal. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/minmax.h"
#include "cli/cli.h"

/* The number after `key` in a file of the system about this process; 0 if it does not report it. */
static int64_t reported(const char *path, const char *key)
{
    char line[128];
    int64_t number = 0;
    const size_t length = strlen(key);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, key, length) == 0) number = strtoll(line + length, NULL, 10);
    if (file) fclose(file);
    return number;
}

int64_t m3_cli_anonymous_bytes(void) { return 1024 * reported("/proc/self/status", "RssAnon:"); }

/* From storage, mapped files included. */
static int64_t bytes_read(void) { return reported("/proc/self/io", "read_bytes:"); }

static int is_bytes(const char *what) { return strncmp(what, "bytes ", 6) == 0; }

void m3_cli_watch_begin(struct m3_cli_watch *w, int logs)
{
    w->terminal = isatty(STDERR_FILENO);
    w->logs = logs && !w->terminal;
    w->told = m3_seconds();
}

static void begin_part(struct m3_cli_watch *w, const char *what, int64_t done, double now)
{
    snprintf(w->what, sizeof w->what, "%s", what);
    w->first = done;
    w->began = w->entered = now;
    w->read_before = bytes_read();
}

/* Layers to come are taken to be as slow as the last one, because the first ones of the model are smaller than the rest;
 * other parts as slow as those so far. */
static double seconds_left(const struct m3_cli_watch *w, int64_t done, int64_t all, double now)
{
    const size_t length = strlen(w->what);
    const int is_layer = length >= 5 && strcmp(w->what + length - 5, "layer") == 0;
    if (is_layer) return (now - w->entered) * (double)(all - done);
    return (now - w->began) / (double)(done - w->first) * (double)(all - done);
}

/* ", 20 %, 1.2 GB read at 0.30 GB/s, 0:01:02 left". */
static void add_rest(char *text, size_t size, const struct m3_cli_watch *w, int64_t done, int64_t all, double now)
{
    const int64_t seconds = (int64_t)(seconds_left(w, done, all, now) + 0.5);
    const double read = (double)(bytes_read() - w->read_before), took = fmax(now - w->began, 1e-9);
    int n = snprintf(text, size, ", %d %%", (int)(100 * ((double)done / (double)all)));
    if (is_bytes(w->what))
        n += snprintf(text + n, size - (size_t)n, ", %.2f GB/s", (double)(done - w->first) / 1e9 / took);
    else if (read > 0)
        n += snprintf(text + n, size - (size_t)n, ", %.1f GB read at %.2f GB/s", read / 1e9, read / 1e9 / took);
    snprintf(text + n, size - (size_t)n, ", %" PRId64 ":%02d:%02d left", seconds / 3600, (int)(seconds / 60 % 60),
             (int)(seconds % 60));
}

static int print_part(char *text, size_t size, const char *what, int64_t done, int64_t all)
{
    const double unit = all < 1000000000 ? 1e6 : 1e9;
    if (!is_bytes(what)) return snprintf(text, size, "%s %" PRId64 " of %" PRId64, what, done + 1, all);
    return snprintf(text, size, "%.1f of %.1f %s %s", (double)done / unit, (double)all / unit,
                    unit == 1e6 ? "MB" : "GB", what + strlen("bytes "));
}

/* On a terminal ten lines a second are enough, unless there are few in all; in a log, one a minute. */
static int is_due(const struct m3_cli_watch *w, int64_t all, double now)
{
    enum { FEW = 200 };
    if (w->logs) return now - w->told >= 60;
    return (all <= FEW && !is_bytes(w->what)) || now - w->told >= 0.1;
}

static void tell(void *self, const char *what, int64_t done, int64_t layers)
{
    struct m3_cli_watch *w = self;
    char text[200];
    const int is_text = strcmp(what, "layer") == 0;
    const int64_t all = is_text && w->end_layer > 0 ? w->end_layer : layers;
    if (!is_bytes(what)) w->anonymous = m3_max(w->anonymous, m3_cli_anonymous_bytes());
    if ((!w->terminal && !w->logs) || done >= all) return;
    const double now = m3_seconds();
    const int is_first = strcmp(what, w->what) != 0 || done <= w->done; /* of this pass */
    w->done = done;
    if (is_first) begin_part(w, what, done, now);
    if (is_due(w, all, now)) {
        int n = print_part(text, sizeof text, what, done, all);
        if (!is_first) add_rest(text + n, sizeof text - (size_t)n, w, done, all, now);
        w->width = (int)m3_max(w->width, (int64_t)strlen(text));
        if (w->terminal) fprintf(stderr, "\r%-*s ", w->width, text);
        else fprintf(stderr, "m3ref: %s\n", text);
        w->told = now;
    }
    w->entered = now;
}

struct m3_progress m3_cli_watched(struct m3_cli_watch *w) { return (struct m3_progress){ tell, w }; }

void m3_cli_watch_end(const struct m3_cli_watch *w)
{
    if (w->terminal && w->width > 0) fprintf(stderr, "\r%*s\r", w->width + 1, "");
}
