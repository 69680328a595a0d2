/* A plug-in whose rms_norm is right, and then does to its process what its word names. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fenv.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ops/ops.h"

static m3_op_rms_norm *right;

static void end_quietly(int number)
{
    (void)number;
    _exit(0);
}

/* Returns to what raised the signal, which raises it again. */
static void ignore(int number)
{
    (void)number;
    usleep(1000);
}

/* Jumps to a function that has returned. */
static void jump(void)
{
    jmp_buf nowhere;
    memset(&nowhere, 0, sizeof nowhere);
    longjmp(nowhere, 1);
}

/* As a library compiled with -ffast-math. */
static void no_subnormals(void)
{
#ifdef __SSE2__
    __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040);
#else
    fesetround(FE_TOWARDZERO);
#endif
}

__attribute__((constructor)) static void loaded(void)
{
    no_subnormals();
    fesetround(FE_UPWARD);
}

static void print_megabytes(void)
{
    static char text[1 << 20];
    memset(text, 'a', sizeof text);
    for (int i = 0; i < 2; i++) fwrite(text, 1, sizeof text, stdout);
}

static void write_to(const real *input) { *(volatile real *)(uintptr_t)input = 7; }

static int misbehave(const char *word, real *y, const real *x, int64_t n)
{
    static int forked;
    volatile int going = 1;
    if (strcmp(word, "end") == 0) _exit(3);
    if (strcmp(word, "thread") == 0) pthread_exit(NULL);
    if (strcmp(word, "jump") == 0) jump();
    while (strcmp(word, "spin") == 0 && going) continue;
    if (strcmp(word, "byte") == 0) ((volatile char *)y)[n * (int64_t)sizeof *y] = 1;
    if (strcmp(word, "close") == 0) closefrom(0);
    if (strcmp(word, "close_and_crash") == 0) closefrom(0), abort();
    if (strcmp(word, "print") == 0) print_megabytes();
    if (strcmp(word, "handler") == 0) signal(SIGSEGV, end_quietly), write_to(x);
    if (strcmp(word, "deaf") == 0) signal(SIGSEGV, ignore), write_to(x);
    if (strcmp(word, "up") == 0) fesetround(FE_UPWARD);
    if (strcmp(word, "down") == 0) fesetround(FE_DOWNWARD);
    if (strcmp(word, "truncate") == 0) fesetround(FE_TOWARDZERO);
    if (strcmp(word, "flush") == 0) no_subnormals();
    if (strcmp(word, "trap") == 0) feenableexcept(FE_DIVBYZERO);
    if (strcmp(word, "group") == 0) kill(0, SIGTERM);
    if (strcmp(word, "fork") == 0 && !forked++ && fork() < 0) return M3_INTERNAL;
    if (strncmp(word, "stay", 4) == 0 && fork() == 0) sleep(300), _exit(0);
    while (strcmp(word, "stay_and_hang") == 0) usleep(1000);
    return strncmp(word, "status", 6) == 0 ? atoi(word + 6) : M3_OK;
}

static int rms_norm(struct m3_ctx *ctx, real *y, const real *x, const real *w, int64_t T, int64_t H, real eps)
{
    const int status = right(ctx, y, x, w, T, H, eps);
    return status ? status : misbehave(ctx->plugin, y, x, T * H);
}

const struct m3_plugin_abi m3_plugin_abi = { M3_OPS_ABI, sizeof(real) };

int m3_plugin(struct m3_ops *ops)
{
    right = ops->rms_norm;
    ops->rms_norm = rms_norm;
    return M3_OK;
}

int m3_plugin_start(void **state, const char *words, struct m3_error *error)
{
    *state = NULL;
    if (strncmp(words, "start", 5) == 0) return atoi(words + 5);
    *state = strdup(words);
    return *state ? M3_OK : m3_fail_memory(error, "words", strlen(words));
}

void m3_plugin_stop(void *state) { free(state); }
