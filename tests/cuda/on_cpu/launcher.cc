/* Runs kernels on a CPU: block after block, each thread of a block a fiber that runs until it waits for others.
 *
 * What would come out on a device only now and then is made to come out here: shared memory starts as 0xFF bytes, and
 * which block and which thread continues next is ascending, descending or drawn, another way with every launch. So a
 * missing barrier or a dependence on order gives other bits in a second run. What can be seen to be wrong prints a line
 * and aborts. */
#include <cuda_runtime.h>

#include <cuda/ptx.cuh>
#include <map>
#include <numeric>
#include <stdarg.h>
#include <stdio.h>
#include <vector>

#include "fiber.h"

enum { MOST_THREADS = 1024, PLAIN_SHARED = 48 << 10, MOST_SHARED = 99 << 10, GUARD = 1024, GUARD_BYTE = 0xA5 };

alignas(128) unsigned char m3_shared[MOST_SHARED + GUARD];
uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace {

enum state { GOES_ON, IN_BLOCK_MEETING, IN_WARP_MEETING, RETURNED };
enum order { ASCENDING, DESCENDING, DRAWN };

struct meeting {
    const char *operation;
    m3_line at;
    unsigned arrived;
    unsigned first;             /* to arrive */
};

struct copy {
    void *to;
    const void *from;           /* NULL: zeros */
};

struct thread {
    fiber own;
    enum state state;
    std::vector<copy> copies;           /* not finished, in order */
    std::vector<size_t> groups;         /* how many copies each committed group has */
    size_t uncommitted;
};

/* Two sets of what lanes brought: when the first lanes bring to the next meeting, the last still read of this one. */
struct warp {
    struct meeting meeting;
    unsigned held, returned;
    alignas(16) unsigned char brought[2][M3_LANES * M3_LANE_BYTES];
};

fiber outside;
struct thread threads[MOST_THREADS];
struct warp warps[MOST_THREADS / M3_LANES];
int made;

/* Those that can continue, a ring. */
unsigned ready[MOST_THREADS], ready_start, ready_count;

struct meeting block_meeting;
unsigned self, alive;
size_t shared_bytes;
enum order order;
void (*thread_body)(void *);
void *thread_call;

uint64_t launches, random_state;
std::map<const void *, int> asked_shared;

[[noreturn]] __attribute__((format(printf, 1, 2))) void fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "cuda_on_cpu: block (%u,%u,%u), thread %u: ", blockIdx.x, blockIdx.y, blockIdx.z, self);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    abort();
}

uint64_t draw(uint64_t below)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint64_t)((unsigned __int128)random_state * below >> 64);
}

// ---- who continues

void let_go_on(unsigned first, unsigned count)
{
    for (unsigned i = first; i < first + count; i++) {
        if (threads[i].state == RETURNED) continue;
        threads[i].state = GOES_ON;
        ready[(ready_start + ready_count++) % MOST_THREADS] = i;
    }
}

unsigned take_ready()
{
    unsigned *oldest = ready + ready_start, taken = *oldest;
    ready_count--;
    if (order == ASCENDING) {
        ready_start = (ready_start + 1) % MOST_THREADS;
        return taken;
    }
    /* From anywhere; the last of the ring takes its place. */
    const uint64_t i = order == DESCENDING ? ready_count : draw(ready_count + 1);
    taken = ready[(ready_start + i) % MOST_THREADS];
    ready[(ready_start + i) % MOST_THREADS] = ready[(ready_start + ready_count) % MOST_THREADS];
    return taken;
}

/* No thread can continue: some lanes are at a barrier, the others of their warp at a meeting of the warp. */
[[noreturn]] void fail_stuck()
{
    unsigned i = 0;
    while (threads[i].state != IN_WARP_MEETING) i++;
    const struct meeting *m = &warps[i / M3_LANES].meeting;
    self = i;
    fail("waits for ever at %s (%s:%d) with %u of 32 lanes; thread %u waits at %s (%s:%d)", m->operation, m->at.file,
         m->at.number, m->arrived, block_meeting.first, block_meeting.operation, block_meeting.at.file,
         block_meeting.at.number);
}

/* Lets the next run; returns when this one's turn has come. */
void go_on()
{
    if (ready_count == 0 && alive > 0) fail_stuck();
    const unsigned before = self;
    fiber *next = &outside;
    if (alive > 0) {
        self = threadIdx.x = take_ready();
        next = &threads[self].own;
    }
    if (next != &threads[before].own) fiber_change(&threads[before].own, next);
}

