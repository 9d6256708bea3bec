/* `warden launch OPTIONS -- PROGRAM ARGUMENTS`: on the host, the last steps before a sandbox.
 *
 * Joins cgroups, sets rlimits, and, where it was started by root, prepares what needs root and
 * then gives root up: in a mount namespace of its own it puts a small tmpfs on the stage
 * directory, binds there what the sandbox will show (so that a private uid reaches it whatever
 * the permissions above it), makes the sized file systems, makes the stage its root directory, and
 * drops to that uid. Then it becomes the program, so that the caller's child is the sandbox itself. */
#include "warden.h"

#include <linux/mount.h>

#define CLONE_NEW_MOUNTS 0x00020000
#define MNT_DETACH 2

static int failed(const char *what, const char *detail, long error)
{
    say(what, detail, error);
    return 125;
}

static long write_text(const char *path, const char *text)
{
    int fd = open_at(AT_FDCWD, path, O_WRONLY, 0);
    if (fd < 0)
        return fd;
    long n = SYS3(write, fd, text, text_length(text));
    SYS1(close, fd);
    return n < 0 ? n : 0;
}

static long make_stage(const char *stage)
{
    long error = SYS1(unshare, CLONE_NEW_MOUNTS);
    if (!error)
        error = SYS5(mount, 0, "/", 0, MS_REC | MS_SLAVE, 0);
    if (!error)
        error = SYS5(mount, "ringfence", stage, "tmpfs", MS_NOSUID | MS_NODEV,
                     "size=64k,nr_inodes=4k,mode=0755");
    return error ? error : SYS1(chdir, stage);
}

static long stage_bind(const char *source, const char *name)
{
    struct statx info;
    long error = SYS5(statx, AT_FDCWD, source, 0, STATX_TYPE, &info);
    if (error)
        return error;
    if ((info.stx_mode & S_IFMT) == S_IFDIR) {
        error = SYS3(mkdirat, AT_FDCWD, name, 0755);
    } else {
        int fd = open_at(AT_FDCWD, name, O_WRONLY | O_CREAT | O_EXCL, 0644);
        error = fd < 0 ? fd : SYS1(close, fd);
    }
    return error ? error : SYS5(mount, source, name, 0, MS_BIND | MS_REC, 0);
}

static long stage_tmpfs(const char *name, const char *options)
{
    long error = SYS3(mkdirat, AT_FDCWD, name, 0755);
    return error ? error
                 : SYS5(mount, "ringfence", name, "tmpfs", MS_NOSUID | MS_NODEV, options);
}

/* Makes the stage the root directory, and lets go of all that the host has mounted elsewhere: what
 * follows copies each mount and reads the whole list of them again for each that it makes. */
static long enter_stage(void)
{
    long error = SYS2(pivot_root, ".", ".");
    if (!error)
        error = SYS2(umount2, ".", MNT_DETACH);
    return error ? error : SYS1(chdir, "/");
}

static long set_limit(const char *resource, const char *value)
{
    uint64_t limit[2] = {text_number(value), text_number(value)};
    return SYS4(prlimit64, 0, text_number(resource), limit, 0);
}

/* Puts us before others for the processor, by so many steps of niceness, if we may. */
static long go_ahead(const char *steps)
{
    long nice = 20 - SYS2(getpriority, 0, 0);
    SYS3(setpriority, 0, 0, nice - (long)text_number(steps));
    return 0;
}

static long drop_to(const char *user)
{
    long id = (long)text_number(user);
    long error = SYS2(setgroups, 0, 0);
    if (!error)
        error = SYS3(setresgid, id, id, id);
    if (!error)
        error = SYS3(setresuid, id, id, id);
    return error;
}

/* Options are steps, taken in the order in which they are given. */
int launch(int argc, char **argv, char **envp)
{
    int at = 0;
    SYS3(close_range, 3, ~0u, 0); /* whatever the caller leaked */
    SYS1(umask, 022);
    SYS2(keyctl, 1 /* a session keyring of its own: the caller's keys stay outside */, 0);
    while (at < argc && !text_equal(argv[at], "--")) {
        const char *step = argv[at], *a = at + 1 < argc ? argv[at + 1] : 0;
        const char *b = a && at + 2 < argc ? argv[at + 2] : 0;
        long error;
        int taken = 3;
        if (text_equal(step, "--enter"))
            error = enter_stage(), taken = 1;
        else if (a && text_equal(step, "--join"))
            error = write_text(a, "0"), taken = 2;
        else if (a && text_equal(step, "--stage"))
            error = make_stage(a), taken = 2;
        else if (a && text_equal(step, "--user"))
            error = drop_to(a), taken = 2;
        else if (a && text_equal(step, "--ahead"))
            error = go_ahead(a), taken = 2;
        else if (a && text_equal(step, "--oom-score"))
            error = write_text("/proc/self/oom_score_adj", a), taken = 2;
        else if (b && text_equal(step, "--limit"))
            error = set_limit(a, b);
        else if (b && text_equal(step, "--bind"))
            error = stage_bind(a, b);
        else if (b && text_equal(step, "--link"))
            error = SYS3(symlinkat, a, AT_FDCWD, b);
        else if (b && text_equal(step, "--tmpfs"))
            error = stage_tmpfs(a, b);
        else
            return failed("unknown or incomplete step", step, 0);
        if (error)
            return failed(step, a, error);
        at += taken;
    }
    if (at + 1 >= argc)
        return failed("no program to launch", 0, 0);
    argv += at + 1;
    return failed("can't execute", argv[0], SYS3(execve, argv[0], argv, envp));
}
