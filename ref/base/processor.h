/* Which instruction sets this processor has, for loops that are compiled once for each. */
#ifndef M3_BASE_PROCESSOR_H
#define M3_BASE_PROCESSOR_H

/* AVX2 stands for AVX2 and FMA. */
enum m3_instructions { M3_INSTRUCTIONS_PORTABLE, M3_INSTRUCTIONS_AVX2, M3_INSTRUCTIONS_AVX512 };

/* The widest that this processor can run. */
enum m3_instructions m3_instructions(void);

#endif
