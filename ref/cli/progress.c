/* The line that a long pass shows on a terminal: which layer runs, what has been read, how long the rest will take. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static void begin_part(struct m3_cli_watch *w, const char *part, double now)
{
    snprintf(w->part, sizeof w->part, "%s", part);
    w->began = w->entered = now;
    w->read_before = bytes_read();
}

/* The layers to come are taken to be as slow as the last one: the first ones of the model are smaller than the rest. */
static int add_rest(char *text, size_t size, const struct m3_cli_watch *w, int64_t left, double now)
{
    const int64_t seconds = (int64_t)((now - w->entered) * (double)left + 0.5);
    const double read = (double)(bytes_read() - w->read_before);
    int n = 0;
    if (read > 0) n = snprintf(text, size, ", %.1f GB read at %.2f GB/s", read / 1e9, read / 1e9 / (now - w->began));
    return n + snprintf(text + n, size - (size_t)n, ", %" PRId64 ":%02d:%02d left", seconds / 3600,
                        (int)(seconds / 60 % 60), (int)(seconds % 60));
}

void m3_cli_progress(void *self, const char *part, int64_t layer, int64_t layers)
{
    struct m3_cli_watch *w = self;
    char text[200];
    const int is_text = strcmp(part, "layer") == 0;
    const int64_t end = is_text && w->end_layer > 0 ? w->end_layer : layers;
    w->anonymous = m3_max(w->anonymous, m3_cli_anonymous_bytes());
    if (!w->terminal || layer >= end) return;
    const double now = m3_seconds();
    const int is_first = strcmp(part, w->part) != 0 || layer <= w->layer;       /* of this pass */
    w->layer = layer;
    if (is_first) begin_part(w, part, now);
    int n = snprintf(text, sizeof text, "%s %" PRId64 " of %" PRId64, part, layer + 1, end);
    if (!is_first) n += add_rest(text + n, sizeof text - (size_t)n, w, end - layer, now);
    w->entered = now;
    w->width = (int)m3_max(w->width, n);
    fprintf(stderr, "\r%-*s ", w->width, text);
}

void m3_cli_progress_clear(const struct m3_cli_watch *w)
{
    if (w->terminal) fprintf(stderr, "\r%*s\r", w->width + 1, "");
}
