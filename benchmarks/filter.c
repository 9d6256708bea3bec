/* Writes the warden's system call filter to its standard output, as `bwrap --seccomp` reads it:
 * so that a plain bwrap can be measured with the very same one. */
#include "seccomp.c"

int main(void)
{
    build();
    size_t size = length * sizeof *program;
    return SYS3(write, 1, program, size) != (long)size;
}
