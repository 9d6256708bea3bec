/* The loop over one byte stream: frames in, frames out, and the table of commands between.
 *
 * Output is bounded by credit: the host says how much of each stream it will take, and the warden
 * reads a pipe only while there is credit and room for a frame. Past a stream's cap, and after a
 * command's end, a pipe is drained into /dev/null, so that what writes to it goes on.
 *
 * The table is walked and polled anew each time round, so there is no registration that could go
 * stale when a descriptor's number is used again. */
#include "warden.h"

#include <linux/fcntl.h>

#define OUTPUT_SIZE (512u << 10)
#define RESERVE (128u << 10) /* of the output, for frames that are not data */
#define KILL_WAIT_MS 1000 /* for a keeper to bury what was killed and to say so */

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

static struct command commands[MAX_COMMANDS];
static uint32_t commands_high; /* no slot at or above it is in use */

static uint8_t input[sizeof(struct frame_header) + MAX_INPUT];
static size_t input_length;
static uint8_t *big; /* a START frame that is larger than `input` */
static size_t big_length, big_size;

static uint8_t output[OUTPUT_SIZE];
static size_t output_begin, output_end;
static int report_read = -1, report_write = -1;
static int gone; /* the stream has ended, and we do */
static int64_t orphan_end; /* until when we wait for another stream; 0: we have one */
static int wants_spare = 1;
static int only_started; /* nothing but STARTED waits to be sent, and that is in no hurry */
#define LULL_MS 2

/* ---- frames out ---- */

static size_t output_room(void)
{
    return OUTPUT_SIZE - output_end;
}

static uint8_t *begin_frame(size_t length)
{
    if (output_begin && output_room() < sizeof(struct frame_header) + length) {
        memmove(output, output + output_begin, output_end - output_begin);
        output_end -= output_begin;
        output_begin = 0;
    }
    if (output_room() < sizeof(struct frame_header) + length)
        return 0;
    return output + output_end + sizeof(struct frame_header);
}

static void end_frame(uint8_t type, uint32_t channel, size_t length)
{
    struct frame_header header = {(uint32_t)length, channel, type, 0, 0};
    memcpy(output + output_end, &header, sizeof header);
    output_end += sizeof header + length;
}

static void send_frame(uint8_t type, uint32_t channel, const void *payload, size_t length)
{
    uint8_t *to = begin_frame(length);
    if (!to) { /* the reserve holds what all commands can have to say at once */
        gone = 1;
        return;
    }
    memcpy(to, payload, length);
    only_started = type == FRAME_STARTED && (only_started || output_begin == output_end);
    end_frame(type, channel, length);
}

static void stream_ended(void);

static void flush_output(void)
{
    while (output_begin < output_end) {
        long n = SYS3(write, settings.output, output + output_begin, output_end - output_begin);
        if (n == -EINTR)
            continue;
        if (n <= 0) {
            if (n != -EAGAIN)
                stream_ended();
            return;
        }
        output_begin += (size_t)n;
    }
    output_begin = output_end = 0;
    only_started = 0;
}

static void fault(uint32_t code, const char *text)
{
    uint8_t payload[160];
    size_t length = text_length(text);
    memcpy(payload, &code, sizeof code);
    memcpy(payload + sizeof code, text, length);
    send_frame(FRAME_FAULT, 0, payload, sizeof code + length);
    flush_output();
    gone = 1;
}

/* ---- the table ---- */

static struct command *find(uint32_t channel)
{
    for (uint32_t i = 0; i < commands_high; i++)
        if (commands[i].phase == RUNNING && commands[i].channel == channel)
            return &commands[i];
    return 0;
}

static int live_keeper(pid_type pid)
{
    for (uint32_t i = 0; i < commands_high; i++)
        if (commands[i].phase != FREE && !commands[i].keeper_gone && commands[i].keeper == pid)
            return 1;
    return 0;
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        SYS1(close, *fd);
    *fd = -1;
}

static void close_input(struct command *c)
{
    close_fd(&c->in);
    if (c->input)
        SYS2(munmap, c->input, STDIN_WINDOW);
    c->input = 0;
    c->input_length = c->input_offset = 0;
}

static void release(struct command *c)
{
    close_input(c);
    close_fd(&c->order);
    close_fd(&c->out[0]);
    close_fd(&c->out[1]);
    c->phase = FREE;
    while (commands_high && commands[commands_high - 1].phase == FREE)
        commands_high--;
}

/* ---- a command's end ---- */

