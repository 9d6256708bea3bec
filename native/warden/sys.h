/* The kernel's interface, without a libc: raw system calls, the few types that the kernel's own
 * headers leave to one, and the memory and string functions that are needed.
 *
 * Every call returns what the kernel returned: a value, or -errno. */
#ifndef WARDEN_SYS_H
#define WARDEN_SYS_H

#include <asm/unistd.h>
#include <linux/errno.h>
#include <linux/fcntl.h>
#include <linux/stat.h>
#include <linux/types.h>
#include <stddef.h>
#include <stdint.h>

#ifndef O_PATH
#define O_PATH 010000000
#endif

typedef int pid_type;

#if defined(__x86_64__)
static inline long sys6(long n, long a, long b, long c, long d, long e, long f)
{
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}
#elif defined(__aarch64__)
static inline long sys6(long n, long a, long b, long c, long d, long e, long f)
{
    register long x8 __asm__("x8") = n;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = f;
    __asm__ volatile("svc 0"
                     : "+r"(x0)
                     : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                     : "memory");
    return x0;
}
#else
#error "the warden knows x86-64 and arm64"
#endif

#define SYS0(n) sys6(__NR_##n, 0, 0, 0, 0, 0, 0)
#define SYS1(n, a) sys6(__NR_##n, (long)(a), 0, 0, 0, 0, 0)
#define SYS2(n, a, b) sys6(__NR_##n, (long)(a), (long)(b), 0, 0, 0, 0)
#define SYS3(n, a, b, c) sys6(__NR_##n, (long)(a), (long)(b), (long)(c), 0, 0, 0)
#define SYS4(n, a, b, c, d) sys6(__NR_##n, (long)(a), (long)(b), (long)(c), (long)(d), 0, 0)
#define SYS5(n, a, b, c, d, e) \
    sys6(__NR_##n, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), 0)
#define SYS6(n, a, b, c, d, e, f) \
    sys6(__NR_##n, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))

struct timespec_k {
    int64_t seconds;
    int64_t nanoseconds;
};

struct pollfd_k {
    int fd;
    short events;
    short revents;
};
#define P_IN 0x1
#define P_OUT 0x4
#define P_ERR 0x8
#define P_HUP 0x10

struct sigaction_k {
    uint64_t handler, flags, restorer, mask;
};

struct dirent_k {
    uint64_t inode;
    int64_t next;
    uint16_t length;
    uint8_t type;
    char name[];
};

struct rusage_k {
    int64_t user_s, user_us, system_s, system_us;
    int64_t max_rss_kb;
    int64_t unused[13];
};

/* Sockets on one machine. */
#define UNIX 1
#define SOCKET_LEVEL 1

/* Signals and wait statuses have the same numbers on both processors. */
#define SIG_KILL 9
#define SIG_TERM 15
#define SIG_CHLD 17
#define SIG_CONT 18
#define SIG_STOP 19
#define CLONE_SHARED_MEMORY 0x100 /* CLONE_VM */
#define WAIT_NOHANG 1
#define WAIT_EXITED 4
#define WAIT_LEAVE 0x01000000 /* WNOWAIT */
#define WAIT_ALL 0x40000000 /* __WALL */
#define EXITED(status) (((status) & 0x7f) == 0)
#define EXIT_CODE(status) (((status) >> 8) & 0xff)
#define TERM_SIGNAL(status) ((status) & 0x7f)

static inline int64_t now_ms(void)
{
    struct timespec_k now = {0, 0};
    SYS2(clock_gettime, 1 /* CLOCK_MONOTONIC */, &now);
    return now.seconds * 1000 + now.nanoseconds / 1000000;
}

/* The moment that lies so far ahead; the longest spans are as good as for ever. */
static inline int64_t after_ms(uint64_t ms)
{
    uint64_t most = 1ull << 60;
    return now_ms() + (int64_t)(ms < most ? ms : most);
}

static inline void sleep_us(long us)
{
    struct timespec_k span = {us / 1000000, (us % 1000000) * 1000};
    SYS2(nanosleep, &span, 0);
}

static inline void leave(int code)
{
    for (;;)
        SYS1(exit_group, code);
}

static inline pid_type fork_process(void)
{
    return (pid_type)SYS5(clone, SIG_CHLD, 0, 0, 0, 0);
}

/* Has a child run a function that does not return, on a stack of its own. It shares our memory
 * until it has become another program, so there is none to copy and none to take down; we go on
 * at once. (As vfork's parent we would wait in a state that counts as load on the machine.) */
static inline pid_type fork_sharing(void *stack_end, void (*run)(void *), void *argument)
{
#if defined(WARDEN_HOSTED) /* the sanitizers know of one stack */
    (void)stack_end;
    pid_type pid = fork_process();
    if (!pid)
        run(argument);
    return pid;
#elif defined(__x86_64__)
    register void (*r8)(void *) __asm__("r8") = run;
    register void *r9 __asm__("r9") = argument;
    long result;
    __asm__ volatile("syscall\n"
                     "test %%rax, %%rax\n"
                     "jnz 1f\n"
                     "xor %%ebp, %%ebp\n"
                     "mov %%r9, %%rdi\n"
                     "call *%%r8\n"
                     "ud2\n"
                     "1:"
                     : "=a"(result)
                     : "a"(__NR_clone), "D"(CLONE_SHARED_MEMORY | SIG_CHLD), "S"(stack_end), "d"(0),
                       "r"(r8), "r"(r9)
                     : "rcx", "r11", "r10", "memory");
    return (pid_type)result;
#else
    register long x8 __asm__("x8") = __NR_clone;
    register long x0 __asm__("x0") = CLONE_SHARED_MEMORY | SIG_CHLD;
    register void *x1 __asm__("x1") = stack_end;
    register void (*x5)(void *) __asm__("x5") = run;
    register void *x6 __asm__("x6") = argument;
    __asm__ volatile("mov x2, #0\n"
                     "mov x3, #0\n"
                     "mov x4, #0\n"
                     "svc 0\n"
                     "cbnz x0, 1f\n"
                     "mov x29, #0\n"
                     "mov x0, x6\n"
                     "blr x5\n"
                     "brk #0\n"
                     "1:"
                     : "+r"(x0), "+r"(x1)
                     : "r"(x8), "r"(x5), "r"(x6)
                     : "x2", "x3", "x4", "memory");
    return (pid_type)x0;
#endif
}

static inline int open_at(int dir, const char *path, int flags, int mode)
{
    return (int)SYS4(openat, dir, path, flags | O_CLOEXEC, mode);
}

void *memcpy(void *to, const void *from, size_t size);
void *memmove(void *to, const void *from, size_t size);
void *memset(void *to, int value, size_t size);
int memcmp(const void *a, const void *b, size_t size);

size_t text_length(const char *text);
int text_equal(const char *a, const char *b);
const char *text_find(const char *text, char wanted);
uint64_t text_number(const char *text);
size_t number_text(char *to, uint64_t value); /* NUL-terminated; at most 21 bytes */

#endif