void end_block_meeting()
{
    block_meeting.arrived = 0;
    let_go_on(0, blockDim.x);
}

void return_from_kernel()
{
    struct thread *t = threads + self;
    struct warp *w = warps + self / M3_LANES;
    if (w->meeting.arrived > 0)
        fail("returns while lane %u waits at %s (%s:%d)", w->meeting.first % M3_LANES, w->meeting.operation,
             w->meeting.at.file, w->meeting.at.number);
    w->returned++;
    t->state = RETURNED;
    t->copies.clear();
    t->groups.clear();
    t->uncommitted = 0;
    alive--;
    if (alive > 0 && block_meeting.arrived == alive) end_block_meeting();
    go_on();
}

/* One life after the other. */
void live()
{
    fiber_arrived(NULL);
    for (;;) {
        thread_body(thread_call);
        return_from_kernel();
    }
}

/* Mostly the same pointer; objects may have copies of a name. */
bool same_name(const char *a, const char *b) { return a == b || strcmp(a, b) == 0; }

void arrive(struct meeting *m, const char *operation, m3_line at)
{
    if (m->arrived++ == 0) {
        m->operation = operation;
        m->at = at;
        m->first = self;
        return;
    }
    if (m->at.number != at.number || !same_name(m->operation, operation) || !same_name(m->at.file, at.file))
        fail("is at %s (%s:%d) while thread %u waits at %s (%s:%d)", operation, at.file, at.number, m->first,
             m->operation, m->at.file, m->at.number);
}

// ---- blocks and grids

void fence_shared()
{
    memset(m3_shared, 0xFF, shared_bytes);
    memset(m3_shared + shared_bytes, GUARD_BYTE, GUARD);
#ifdef __SANITIZE_ADDRESS__
    ASAN_POISON_MEMORY_REGION(m3_shared + shared_bytes, sizeof m3_shared - shared_bytes);
#endif
}

void check_fence()
{
#ifdef __SANITIZE_ADDRESS__
    ASAN_UNPOISON_MEMORY_REGION(m3_shared, sizeof m3_shared);
#endif
    const unsigned char *fence = m3_shared + shared_bytes;
    if (fence[0] == GUARD_BYTE && memcmp(fence, fence + 1, GUARD - 1) == 0) return;     /* all are the same */
    size_t i = 0;
    while (fence[i] == GUARD_BYTE) i++;
    fail("last of a block that wrote byte %zu of shared memory of %zu", shared_bytes + i, shared_bytes);
}

void run_block()
{
    fence_shared();
    alive = blockDim.x;
    for (unsigned w = 0; w < blockDim.x / M3_LANES; w++) warps[w].returned = 0;
    for (unsigned i = 0; i < blockDim.x; i++) threads[i].state = GOES_ON;
    ready_start = ready_count = 0;
    let_go_on(0, blockDim.x);
    self = threadIdx.x = take_ready();
    fiber_change(&outside, &threads[self].own);
    check_fence();
}

/* Blocks 0..n-1, each once. */
void run_blocks(uint64_t n)
{
    const uint64_t start = order == DRAWN ? draw(n) : order == DESCENDING ? n - 1 : 0;
    uint64_t step = order == DESCENDING ? n - 1 : 1;
    if (order == DRAWN) do step = 1 + draw(n); while (std::gcd(step, n) != 1);
    uint64_t b = start;
    for (uint64_t i = 0; i < n; i++) {
        blockIdx.x = (unsigned)(b % gridDim.x);
        blockIdx.y = (unsigned)(b / gridDim.x % gridDim.y);
        blockIdx.z = (unsigned)(b / gridDim.x / gridDim.y);
        run_block();
        b = (b + step) % n;
    }
}

/* The limits of sm_80, of shared memory those of sm_86; and a block is a row of whole warps. */
cudaError_t check_launch(const cudaLaunchConfig_t *c, const void *kernel)
{
    const dim3 grid = c->gridDim, block = c->blockDim;
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffff || grid.y > 65535 || grid.z > 65535 ||
        block.x == 0 || block.x > MOST_THREADS || block.x % M3_LANES != 0 || block.y != 1 || block.z != 1)
        return cudaErrorInvalidConfiguration;
    const auto asked = asked_shared.find(kernel);
    const int allowed = asked == asked_shared.end() ? (int)PLAIN_SHARED : asked->second;
    if (c->dynamicSmemBytes > (size_t)allowed || c->numAttrs > 0) return cudaErrorInvalidValue;
    return cudaSuccess;
}

}

cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute attribute, int value)
{
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 || value > MOST_SHARED)
        return m3_remember(cudaErrorInvalidValue);
    asked_shared[kernel] = value;
    return cudaSuccess;
}

cudaError_t m3_run_grid(const cudaLaunchConfig_t *config, const void *kernel, void (*thread)(void *call), void *call)
{
    const cudaError_t error = M3_FAKE_DEVICES ? check_launch(config, kernel) : cudaErrorNoDevice;
    if (error != cudaSuccess) return m3_remember(error);
    for (; made < (int)config->blockDim.x; made++)
        if (!fiber_make(&threads[made].own, live, made)) return m3_remember(cudaErrorMemoryAllocation);
    gridDim = config->gridDim;
    blockDim = config->blockDim;
    shared_bytes = config->dynamicSmemBytes;
    thread_body = thread;
    thread_call = call;
    random_state = ++launches * 0x9e3779b97f4a7c15u;
    static const enum order orders[] = { ASCENDING, DESCENDING, DRAWN, DRAWN };
    order = orders[draw(4)];
    run_blocks((uint64_t)gridDim.x * gridDim.y * gridDim.z);
    return cudaSuccess;
}

// ---- what a thread calls

void m3_meet_block(const char *operation, m3_line at)
{
    arrive(&block_meeting, operation, at);
    threads[self].state = IN_BLOCK_MEETING;
    if (block_meeting.arrived == alive) end_block_meeting();
    go_on();
}

void *m3_meet_warp(const char *operation, m3_line at, unsigned mask, const void *brought, size_t bytes,
                   void (*together)(void *all))
{
    struct warp *w = warps + self / M3_LANES;
    if (mask != 0xffffffffu) fail("%s (%s:%d) with mask %08x", operation, at.file, at.number, mask);
    if (w->returned > 0) fail("is at %s (%s:%d), but a lane has returned", operation, at.file, at.number);
    unsigned char *all = w->brought[w->held % 2];
    unsigned char *mine = all + self % M3_LANES * bytes;
    if (bytes == 4) memcpy(mine, brought, 4);
    else if (bytes == 8) memcpy(mine, brought, 8);
    else if (bytes > 0) memcpy(mine, brought, bytes);
    arrive(&w->meeting, operation, at);
    threads[self].state = IN_WARP_MEETING;
    if (w->meeting.arrived == M3_LANES) {
        w->meeting.arrived = 0;
        w->held++;
        if (together) together(all);
        let_go_on(self / M3_LANES * M3_LANES, M3_LANES);
    }
    go_on();
    return all;
}

void m3_check_shared(const char *operation, m3_line at, const void *p, size_t bytes)
{
    const uintptr_t offset = (uintptr_t)p - (uintptr_t)m3_shared;
    if (offset > shared_bytes || bytes > shared_bytes - offset || offset % bytes != 0)
        fail("%s (%s:%d): %zu bytes at %td of shared memory of %zu", operation, at.file, at.number, bytes,
             (ptrdiff_t)offset, shared_bytes);
}

void m3_begin_copy(void *shared, const void *global, int valid, m3_line at)
{
    struct thread *t = threads + self;
    m3_check_shared("copy_16", at, shared, 16);
    if ((uintptr_t)global % 16 != 0)
        fail("copy_16 (%s:%d): %p in device memory is not aligned to 16", at.file, at.number, global);
    memset(shared, 0xFF, 16);
    t->copies.push_back({ shared, valid ? global : NULL });
    t->uncommitted++;
}

void m3_commit_copies()
{
    struct thread *t = threads + self;
    t->groups.push_back(t->uncommitted);
    t->uncommitted = 0;
}

void m3_finish_copies(size_t groups_left)
{
    struct thread *t = threads + self;
    if (t->groups.size() <= groups_left) return;
    const auto end = t->groups.end() - (ptrdiff_t)groups_left;
    const size_t n = std::accumulate(t->groups.begin(), end, (size_t)0);
    for (size_t i = 0; i < n; i++) {
        const struct copy *c = &t->copies[i];
        if (c->from) memcpy(c->to, c->from, 16);
        else memset(c->to, 0, 16);
    }
    t->groups.erase(t->groups.begin(), end);
    t->copies.erase(t->copies.begin(), t->copies.begin() + (ptrdiff_t)n);
}
