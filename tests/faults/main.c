/* The server of faults: one command of a list is run without a fault, then with each. tests/faults/README.md */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifdef M3_SANITIZED
#include <sanitizer/lsan_interface.h>
#endif
#ifdef M3_COVERAGE
#include <gcov.h>
#endif

#include "base/status.h"
#include "faults.h"
#include "outcome.h"

enum { KNOWN = 1 << 18, WORDS = 64, SECONDS = 60, OWN_FRAMES = 6, FINDINGS = 4000 };

int program_main(int argc, char **argv);
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "exitcode=99:allocator_may_return_null=1:leak_check_at_exit=0:malloc_context_size=12:"
           "detect_odr_violation=0:detect_stack_use_after_return=0";
}

struct finding {
    char fault[64], why[1400];
    enum verdict verdict;
    void *frames[OWN_FRAMES];
    int depth;
};

struct server {
    const char *folder;     /* stdout, stderr, out/ */
    const char *name;
    char *line;
    char *argv[WORDS];
    int argc;
    const char *only;       /* the fault that is tried alone, with its stack; NULL: all */
    rlim_t most;            /* bytes of a file, at which the run has stopped that is to go on; 0: there is none */
    int goes_on;            /* the command goes on from what a failed run of it has left */
    struct fault_record *record;
    _Atomic uint64_t *known;        /* [KNOWN] places that some command has tried; NULL: none is left out */
    struct outcome good;
    struct finding *findings;
    int count;
    long sites, left_out, faults, met, verdicts[VERDICTS];
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void die(const char *what)
{
    fprintf(stderr, "faults: %s: %s\n", what, strerror(errno));
    exit(M3_INTERNAL);
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *walk)
{
    (void)info, (void)kind, (void)walk;
    return remove(path);
}

static void renew_outputs(const char *folder)
{
    static const char *const folders[] = { "out", "out/tmp", "out/remembered" };
    char path[600];
    snprintf(path, sizeof path, "%s/out", folder);
    nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, folders[i]);
        if (mkdir(path, 0777) != 0) die(path);
    }
}

/* ---- the child */

static void redirect(const char *folder, const char *name, int fd)
{
    char path[600];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    const int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (file < 0 || dup2(file, fd) < 0) die(path);
    close(file);
}

static int has_leaks(void)
{
#ifdef M3_SANITIZED
    return __lsan_do_recoverable_leak_check();
#else
    return 0;
#endif
}

static void keep_coverage(void)
{
#ifdef M3_COVERAGE
    __gcov_dump();
#endif
}

/* The program ends by exit. A run that only records is not searched for leaks. */
static void after_program(int status, void *record)
{
    struct fault_record *r = record;
    fault_disarm();
    fflush(NULL);
    if (r) {
        r->finished = 1;
        r->leaks = has_leaks();
    }
    keep_coverage();
    _exit(status);
}

static void run_program(const struct server *s, const struct fault_plan *plan)
{
    redirect(s->folder, "stdout", STDOUT_FILENO);
    redirect(s->folder, "stderr", STDERR_FILENO);
    alarm(SECONDS);
    const int error = plan->layer == FAULT_CALL ? fault_trap_calls() : 0;
    if (error) {
        fprintf(stderr, "faults: system calls cannot be trapped: %s\n", strerror(error));
        _exit(99);
    }
    fault_arm(plan, s->record);
    on_exit(after_program, plan->recording ? NULL : s->record);
    exit(program_main(s->argc, (char **)s->argv));
}

/* The address sanitizer prints to standard error after the program's own lines. */
static void drop_leak_report(char *err)
{
    char *report = strstr(err, "\n=================================================================\n");
    if (report) *report = '\0';
    if (strncmp(err, "=====", 5) == 0) *err = '\0';
}

static void copy_file(const char *to, const char *from)
{
    char bytes[4096];
    size_t count;
    FILE *source = fopen(from, "rb"), *copy = fopen(to, "wb");
    if (!source || !copy) die(from);
    while ((count = fread(bytes, 1, sizeof bytes, source)) > 0)
        if (fwrite(bytes, 1, count, copy) != count) die(to);
    fclose(source);
    if (fclose(copy) != 0) die(to);
}

