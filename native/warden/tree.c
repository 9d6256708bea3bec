/* Finds, signals and kills the processes of a command: the descendants of its keeper.
 *
 * A SIGKILL walk alone loses against a tree that forks while it is walked. So all is stopped
 * first: PID 1 stops every process of its namespace with one kill(-1), which the kernel makes
 * atomic against fork, and walks and kills the tree until a walk of a namespace in which nobody
 * runs finds nothing. Then the others go on, but for those that had been stopped before.
 *
 * Outside a PID namespace kill(-1) would stop every process of the user. There the tree alone is
 * stopped, process by process, until a walk finds nobody running; a tree that forks faster than
 * that can get away, which the process backend says of itself. */
#include "warden.h"

#define MAX_PROCESSES 32768
#define KILL_MS 2000
#define INIT_KILL_MS 7000 /* of PID 1: on a busy machine all that it stopped must come on first */
#define STOP_MS 50 /* without a namespace: to stop all before the first is killed */

struct process {
    pid_type pid, parent;
    char state;
    uint8_t member; /* of the tree: 0 unknown, 1 no, 2 yes */
};

static struct process processes[MAX_PROCESSES];
static size_t process_count;
static int overflow; /* some did not fit or could not be read: nothing can be shown any more */

/* The one place that signals everybody, and only from inside a PID namespace of our own. */
static void signal_all(int signal)
{
    if (SYS0(getpid) == 1)
        SYS2(kill, -1, signal);
}

/* Reads `name`/stat and returns where its third field is, the state, or null. The second, the
 * command's name, may itself hold brackets and spaces. */
static const char *read_stat(int dir, const char *name, char *text, size_t size)
{
    char path[32];
    size_t length = text_length(name);
    memcpy(path, name, length);
    memcpy(path + length, "/stat", 6);
    int fd = open_at(dir, path, O_RDONLY, 0);
    long n = fd < 0 ? fd : SYS3(read, fd, text, size - 1);
    if (fd >= 0)
        SYS1(close, fd);
    if (n <= 0) { /* it has gone, unless we are short of memory or descriptors */
        overflow |= n != -ENOENT && n != -ESRCH;
        return 0;
    }
    text[n] = 0;
    const char *end = 0;
    for (const char *c = text; *c; c++)
        if (*c == ')')
            end = c;
    return end && end[1] == ' ' && end[2] && end[3] == ' ' ? end + 2 : 0;
}

static const char *skip_fields(const char *text, int count)
{
    while (count--) {
        const char *blank = text_find(text, ' ');
        if (!blank)
            return "";
        text = blank + 1;
    }
    return text;
}

static int is_number(const char *name)
{
    return name[0] >= '1' && name[0] <= '9' && text_length(name) <= 10;
}

/* Whether a thread with this state can do nothing more until it is let go on. One that waits in
 * the kernel ('D', as a vfork's parent does) stops before it comes back from there. */
static int is_quiet(char state)
{
    return state == 'T' || state == 't' || state == 'D' || state == 'Z' || state == 'X';
}

/* The state of a process whose first thread has ended while others live: it looks like a zombie.
 */
static char state_of_threads(int proc, const char *name)
{
    static uint8_t entries[4 << 10];
    char path[32], text[512], state = 'T';
    size_t length = text_length(name);
    memcpy(path, name, length);
    memcpy(path + length, "/task", 6);
    int dir = open_at(proc, path, O_RDONLY | O_DIRECTORY, 0);
    if (dir < 0)
        return 'R';
    long n;
    while ((n = SYS3(getdents64, dir, entries, sizeof entries)) > 0) {
        for (long at = 0; at < n;) {
            struct dirent_k *entry = (struct dirent_k *)(entries + at);
            at += entry->length;
            if (!is_number(entry->name))
                continue;
            const char *found = read_stat(dir, entry->name, text, sizeof text);
            if (found && !is_quiet(*found))
                state = 'R';
        }
    }
    SYS1(close, dir);
    return state;
}

static int read_process(int proc, const char *name, struct process *process)
{
    char text[512];
    const char *state = read_stat(proc, name, text, sizeof text);
    if (!state)
        return 0;
    process->pid = (pid_type)text_number(name);
    process->state = *state;
    process->parent = (pid_type)text_number(state + 2);
    process->member = 0;
    if (*state == 'Z' && text_number(skip_fields(state, 17)) > 1)
        process->state = state_of_threads(proc, name);
    return 1;
}

static void sort_processes(void)
{
    for (size_t i = 1; i < process_count; i++) { /* /proc comes sorted: usually nothing moves */
        struct process moving = processes[i];
        size_t j = i;
        for (; j && processes[j - 1].pid > moving.pid; j--)
            processes[j] = processes[j - 1];
        processes[j] = moving;
    }
}

static void scan(void)
{
    static uint8_t entries[16 << 10];
    process_count = 0;
    int proc = open_at(AT_FDCWD, "/proc", O_RDONLY | O_DIRECTORY, 0);
    overflow = proc < 0;
    if (overflow)
        return;
    long n;
    while ((n = SYS3(getdents64, proc, entries, sizeof entries)) > 0) {
        for (long at = 0; at < n;) {
            struct dirent_k *entry = (struct dirent_k *)(entries + at);
            at += entry->length;
            if (!is_number(entry->name))
                continue;
            if (process_count == MAX_PROCESSES) {
                overflow = 1;
                SYS1(close, proc);
                return;
            }
            process_count += (size_t)read_process(proc, entry->name, &processes[process_count]);
        }
    }
    SYS1(close, proc);
    overflow |= n < 0;
    sort_processes();
}

