/* The warden: one small static program that runs commands inside a sandbox.
 *
 * Theory of operation. The host starts it inside an isolated environment, as PID 1 where there is
 * a PID namespace, with a byte stream as descriptor 0 (or as two pipes, 0 and 1). It speaks frames
 * over that stream (wire.h): start a command, carry its stdin and both outputs, report how it ended, kill its
 * whole tree, do file operations. When the stream ends, it ends, and as PID 1 takes every process
 * of the sandbox with it.
 *
 *   host ==stream== warden (PID 1) --+-- keeper -- command -- children ...
 *                                    +-- keeper -- command ...
 *                                    +-- keeper doing a file operation
 *
 * Each command has a keeper, a subreaper of its own: whatever the command leaves behind comes to
 * it, so the tree below it is all that the command ever started. A keeper lives as long as its
 * tree. Keepers and the warden are not dumpable and block all signals; the kernel shields PID 1
 * from the sandbox's own. A command can still kill its keeper with SIGKILL: its orphans then come
 * to PID 1, and a child of PID 1 that is no live keeper dies.
 *
 * It trusts nothing that runs beside it, allocates almost nothing, and never blocks: file
 * operations, which might, run in processes of their own.
 *
 * It has other faces. `warden launch` is used on the host just before the sandbox exists: see
 * launch.c. `warden init` and `warden sweep` are for containers whose commands come by an engine's
 * exec API, each with a warden of its own (`serve --once`), which is not PID 1: see init.c. `warden
 * connect` is run beside a warden whose stream has broken: see resume.c. */
#include "warden.h"

#include <linux/prctl.h>

struct settings settings = {
    .workspace = -1,
    .null = -1,
    .open_files = -1,
    .oom_score = -1,
    .niceness = -1,
    .oom_counter = -1,
    .hold = -1,
    .resume = -1,
};

void say(const char *what, const char *detail, long error)
{
    char line[512];
    size_t length = 0;
    const char *parts[] = {"warden: ", what, detail ? ": " : "", detail ? detail : ""};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        for (const char *c = parts[i]; *c && length < sizeof line - 40; c++)
            line[length++] = *c;
    if (error < 0) {
        memcpy(line + length, ": errno ", 8);
        length += 8;
        length += number_text(line + length, (uint64_t)-error);
    }
    line[length++] = '\n';
    SYS3(write, 2, line, length);
}

static void learn_oom_score(void)
{
    static char text[16];
    settings.oom_score = open_at(AT_FDCWD, "/proc/self/oom_score_adj", O_RDWR, 0);
    long n = settings.oom_score < 0 ? 0 : SYS3(read, settings.oom_score, text, sizeof text - 1);
    if (n > 0)
        settings.own_oom_score = text;
}

/* Opens the counter of this sandbox's memory cgroup, where its own group is all that it sees. */
static void open_oom_counter(void)
{
    static const char *const places[] = {
        "/sys/fs/cgroup/memory.events",             /* v2 */
        "/sys/fs/cgroup/memory/memory.oom_control", /* v1 */
    };
    for (size_t i = 0; i < sizeof places / sizeof *places && settings.oom_counter < 0; i++)
        settings.oom_counter = open_at(AT_FDCWD, places[i], O_RDONLY, 0);
}

