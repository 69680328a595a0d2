/* The files of profiles/, byte for byte, for profile.c. */
    .section .rodata

    .globl m3_profile_fp32, m3_profile_bf16, m3_profile_fp8, m3_profile_cuda_bf16, m3_profiles_end
m3_profile_fp32:
    .incbin "ref/oracle/error/profiles/fp32.json"
m3_profile_bf16:
    .incbin "ref/oracle/error/profiles/bf16.json"
m3_profile_fp8:
    .incbin "ref/oracle/error/profiles/fp8.json"
m3_profile_cuda_bf16:
    .incbin "ref/oracle/error/profiles/cuda_bf16.json"
m3_profiles_end:

    .section .note.GNU-stack, "", %progbits
