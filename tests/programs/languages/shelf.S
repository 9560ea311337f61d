/* A counter, watched in assembly. */
        .data
total:  .quad 0
        .type total, @object
        .size total, 8
        .text
        .globl ready, main
        .type ready, @function
ready:  ret
        .type main, @function
main:   call ready
        addq $5, total(%rip)
        addq $900, total(%rip)
        mov $3, %eax
        ret
        .section .note.GNU-stack, "", @progbits
