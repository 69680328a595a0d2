/* A flow of control with a stack of its own. Made once, and never ended: it waits until it is changed to again. */
#ifndef M3_CUDA_ON_CPU_FIBER_H
#define M3_CUDA_ON_CPU_FIBER_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#ifndef __x86_64__
#include <ucontext.h>
#endif

#if defined __has_feature
#if __has_feature(address_sanitizer) && !defined __SANITIZE_ADDRESS__
#define __SANITIZE_ADDRESS__ 1
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

struct fiber {
#ifdef __x86_64__
    void *top;              /* of its stack, while another runs */
#else
    ucontext_t context;
#endif
    const void *bottom;     /* the sanitizer wants to know where the stack is */
    size_t size;
};

enum { FIBER_STACK = 256 << 10, FIBER_PAGE = 4096 };

#ifdef __x86_64__
/* swapcontext asks the system for the mask of signals: fifty times the price. */
extern "C" void m3_change_stack(void **from, void *to);
asm(".pushsection .text\n"
    ".hidden m3_change_stack\n"
    ".globl m3_change_stack\n"
    ".type m3_change_stack, @function\n"
    "m3_change_stack:\n"
    "    pushq %rbp\n    pushq %rbx\n    pushq %r12\n    pushq %r13\n    pushq %r14\n    pushq %r15\n"
    "    movq %rsp, (%rdi)\n"
    "    movq %rsi, %rsp\n"
    "    popq %r15\n    popq %r14\n    popq %r13\n    popq %r12\n    popq %rbx\n    popq %rbp\n"
    "    ret\n"
    ".size m3_change_stack, . - m3_change_stack\n"
    ".popsection\n");
#endif

static fiber *fiber_before;         /* who changed to the one that runs */

static inline void fiber_arrived(void *saved)
{
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(saved, &fiber_before->bottom, &fiber_before->size);
#endif
    (void)saved;
}

static inline void fiber_change(fiber *from, fiber *to)
{
    void *saved = NULL;
    fiber_before = from;
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(&saved, to->bottom, to->size);
#endif
#ifdef __x86_64__
    m3_change_stack(&from->top, to->top);
#else
    swapcontext(&from->context, &to->context);
#endif
    fiber_arrived(saved);
}

/* `body` calls fiber_arrived(NULL) first, and does not return. 0 without memory.
 * Stacks begin at different places of a page, or they would all want the same lines of the cache. */
static inline int fiber_make(fiber *f, void (*body)(), int number)
{
    char *memory = (char *)mmap(NULL, FIBER_STACK + FIBER_PAGE, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == (char *)MAP_FAILED || mprotect(memory, FIBER_PAGE, PROT_NONE) != 0) return 0;
    f->bottom = memory + FIBER_PAGE;
    f->size = FIBER_STACK - (size_t)(number % 32) * 128;
#ifdef __x86_64__
    void **top = (void **)(memory + FIBER_PAGE + f->size) - 2;      /* on entry, 8 off a multiple of 16 */
    *top = (void *)body;
    f->top = top - 6;                                               /* the six registers, 0 */
#else
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = memory + FIBER_PAGE;
    f->context.uc_stack.ss_size = f->size;
    makecontext(&f->context, body, 0);
#endif
    return 1;
}

#endif
