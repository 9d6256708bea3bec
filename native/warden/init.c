/* What a container needs whose commands come by its engine's exec API, each with a warden of its
 * own: `warden init` as PID 1, and `warden sweep` for what a warden left that was killed. */
#include "warden.h"

#include <linux/prctl.h>

/* Reaps what comes to it, and ends at its time, and everything with it. Nothing but that time and
 * the engine can end it: PID 1 without a handler gets no signal from inside. */
int init_mode(int argc, char **argv)
{
    uint64_t child = 1ull << (SIG_CHLD - 1);
    if (argc == 2 && text_equal(argv[0], "--max-age-ms"))
        settings.death_at = after_ms(text_number(argv[1]));
    else if (argc)
        return say("usage", "warden init [--max-age-ms N]", 0), 2;
    SYS5(prctl, PR_SET_DUMPABLE, 0, 0, 0, 0);
    SYS4(rt_sigprocmask, 0 /* block */, &child, 0, 8);
    for (;;) {
        while (SYS4(wait4, -1, 0, WAIT_NOHANG | WAIT_ALL, 0) > 0)
            ;
        int64_t left = settings.death_at ? settings.death_at - now_ms() : 0;
        if (settings.death_at && left <= 0)
            return 0;
        struct timespec_k wait = {left / 1000, left % 1000 * 1000000 + 999999};
        SYS4(rt_sigtimedwait, &child, 0, settings.death_at ? &wait : 0, 8);
    }
}

/* Kills all that PID 1 has adopted, and says with 0 that nothing of it is left. */
int sweep_mode(void)
{
    SYS5(prctl, PR_SET_DUMPABLE, 0, 0, 0, 0);
    return !kill_adopted();
}
