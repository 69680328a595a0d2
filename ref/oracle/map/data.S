/* The files of maps/, byte for byte, for map_file.c. */
    .section .rodata

    .globl m3_map_transformers, m3_map_vllm, m3_map_sglang, m3_map_llama_cpp, m3_maps_end
m3_map_transformers:
    .incbin "ref/oracle/map/maps/transformers.json"
m3_map_vllm:
    .incbin "ref/oracle/map/maps/vllm.json"
m3_map_sglang:
    .incbin "ref/oracle/map/maps/sglang.json"
m3_map_llama_cpp:
    .incbin "ref/oracle/map/maps/llama_cpp.json"
m3_maps_end:

    .section .note.GNU-stack, "", %progbits
