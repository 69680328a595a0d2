/* The name of a file, with any bytes: whatever a command prints or writes about it is UTF-8 that steers no terminal. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/printable.h"
#include "cli/cli.h"
#include "world.h"

const int fuzz_parts = 1;
static char dump[512], baseline[512];

void fuzz_begin(void)
{
    fuzz_world();
    snprintf(dump, sizeof dump, "%s", fuzz_path("dump"));
    const char *const words[] = {
        "run", fuzz_path("little"), "--ids", "1,2", "--taps", "logits", "--dump", dump, NULL
    };
    fuzz_command(m3_cli_run, words);
    static const char line[] = "{\"type\":\"stage\",\"tap\":\"logits\",\"verdict\":\"pass\"}\n";
    snprintf(baseline, sizeof baseline, "%s", fuzz_path("baseline"));
    FILE *file = fopen(baseline, "w");
    if (!file || fputs(line, file) < 0 || fclose(file) != 0) fuzz_broken("no baseline");
}

static void check_text(const char *text, size_t length)
{
    for (size_t i = 0, bytes; i < length; i += bytes) {
        const uint32_t character = m3_utf8(text + i, length - i, &bytes);
        if (bytes == 0) fuzz_broken("what is printed is not UTF-8");
        if (character != '\n' && character != '\t' && m3_steers_terminal(character))
            fuzz_broken("what is printed steers a terminal");
    }
}

static void check_file(const char *path)
{
    static char text[1 << 20];
    FILE *file = fopen(path, "rb");
    if (!file) return;
    check_text(text, fread(text, 1, sizeof text, file));
    fclose(file);
    unlink(path);
}

/* Runs a command whose words end with NULL, and checks what it says. */
static void say(int (*command)(int argc, char **argv), const char *const *words)
{
    char *argv[32], *text = NULL;
    int argc = 0;
    size_t length;
    while (words[argc]) argv[argc] = (char *)(uintptr_t)words[argc], argc++;
    argv[argc] = NULL;
    FILE *const kept[] = { stdout, stderr }, *const said = open_memstream(&text, &length);
    if (!said) fuzz_broken("no stream");
    stdout = stderr = said;
    struct m3_error error = { .count = command(argc, argv) > M3_SUSPECT };
    stdout = kept[0], stderr = kept[1];
    fclose(said);
    check_text(text, length);
    free(text);
    m3_error_free(&error);
}

void fuzz_one(const struct fuzz_bytes *parts)
{
    char name[200], path[800], html[512], xml[512], ledger[512];
    size_t length = parts[0].size < sizeof name - 1 ? parts[0].size : sizeof name - 1;
    memcpy(name, parts[0].bytes, length);
    name[length] = '\0';
    for (char *at = name; *at; at++)
        if (*at == '/') *at = '_';
    snprintf(path, sizeof path, "%s/name%s", fuzz_path(""), name);
    snprintf(html, sizeof html, "%s", fuzz_path("report.html"));
    snprintf(xml, sizeof xml, "%s", fuzz_path("report.xml"));
    snprintf(ledger, sizeof ledger, "%s", fuzz_path("ledger"));
    if (link(dump, path) != 0) fuzz_broken("no file of this name");
    const char *const json = parts[0].size % 2 ? "--json" : NULL;
    say(m3_cli_inspect, (const char *const[]){ "inspect", path, json, NULL });
    say(m3_cli_compare,
        (const char *const[]){ "compare", dump, path, "--html", html, "--junit", xml, "--ledger", ledger, json, NULL });
    say(m3_cli_compare, (const char *const[]){ "compare", dump, dump, "--map", path, json, NULL });
    unlink(path);
    if (link(baseline, path) != 0) fuzz_broken("no baseline of this name");
    say(m3_cli_compare, (const char *const[]){ "compare", dump, dump, "--baseline", path, json, NULL });
    unlink(path);
    say(m3_cli_inspect, (const char *const[]){ "inspect", path, json, NULL });
    check_file(html);
    check_file(xml);
    check_file(ledger);
}