/* How many processes of the sandbox its memory limit has killed so far. */
static uint64_t oom_kills(void)
{
    static const char name[] = "oom_kill ";
    char text[512];
    long n = settings.oom_counter < 0 ? 0
                                      : SYS4(pread64, settings.oom_counter, text, sizeof text - 1, 0);
    if (n <= 0)
        return OOM_UNKNOWN;
    text[n] = 0;
    for (const char *line = text; line; line = text_find(line, '\n')) {
        line += *line == '\n';
        size_t same = 0;
        while (name[same] && line[same] == name[same])
            same++;
        if (!name[same])
            return text_number(line + same);
    }
    return OOM_UNKNOWN;
}

static void send_exit(struct command *c)
{
    uint64_t oom_now = oom_kills();
    struct frame_exit end = {
        .outcome = c->outcome,
        .timed_out = c->timed_out,
        .kill_incomplete = c->incomplete,
        .stage = c->stage,
        .value = c->value,
        .stdout_total = c->total[0],
        .stderr_total = c->total[1],
        .cpu_us = c->cpu_us,
        .max_rss_kb = c->max_rss_kb,
        .oom_kills = c->oom_kills == OOM_UNKNOWN || oom_now == OOM_UNKNOWN
                         ? OOM_UNKNOWN
                         : oom_now - c->oom_kills,
    };
    send_frame(FRAME_EXIT, c->channel, &end, sizeof end);
    close_input(c);
    if (c->terminal) /* hangs up on what is left behind */
        close_fd(&c->out[0]);
    c->phase = LEFTOVER;
}

static void give_up(struct command *c)
{
    c->incomplete = 1;
    if (!c->ended) { /* we don't know how it ended, and must not guess */
        c->ended = 1;
        c->outcome = OUTCOME_UNKNOWN;
        c->drain[0] = c->drain[1] = 0;
    }
}

static void kill_command(struct command *c)
{
    c->killed = 1;
    c->empty = kill_tree(c->keeper_gone ? 0 : c->keeper, live_keeper);
    c->deadline = c->empty ? after_ms(KILL_WAIT_MS) : 0;
    if (!c->empty)
        give_up(c);
}

/* To every process of a command; if it has not said yet that it runs, then. */
static void signal_command(struct command *c, int signal)
{
    if (!c->main && !c->ended)
        c->early |= 1ull << (signal - 1);
    else if (!c->keeper_gone)
        signal_tree(c->keeper, signal);
}

static void terminate_command(struct command *c)
{
    if (c->terminating || c->killed)
        return;
    c->terminating = 1;
    signal_command(c, SIG_TERM);
    c->deadline = after_ms(c->grace_ms);
    if (!c->grace_ms)
        kill_command(c);
}

static void main_ended(struct command *c)
{
    c->ended = 1;
    if (!c->terminating)
        c->deadline = 0;
    for (int s = 0; s < 2; s++) {
        int waiting = 0;
        if (c->out[s] >= 0)
            SYS3(ioctl, c->out[s], 0x541b /* FIONREAD */, &waiting);
        if (c->out[s] >= 0 && c->terminal) /* it counts only what has come all the way through */
            waiting = TERMINAL_HOLDS;
        c->drain[s] = waiting;
    }
}

/* Says that the command has ended, once nothing of what that takes is missing. */
static void settle(struct command *c)
{
    if (c->phase == RUNNING && c->ended) {
        int must_die = c->kill_leftovers || c->terminating;
        if (must_die && !c->keeper_gone && !c->killed && !c->deadline)
            kill_command(c);
        /* A keeper that is gone has buried the dead: they count for no limit any more. */
        int dead = !must_die || c->keeper_gone || (c->killed && !c->deadline);
        int drained = (c->out[0] < 0 || c->drain[0] <= 0) && (c->out[1] < 0 || c->drain[1] <= 0);
        if (dead && drained)
            send_exit(c);
    }
    if (c->phase == LEFTOVER && c->keeper_gone)
        release(c);
}

static void take_status(struct command *c, int status)
{
    c->outcome = EXITED(status) ? OUTCOME_EXITED : OUTCOME_SIGNALED;
    c->value = EXITED(status) ? EXIT_CODE(status) : TERM_SIGNAL(status);
    main_ended(c);
}

static void say_started(struct command *c)
{
    uint32_t pid = (uint32_t)c->main;
    send_frame(FRAME_STARTED, c->channel, &pid, sizeof pid);
    for (int signal = 1; c->early && signal <= 64; signal++)
        if (c->early >> (signal - 1) & 1)
            signal_tree(c->keeper, signal);
    c->early = 0;
    if (c->killed && !c->ended) { /* before there was anything to kill */
        c->killed = 0;
        c->terminating = 1;
        c->deadline = now_ms();
    }
}