/* The state of a run between two folders: {out}/state, where --resume has it, and that which is to go on. */
static void copy_state(const struct server *s, const char *to, const char *from)
{
    char path[2][600];
    snprintf(path[0], sizeof path[0], "%s/%s", s->folder, to);
    if (mkdir(path[0], 0777) != 0 && errno != EEXIST) die(path[0]);
    for (int i = 0; i < OUTCOME_STATES; i++) {
        snprintf(path[0], sizeof path[0], "%s/%s/%s", s->folder, to, outcome_states[i]);
        snprintf(path[1], sizeof path[1], "%s/%s/%s", s->folder, from, outcome_states[i]);
        if (access(path[1], F_OK) == 0) copy_file(path[0], path[1]);
    }
}

static void run_child_on(struct server *s, const struct fault_plan *plan, struct outcome *outcome)
{
    int ended;
    struct fault_record *r = s->record;
    r->finished = r->leaks = r->generations = r->depth = 0;
    r->fired = 0;
    fflush(NULL);
    const pid_t child = fork();
    if (child < 0) die("fork");
    if (child == 0) run_program(s, plan);
    while (waitpid(child, &ended, 0) < 0)
        if (errno != EINTR) die("waitpid");
    outcome_read(outcome, s->folder, r, ended);
    if (r->finished && !s->only) drop_leak_report(outcome->err);
}

static void run_child(struct server *s, const struct fault_plan *plan, struct outcome *outcome)
{
    renew_outputs(s->folder);
    if (s->most) copy_state(s, "out/state", "started");
    run_child_on(s, plan, outcome);
}

/* Runs the command until a file is as large as it may be, and keeps the state that is left. */
static void stop_one(struct server *s)
{
    const struct rlimit less = { s->most, RLIM_INFINITY }, all = { RLIM_INFINITY, RLIM_INFINITY };
    struct outcome stopped;
    renew_outputs(s->folder);
    if (setrlimit(RLIMIT_FSIZE, &less) != 0) die("RLIMIT_FSIZE");
    run_child_on(s, &(struct fault_plan){ .layer = FAULT_MEMORY }, &stopped);
    if (setrlimit(RLIMIT_FSIZE, &all) != 0) die("RLIMIT_FSIZE");
    if (WEXITSTATUS(stopped.ended) != M3_IO) die("the run has not stopped");
    outcome_free(&stopped);
    copy_state(s, "started", "out/state");
}

/* ---- faults of a command */

static const char *error_name(int error) { return error == FAULT_SHORT ? "SHORT" : strerrorname_np(error); }

static void keep_finding(struct server *s, const char *fault, enum verdict verdict, const char *why)
{
    s->verdicts[verdict]++;
    if (verdict == GOOD || s->count == FINDINGS) return;
    struct finding *f = &s->findings[s->count++];
    f->verdict = verdict;
    snprintf(f->fault, sizeof f->fault, "%s", fault);
    snprintf(f->why, sizeof f->why, "%s", why);
    extern const char __executable_start[], etext[];
    f->depth = 0;
    for (int i = 0; i < s->record->depth && f->depth < OWN_FRAMES; i++) {
        const char *at = s->record->frames[i];
        if (at >= __executable_start && at < etext) f->frames[f->depth++] = (void *)(at - __executable_start - 1);
    }
}

/* The same command, after a run of it that failed, gives the same files. */
static enum verdict judge_next(struct server *s, char *why, size_t room)
{
    struct outcome next;
    const struct fault_record met = *s->record;
    run_child_on(s, &(struct fault_plan){ .layer = FAULT_MEMORY }, &next);
    *s->record = met;
    const enum verdict verdict = outcome_judge_next(&next, &s->good, why, room);
    outcome_free(&next);
    return verdict;
}

static void try_fault(struct server *s, const char *name, const struct fault_site *site, struct fault_plan plan)
{
    struct outcome run;
    char why[1400] = "";
    if (s->only && strcmp(s->only, name) != 0) return;
    plan.number = site->number;
    run_child(s, &plan, &run);
    s->faults++;
    s->met += s->record->fired > 0;
    enum verdict verdict = outcome_judge(&run, &s->good, site->call, plan.error, why, sizeof why);
    if (verdict == GOOD && s->goes_on && run.ended != s->good.ended) verdict = judge_next(s, why, sizeof why);
    keep_finding(s, name, verdict, why);
    if (s->only) printf("%s: status %d, %s\n%s", name, WEXITSTATUS(run.ended), verdict_names[verdict], run.err);
    outcome_free(&run);
}

