/* What the warden's files know of one another, grouped by the file that defines it. */
#ifndef WARDEN_H
#define WARDEN_H

#include "sys.h"
#include "wire.h"

#define MAX_COMMANDS 1024

/* main.c: settings, fixed before the first command runs. */
struct settings {
    int init;            /* we are PID 1 of a PID namespace */
    int workspace;       /* O_PATH descriptor of the workspace */
    int null;            /* /dev/null */
    int64_t open_files;  /* RLIMIT_NOFILE of commands, or -1 */
    int64_t death_at;    /* now_ms() at which the sandbox ends, or 0 */
    int seccomp;
    int once;            /* we serve one command, and outlive the stream with what it leaves */
    int input, output;         /* our stream: one socket, or two pipes */
    int hold;                  /* open as long as we use a stream that was taken up, or -1 */
    int resume;                /* the socket by which it is taken up, or -1 */
    uint64_t orphan_ms;        /* for which we wait to be taken up again */
    uint64_t await_ms;         /* for which we wait for the first stream; 0: we have it */
    int oom_counter;           /* the file that counts what the memory limit kills, or -1 */
    int niceness;              /* of our commands, from 0 to 39, or -1 for our own */
    int oom_score;             /* our /proc/self/oom_score_adj, or -1 */
    const char *own_oom_score; /* what it says, or null */
};
extern struct settings settings;
void say(const char *what, const char *detail, long error); /* one line on stderr */

/* serve.c: the loop over one byte stream. */
int serve(void);

/* command.c: keepers and their commands. */
struct report { /* what keepers tell us through one pipe; written whole, being shorter than PIPE_BUF */
    uint32_t slot;
    pid_type keeper; /* the slot may be another's by now */
    uint32_t kind, zero;
    int32_t a, b;
    uint64_t cpu_us, max_rss_kb;
};
enum { REPORT_PID = 1, REPORT_FAILED = 2, REPORT_ENDED = 3 };

struct request { /* a START frame, parsed; pointers into the frame */
    struct frame_start head;
    char *cwd;
    char *fallback;
    char **argv;
    char **envp;
    const uint8_t *input;
};
int parse_start(uint8_t *payload, uint32_t length, struct request *request);
/* Forks a keeper and its main process, which becomes `request`, or without one waits for its order
 * on `order_fd`: the payload's length as a uint32_t, then the payload. */
#define MAX_ORDER (48u << 10) /* with its length within what a pipe takes at once */
pid_type start_keeper(uint32_t slot, struct request *request, const int stdio[3], int report_fd,
                      int order_fd);

/* terminal.c: pseudo-terminals. */
struct terminal {
    int read, write; /* the master, twice */
    int peer;        /* the program's end */
};
#define TERMINAL_HOLDS (64 << 10) /* more bytes than can be on their way through one */
int terminal_size_is_valid(uint64_t rows, uint64_t columns);
int terminal_open(struct terminal *terminal, uint64_t rows, uint64_t columns);
int terminal_resize(int master, uint64_t rows, uint64_t columns);
int terminal_control(void);
int terminal_end_input(int master, int line_is_open);

/* tree.c: processes found, signalled and killed. */
typedef int (*is_keeper)(pid_type pid);
void signal_tree(pid_type keeper, int signal);
int kill_tree(pid_type keeper, is_keeper live); /* returns whether it is shown to be empty */
int kill_everything(void);                      /* all descendants of ours; not for PID 1 */
int kill_adopted(void);                         /* all descendants of PID 1; not for PID 1 */

/* files.c (and paths.c): runs one file operation in the working directory and returns 0 or an errno. */
int file_operation(const struct request *request);
int open_beneath(int root, const char *path, int flags, int mode);
int open_cwd(int root, const char *path); /* a directory, and no link on the way */

/* seccomp.c */
int install_filter(void);

/* init.c: PID 1 where each command has a warden of its own. */
int init_mode(int argc, char **argv);
int sweep_mode(void);

/* resume.c: taking a broken stream up again. */
#define STREAM_FDS 3 /* to read, to write, and to hold open while they are in use */
void resume_listen(const uint8_t *token);
int resume_await(void);
int resume_accept(int stream[STREAM_FDS]);
int connect_mode(const char *pid);

/* socket.c: a stream to a host on the same machine. */
int socket_connect(const char *path);

/* launch.c: on the host, before the sandbox: joins cgroups, drops to a private uid, execs. */
int launch(int argc, char **argv, char **envp);

#endif
