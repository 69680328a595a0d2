/* The engines with the plain operators instead of the default ones. The operator tests are compiled against them under
 * other names (Makefile), so both bodies are compared with the same twins. */
#include "model/engine.h"

const struct m3_engine *m3_engine_plain_f32(void);
const struct m3_engine *m3_engine_plain_f64(void);

const struct m3_engine *m3_engine_plain_f32(void)
{
    static struct m3_engine engine;
    engine = *m3_engine_f32();
    engine.ops = engine.plain;
    return &engine;
}

const struct m3_engine *m3_engine_plain_f64(void)
{
    static struct m3_engine engine;
    engine = *m3_engine_f64();
    engine.ops = engine.plain;
    return &engine;
}
