/* The models that documents print figures of are recognised by their sizes.
 *
 * Seen to fail with: models told apart by parameters alone; a size, the name or the kinds of the layers not read. */
#include "documented.h"

TIMEOUT(120);

TEST(models_by_their_sizes)
{
    load();
    for (int i = 0; i < model_count; i++) {
        struct m3_estimate_request r = request(1, 1, "bf16", "bf16");
        r.foreign = loaded[i].subject.foreign;
        if (r.foreign) r.config = loaded[i].subject.census;
        struct m3_estimate e = estimate(loaded[i].subject.config, &r);
        ck_assert_pstr_eq(m3_document_model(&e), loaded[i].name);
        if (i > 0) continue;
        r.mtp_modules = 2;
        e = estimate(&loaded[i].own, &r);
        ck_assert_pstr_eq(m3_document_model(&e), loaded[i].name);
        loaded[i].own.max_positions--;
        ck_assert_ptr_null(m3_document_model(&e));
    }
    unload();
}

/* One more of any size, or a layer of the other kind, is another model; the estimate with its parameters stays. */
TEST(models_of_other_sizes)
{
    load();
    for (int i = 0; i < model_count; i++) {
        struct m3_foreign *foreign = loaded[i].subject.foreign ? &loaded[i].foreign : NULL;
        struct m3_config *c = foreign ? &foreign->config : &loaded[i].own;
        struct m3_estimate_request r = request(1, 1, "bf16", "bf16");
        r.foreign = foreign;
        r.config = loaded[i].subject.census;
        struct m3_estimate e = estimate(c, &r);
        int few = foreign && foreign->few;
        /* clang-format off */
        int64_t *const sizes[] = { &c->layers, &c->max_positions, &c->Q, &c->G, &c->D, &c->H, &c->X, &c->V, &c->N,
                                   &c->block, &c->K, &c->E, &c->F, &c->dense_intermediate, &c->shared_intermediate,
                                   &c->R };
        /* clang-format on */
        for (size_t j = 0; j < (few ? 5 : sizeof sizes / sizeof sizes[0]); j++) {
            ++*sizes[j];
            ck_assert_msg(!m3_document_model(&e), "%s: size %zu", loaded[i].name, j);
            --*sizes[j];
        }
        int64_t *const numbers[] = { &loaded[i].foreign.parameters, &loaded[i].foreign.active,
                                     &loaded[i].foreign.cached_numbers };
        for (int j = 0; few && j < 3; j++) {
            ++*numbers[j];
            ck_assert_msg(!m3_document_model(&e), "%s: number %d", loaded[i].name, j);
            --*numbers[j];
        }
        if (few) loaded[i].foreign.name[0]++;
        else c->rope_theta++;
        ck_assert_ptr_null(m3_document_model(&e));
        if (few) loaded[i].foreign.name[0]--;
        else c->rope_theta--;
        for (int64_t l = 0; !few && l < c->layers; l++) {
            c->sparse[l] ^= 1;
            ck_assert_ptr_null(m3_document_model(&e));
            c->sparse[l] ^= 1;
            c->moe[l] ^= 1;
            ck_assert_ptr_null(m3_document_model(&e));
            c->moe[l] ^= 1;
        }
        ck_assert_pstr_eq(m3_document_model(&e), loaded[i].name);
    }
    unload();
}
