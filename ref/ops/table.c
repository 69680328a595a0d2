#include "ops/backward.h"
#include "ops/operators.h"

#define NONE(...)

#define ENTRY(name, ...) .name = m3_##name,
const struct m3_ops m3_plain_ops = { .abi_version = M3_OPS_ABI, .real_bytes = sizeof(real), M3_OPERATORS(ENTRY, NONE) };

#define BACK(name, ...) .name = m3_##name##_backward,
const struct m3_backward_ops m3_plain_backward_ops = { M3_DERIVATIVES(BACK, NONE, BACK) };