static void read_reports(void)
{
    struct report reports[16];
    for (;;) {
        long n = SYS3(read, report_read, reports, sizeof reports);
        if (n <= 0)
            return;
        for (size_t i = 0; i < (size_t)n / sizeof *reports; i++) {
            struct report *r = &reports[i];
            struct command *c = &commands[r->slot % MAX_COMMANDS];
            if (c->phase == FREE || c->keeper != r->keeper)
                continue;
            if (r->kind == REPORT_PID) {
                c->main = r->a;
                if (c->phase == RUNNING)
                    say_started(c);
                else if (c->phase == LEFTOVER) /* given up before there was anything to kill */
                    kill_command(c);
            } else if (c->phase != RUNNING || c->ended) {
                continue;
            } else if (r->kind == REPORT_FAILED) {
                c->outcome = OUTCOME_NOT_STARTED;
                c->stage = (uint8_t)r->a;
                c->value = r->b;
                main_ended(c);
            } else if (r->kind == REPORT_ENDED) {
                c->cpu_us = r->cpu_us;
                c->max_rss_kb = r->max_rss_kb;
                take_status(c, r->a);
                /* b: the keeper has no child left, and is leaving */
                if (r->b) {
                    c->killed = c->empty = 1;
                    c->deadline = 0;
                }
            }
        }
    }
}

/* Reaps keepers, and orphans whose keeper was killed by what it kept. */
static void reap(int signal_fd)
{
    uint8_t info[128 * 8];
    while (SYS3(read, signal_fd, info, sizeof info) > 0)
        ;
    for (;;) {
        int status = 0;
        long pid = SYS4(wait4, -1, &status, WAIT_NOHANG | WAIT_ALL, 0);
        if (pid <= 0)
            return;
        read_reports(); /* a keeper's last words were written before its end */
        for (uint32_t i = 0; i < commands_high; i++) {
            struct command *c = &commands[i];
            if (c->phase == FREE)
                continue;
            if (c->phase == SPARE && c->keeper == pid) { /* killed from inside: make another */
                release(c);
                wants_spare = !settings.once;
            } else if (!c->keeper_gone && c->keeper == pid) {
                int early = !c->ended;
                c->keeper_gone = 1;
                if (early || !EXITED(status)) {
                    kill_command(c);
                    early = !c->ended;
                    if (c->phase == LEFTOVER && !c->empty)
                        fault(FAULT_INTERNAL, "what a command left behind could not be killed");
                }
                if (early && !c->main) { /* killed before it could start anything */
                    c->ended = 1;
                    c->outcome = OUTCOME_UNKNOWN;
                }
            } else if (c->phase == RUNNING && !c->ended && c->main == pid) {
                take_status(c, status); /* before or after its keeper: the order is the kernel's */
            }
        }
    }
}

/* ---- frames in ---- */

/* Makes a pipe of which our end, the `ours`th, never makes us wait. */
static int make_pipe(int ends[2], int ours)
{
    int failed = (int)SYS2(pipe2, ends, O_CLOEXEC);
    return failed ? failed : (int)SYS3(fcntl, ends[ours], F_SETFL, O_NONBLOCK);
}

static int keep_input(struct command *c, const uint8_t *data, uint32_t length)
{
    if (length > STDIN_WINDOW - c->input_length)
        return 0;
    if (!c->input) {
        long at = SYS6(mmap, 0, STDIN_WINDOW, 3 /* read, write */, 0x22 /* private, anonymous */,
                       -1, 0);
        if (at < 0 && at > -4096)
            return 0;
        c->input = (uint8_t *)at;
    }
    if (c->input_offset + c->input_length + length > STDIN_WINDOW) {
        memmove(c->input, c->input + c->input_offset, c->input_length);
        c->input_offset = 0;
    }
    memcpy(c->input + c->input_offset + c->input_length, data, length);
    c->input_length += length;
    return 1;
}

static void acknowledge(const struct command *c, uint32_t count)
{
    send_frame(FRAME_STDIN_ACK, c->channel, &count, sizeof count);
}

/* Nobody reads any more: what is left has no use, but its sender's window opens. */
static void drop_input(struct command *c)
{
    uint32_t rest = c->input_length;
    close_input(c);
    if (rest)
        acknowledge(c, rest);
}

/* A terminal's input has no end of its own: it is typed, as soon as there is room for it. */
static int end_is_held_up(struct command *c)
{
    return c->terminal && c->in >= 0 && terminal_end_input(c->in, c->line_is_open) == -EAGAIN;
}

static void write_input(struct command *c)
{
    uint32_t before = c->input_length;
    while (c->in >= 0 && c->input_length) {
        long n = SYS3(write, c->in, c->input + c->input_offset, c->input_length);
        if (n == -EAGAIN || n == -EINTR)
            break;
        if (n <= 0) {
            close_input(c);
            break;
        }
        c->input_offset += (uint32_t)n;
        c->input_length -= (uint32_t)n;
        uint8_t last = c->input[c->input_offset - 1];
        c->line_is_open = last != '\n' && last != '\r';
    }
    if (before != c->input_length)
        acknowledge(c, before - c->input_length);
    if (!c->input_length) {
        c->input_offset = 0;
        if (c->input_end && !end_is_held_up(c))
            close_input(c);
    }
}

