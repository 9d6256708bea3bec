/* How commands start: as a spare that was forked ahead, or forked when it is asked for. */
#include "serve.h"

int report_write = -1;
int wants_spare = 1;

/* Makes a pipe of which our end, the `ours`th, never makes us wait. */
static int make_pipe(int ends[2], int ours)
{
    int failed = (int)SYS2(pipe2, ends, O_CLOEXEC);
    return failed ? failed : (int)SYS3(fcntl, ends[ours], F_SETFL, O_NONBLOCK);
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

static uint8_t order[sizeof(uint32_t) + MAX_ORDER];

/* Gives a spare its order; returns whether it took it. */
static int give_order(struct command *c, const uint8_t *payload, uint32_t length)
{
    memcpy(order, &length, sizeof length);
    memcpy(order + sizeof length, payload, length);
    long whole = (long)(sizeof length + length);
    return SYS3(write, c->order, order, whole) == whole;
}

static struct command *become(struct request *request, uint8_t *payload, uint32_t length,
                              long *failed)
{
    struct command *c = find_spare();
    wants_spare = !settings.once; /* with it there will be no other command */
    /* stdin's first bytes are for the pipe, and the order ends before them */
    length -= request->head.stdin_length;
    if (c && length <= MAX_ORDER) {
        uint32_t none = 0;
        memcpy(payload + offsetof(struct frame_start, stdin_length), &none, sizeof none);
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

void start(uint32_t channel, uint8_t *payload, uint32_t length)
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
void keep_spare(void)
{
    long failed;
    if (!find_spare())
        fork_command(0, 0, &failed);
    wants_spare = 0;
    /* Pages are shared after a fork and copied by whoever writes first. The next START finds its
     * own copied already. */
    uint8_t *const frames = input_pages();
    volatile uint8_t *const pages[] = {frames, frames + 4096, order};
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++)
        *pages[i] = *pages[i];
}

/* How long nothing must happen before there is time for that: a command that has just begun ends
 * soon, or takes long. */
int lull_us(void)
{
    for (uint32_t i = 0; i < commands_high; i++)
        if (commands[i].phase == RUNNING)
            return LULL_MS * 1000;
    return 400;
}
