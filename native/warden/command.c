/* Keepers and the commands they keep.
 *
 * A keeper is forked for each command. It becomes a subreaper, forks the command's main process,
 * says its pid and later its wait status through the report pipe, and stays as long as the tree
 * below it has a process.
 *
 * Both are forked ahead: a main process with its pipes in place waits for its order, the payload
 * of a START frame, so that a command costs an exec and no fork. A payload that is too long for
 * that is handed down by forking anew. */
#include "warden.h"

#include <linux/prctl.h>

#define MAX_STRINGS 131072
#define SMALL_STRINGS 512

static char *take_text(uint8_t **at, const uint8_t *end)
{
    char *text = (char *)*at;
    for (uint8_t *c = *at; c < end; c++)
        if (!*c) {
            *at = c + 1;
            return text;
        }
    return 0;
}

static char **take_texts(char **to, uint32_t count, uint8_t **at, const uint8_t *end)
{
    for (uint32_t i = 0; i < count; i++)
        if (!(*to++ = take_text(at, end)))
            return 0;
    *to++ = 0;
    return to;
}

/* Parses a START frame in place; returns whether it is well-formed. */
int parse_start(uint8_t *payload, uint32_t length, struct request *request)
{
    static char *small[SMALL_STRINGS + 2];
    static char **large; /* kept from the largest request so far */
    static size_t large_count;
    if (length < sizeof request->head)
        return 0;
    memcpy(&request->head, payload, sizeof request->head);
    const struct frame_start *head = &request->head;
    uint8_t *at = payload + sizeof *head;
    if (head->stdin_length > length - sizeof *head || head->stdin_length > STDIN_WINDOW)
        return 0;
    const uint8_t *end = payload + length - head->stdin_length;
    if (head->argc > MAX_STRINGS || head->envc > MAX_STRINGS || head->zero ||
        head->operation > OP_LAST || !head->argc)
        return 0;
    if (head->flags & START_TERMINAL &&
        (head->operation || !terminal_size_is_valid(head->number_a, head->number_b)))
        return 0;
    size_t count = (size_t)head->argc + head->envc + 2;
    char **texts = small;
    if (count > SMALL_STRINGS) {
        if (count > large_count) {
            long where = SYS6(mmap, 0, count * sizeof *large, 3, 0x22, -1, 0);
            if (where < 0 && where > -4096)
                return 0;
            if (large)
                SYS2(munmap, large, large_count * sizeof *large);
            large = (char **)where;
            large_count = count;
        }
        texts = large;
    }
    request->cwd = take_text(&at, end);
    request->fallback = request->cwd ? take_text(&at, end) : 0;
    request->argv = texts;
    request->envp = request->fallback ? take_texts(texts, head->argc, &at, end) : 0;
    request->input = end;
    return request->envp && take_texts(request->envp, head->envc, &at, end) && at == end;
}

/* The descriptors of a main process before it becomes its command; all are closed by exec. */
enum { FD_REPORT = 3, FD_ORDER = 4, FD_WORKSPACE = 5, FD_NULL = 6 };

static struct { /* in a keeper and its main process: whose they are */
    uint32_t slot;
    pid_type warden, keeper;
} own;

static void tell(struct report report)
{
    report.slot = own.slot;
    report.keeper = own.keeper;
    SYS3(write, FD_REPORT, &report, sizeof report);
}

static void fail(int stage, long error)
{
    tell((struct report){.kind = REPORT_FAILED, .a = stage, .b = (int)-error});
    leave(127);
}

static const char *variable(char **envp, const char *name)
{
    size_t length = text_length(name);
    for (; *envp; envp++)
        for (size_t i = 0; i <= length; i++) {
            if (i == length && (*envp)[i] == '=')
                return *envp + length + 1;
            if ((*envp)[i] != name[i])
                break;
        }
    return 0;
}