/* What is forked under the highest score dies before the warden when memory runs out: a bomb of
 * small processes would else take the whole sandbox along. */
static void set_oom_score(const char *score)
{
    if (settings.own_oom_score)
        SYS3(write, settings.oom_score, score, text_length(score));
}

/* Makes what a command has for its stdio: `ours` are in, out and err, `theirs` too. */
static long make_stdio(const struct request *request, int ours[3], int theirs[3])
{
    int ends[2];
    long failed = 0;
    /* A request that is known often needs no stdin. */
    if (!request || request->head.flags & START_STDIN) {
        failed = make_pipe(ends, 1);
        theirs[0] = failed ? -1 : ends[0];
        ours[0] = failed ? -1 : ends[1];
    }
    for (int s = 1; s < 3 && !failed; s++) {
        failed = make_pipe(ends, 0);
        theirs[s] = failed ? -1 : ends[1];
        ours[s] = failed ? -1 : ends[0];
    }
    return failed;
}

/* Forks a keeper and its main process into a free slot; without a request, as a spare. It takes
 * the terminal's ends, if there is one, whatever becomes of them. */
static struct command *fork_command(struct request *request, struct terminal *terminal,
                                    long *failed)
{
    uint32_t slot = 0;
    while (slot < MAX_COMMANDS && commands[slot].phase != FREE)
        slot++;
    int ours[3] = {-1, -1, -1}, theirs[3] = {-1, -1, -1}, order[2] = {-1, -1};
    if (terminal) {
        ours[0] = terminal->write;
        ours[1] = terminal->read;
        theirs[0] = terminal->peer;
    }
    struct command *c = slot == MAX_COMMANDS ? 0 : &commands[slot];
    *failed = !c ? -EAGAIN : terminal ? 0 : make_stdio(request, ours, theirs);
    if (!*failed && !request) /* one that is known needs no order */
        *failed = make_pipe(order, 1);
    if (!*failed) {
        int in = theirs[0] < 0 ? settings.null : theirs[0];
        int stdio[3] = {in, terminal ? in : theirs[1], terminal ? in : theirs[2]};
        memset(c, 0, sizeof *c);
        set_oom_score("1000");
        c->keeper = start_keeper(slot, request, stdio, report_write,
                                 order[0] < 0 ? settings.null : order[0]);
        set_oom_score(settings.own_oom_score);
        if (c->keeper < 0)
            *failed = c->keeper;
    }
    for (int fd = 0; fd < 3; fd++)
        close_fd(&theirs[fd]);
    close_fd(&order[0]);
    if (*failed) {
        for (int fd = 0; fd < 3; fd++)
            close_fd(&ours[fd]);
        close_fd(&order[1]);
        return 0;
    }
    c->in = ours[0];
    c->out[0] = ours[1];
    c->out[1] = ours[2];
    c->order = order[1];
    c->terminal = !!terminal;
    c->phase = SPARE;
    if (slot >= commands_high)
        commands_high = slot + 1;
    return c;
}

static struct command *find_spare(void)
{
    for (uint32_t i = 0; i < commands_high; i++)
        if (commands[i].phase == SPARE)
            return &commands[i];
    return 0;
}

/* Gives a spare its order; returns whether it took it. */
static int give_order(struct command *c, const uint8_t *payload, uint32_t length)
{
    static uint8_t order[sizeof length + MAX_ORDER];
    memcpy(order, &length, sizeof length);
    memcpy(order + sizeof length, payload, length);
    long whole = (long)(sizeof length + length);
    return SYS3(write, c->order, order, whole) == whole;
}

static struct command *become(struct request *request, uint8_t *payload, uint32_t length,
                              long *failed)
{
    struct command *c = find_spare();
    if (settings.once) /* there will be no other command, if this came before the spare too */
        wants_spare = 0;
    /* stdin's first bytes are for the pipe, and the order ends before them */
    length -= request->head.stdin_length;
    if (c && length <= MAX_ORDER) {
        uint32_t none = 0;
        memcpy(payload + offsetof(struct frame_start, stdin_length), &none, sizeof none);
        wants_spare = !settings.once;
        if (settings.init) { /* what ran before may have stopped them; what begins now may itself */
            SYS2(kill, c->keeper, SIG_CONT);
            SYS2(kill, c->main ? c->main : c->keeper, SIG_CONT);
        }
        if (give_order(c, payload, length))
            return c;
        release(c); /* it was killed from inside; its keeper follows */
    }
    return fork_command(request, 0, failed);
}

