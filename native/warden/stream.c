/* The stream from the host: its frames, its end, and another that takes its place. */
#include "serve.h"

int gone;
int64_t orphan_end;

static uint8_t input[sizeof(struct frame_header) + MAX_INPUT];
static size_t input_length;
static uint8_t *big; /* a START frame that is larger than `input` */
static size_t big_length, big_size;

/* Where the next frame will be, for who wants its pages to be at hand. */
uint8_t *input_pages(void)
{
    return input;
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
    drop_output();
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

void read_input(void)
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

void begin_stream(void)
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
    input_length = 0;
    drop_output();
    give_up_commands();
}

void stream_ended(void)
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

void take_up_stream(void)
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
