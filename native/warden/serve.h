/* What the files of the loop know of one another, grouped by the file that defines it. */
#ifndef WARDEN_SERVE_H
#define WARDEN_SERVE_H

#include "warden.h"

enum phase { FREE, SPARE, RUNNING, LEFTOVER };

struct command {
    uint8_t phase;
    uint8_t kill_leftovers;
    uint8_t timed_out, terminating, killed;
    uint8_t ended;   /* its main process: `outcome` and `value` are set */
    uint8_t keeper_gone;
    uint8_t empty;       /* nothing of its tree is left */
    uint8_t incomplete;  /* a kill could not be shown to have ended all of it */
    uint8_t outcome, stage;
    uint8_t input_end;
    uint8_t terminal;     /* `in` and `out[0]` are its master */
    uint8_t line_is_open; /* what was typed last did not end a line */
    int32_t value;
    uint32_t channel;
    pid_type keeper, main;
    int in, out[2];
    int order; /* of a spare: where its main process waits for what to become */
    uint64_t credit[2], cap[2], total[2];
    int64_t drain[2]; /* bytes that were in the pipe when the main process ended */
    int64_t deadline; /* of the next step: TERM, KILL, giving up; 0: none */
    uint64_t oom_kills; /* what the counter said when it began */
    uint64_t early;   /* signals for a main process of which we know nothing yet, as bits */
    uint32_t grace_ms;
    uint64_t cpu_us, max_rss_kb;
    uint8_t *input;
    uint32_t input_offset, input_length;
};

static inline uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* table.c */
extern struct command commands[MAX_COMMANDS];
extern uint32_t commands_high; /* no slot at or above it is in use */
struct command *find(uint32_t channel);
int live_keeper(pid_type pid);
void close_fd(int *fd);
void close_input(struct command *c);
void release(struct command *c);

/* send.c: frames to the host. A frame is begun, filled in place, and ended. */
extern int only_started; /* nothing but STARTED waits to be sent, and that is in no hurry */
uint8_t *begin_frame(size_t length);
void end_frame(uint8_t type, uint32_t channel, size_t length);
void send_frame(uint8_t type, uint32_t channel, const void *payload, size_t length);
void flush_output(void);
void drop_output(void);
void fault(uint32_t code, const char *text);
int has_room(void);
size_t data_room(void);
int output_waits(void);

/* starting.c */
#define LULL_MS 2 /* the longest that nothing happens before there is time for a spare */
extern int report_write;
extern int wants_spare;
void start(uint32_t channel, uint8_t *payload, uint32_t length);
void keep_spare(void);
int lull_us(void);

/* ending.c */
extern int report_read;
uint64_t oom_kills(void);
void give_up(struct command *c);
void kill_command(struct command *c);
void signal_command(struct command *c, int signal);
void terminate_command(struct command *c);
void settle(struct command *c);
void say_started(struct command *c);
void read_reports(void);
void reap(int signal_fd);

/* pipes.c: a command's stdin and outputs */
int keep_input(struct command *c, const uint8_t *data, uint32_t length);
void write_input(struct command *c);
void drop_input(struct command *c);
int wants_output(const struct command *c, int s);
void read_output(struct command *c, int s);

/* stream.c: the stream from the host */
extern int gone;            /* the stream has ended, and we do */
extern int64_t orphan_end;  /* until when we wait for another stream; 0: we have one */
uint8_t *input_pages(void);
void begin_stream(void);
void read_input(void);
void stream_ended(void);
void take_up_stream(void);

#endif