/* Starts a command with a terminal; `stage` says what failed where none was started. */
static struct command *start_in_terminal(struct request *request, long *failed, uint8_t *stage)
{
    struct terminal terminal;
    *stage = STAGE_TERMINAL;
    *failed = terminal_open(&terminal, request->head.number_a, request->head.number_b);
    if (*failed)
        return 0;
    *stage = STAGE_FORK;
    return fork_command(request, &terminal, failed);
}

static void start(uint32_t channel, uint8_t *payload, uint32_t length)
{
    struct request request;
    long failed = 0;
    uint8_t stage = STAGE_FORK;
    uint64_t oom_before = oom_kills();
    if (!channel || find(channel) || !parse_start(payload, length, &request)) {
        fault(FAULT_PROTOCOL, "malformed START");
        return;
    }
    struct command *c = request.head.flags & START_TERMINAL
                            ? start_in_terminal(&request, &failed, &stage)
                            : become(&request, payload, length, &failed);
    if (!c) {
        struct frame_exit end = {
            .outcome = OUTCOME_NOT_STARTED,
            .stage = stage,
            .value = (int32_t)-failed,
            .oom_kills = OOM_UNKNOWN,
        };
        send_frame(FRAME_EXIT, channel, &end, sizeof end);
        return;
    }
    close_fd(&c->order);
    c->phase = RUNNING;
    c->channel = channel;
    c->oom_kills = oom_before;
    c->kill_leftovers = !!(request.head.flags & START_KILL_LEFTOVERS);
    c->credit[0] = c->credit[1] = request.head.window;
    c->cap[0] = c->cap[1] = request.head.cap;
    c->grace_ms = request.head.grace_ms;
    if (request.head.timeout_ms)
        c->deadline = after_ms(request.head.timeout_ms);
    if (c->main)
        say_started(c);
    int has_stdin = !!(request.head.flags & START_STDIN);
    if (!has_stdin && !c->terminal) {
        close_input(c);
        return;
    }
    c->input_end = !has_stdin || request.head.flags & START_STDIN_COMPLETE;
    if (!keep_input(c, request.input, request.head.stdin_length))
        fault(FAULT_PROTOCOL, "stdin is over its window");
    write_input(c);
}

/* Forks a command ahead of the next START. One that can't be made now is no fault: START tries
 * again, and says so. */
static void keep_spare(void)
{
    long failed;
    wants_spare = 0;
    if (!find_spare())
        fork_command(0, 0, &failed);
}

/* How long nothing must happen before there is time for that: a command that has just begun ends
 * soon, or takes long. */
static int lull_us(void)
{
    for (uint32_t i = 0; i < commands_high; i++)
        if (commands[i].phase == RUNNING)
            return LULL_MS * 1000;
    return 400;
}

static void take_frame(const struct frame_header *h, uint8_t *payload)
{
    struct command *c = h->type == FRAME_START ? 0 : find(h->channel);
    uint32_t words[2] = {0, 0};
    memcpy(words, payload, h->length < sizeof words ? h->length : sizeof words);
    switch (h->type) {
    case FRAME_START:
        start(h->channel, payload, h->length);
        return;
    case FRAME_STDIN:
        if (c && c->in >= 0 && !c->input_end) {
            if (!keep_input(c, payload, h->length))
                fault(FAULT_PROTOCOL, "stdin is over its window");
            else
                write_input(c);
        } else if (c) { /* closed by the program: the sender's window opens all the same */
            send_frame(FRAME_STDIN_ACK, h->channel, &h->length, sizeof h->length);
        }
        return;
    case FRAME_STDIN_END:
        if (c) {
            c->input_end = 1;
            write_input(c);
        }
        return;
    case FRAME_CREDIT:
        if (c) {
            c->credit[0] += words[0];
            c->credit[1] += words[1];
        }
        return;
    case FRAME_KILL:
        if (c && !words[0])
            terminate_command(c);
        else if (c && words[0] <= 64)
            signal_command(c, (int)words[0]);
        return;
    case FRAME_RESIZE:
        if (c && c->terminal && c->out[0] >= 0 && terminal_size_is_valid(words[0], words[1]))
            terminal_resize(c->out[0], words[0], words[1]);
        return;
    case FRAME_LIMIT:
        if (c && !c->ended && !c->terminating && !c->killed)
            c->deadline = after_ms((uint64_t)words[1] << 32 | words[0]);
        return;
    case FRAME_LIFETIME:
        settings.death_at = after_ms((uint64_t)words[1] << 32 | words[0]);
        return;
    case FRAME_TOKEN:
        if (h->length == TOKEN_SIZE)
            resume_listen(payload);
        else
            fault(FAULT_PROTOCOL, "malformed TOKEN");
        return;
    case FRAME_PING:
        send_frame(FRAME_PONG, h->channel, payload, h->length < 64 ? h->length : 64);
        return;
    default:
        fault(FAULT_PROTOCOL, "unknown frame");
    }
}

