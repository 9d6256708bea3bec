/* How commands end: killed, or by themselves, and what their keepers say of it. */
#include "serve.h"

#define KILL_WAIT_MS 1000 /* for a keeper to bury what was killed and to say so */

int report_read = -1;

/* How many processes of the sandbox its memory limit has killed so far. */
uint64_t oom_kills(void)
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

void give_up(struct command *c)
{
    c->incomplete = 1;
    if (!c->ended) { /* we don't know how it ended, and must not guess */
        c->ended = 1;
        c->outcome = OUTCOME_UNKNOWN;
        c->drain[0] = c->drain[1] = 0;
    }
}

void kill_command(struct command *c)
{
    c->killed = 1;
    c->empty = kill_tree(c->keeper_gone ? 0 : c->keeper, live_keeper);
    c->deadline = c->empty ? after_ms(KILL_WAIT_MS) : 0;
    if (!c->empty)
        give_up(c);
}

/* To every process of a command; if it has not said yet that it runs, then. */
void signal_command(struct command *c, int signal)
{
    if (!c->main && !c->ended)
        c->early |= 1ull << (signal - 1);
    else if (!c->keeper_gone)
        signal_tree(c->keeper, signal);
}

void terminate_command(struct command *c)
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
void settle(struct command *c)
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

void say_started(struct command *c)
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

void read_reports(void)
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
void reap(int signal_fd)
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
