/* The documents whose sections an HTML page carries, byte for byte, for html_sections.c. */
    .section .rodata

    .globl m3_specification, m3_specification_end, m3_verdicts, m3_verdicts_end
m3_specification:
    .incbin "SPEC.md"
m3_specification_end:
m3_verdicts:
    .incbin "ref/oracle/VERDICTS.md"
m3_verdicts_end:

    .section .note.GNU-stack, "", %progbits
