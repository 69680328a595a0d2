/* System calls that fail: a filter of the kernel (seccomp) turns each into a signal, whose handler carries it out or
 * fails it. So calls inside libc, such as those of stdio, fail as well as the program's own, which libc makes. All other
 * calls pass: those of the handler, of the sanitizer, and of a program that is started, whose libc lies elsewhere. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "faults.h"

#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

long fault_kernel(long call, long a, long b, long c, long d, long e, long f);
__asm__(".text\n"
        ".globl fault_kernel\n"
        ".type fault_kernel, @function\n"
        "fault_kernel:\n"
        "    mov %rdi, %rax\n"
        "    mov %rsi, %rdi\n"
        "    mov %rdx, %rsi\n"
        "    mov %rcx, %rdx\n"
        "    mov %r8, %r10\n"
        "    mov %r9, %r8\n"
        "    mov 8(%rsp), %r9\n"
        "    syscall\n"
        "    ret\n"
        ".size fault_kernel, . - fault_kernel\n");

/* Errors that the call may really have, besides success. EINTR only where a program has to go on after it. */
static const struct {
    int call;
    const char *name;
    int errors[5];
} calls[] = {
    { SYS_open, "open", { EIO, EMFILE } },
    { SYS_openat, "openat", { EIO, EMFILE } },
    { SYS_memfd_create, "memfd_create", { EMFILE, ENOMEM } },
    { SYS_read, "read", { EIO, EINTR, FAULT_SHORT } },
    { SYS_pread64, "pread", { EIO, EINTR, FAULT_SHORT } },
    { SYS_readv, "readv", { EIO } },
    { SYS_write, "write", { EIO, ENOSPC, EINTR, FAULT_SHORT } },
    { SYS_pwrite64, "pwrite", { EIO, ENOSPC, EINTR, FAULT_SHORT } },
    { SYS_writev, "writev", { EIO, ENOSPC } },
    { SYS_pwritev, "pwritev", { EIO, ENOSPC } },
    { SYS_fsync, "fsync", { EIO, ENOSPC, EINTR } },
    { SYS_fdatasync, "fdatasync", { EIO, ENOSPC, EINTR } },
    { SYS_close, "close", { EIO } },
    { SYS_lseek, "lseek", { EIO } },
    { SYS_ftruncate, "ftruncate", { EIO, ENOSPC, EINTR } },
    { SYS_fallocate, "fallocate", { EIO, ENOSPC, EINTR } },
    { SYS_mmap, "mmap", { ENOMEM, ENODEV } },
    { SYS_stat, "stat", { EIO } },
    { SYS_fstat, "fstat", { EIO } },
    { SYS_lstat, "lstat", { EIO } },
    { SYS_newfstatat, "newfstatat", { EIO } },
    { SYS_statx, "statx", { EIO } },
    { SYS_access, "access", { EIO } },
    { SYS_faccessat, "faccessat", { EIO } },
    { SYS_faccessat2, "faccessat2", { EIO } },
    { SYS_getdents64, "getdents64", { EIO } },
    { SYS_readlink, "readlink", { EIO } },
    { SYS_rename, "rename", { EIO, ENOSPC } },
    { SYS_renameat, "renameat", { EIO, ENOSPC } },
    { SYS_renameat2, "renameat2", { EIO, ENOSPC } },
    { SYS_link, "link", { EIO, ENOSPC } },
    { SYS_linkat, "linkat", { EIO, ENOSPC } },
    { SYS_unlink, "unlink", { EIO } },
    { SYS_unlinkat, "unlinkat", { EIO } },
    { SYS_mkdir, "mkdir", { EIO, ENOSPC } },
    { SYS_mkdirat, "mkdirat", { EIO, ENOSPC } },
    { SYS_dup, "dup", { EMFILE } },
    { SYS_pipe2, "pipe2", { EMFILE } },
    { SYS_clone, "fork", { EAGAIN } },
};
enum { CALLS = sizeof calls / sizeof *calls };

static int place_of(int call)
{
    int i = 0;
    while (i < CALLS - 1 && calls[i].call != call) i++;
    return i;
}

const char *fault_call_name(int call) { return calls[place_of(call)].name; }
const int *fault_call_errors(int call) { return calls[place_of(call)].errors; }

static int writes(long call) { return call == SYS_write || call == SYS_pwrite64 || call == SYS_writev; }
static int has_size(long call) { return call == SYS_read || call == SYS_pread64 || writes(call); }

