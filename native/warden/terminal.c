/* Terminals of commands: pseudo-terminals whose master is ours.
 *
 * The other end is taken by descriptor and not by its name, so that nothing in the sandbox can put
 * another file in its place. */
#include "warden.h"

#include <asm/ioctls.h>
#include <asm/termbits.h>

#define END_OF_INPUT 4 /* Ctrl-D, where the terminal's own can't be learned */

struct window_size {
    uint16_t rows, columns, unused[2];
};

int terminal_size_is_valid(uint64_t rows, uint64_t columns)
{
    return rows - 1 < 0xffff && columns - 1 < 0xffff;
}

int terminal_resize(int master, uint64_t rows, uint64_t columns)
{
    struct window_size size = {(uint16_t)rows, (uint16_t)columns, {0, 0}};
    return (int)SYS3(ioctl, master, TIOCSWINSZ, &size);
}

/* Opens a terminal: the master to read from, the same to write to, and the program's end. */
int terminal_open(struct terminal *t, uint64_t rows, uint64_t columns)
{
    int unlocked = 0, failed;
    t->write = t->peer = -1;
    t->read = open_at(AT_FDCWD, "/dev/ptmx", O_RDWR | O_NOCTTY | O_NONBLOCK, 0);
    if (t->read < 0)
        return t->read;
    failed = (int)SYS3(ioctl, t->read, TIOCSPTLCK, &unlocked);
    if (!failed)
        failed = terminal_resize(t->read, rows, columns);
    if (!failed) {
        t->peer = (int)SYS3(ioctl, t->read, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
        failed = t->peer < 0 ? t->peer : 0;
    }
    if (!failed) {
        t->write = (int)SYS3(fcntl, t->read, F_DUPFD_CLOEXEC, 3);
        failed = t->write < 0 ? t->write : 0;
    }
    if (!failed)
        return 0;
    SYS1(close, t->read);
    if (t->peer >= 0)
        SYS1(close, t->peer);
    return failed;
}

/* In the main process, which leads a session: descriptor 0 becomes the session's terminal. */
int terminal_control(void)
{
    return (int)SYS3(ioctl, 0, TIOCSCTTY, 0);
}

/* Types what ends the input: twice behind an open line, which the first one only hands over. */
int terminal_end_input(int master, int line_is_open)
{
    struct termios modes;
    uint8_t keys[2] = {END_OF_INPUT, END_OF_INPUT};
    if (!SYS3(ioctl, master, TCGETS, &modes) && modes.c_cc[VEOF])
        keys[0] = keys[1] = modes.c_cc[VEOF];
    return (int)SYS3(write, master, keys, line_is_open ? 2 : 1);
}