/* Looks along PATH as execvp does, but runs no shell for a file that is no program. */
static long search_and_exec(const char *name, char **argv, char **envp)
{
    static char path[4096 + 256];
    size_t name_length = text_length(name);
    if (!*name || name_length > 255)
        return *name ? -ENAMETOOLONG : -ENOENT;
    const char *from = variable(envp, "PATH");
    long error = -ENOENT;
    if (!from)
        from = "/usr/local/bin:/usr/bin:/bin";
    for (;;) {
        const char *end = text_find(from, ':');
        size_t length = end ? (size_t)(end - from) : text_length(from);
        if (length && length < 4096) {
            memcpy(path, from, length);
            path[length] = '/';
            memcpy(path + length + 1, name, name_length + 1);
            long tried = SYS3(execve, path, argv, envp);
            if (tried == -EACCES)
                error = tried; /* found, but not ours to run: go on looking, then say so */
            else if (tried != -ENOENT && tried != -ENOTDIR)
                return tried;
        }
        if (!end)
            return error;
        from = end + 1;
    }
}

static long run(const char *name, char **argv, char **envp)
{
    return text_find(name, '/') ? SYS3(execve, name, argv, envp)
                                : search_and_exec(name, argv, envp);
}

static void close_from(int first)
{
    if (SYS3(close_range, first, ~0u, 0) == 0)
        return;
    for (int fd = first; fd < 4 * MAX_COMMANDS; fd++)
        SYS1(close, fd);
}

/* Where there is no PID namespace to end us, ends with our parent. */
static void die_with(pid_type parent)
{
    if (settings.init)
        return;
    SYS5(prctl, PR_SET_PDEATHSIG, SIG_KILL, 0, 0, 0);
    if (SYS0(getppid) != parent) /* it was faster */
        leave(1);
}

static void become_command(struct request *request)
{
    uint64_t none = 0;
    long error;
    if (!text_equal(request->cwd, ".")) { /* the workspace itself is where we are already */
        int where = open_cwd(FD_WORKSPACE, request->cwd);
        error = where < 0 ? where : SYS1(fchdir, where);
        if (error < 0)
            fail(STAGE_CWD, error);
    }
    if (request->head.flags & START_TERMINAL) {
        error = terminal_control();
        if (error < 0)
            fail(STAGE_TERMINAL, error);
    } else if (!(request->head.flags & START_STDIN)) {
        SYS3(dup3, FD_NULL, 0, 0);
    }
    if (request->head.operation)
        leave(file_operation(request));
    if (settings.open_files >= 0) {
        uint64_t limit[2] = {(uint64_t)settings.open_files, (uint64_t)settings.open_files};
        error = SYS4(prlimit64, 0, 7 /* RLIMIT_NOFILE */, limit, 0);
        if (error)
            fail(STAGE_SETUP, error);
    }
    SYS4(rt_sigprocmask, 2 /* set */, &none, 0, 8);
    error = run(request->argv[0], request->argv, request->envp);
    if (error == -ENOENT && *request->fallback) {
        request->argv[0] = request->fallback;
        error = run(request->fallback, request->argv, request->envp);
    }
    fail(STAGE_EXEC, error);
}

/* Waits for the START payload and becomes its command. */
static void wait_for_order(void)
{
    static uint8_t order[sizeof(uint32_t) + MAX_ORDER];
    struct request request;
    uint32_t length = 0;
    size_t got = 0, whole = sizeof length;
    while (got < whole) {
        long n = SYS3(read, FD_ORDER, order + got, sizeof order - got);
        if (n <= 0) /* the warden is gone */
            leave(1);
        got += (size_t)n;
        if (got >= sizeof length) {
            memcpy(&length, order, sizeof length);
            whole = sizeof length + length;
        }
    }
    if (length > MAX_ORDER || !parse_start(order + sizeof length, length, &request))
        leave(1);
    become_command(&request);
}