static struct process *lookup(pid_type pid)
{
    size_t low = 0, high = process_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (processes[middle].pid == pid)
            return &processes[middle];
        if (processes[middle].pid < pid)
            low = middle + 1;
        else
            high = middle;
    }
    return 0;
}

/* Whether a process is below `root`, or is or is below a stray: a child of ours that is no live
 * keeper. */
static int is_member(struct process *process, pid_type root, pid_type self, is_keeper live)
{
    struct process *at = process;
    int member = 1;
    for (size_t steps = 0; at && steps <= process_count; steps++) {
        if (at->member) {
            member = at->member;
            break;
        }
        if (at->pid == self)
            break;
        if (at->parent == root || (at->parent == self && live && !live(at->pid))) {
            member = 2;
            break;
        }
        at = lookup(at->parent);
    }
    for (; process != at && process; process = lookup(process->parent))
        process->member = (uint8_t)member;
    if (at && at->pid != self)
        at->member = (uint8_t)member;
    return member == 2;
}

static int is_dead(const struct process *process)
{
    return process->state == 'Z' || process->state == 'X';
}

struct tree {
    pid_type root, self;
    is_keeper live;
};

static int in_tree(struct process *process, const struct tree *tree)
{
    return process->pid != tree->self && is_member(process, tree->root, tree->self, tree->live);
}

/* Stops everybody that matters and looks; returns whether nobody of them runs any more. */
static int stop_and_scan(const struct tree *tree)
{
    int running = 0;
    signal_all(SIG_STOP);
    scan();
    for (size_t i = 0; i < process_count; i++) {
        struct process *p = &processes[i];
        if (p->pid == tree->self || is_quiet(p->state))
            continue;
        if (tree->self == 1) {
            running = 1;
        } else if (in_tree(p, tree)) {
            running = 1;
            SYS2(kill, p->pid, SIG_STOP);
        }
    }
    return !running && !overflow;
}

static size_t kill_members(const struct tree *tree)
{
    size_t killed = 0;
    for (size_t i = 0; i < process_count; i++) {
        struct process *p = &processes[i];
        if (in_tree(p, tree) && !is_dead(p)) {
            SYS2(kill, p->pid, SIG_KILL);
            killed++;
        }
    }
    return killed;
}

static pid_type stopped[MAX_PROCESSES]; /* by themselves, before us: they stay so */
static size_t stopped_count;

static void note_stopped(void)
{
    stopped_count = 0;
    for (size_t i = 0; i < process_count; i++)
        if (processes[i].state == 'T')
            stopped[stopped_count++] = processes[i].pid;
}

/* Lets the stopped namespace go on. Where the walk has shown everybody, those that had been
 * stopped are not touched; else all go on, lest one that it missed stay stopped for ever. */
static void thaw(int all_seen)
{
    size_t next = 0; /* both lists are in the order of the pids */
    if (!all_seen)
        signal_all(SIG_CONT);
    for (size_t i = 0; i < process_count; i++) {
        pid_type pid = processes[i].pid;
        while (next < stopped_count && stopped[next] < pid)
            next++;
        int stays = next < stopped_count && stopped[next] == pid;
        if (pid != 1 && stays != all_seen)
            SYS2(kill, pid, stays ? SIG_STOP : SIG_CONT);
    }
}

static int kill_all_of(const struct tree *tree)
{
    int64_t begin = now_ms(), passed = 0, most = tree->self == 1 ? INIT_KILL_MS : KILL_MS;
    int sure = 0, empty = 0;
    scan();
    note_stopped();
    while (!empty && passed < most) {
        sure = stop_and_scan(tree);
        if (sure || tree->self == 1 || passed > STOP_MS)
            empty = !kill_members(tree) && sure;
        passed = now_ms() - begin;
        if (!empty) /* what has to stop or die needs the processor more than we do */
            sleep_us(passed < 4 ? 100 : passed < 200 ? passed * 25 : 5000);
    }
    if (tree->self == 1)
        thaw(sure);
    return empty;
}

int kill_tree(pid_type keeper, is_keeper live)
{
    struct tree tree = {keeper ? keeper : -1, (pid_type)SYS0(getpid), live};
    int empty = kill_all_of(&tree);
    if (keeper) /* what it kept may have stopped it, and it has the end to tell */
        SYS2(kill, keeper, SIG_CONT);
    return empty;
}

int kill_everything(void)
{
    pid_type self = (pid_type)SYS0(getpid);
    struct tree tree = {self, self, 0};
    return kill_all_of(&tree);
}

int kill_adopted(void)
{
    struct tree tree = {1, (pid_type)SYS0(getpid), 0};
    return kill_all_of(&tree);
}

void signal_tree(pid_type keeper, int signal)
{
    struct tree tree = {keeper, (pid_type)SYS0(getpid), 0};
    scan();
    for (size_t i = 0; i < process_count; i++)
        if (in_tree(&processes[i], &tree) && !is_dead(&processes[i])) {
            SYS2(kill, processes[i].pid, signal);
            if (signal == SIG_TERM) /* a stopped process has to go on to see it */
                SYS2(kill, processes[i].pid, SIG_CONT);
        }
}
