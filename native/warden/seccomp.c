/* The system call filter: what a container engine's default profile refuses to a program without
 * capabilities is refused here too, and a few things more.
 *
 * Calls that the kernel has gained since this list was written answer ENOSYS, so that programs
 * fall back; so does clone3, whose flags a filter can't see. Programs of another processor mode
 * (32-bit on x86-64) are not served. */
#include "warden.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#else
#define ARCH AUDIT_ARCH_AARCH64
#endif

#define NEWEST 463 /* the highest number that was looked at for this list */
#define CLONE_NAMESPACES 0x7e020080u /* CLONE_NEW*: ns, cgroup, uts, ipc, user, pid, net, time */

/* Numbers above 423 are the same on every processor; older headers lack some of the names. */
static const uint16_t refused[] = {
    __NR_acct, __NR_add_key, __NR_bpf, __NR_clock_settime, __NR_delete_module, __NR_fanotify_init,
    __NR_finit_module, __NR_get_mempolicy, __NR_init_module, __NR_kexec_load, __NR_keyctl,
    __NR_lookup_dcookie, __NR_mbind, __NR_migrate_pages, __NR_mount, __NR_move_pages,
    __NR_nfsservctl, __NR_open_by_handle_at, __NR_perf_event_open, __NR_pivot_root, __NR_quotactl,
    __NR_reboot, __NR_request_key, __NR_set_mempolicy, __NR_setdomainname, __NR_sethostname,
    __NR_setns, __NR_settimeofday, __NR_swapoff, __NR_swapon, __NR_syslog, __NR_umount2,
    __NR_unshare, __NR_userfaultfd, __NR_vhangup, __NR_chroot, __NR_kexec_file_load,
#if defined(__x86_64__)
    __NR__sysctl, __NR_create_module, __NR_get_kernel_syms, __NR_ioperm, __NR_iopl,
    __NR_query_module, __NR_sysfs, __NR_uselib, __NR_ustat, __NR_afs_syscall, __NR_tuxcall,
    __NR_vserver, __NR_security, __NR_getpmsg, __NR_putpmsg, __NR_epoll_ctl_old,
    __NR_epoll_wait_old,
#endif
    425, 426, 427,                /* io_uring */
    428, 429, 430, 431, 432, 433, /* open_tree, move_mount, fsopen, fsconfig, fsmount, fspick */
    442, 443, 450,                /* mount_setattr, quotactl_fd, set_mempolicy_home_node */
    457, 458,                     /* statmount, listmount */
};

static struct sock_filter program[320];
static uint16_t length;

static void emit(uint16_t code, uint32_t value, uint8_t yes, uint8_t no)
{
    program[length++] = (struct sock_filter){code, yes, no, value};
}

static void load(uint32_t offset)
{
    emit(BPF_LD | BPF_W | BPF_ABS, offset, 0, 0);
}

static void answer(uint32_t what)
{
    emit(BPF_RET | BPF_K, what, 0, 0);
}

#define REFUSE (SECCOMP_RET_ERRNO | EPERM)
#define UNKNOWN (SECCOMP_RET_ERRNO | ENOSYS)
#define ARGUMENT(n) ((uint32_t)offsetof(struct seccomp_data, args) + 8 * (n)) /* low half */

/* Skips `count` instructions unless the call is `number`. */
static void unless(uint32_t number, uint8_t count)
{
    emit(BPF_JMP | BPF_JEQ | BPF_K, number, 0, count);
}

/* Lets a call through only if its argument `who` is 0, the caller itself. PID 1 and the keepers
 * have the uid of what they hold: a busy PID 1 could be ended by a limit on its CPU time, and each
 * of them silenced by the idle priority. Numbers of others can't be told apart here, so a program
 * sets these for no other process of its own either. */
static void only_of(uint32_t number, int who)
{
    unless(number, 4);
    load(ARGUMENT((uint32_t)who));
    emit(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 0);
    answer(REFUSE);
    answer(SECCOMP_RET_ALLOW);
}

/* A thread library names the thread by its number, also where it is its own, when it asks for the
 * policy that it has anyway; messaging libraries abort if that fails. It silences nobody. */
static void only_of_oneself_or_usual(void)
{
    unless(__NR_sched_setscheduler, 6);
    load(ARGUMENT(0));
    emit(BPF_JMP | BPF_JEQ | BPF_K, 0, 3, 0);
    load(ARGUMENT(1));
    emit(BPF_JMP | BPF_JEQ | BPF_K, 0 /* SCHED_OTHER */, 1, 0);
    answer(REFUSE);
    answer(SECCOMP_RET_ALLOW);
}

static void only_of_oneself(void)
{
    only_of(__NR_prlimit64, 0);
    only_of(__NR_sched_setattr, 0);
    only_of(__NR_sched_setparam, 0);
    only_of_oneself_or_usual();
    unless(__NR_setpriority, 4); /* by process: by group and by user it reaches PID 1 too */
    load(ARGUMENT(0));
    emit(BPF_JMP | BPF_JEQ | BPF_K, 0 /* PRIO_PROCESS */, 1, 0);
    answer(REFUSE);
    load(offsetof(struct seccomp_data, nr));
    only_of(__NR_setpriority, 1);
    unless(__NR_ioprio_set, 4);
    load(ARGUMENT(0));
    emit(BPF_JMP | BPF_JEQ | BPF_K, 1 /* IOPRIO_WHO_PROCESS */, 1, 0);
    answer(REFUSE);
    load(offsetof(struct seccomp_data, nr));
    only_of(__NR_ioprio_set, 1);
}

static void build(void)
{
    load(offsetof(struct seccomp_data, arch));
    emit(BPF_JMP | BPF_JEQ | BPF_K, ARCH, 1, 0);
    answer(UNKNOWN);
    load(offsetof(struct seccomp_data, nr));
    emit(BPF_JMP | BPF_JGT | BPF_K, NEWEST, 0, 1); /* also the x32 numbers */
    answer(UNKNOWN);

    unless(__NR_clone3, 1);
    answer(UNKNOWN);
    unless(__NR_clone, 4);
    load(ARGUMENT(0));
    emit(BPF_JMP | BPF_JSET | BPF_K, CLONE_NAMESPACES, 0, 1);
    answer(REFUSE);
    answer(SECCOMP_RET_ALLOW);
    only_of_oneself();
    unless(__NR_socket, 4);
    load(ARGUMENT(0));
    emit(BPF_JMP | BPF_JEQ | BPF_K, 40 /* AF_VSOCK: to the host of a virtual machine */, 0, 1);
    answer(REFUSE);
    answer(SECCOMP_RET_ALLOW);
    unless(__NR_personality, 7);
    load(ARGUMENT(0));
    emit(BPF_JMP | BPF_JEQ | BPF_K, 0x0, 4, 0);
    emit(BPF_JMP | BPF_JEQ | BPF_K, 0x8, 3, 0);
    emit(BPF_JMP | BPF_JEQ | BPF_K, 0x20000, 2, 0);
    emit(BPF_JMP | BPF_JEQ | BPF_K, 0xffffffff, 1, 0);
    answer(REFUSE);
    answer(SECCOMP_RET_ALLOW);

    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        unless(refused[i], 1);
        answer(REFUSE);
    }
    answer(SECCOMP_RET_ALLOW);
}

int install_filter(void)
{
    build();
    struct sock_fprog filter = {length, program};
    return (int)SYS3(seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter);
}
