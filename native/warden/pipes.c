/* What a command reads and writes: its stdin on the way in, its outputs on the way out.
 *
 * Output is bounded by credit: the host says how much of each stream it will take, and the warden
 * reads a pipe only while there is credit and room for a frame. Past a stream's cap, and after a
 * command's end, a pipe is drained into /dev/null, so that what writes to it goes on. */
#include "serve.h"

int keep_input(struct command *c, const uint8_t *data, uint32_t length)
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
void drop_input(struct command *c)
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

void write_input(struct command *c)
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

static int discards(const struct command *c, int s)
{
    return c->phase == LEFTOVER || !c->cap[s];
}

int wants_output(const struct command *c, int s)
{
    return c->phase != SPARE && c->out[s] >= 0 && (discards(c, s) || (c->credit[s] && has_room()));
}

static long discard(int fd)
{
    static uint8_t scrap[32 << 10];
    long n = SYS6(splice, fd, 0, settings.null, 0, 1 << 20, 2 /* non-blocking */);
    return n == -EINVAL ? SYS3(read, fd, scrap, sizeof scrap) : n;
}

/* Reads once from a pipe; a frame's payload is read straight to its place. */
void read_output(struct command *c, int s)
{
    long n;
    if (!wants_output(c, s)) /* not any more: others had the room */
        return;
    if (discards(c, s)) {
        n = discard(c->out[s]);
    } else {
        size_t most = least(least(c->credit[s], c->cap[s]), least(data_room(), MAX_OUTPUT));
        uint8_t *to = begin_frame(most);
        if (!to)
            return;
        n = SYS3(read, c->out[s], to, most);
        if (n > 0) {
            end_frame(s ? FRAME_STDERR : FRAME_STDOUT, c->channel, (size_t)n);
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