/* The stream has ended, and so do we; but what one command has left behind lives on, and we with
 * it, to drain what it writes. */
static void host_left(void)
{
    int left = 0;
    gone = 1;
    for (uint32_t i = 0; settings.once && i < commands_high; i++) {
        if (commands[i].phase == RUNNING)
            return;
        left |= commands[i].phase == LEFTOVER;
    }
    if (!left)
        return;
    gone = 0;
    settings.input = settings.output = -1;
    output_begin = output_end = 0;
    for (uint32_t i = 0; i < commands_high; i++)
        if (commands[i].phase == SPARE)
            release(&commands[i]);
}

/* Reads into whatever is incomplete; returns whether a frame may have become complete. */
static int fill_input(void)
{
    uint8_t *to = big ? big + big_length : input + input_length;
    size_t room = big ? big_size - big_length : sizeof input - input_length;
    long n = SYS3(read, settings.input, to, room);
    if (n == -EAGAIN || n == -EINTR)
        return 0;
    if (n <= 0) {
        stream_ended();
        return 0;
    }
    *(big ? &big_length : &input_length) += (size_t)n;
    return 1;
}

static void take_big(void)
{
    struct frame_header header;
    memcpy(&header, big, sizeof header);
    take_frame(&header, big + sizeof header);
    SYS2(munmap, big, big_size);
    big = 0;
}

static void read_input(void)
{
    if (!fill_input())
        return;
    if (big) {
        if (big_length == big_size)
            take_big();
        return;
    }
    size_t at = 0;
    while (!gone && !orphan_end && input_length - at >= sizeof(struct frame_header)) {
        struct frame_header header;
        memcpy(&header, input + at, sizeof header);
        uint32_t most = header.type == FRAME_START ? MAX_START : MAX_INPUT;
        if (header.length > most || header.flags || header.zero) {
            fault(FAULT_PROTOCOL, "malformed header");
            return;
        }
        size_t size = sizeof header + header.length;
        if (size > sizeof input) {
            long where = SYS6(mmap, 0, size, 3, 0x22, -1, 0);
            if (where < 0 && where > -4096) {
                fault(FAULT_INTERNAL, "no memory for a START frame");
                return;
            }
            big = (uint8_t *)where;
            big_size = size;
            big_length = input_length - at;
            memcpy(big, input + at, big_length);
            input_length = 0;
            return;
        }
        if (input_length - at < size)
            break;
        take_frame(&header, input + at + sizeof header);
        at += size;
    }
    if (orphan_end) /* the stream broke when something was said on it: nothing is left of it */
        return;
    memmove(input, input + at, input_length - at);
    input_length -= at;
}

/* ---- the stream, from its begin to its end ---- */

static void say_hello(void)
{
    static uint8_t instance[sizeof((struct frame_hello *)0)->instance];
    static int is_known;
    struct frame_hello hello = {
        .version = WIRE_VERSION,
        .pid = (uint32_t)SYS0(getpid),
        .uid = (uint32_t)SYS0(getuid),
        .features = FEATURE_TERMINAL | FEATURE_READ_MANY | FEATURE_WRITE_MANY | FEATURE_LIMIT |
                    (settings.init ? FEATURE_INIT : 0) |
                    (settings.seccomp ? FEATURE_SECCOMP | FEATURE_NO_NEW_PRIVS : 0),
    };
    if (!is_known)
        SYS3(getrandom, instance, sizeof instance, 0);
    is_known = 1;
    memcpy(hello.instance, instance, sizeof instance);
    send_frame(FRAME_HELLO, 0, &hello, sizeof hello);
    flush_output();
}

static void begin_stream(void)
{
    SYS3(fcntl, settings.input, F_SETFL, O_NONBLOCK);
    SYS3(fcntl, settings.output, F_SETFL, O_NONBLOCK);
    say_hello();
}

/* Ends the commands whose ends there is nobody to tell. What others left behind lives on. */
static void give_up_commands(void)
{
    for (uint32_t i = 0; i < commands_high; i++) {
        struct command *c = &commands[i];
        if (c->phase != RUNNING)
            continue;
        kill_command(c);
        close_input(c);
        c->phase = LEFTOVER;
        if (!c->empty)
            gone = 1;
    }
}

static void drop_stream(void)
{
    if (settings.output != settings.input)
        close_fd(&settings.output);
    settings.output = -1;
    if (settings.input == 0) /* its number stays taken: no pipe may get it */
        SYS3(dup3, settings.null, 0, 0);
    else
        close_fd(&settings.input);
    settings.input = -1;
    close_fd(&settings.hold);
    if (big)
        SYS2(munmap, big, big_size);
    big = 0;
    input_length = output_begin = output_end = 0;
    only_started = 0;
    give_up_commands();
}

