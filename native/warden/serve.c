/* The loop over one byte stream.
 *
 * The table is walked and polled anew each time round, so there is no registration that could go
 * stale when a descriptor's number is used again. */
#include "serve.h"

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

#define FIRST_POLLED 5 /* behind our stream's two ends, our children and who takes up the stream */
static struct pollfd_k polled[FIRST_POLLED + 3 * MAX_COMMANDS];

static size_t gather(int signal_fd)
{
    size_t count = 0;
    short from_host = has_room() ? P_IN : 0;
    short to_host = output_waits() && !only_started ? P_OUT : 0;
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
            SYS0(sched_yield); /* but somebody for what has just been said */
            reap(signal_fd);
            settle_all();
        }
        gone |= settings.once && settings.input < 0 && !commands_high;
    }
    flush_output();
    return settings.init ? 0 : !kill_everything();
}