static void try_site(struct server *s, int index, const struct fault_site *site)
{
    char name[64];
    if (site->call == 0) {
        struct fault_plan plan = { .layer = FAULT_MEMORY, .error = ENOMEM };
        snprintf(name, sizeof name, "m%d", index);
        try_fault(s, name, site, plan);
        snprintf(name, sizeof name, "M%d", index);
        plan.onward = 1;
        try_fault(s, name, site, plan);
        return;
    }
    if (site->standard_error) return;       /* the message itself */
    for (const int *error = fault_call_errors(site->call); *error; error++) {
        snprintf(name, sizeof name, "c%d.%s.%s", index, fault_call_name(site->call), error_name(*error));
        try_fault(s, name, site, (struct fault_plan){ .layer = FAULT_CALL, .error = *error });
    }
}

/* Has a place with these innermost frames been tried? */
static int is_known(const struct server *s, uint64_t hash)
{
    size_t i = hash % KNOWN;
    while (s->known && s->known[i] && s->known[i] != hash) i = (i + 1) % KNOWN;
    return s->known && s->known[i] == hash;
}

static void make_known(struct server *s, uint64_t hash)
{
    for (size_t i = hash % KNOWN; s->known; i = (i + 1) % KNOWN) {
        uint64_t found = 0;
        if (atomic_compare_exchange_strong(&s->known[i], &found, hash) || found == hash) return;
    }
}

static void try_layer(struct server *s, enum fault_layer layer)
{
    struct outcome run;
    s->record->site_count = 0;
    run_child(s, &(struct fault_plan){ .layer = layer, .recording = 1 }, &run);
    outcome_free(&run);
    const int sites = s->record->site_count;
    if (s->record->sites_overflow) {
        fprintf(stderr, "faults: %s: %d places\n", s->name, sites);
        exit(M3_INTERNAL);
    }
    struct fault_site *copy = malloc((size_t)sites * sizeof *copy);
    if (!copy) die("malloc");
    memcpy(copy, s->record->sites, (size_t)sites * sizeof *copy);
    s->sites += sites;
    char *leave = calloc((size_t)sites, 1);
    if (!leave) die("calloc");
    for (int i = 0; i < sites; i++) leave[i] = (char)is_known(s, copy[i].inner);
    for (int i = 0; i < sites; i++) make_known(s, copy[i].inner);
    for (int i = 0; i < sites; i++) {
        if (!leave[i]) try_site(s, i, &copy[i]);
        s->left_out += leave[i];
    }
    free(leave);
    free(copy);
}

/* ---- output */

static void print_findings(const struct server *s)
{
    char path[600], command[1400], line[1000];
    snprintf(path, sizeof path, "%s/frames", s->folder);
    FILE *frames = fopen(path, "w");
    if (!frames) die(path);
    for (int i = 0; i < s->count; i++)
        for (int k = 0; k < s->findings[i].depth; k++) fprintf(frames, "%p\n", s->findings[i].frames[k]);
    fclose(frames);
    snprintf(command, sizeof command, "addr2line -fps -e /proc/%d/exe <%s", (int)getpid(), path);
    FILE *names = s->count ? popen(command, "r") : NULL;
    for (int i = 0; i < s->count; i++) {
        const struct finding *f = &s->findings[i];
        printf("%s %s: %s: %s\n   ", s->name, f->fault, verdict_names[f->verdict], f->why);
        for (int k = 0; k < f->depth && names && fgets(line, sizeof line, names); k++) {
            line[strcspn(line, "\n")] = '\0';
            if (!strstr(line, " at events.c:") && !strstr(line, " at allocations.c:") && !strstr(line, " at calls.c:"))
                printf(" < %s", line);
        }
        printf("\n");
    }
    if (names) pclose(names);
    printf("# %s: places %ld, tried elsewhere %ld, faults %ld, never met %ld", s->name, s->sites, s->left_out,
           s->faults, s->faults - s->met);
    for (int i = 1; i < VERDICTS; i++) printf(", %s %ld", verdict_names[i], s->verdicts[i]);
    printf("\n");
}

/* A word of a command, in which {in} and {out} are the folders, and {odd} is an end of names that is not UTF-8, and steers
 * a terminal. */