static void stream_ended(void)
{
    if (settings.once) {
        host_left();
        return;
    }
    if (settings.resume < 0 || !settings.orphan_ms || gone) {
        gone = 1;
        return;
    }
    drop_stream();
    orphan_end = after_ms(settings.orphan_ms);
}

static void take_up_stream(void)
{
    int stream[STREAM_FDS];
    if (!resume_accept(stream))
        return;
    if (!orphan_end)
        drop_stream();
    orphan_end = 0;
    settings.input = stream[0];
    settings.output = stream[1];
    settings.hold = stream[2];
    begin_stream();
}

/* ---- output of commands ---- */

static int discards(const struct command *c, int s)
{
    return c->phase == LEFTOVER || !c->cap[s];
}

static int has_room(void)
{
    return OUTPUT_SIZE - (output_end - output_begin) > RESERVE + 4096;
}

static int wants_output(const struct command *c, int s)
{
    return c->phase != SPARE && c->out[s] >= 0 && (discards(c, s) || (c->credit[s] && has_room()));
}

static long discard(int fd)
{
    static uint8_t scrap[32 << 10];
    long n = SYS6(splice, fd, 0, settings.null, 0, 1 << 20, 2 /* non-blocking */);
    return n == -EINVAL ? SYS3(read, fd, scrap, sizeof scrap) : n;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Reads once from a pipe; a frame's payload is read straight to its place. */
static void read_output(struct command *c, int s)
{
    long n;
    if (!wants_output(c, s)) /* not any more: others had the room */
        return;
    if (discards(c, s)) {
        n = discard(c->out[s]);
    } else {
        size_t room = OUTPUT_SIZE - (output_end - output_begin) - RESERVE -
                      sizeof(struct frame_header);
        size_t most = least(least(c->credit[s], c->cap[s]), least(room, MAX_OUTPUT));
        uint8_t *to = begin_frame(most);
        if (!to)
            return;
        n = SYS3(read, c->out[s], to, most);
        if (n > 0) {
            end_frame(s ? FRAME_STDERR : FRAME_STDOUT, c->channel, (size_t)n);
            only_started = 0;
            c->credit[s] -= (uint64_t)n;
            c->cap[s] -= (uint64_t)n;
            if (n == 65536) /* a busy pipe: a larger one saves wake-ups */
                SYS3(fcntl, c->out[s], 1031 /* F_SETPIPE_SZ */, 512 << 10);
        }
    }
    if (n == -EINTR)
        return;
    if (n == -EAGAIN) {
        c->drain[s] = 0;
    } else if (n <= 0) {
        close_fd(&c->out[s]);
    } else {
        c->total[s] += (uint64_t)n;
        c->drain[s] -= n;
    }
}

/* ---- time ---- */

static void run_timers(void)
{
    int64_t now = now_ms();
    for (uint32_t i = 0; i < commands_high; i++) {
        struct command *c = &commands[i];
        if (c->phase != RUNNING || !c->deadline || now < c->deadline)
            continue;
        if (c->killed) {
            c->deadline = 0;
            if (!c->ended)
                give_up(c);
        } else if (c->terminating) {
            kill_command(c);
        } else {
            c->timed_out = 1;
            terminate_command(c);
        }
    }
    if (orphan_end && now >= orphan_end)
        gone = 1;
    if (settings.death_at && now >= settings.death_at)
        fault(FAULT_MAX_AGE, "the sandbox has reached its maximum age");
}

static int64_t next_timer(void)
{
    int64_t next = settings.death_at ? settings.death_at : INT64_MAX;
    if (orphan_end)
        next = (int64_t)least((uint64_t)next, (uint64_t)orphan_end);
    for (uint32_t i = 0; i < commands_high; i++)
        if (commands[i].phase == RUNNING && commands[i].deadline)
            next = (int64_t)least((uint64_t)next, (uint64_t)commands[i].deadline);
    return next;
}

/* ---- the loop ---- */

#define FIRST_POLLED 5 /* behind our stream's two ends, our children and who takes up the stream */
static struct pollfd_k polled[FIRST_POLLED + 3 * MAX_COMMANDS];

static size_t gather(int signal_fd)
{
    size_t count = 0;
    short from_host = has_room() ? P_IN : 0;
    short to_host = output_begin < output_end && !only_started ? P_OUT : 0;
    int apart = settings.output != settings.input; /* a socket is both */
    polled[count++] =
        (struct pollfd_k){settings.input, (short)(from_host | (apart ? 0 : to_host)), 0};
    polled[count++] = (struct pollfd_k){signal_fd, P_IN, 0};
    polled[count++] = (struct pollfd_k){report_read, P_IN, 0};
    polled[count++] = (struct pollfd_k){apart ? settings.output : -1, to_host, 0};
    polled[count++] = (struct pollfd_k){settings.resume, P_IN, 0};
    for (uint32_t i = 0; i < commands_high; i++) {
        struct command *c = &commands[i];
        if (c->phase == FREE)
            continue;
        for (int s = 0; s < 2; s++)
            if (wants_output(c, s))
                polled[count++] = (struct pollfd_k){c->out[s], P_IN, 0};
        /* Without P_OUT only for the error that says that nobody reads. */
        short input_waits = (c->input_length || c->input_end) && has_room() ? P_OUT : 0;
        if (c->phase != SPARE && c->in >= 0)
            polled[count++] = (struct pollfd_k){c->in, input_waits, 0};
    }
    return count;
}

static void turn(size_t count)
{
    size_t at = FIRST_POLLED;
    for (uint32_t i = 0; i < commands_high; i++) {
        struct command *c = &commands[i];
        if (c->phase == FREE)
            continue;
        for (int s = 0; s < 2; s++)
            if (at < count && c->out[s] >= 0 && polled[at].fd == c->out[s]) {
                if (polled[at++].revents)
                    read_output(c, s);
            }
        if (at < count && c->in >= 0 && polled[at].fd == c->in) {
            short events = polled[at++].revents;
            if (events & (P_ERR | P_HUP)) /* a terminal on which nobody is left says the latter */
                drop_input(c);
            else if (events)
                write_input(c);
        }
    }
}

static void settle_all(void)
{
    for (uint32_t i = 0; i < commands_high; i++) {
        struct command *c = &commands[i];
        if (c->phase == RUNNING && c->ended) /* what is in the pipes belongs to it */
            for (int s = 0; s < 2; s++)
                while (c->out[s] >= 0 && c->drain[s] > 0 && wants_output(c, s))
                    read_output(c, s);
        settle(c);
    }
}

int serve(void)
{
    uint64_t all = ~0ull, child = 1ull << (SIG_CHLD - 1);
    int ends[2];
    for (int signal = 1; signal <= 64; signal++) { /* what the caller ignores, commands do not */
        struct sigaction_k as_usual = {0};
        SYS4(rt_sigaction, signal, &as_usual, 0, 8);
    }
    SYS4(rt_sigprocmask, 0 /* block */, &all, 0, 8);
    int signal_fd = (int)SYS4(signalfd4, -1, &child, 8, O_CLOEXEC | O_NONBLOCK);
    if (signal_fd < 0 || SYS2(pipe2, ends, O_CLOEXEC) < 0)
        return say("can't set up", 0, signal_fd), 1;
    report_read = ends[0];
    report_write = ends[1];
    SYS3(fcntl, report_read, F_SETFL, O_NONBLOCK);
    if (!settings.await_ms)
        begin_stream();
    else if (resume_await())
        orphan_end = after_ms(settings.await_ms);
    else
        return say("can't listen for a stream", 0, 0), 1;
    for (int fd = 1; fd < 3; fd++) /* start-up errors are over; commands get their own */
        SYS3(dup3, settings.null, fd, 0);

    while (!gone) {
        int64_t next = next_timer(), left = next == INT64_MAX ? INT64_MAX : next - now_ms();
        struct timespec_k wait = {0, 0};
        if (left > 0) {
            wait.seconds = left / 1000;
            wait.nanoseconds = left % 1000 * 1000000 + 999999; /* the clock is read rounded down */
        }
        int lull = wants_spare || only_started ? lull_us() : -1;
        if (lull >= 0 && left > LULL_MS)
            wait = (struct timespec_k){0, lull * 1000};
        size_t count = gather(signal_fd);
        int for_ever = left == INT64_MAX && lull < 0;
        long ready = SYS5(ppoll, polled, count, for_ever ? 0 : &wait, 0, 8);
        if (ready < 0 && ready != -EINTR)
            return 1;
        if (!ready && lull >= 0) {
            flush_output();
            if (wants_spare)
                keep_spare();
        }
        if (ready > 0) {
            turn(count); /* first: later steps may move descriptors */
            if (polled[0].revents & ~P_OUT)
                read_input();
            if (polled[3].revents & P_ERR) /* nobody will ever read it */
                stream_ended();
            if (polled[4].revents)
                take_up_stream();
            if (polled[2].revents)
                read_reports();
        }
        run_timers();
        settle_all();
        if (!only_started)
            flush_output();
        if (ready > 0 && polled[1].revents) { /* last: nobody waits for a keeper to be reaped */
            reap(signal_fd);
            settle_all();
        }
        gone |= settings.once && settings.input < 0 && !commands_high;
    }
    flush_output();
    return settings.init ? 0 : !kill_everything();
}
