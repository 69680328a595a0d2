/* System calls that fail: a filter of the kernel (seccomp) turns each into a signal, whose handler carries it out or
 * fails it. So calls inside libc, such as those of stdio, fail as well as the program's own. Those of the sanitizer
 * pass: the filter knows its code by address, and the handler's own calls too. */
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
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

long fault_kernel(long call, long a, long b, long c, long d, long e, long f);
extern const char fault_kernel_end[];
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
        ".globl fault_kernel_end\n"
        "fault_kernel_end:\n"
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

struct range {
    uintptr_t from, to;
};

static int find_sanitizer(struct dl_phdr_info *info, size_t size, void *self)
{
    (void)size;
    struct range *code = self;
    if (!strstr(info->dlpi_name, "libasan")) return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type != PT_LOAD || !(info->dlpi_phdr[i].p_flags & PF_X)) continue;
        code->from = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
        code->to = code->from + info->dlpi_phdr[i].p_memsz;
    }
    return 1;
}

enum { FILTER = 64 + CALLS };
static void add(struct sock_filter *filter, unsigned short *count, struct sock_filter line)
{
    if (*count < FILTER) filter[(*count)++] = line;
}

/* Allows the calls whose instruction lies in the range: 32 bits at a time, as the filter computes. */
static void allow_code(struct sock_filter *filter, unsigned short *count, struct range code)
{
    const unsigned high = (unsigned)(code.from >> 32);
    const unsigned place = offsetof(struct seccomp_data, instruction_pointer);
    add(filter, count, (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, place + 4));
    add(filter, count, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, high, 0, 4));
    add(filter, count, (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, place));
    add(filter, count, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, (unsigned)code.from, 0, 2));
    add(filter, count, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, (unsigned)code.to, 1, 0));
    add(filter, count, (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
}

int fault_trap_calls(void)
{
    struct sock_filter filter[FILTER];
    struct range sanitizer = { 0 }, own = { (uintptr_t)fault_kernel, (uintptr_t)fault_kernel_end };
    unsigned short count = 0;
    dl_iterate_phdr(find_sanitizer, &sanitizer);
    if (sanitizer.from >> 32 != sanitizer.to >> 32 || own.from >> 32 != own.to >> 32) return EINVAL;
    if (sanitizer.from) allow_code(filter, &count, sanitizer);
    allow_code(filter, &count, own);
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