static int serve_mode(int argc, char **argv)
{
    const char *workspace = "/workspace", *home = 0, *socket = 0;
    int pipes = 0, connected = -1;
    int64_t processes = -1;
    SYS3(close_range, 3, ~0u, 0); /* whatever the caller leaked */
    for (int i = 0; i < argc; i++) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : 0;
        if (text_equal(name, "--seccomp"))
            settings.seccomp = 1;
        else if (text_equal(name, "--pipes"))
            pipes = 1;
        else if (text_equal(name, "--count-oom"))
            open_oom_counter();
        else if (text_equal(name, "--once"))
            settings.once = 1;
        else if (!value)
            return say("option without a value", name, 0), 2;
        else if (i++, text_equal(name, "--workspace"))
            workspace = value;
        else if (text_equal(name, "--home"))
            home = value;
        else if (text_equal(name, "--socket"))
            socket = value;
        else if (text_equal(name, "--open-files"))
            settings.open_files = (int64_t)text_number(value);
        else if (text_equal(name, "--niceness"))
            settings.niceness = (int)text_number(value);
        else if (text_equal(name, "--processes"))
            processes = (int64_t)text_number(value);
        else if (text_equal(name, "--orphan-ms"))
            settings.orphan_ms = text_number(value);
        else if (text_equal(name, "--await-ms"))
            settings.await_ms = text_number(value);
        else if (text_equal(name, "--max-age-ms"))
            settings.death_at = after_ms(text_number(value));
        else
            return say("unknown option", name, 0), 2;
    }
    settings.init = SYS0(getpid) == 1;
    if (settings.await_ms) { /* what is there is no stream; its numbers stay taken */
        settings.input = settings.output = -1;
        pipes = 0;
    }
    if (socket) /* where nobody answers, the stream is what we were started with */
        connected = socket_connect(socket);
    if (connected >= 0) {
        settings.input = settings.output = connected;
    } else if (pipes) { /* away from where descriptors get another meaning */
        settings.input = (int)SYS3(fcntl, 0, F_DUPFD_CLOEXEC, 3);
        settings.output = (int)SYS3(fcntl, 1, F_DUPFD_CLOEXEC, 3);
        if (settings.input < 0 || settings.output < 0)
            return say("there is no descriptor 0 or 1", 0, 0), 1;
    }
    SYS1(umask, 022);
    if (settings.init || settings.once)
        learn_oom_score(); /* not dumpable, we could not open the file any more */
    SYS5(prctl, PR_SET_DUMPABLE, 0, 0, 0, 0);
    SYS5(prctl, PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    if (home)
        SYS3(mkdirat, AT_FDCWD, home, 0700);
    settings.workspace = open_at(AT_FDCWD, workspace, O_PATH | O_DIRECTORY, 0);
    if (settings.workspace < 0)
        return say("can't open the workspace", workspace, settings.workspace), 1;
    int here = open_cwd(settings.workspace, "."); /* learns once how to open paths */
    if (here < 0)
        return say("can't use the workspace", workspace, here), 1;
    SYS1(close, here);
    long moved = SYS1(fchdir, settings.workspace); /* where commands begin */
    if (moved)
        return say("can't enter the workspace", workspace, moved), 1;
    settings.null = open_at(AT_FDCWD, "/dev/null", O_RDWR, 0);
    if (settings.null < 0)
        return say("can't open", "/dev/null", settings.null), 1;
    if (pipes || connected >= 0 || settings.await_ms)
        SYS3(dup3, settings.null, 0, 0);
    if (processes >= 0) { /* counted for our uid in this user namespace, keepers included */
        uint64_t limit[2] = {(uint64_t)processes, (uint64_t)processes};
        long failed = SYS4(prlimit64, 0, 6 /* RLIMIT_NPROC */, limit, 0);
        if (failed)
            return say("can't limit processes", 0, failed), 1;
    }
    if (settings.seccomp) {
        SYS5(prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        int failed = install_filter();
        if (failed)
            return say("can't install the seccomp filter", 0, failed), 1;
    }
    return serve();
}

/* What our caller ignores would be ignored by all that we start, and the ends of our children by
 * us. */
static void reset_signals(void)
{
    const uint64_t standard[4] = {0, 0, 0, 0};
    for (int signal = 1; signal <= 64; signal++)
        SYS4(rt_sigaction, signal, standard, 0, 8);
}

static int warden(int argc, char **argv, char **envp)
{
    reset_signals();
    if (argc > 1 && text_equal(argv[1], "serve"))
        return serve_mode(argc - 2, argv + 2);
    if (argc > 1 && text_equal(argv[1], "launch"))
        return launch(argc - 2, argv + 2, envp);
    if (argc > 1 && text_equal(argv[1], "init"))
        return init_mode(argc - 2, argv + 2);
    if (argc > 1 && text_equal(argv[1], "sweep"))
        return sweep_mode();
    if (argc > 1 && text_equal(argv[1], "connect"))
        return connect_mode(argc > 2 ? argv[2] : 0);
    say("usage", "warden serve | launch | init | sweep | connect ...", 0);
    return 2;
}

#ifdef WARDEN_HOSTED /* with a libc, for the sanitizers */
int main(int argc, char **argv, char **envp)
{
    leave(warden(argc, argv, envp));
}
#else
__attribute__((used, noreturn)) void begin(long *stack)
{
    int argc = (int)stack[0];
    char **argv = (char **)(stack + 1);
    leave(warden(argc, argv, argv + argc + 1));
    __builtin_unreachable();
}

#if defined(__x86_64__)
__asm__(".globl _start\n_start:\n xor %ebp,%ebp\n mov %rsp,%rdi\n and $-16,%rsp\n call begin\n");
#else
__asm__(".globl _start\n_start:\n mov x29,#0\n mov x30,#0\n mov x0,sp\n and sp,x0,#-16\n b begin\n");
#endif
#endif
