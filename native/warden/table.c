/* The table of commands. */
#include "serve.h"

struct command commands[MAX_COMMANDS];
uint32_t commands_high;

struct command *find(uint32_t channel)
{
    for (uint32_t i = 0; i < commands_high; i++)
        if (commands[i].phase == RUNNING && commands[i].channel == channel)
            return &commands[i];
    return 0;
}

int live_keeper(pid_type pid)
{
    for (uint32_t i = 0; i < commands_high; i++)
        if (commands[i].phase != FREE && !commands[i].keeper_gone && commands[i].keeper == pid)
            return 1;
    return 0;
}

void close_fd(int *fd)
{
    if (*fd >= 0)
        SYS1(close, *fd);
    *fd = -1;
}

void close_input(struct command *c)
{
    close_fd(&c->in);
    if (c->input)
        SYS2(munmap, c->input, STDIN_WINDOW);
    c->input = 0;
    c->input_length = c->input_offset = 0;
}

void release(struct command *c)
{
    close_input(c);
    close_fd(&c->order);
    close_fd(&c->out[0]);
    close_fd(&c->out[1]);
    c->phase = FREE;
    while (commands_high && commands[commands_high - 1].phase == FREE)
        commands_high--;
}
