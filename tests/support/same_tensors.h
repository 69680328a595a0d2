/* Comparison of two safetensors files. */
#ifndef M3_TESTS_SAME_TENSORS_H
#define M3_TESTS_SAME_TENSORS_H

#include <check.h>
#include <string.h>

#include "io/safetensors.h"

/* Checks that all tensors have the same bytes. */
static inline void same_tensors(const char *a_path, const char *b_path)
{
    struct m3_safetensors *a, *b;
    ck_assert_int_eq(m3_safetensors_open(&a, a_path, NULL), M3_OK);
    ck_assert_int_eq(m3_safetensors_open(&b, b_path, NULL), M3_OK);
    ck_assert_int_eq(m3_safetensors_count(a), m3_safetensors_count(b));
    for (int64_t i = 0; i < m3_safetensors_count(a); i++) {
        const struct m3_tensor *x = m3_safetensors_at(a, i), *y = m3_safetensors_find(b, x->name);
        ck_assert_msg(y && x->bytes == y->bytes && memcmp(x->data, y->data, x->bytes) == 0, "%s differs", x->name);
    }
    m3_safetensors_close(a);
    m3_safetensors_close(b);
}

#endif