static char *read_word(const struct server *s, const char *word, const char *in)
{
    char out[600], *made = strdup(word), *at;
    snprintf(out, sizeof out, "%s/out", s->folder);
    const char *const all[][2] = { { "{in}", in }, { "{out}", out }, { "{odd}", "\377\033[31m" } };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        while (made && (at = strstr(made, all[i][0]))) {
            char *const old = made;
            *at = '\0';
            if (asprintf(&made, "%s%s%s", old, all[i][1], at + strlen(all[i][0])) < 0) die(word);
            free(old);
        }
    }
    if (!made) die(word);
    return made;
}

/* Finds the command's line "name: words", and splits it. The word stopped=N before the others: an earlier run of the
 * command has stopped where a file would have had more than N bytes. */
static void read_command(struct server *s, const char *list, const char *in)
{
    FILE *file = fopen(list, "r");
    size_t room = 0;
    char *line = NULL;
    if (!file) die(list);
    const size_t length = strlen(s->name);
    int found = 0;
    while (!found && getline(&line, &room, file) > 0)
        found = strncmp(line, s->name, length) == 0 && strncmp(line + length, ": ", 2) == 0;
    fclose(file);
    if (!found) {
        fprintf(stderr, "faults: %s: %s is not in it\n", list, s->name);
        exit(M3_USAGE);
    }
    s->line = line;
    s->argv[s->argc++] = "m3ref";
    for (char *word = strtok(line + length + 2, " \n"); word && s->argc < WORDS - 1; word = strtok(NULL, " \n")) {
        s->goes_on |= strcmp(word, "--resume") == 0;
        if (strncmp(word, "stopped=", 8) == 0) s->most = strtoull(word + 8, NULL, 10);
        else s->argv[s->argc++] = read_word(s, word, in);
    }
}

/* Addresses tell places apart: they have to be those of other runs. */
static void stay_in_place(char **argv)
{
    const int now_set = personality(0xffffffff);
    if (now_set & ADDR_NO_RANDOMIZE) return;
    if (personality((unsigned long)now_set | ADDR_NO_RANDOMIZE) < 0) die("personality");
    execv("/proc/self/exe", argv);
    die("/proc/self/exe");
}

static void open_known(struct server *s, const char *path)
{
    const size_t bytes = KNOWN * sizeof *s->known;
    const int file = open(path, O_RDWR | O_CREAT, 0666);
    if (file < 0 || ftruncate(file, (off_t)bytes) != 0) die(path);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) die(path);
    s->known = memory;
    close(file);
}

int main(int argc, char **argv)
{
    if (argc < 5 || argc > 6) {
        fprintf(stderr, "usage: %s COMMANDS INPUTS FOLDER NAME [FAULT]\n", argv[0]);
        return M3_USAGE;
    }
    stay_in_place(argv);
    struct server s = { .folder = argv[3], .name = argv[4], .only = argc > 5 ? argv[5] : NULL };
    char path[600];
    mkdir(s.folder, 0777);
    snprintf(path, sizeof path, "%s/out/tmp", s.folder);
    setenv("TMPDIR", path, 1);
    snprintf(path, sizeof path, "%s/out/remembered", s.folder);
    setenv("XDG_CACHE_HOME", path, 1);
    read_command(&s, argv[1], argv[2]);
    s.record = mmap(NULL, sizeof *s.record, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    s.findings = calloc(FINDINGS, sizeof *s.findings);
    const char *known = getenv("FAULTS_KNOWN");
    if (known && !s.only) open_known(&s, known);
    if (s.record == MAP_FAILED || !s.findings) die("memory");

    struct outcome again;
    char why[1400];
    const struct fault_plan none = { .layer = FAULT_MEMORY };
    if (s.most) stop_one(&s);
    run_child(&s, &none, &s.good);
    run_child(&s, &none, &again);
    if (outcome_judge(&again, &s.good, 0, 0, why, sizeof why) != GOOD) {
        fprintf(stderr, "faults: %s: two runs without a fault differ: %s\n", s.name, why);
        return M3_INTERNAL;
    }
    outcome_free(&again);
    printf("%s: status %d\n", s.name, WEXITSTATUS(s.good.ended));
    fflush(stdout);
    const double start = now();
    run_child(&s, &none, &again);
    outcome_free(&again);
    const double took = now() - start;
    try_layer(&s, FAULT_MEMORY);
    const long memory = s.sites;
    try_layer(&s, FAULT_CALL);
    fprintf(stderr, "%s %ld %ld %.3f s each, %.0f s\n", s.name, memory, s.sites - memory, took, now() - start);
    print_findings(&s);
    return s.faults > s.verdicts[GOOD];
}