/* In the keeper: waits for the main process, then for whatever it left behind. */
static void keep(pid_type main)
{
    for (;;) {
        struct rusage_k usage;
        int status = 0;
        /* Only looked at first: killed right now, we would take an end along that we have not told.
         * One that nobody has reaped comes to PID 1. */
        SYS5(waitid, 0 /* P_ALL */, 0, 0, WAIT_EXITED | WAIT_LEAVE | WAIT_ALL, 0);
        long pid = SYS4(wait4, -1, &status, WAIT_ALL, &usage);
        if (pid == -EINTR)
            continue;
        if (pid < 0)
            leave(0);
        if (pid == main) {
            struct report end = {
                .kind = REPORT_ENDED,
                .a = status,
                .cpu_us = (uint64_t)((usage.user_s + usage.system_s) * 1000000 + usage.user_us +
                                     usage.system_us),
                .max_rss_kb = (uint64_t)usage.max_rss_kb,
            };
            /* Reap what has ended already, to tell whether anything lives on. */
            long left;
            while ((left = SYS4(wait4, -1, &status, WAIT_NOHANG | WAIT_ALL, 0)) > 0)
                ;
            end.b = left < 0;
            tell(end);
            SYS1(close, 1); /* a terminal is for others as soon as its command has ended */
            SYS1(close, 2);
            if (left < 0) {
                sleep_us(200); /* whoever waits for this end needs the processor before our own does */
                leave(0);
            }
        }
    }
}

/* Puts the descriptors in their places; `from` are all above 2 and are moved out of the way
 * first, since a source may lie where another belongs. */
static void place(const int from[7])
{
    int high[7];
    for (int fd = 0; fd < 7; fd++)
        high[fd] = (int)SYS3(fcntl, from[fd], F_DUPFD_CLOEXEC, 16);
    for (int fd = 0; fd < 7; fd++)
        SYS3(dup3, high[fd], fd, fd < 3 ? 0 : O_CLOEXEC);
    close_from(7);
}

#define MAIN_STACK (1u << 20) /* as deep as file operations go; what is not used costs nothing */

static void begin_main(void *request)
{
    SYS0(setsid);
    if (settings.niceness >= 0) /* we may be before them, so that a kill is before a bomb */
        SYS3(setpriority, 0, 0, settings.niceness - 20);
    die_with(own.keeper);
    /* Said before it can do anything: it might end its keeper first of all. */
    tell((struct report){.kind = REPORT_PID, .a = (pid_type)SYS0(getpid)});
    if (request)
        become_command(request);
    wait_for_order();
}

static void keeper(struct request *request, const int from[7])
{
    static _Alignas(16) uint8_t stack[MAIN_STACK];
    uint64_t all = ~0ull;
    own.keeper = (pid_type)SYS0(getpid);
    SYS4(rt_sigprocmask, 0 /* block */, &all, 0, 8);
    SYS0(setsid); /* away from the warden's group */
    SYS5(prctl, PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    die_with(own.warden);
    place(from);
    pid_type main = fork_sharing(stack + MAIN_STACK, begin_main, request);
    if (main == -EINVAL) { /* emulators of other processors can't do that */
        main = fork_process();
        if (!main)
            begin_main(request);
    }
    if (main < 0)
        fail(STAGE_FORK, main);
    /* The outputs stay open here until the main process has ended: their end would wake the warden
     * just before its end does, for nothing. */
    static const int unused[] = {0, FD_ORDER, FD_WORKSPACE, FD_NULL};
    for (size_t i = 0; i < sizeof unused / sizeof *unused; i++)
        SYS1(close, unused[i]);
    keep(main);
}

pid_type start_keeper(uint32_t slot, struct request *request, const int stdio[3], int report_fd,
                      int order_fd)
{
    int from[7] = {stdio[0], stdio[1],  stdio[2],          report_fd,
                   order_fd, settings.workspace, settings.null};
    own.slot = slot;
    own.warden = (pid_type)SYS0(getpid);
    pid_type pid = fork_process();
    if (!pid) {
        keeper(request, from);
        leave(1);
    }
    return pid;
}
