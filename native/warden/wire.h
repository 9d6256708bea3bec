/* The frames between the host and the warden. docs/protocol.md is their description, and
 * src/ringfence/warden/frames.py the other half.
 *
 * All numbers are little-endian, as both processors are. */
#ifndef WARDEN_WIRE_H
#define WARDEN_WIRE_H

#include <stdint.h>

#define WIRE_VERSION 2

struct frame_header {
    uint32_t length; /* of what follows the header */
    uint32_t channel;
    uint8_t type;
    uint8_t flags;
    uint16_t zero;
};

enum {
    FRAME_START = 0x01,
    FRAME_STDIN = 0x02,
    FRAME_STDIN_END = 0x03,
    FRAME_CREDIT = 0x04,
    FRAME_KILL = 0x05,
    FRAME_PING = 0x06,
    FRAME_LIFETIME = 0x07,
    FRAME_TOKEN = 0x08,
    FRAME_RESIZE = 0x09,
    FRAME_LIMIT = 0x0a,

    FRAME_HELLO = 0x81,
    FRAME_STARTED = 0x82,
    FRAME_STDOUT = 0x83,
    FRAME_STDERR = 0x84,
    FRAME_STDIN_ACK = 0x85,
    FRAME_EXIT = 0x86,
    FRAME_PONG = 0x87,
    FRAME_FAULT = 0x88,
};

#define MAX_START (4u << 20)   /* arguments and environment; the kernel's own limit is 2 MiB */
#define MAX_INPUT (64u << 10)  /* any other frame to the warden */
#define STDIN_WINDOW (64u << 10)
#define TOKEN_SIZE 32
#define MAX_OUTPUT (128u << 10) /* data in one frame from the warden */

struct frame_start {
    uint32_t flags;
    uint32_t operation; /* 0: a program; else one of the file operations */
    uint64_t timeout_ms; /* 0: none */
    uint32_t grace_ms;
    uint32_t window;  /* first credit of each output stream */
    uint64_t cap;     /* bytes of each stream to send; the rest is drained and counted */
    uint64_t number_a, number_b; /* arguments of the file operations; a terminal's size */
    uint32_t argc, envc;
    uint32_t stdin_length;
    uint32_t zero;
    /* then, each ended by NUL: cwd, fallback, argv, env; then the first bytes of stdin */
};

enum {
    START_KILL_LEFTOVERS = 1,
    START_STDIN = 2, /* stdin stays open; without it the program reads end of file */
    START_STDIN_COMPLETE = 4, /* stdin is all in this frame */
    START_TERMINAL = 8, /* number_a: rows, number_b: columns, each from 1 to 65535 */
};

struct frame_hello {
    uint32_t version;
    uint32_t pid;
    uint32_t features;
    uint32_t uid;
    uint8_t instance[16];
};

enum {
    FEATURE_INIT = 1,
    FEATURE_SECCOMP = 2,
    FEATURE_NO_NEW_PRIVS = 4,
    FEATURE_TERMINAL = 8,
    FEATURE_READ_MANY = 16,
    FEATURE_WRITE_MANY = 32,
    FEATURE_LIMIT = 64,
};

struct frame_exit {
    uint8_t outcome;
    uint8_t timed_out;
    uint8_t kill_incomplete;
    uint8_t stage; /* with OUTCOME_NOT_STARTED: what failed */
    int32_t value; /* exit code, signal number or errno */
    uint64_t stdout_total, stderr_total;
    uint64_t cpu_us;
    uint64_t max_rss_kb;
    uint64_t oom_kills; /* by the sandbox's memory limit while it ran, or OOM_UNKNOWN */
};
#define OOM_UNKNOWN UINT64_MAX

enum { OUTCOME_EXITED = 0, OUTCOME_SIGNALED = 1, OUTCOME_NOT_STARTED = 2, OUTCOME_UNKNOWN = 3 };
enum {
    STAGE_NONE = 0,
    STAGE_FORK = 1,
    STAGE_SETUP = 2,
    STAGE_CWD = 3,
    STAGE_EXEC = 4,
    STAGE_TERMINAL = 5,
};
enum { FAULT_PROTOCOL = 1, FAULT_MAX_AGE = 2, FAULT_INTERNAL = 3 };

/* File operations: built-in programs that run in a process of their own. Their exit code is 0 or
 * an errno; what they return is their stdout. */
enum {
    OP_READ = 1,  /* number_a: offset, number_b: most bytes. Writes file_head, then the bytes */
    OP_WRITE = 2, /* number_a: mode or MODE_UNSET, number_b: WRITE_*. Reads stdin to its end */
    OP_LIST = 3,  /* writes file_entry and the name for each entry, in no order */
    OP_STAT = 4,  /* writes one file_entry and the last part of the path */
    OP_MAKE_DIR = 5,
    OP_REMOVE = 6,
    OP_MOVE = 7, /* two paths */
    OP_READ_MANY = 8, /* number_a: most bytes of all. For each path file_whole, then the bytes */
    OP_WRITE_MANY = 9, /* reads file_new and the bytes for each path. Writes a status for each */
    OP_LAST = OP_WRITE_MANY,
};
#define NOT_A_FILE 200 /* beside the errnos: a FIFO, socket or device where a file is needed */
#define MODE_UNSET 0xffffffffu
#define WRITE_APPEND 1u

struct file_head {
    uint64_t size;
};

struct file_whole {
    uint32_t status; /* 0: all of the file follows. Else an errno, and nothing follows */
    uint32_t length;
};
#define MAX_WHOLE (512u << 10) /* a larger file is EFBIG, as is one over the most bytes of all */

struct file_new {
    uint32_t mode; /* or MODE_UNSET */
    uint32_t length;
};

struct file_entry {
    uint64_t size;
    int64_t mtime_ns;
    uint32_t mode; /* type and permission bits */
    uint32_t name_length;
};

#endif
