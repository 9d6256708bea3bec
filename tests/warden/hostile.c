/* Trees that do not want to die. `hostile KIND MARK` grows one, says "ready", and goes on.
 *
 * MARK is for whoever looks for survivors: every process of the tree has it in its command line.
 * `hostile scan MARK` prints the pids of such processes as seen from where it runs. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static char *self, *mark;

static void ready(void)
{
    if (write(1, "ready\n", 6) != 6)
        _exit(9);
}

static void rest(void)
{
    for (;;)
        pause();
}

static void plant(int count, void (*grow)(void))
{
    for (int i = 0; i < count; i++)
        if (fork() == 0) {
            grow();
            rest();
        }
}

static void nothing(void) {}

static void new_session(void)
{
    setsid();
}

static void daemonize(void)
{
    setsid();
    if (fork())
        _exit(0);
    setsid();
}

static void ignore_all(void)
{
    for (int s = 1; s < NSIG; s++)
        signal(s, SIG_IGN);
}

static void breed(int s)
{
    (void)s;
    fork();
}

static void trap_all(void)
{
    for (int s = 1; s < NSIG; s++)
        if (s != SIGCHLD && s != SIGCONT)
            signal(s, breed);
}

static void stop_self(void)
{
    for (;;)
        raise(SIGSTOP);
}

/* Forks, and lets the parent exit, for ever: no pid of it lives longer than a moment. */
static void hop(void)
{
    for (;;) {
        pid_t child = fork();
        if (child > 0)
            _exit(0);
        if (child < 0)
            usleep(100);
    }
}

static void hop_away(void)
{
    setsid();
    hop();
}

static void exec_loop(void)
{
    execl(self, self, "execing", mark, (char *)0);
}

static void *spin(void *unused)
{
    for (volatile long i = 0;; i++)
        ;
    return unused;
}

static void start_threads(int count)
{
    pthread_t thread;
    for (int i = 0; i < count; i++)
        pthread_create(&thread, 0, spin, 0);
}

static void *spawn(void *unused)
{
    for (;;) {
        pid_t child = fork();
        if (child == 0)
            hop();
        usleep(20000);
    }
    return unused;
}

static void wake_all(void)
{
    for (;;)
        kill(-1, SIGCONT);
}

static void wait_in_vfork(void)
{
    if (vfork() == 0) /* the parent waits in the kernel until its child has called exec */
        for (;;)
            pause();
}

static void trace_child(void)
{
    pid_t child = fork();
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        for (;; usleep(1000)) /* without it some kernels stand still for seconds */
            raise(SIGUSR1);
    }
    for (int status; waitpid(child, &status, __WALL) > 0;)
        ptrace(PTRACE_CONT, child, 0, 0); /* and no signal reaches it */
}

static void bomb(void)
{
    ready();
    for (;;)
        fork();
}

static void zombies(int count)
{
    for (int i = 0; i < count; i++)
        if (fork() == 0)
            _exit(0);
}

static int scan(void)
{
    DIR *proc = opendir("/proc");
    for (struct dirent *entry; (entry = readdir(proc));) {
        char path[300], text[512];
        snprintf(path, sizeof path, "/proc/%s/cmdline", entry->d_name);
        int fd = open(path, O_RDONLY);
        ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof text);
        close(fd);
        int pid = atoi(entry->d_name);
        if (n > 0 && pid > 0 && pid != getpid() && memmem(text, n, mark, strlen(mark)))
            printf("%s ", entry->d_name);
    }
    return 0;
}

/* A bomb also takes what memory there is: let the kernel end the bomb's processes for it. */
static void leave_dying_to_others(void)
{
    int fd = open("/proc/self/oom_score_adj", O_WRONLY);
    if (write(fd, "500", 3) < 0)
        perror("oom_score_adj");
    close(fd);
}

/* Counts, so that it is seen to go on; what it stopped stays stopped. Ends when stdin ends. */
static int neighbour(void)
{
    leave_dying_to_others();
    pid_t sleeper = fork();
    if (sleeper == 0) {
        raise(SIGSTOP);
        close(open("woken", O_WRONLY | O_CREAT, 0644)); /* nobody should have let it go on */
        rest();
    }
    int status;
    waitpid(sleeper, &status, WUNTRACED);
    ready();
    fcntl(0, F_SETFL, O_NONBLOCK);
    char byte;
    for (ssize_t n = -1; n != 0; n = read(0, &byte, 1)) {
        if (write(1, ".", 1) != 1)
            return 1;
        usleep(1000);
    }
    kill(sleeper, SIGKILL);
    return 42;
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    self = argv[0], mark = argv[2];
    const char *kind = argv[1];
#define IS(name) (strcmp(kind, name) == 0)
    if (IS("scan"))
        return scan();
    if (IS("neighbour"))
        return neighbour();
    if (IS("children"))
        plant(20, nothing);
    else if (IS("sessions"))
        plant(10, new_session);
    else if (IS("daemons"))
        plant(10, daemonize);
    else if (IS("ignoring"))
        ignore_all(), plant(5, nothing);
    else if (IS("trapping"))
        trap_all(), plant(5, nothing);
    else if (IS("bomb"))
        bomb();
    else if (IS("hoppers"))
        plant(4, hop_away);
    else if (IS("stopped"))
        plant(5, stop_self), plant(2, hop), ready(), stop_self();
    else if (IS("keeper-killer"))
        plant(5, daemonize), kill(getppid(), SIGKILL), plant(5, hop);
    else if (IS("keeper-stopper"))
        plant(5, daemonize), kill(getppid(), SIGSTOP);
    else if (IS("threads"))
        start_threads(30);
    else if (IS("headless")) { /* its first thread ends: it looks like a zombie, and spawns on */
        pthread_t thread;
        start_threads(2);
        pthread_create(&thread, 0, spawn, 0);
        ready();
        syscall(SYS_exit, 0);
    } else if (IS("zombies"))
        zombies(100);
    else if (IS("execs"))
        plant(5, exec_loop);
    else if (IS("wakers"))
        plant(3, wake_all), plant(2, hop_away);
    else if (IS("vforks"))
        plant(5, wait_in_vfork);
    else if (IS("traced"))
        plant(3, trace_child);
    else if (IS("execing"))
        usleep(500), exec_loop();
    else
        return 2;
    ready();
    rest();
}
