#include "ops/backward.h"
#include "ops/operators.h"

#define NONE(...)

#define ENTRY_PLAIN(name) .name = m3_##name,
#define ENTRY_FAST(name) .name = m3_fast_##name,
#define ENTRY(name, file, bodies, ...) ENTRY_##bodies(name)
const struct m3_ops m3_fast_ops = { .abi_version = M3_OPS_ABI, .real_bytes = sizeof(real), M3_OPERATORS(ENTRY, NONE) };

#define DERIVATIVE_PLAIN(name) .name = m3_##name##_backward,
#define DERIVATIVE_FAST(name) .name = m3_fast_##name##_backward,
#define DERIVATIVE(name, NAME, bodies, ...) DERIVATIVE_##bodies(name)
const struct m3_backward_ops m3_fast_backward_ops = { M3_DERIVATIVES(DERIVATIVE, NONE, DERIVATIVE) };