/* The call is in info; its arguments, and the place for its result, are in the registers. */
static void on_call(int signal_number, siginfo_t *info, void *context)
{
    (void)signal_number;
    const int saved = errno;
    greg_t *g = ((ucontext_t *)context)->uc_mcontext.gregs;
    const long call = info->si_syscall;
    long size = g[REG_RDX];
    int error = fault_event(FAULT_CALL, (int)call, has_size(call) ? (size_t)size : 0,
                            writes(call) && g[REG_RDI] == STDERR_FILENO);
    if (error == FAULT_SHORT) {
        if (size > 1) size /= 2;
        error = 0;
    }
    /* A close that reports an error has closed all the same. */
    if (!error || call == SYS_close)
        g[REG_RAX] = fault_kernel(call, g[REG_RDI], g[REG_RSI], size, g[REG_R10], g[REG_R8], g[REG_R9]);
    if (error) g[REG_RAX] = -error;
    errno = saved;
}

/* The code of libc and of its loader. */
struct range {
    uintptr_t from, to;
};
enum { RANGES = 2, LINES_OF_RANGE = 5, FILTER = 64 + CALLS };

static int find_code(struct dl_phdr_info *info, size_t size, void *self)
{
    static const char *const names[RANGES] = { "/libc.so", "/ld-linux" };
    (void)size;
    for (int n = 0; n < RANGES; n++) {
        if (!strstr(info->dlpi_name, names[n])) continue;
        for (int i = 0; i < info->dlpi_phnum; i++) {
            if (info->dlpi_phdr[i].p_type != PT_LOAD || !(info->dlpi_phdr[i].p_flags & PF_X)) continue;
            struct range *code = (struct range *)self + n;
            code->from = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
            code->to = code->from + info->dlpi_phdr[i].p_memsz;
        }
    }
    return 0;
}

static void add(struct sock_filter *filter, unsigned short *count, struct sock_filter line)
{
    if (*count < FILTER) filter[(*count)++] = line;
}

/* Allows the calls whose instruction lies in none of the ranges: 32 bits at a time, as the filter computes. */
static void allow_other_code(struct sock_filter *filter, unsigned short *count, const struct range *code)
{
    const unsigned place = offsetof(struct seccomp_data, instruction_pointer);
    for (int n = 0; n < RANGES; n++) {
        const unsigned char rest = (unsigned char)(LINES_OF_RANGE * (RANGES - 1 - n) + 1);
        add(filter, count, (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, place + 4));
        add(filter, count,
            (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)(code[n].from >> 32), 0, 3));
        add(filter, count, (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, place));
        add(filter, count, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, (unsigned)code[n].from, 0, 1));
        add(filter, count, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, (unsigned)code[n].to, 0, rest));
    }
    add(filter, count, (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
}

int fault_trap_calls(void)
{
    struct sock_filter filter[FILTER];
    struct range code[RANGES] = { 0 };
    unsigned short count = 0;
    dl_iterate_phdr(find_code, code);
    for (int n = 0; n < RANGES; n++)
        if (!code[n].from || code[n].from >> 32 != code[n].to >> 32) return EINVAL;
    allow_other_code(filter, &count, code);
    add(filter, &count, (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)));
    /* A new thread starts on a stack of its own, which the handler cannot give it: only processes are trapped. */
    add(filter, &count, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 4));
    add(filter, &count, (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args)));
    add(filter, &count, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, CLONE_VM, 0, 1));
    add(filter, &count, (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
    add(filter, &count, (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP));
    for (int i = 0; i < CALLS - 1; i++)
        add(filter, &count,
            (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)calls[i].call,
                                         (unsigned char)(CALLS - 1 - i), 0));
    add(filter, &count, (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
    add(filter, &count, (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP));

    struct sigaction action = { .sa_sigaction = on_call, .sa_flags = SA_SIGINFO | SA_NODEFER };
    struct sock_fprog program = { count, filter };
    if (sigaction(SIGSYS, &action, NULL) != 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return errno;
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0 ? 0 : errno;
}

/* A program that is started has addresses of its own (linked with --wrap). */
int __real_posix_spawnp(pid_t *child, const char *file, const posix_spawn_file_actions_t *actions,
                        const posix_spawnattr_t *attributes, char *const words[], char *const environment[]);
int __wrap_posix_spawnp(pid_t *child, const char *file, const posix_spawn_file_actions_t *actions,
                        const posix_spawnattr_t *attributes, char *const words[], char *const environment[]);
int __wrap_posix_spawnp(pid_t *child, const char *file, const posix_spawn_file_actions_t *actions,
                        const posix_spawnattr_t *attributes, char *const words[], char *const environment[])
{
    const int kept = personality(0xffffffff);
    personality((unsigned long)kept & ~(unsigned long)ADDR_NO_RANDOMIZE);
    const int failed = __real_posix_spawnp(child, file, actions, attributes, words, environment);
    personality((unsigned long)kept);
    return failed;
}
