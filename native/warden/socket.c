/* The stream to a host on the same machine. Through the engine that holds a container, every byte is
 * copied by its shim and by its daemon; a socket that the host has shown us goes past both.
 *
 * It is connected to before anything else runs here. The host then takes it away: nobody inside can
 * call it a second time. */
#include "warden.h"

#define STREAM 1
#define SEND_BUFFER 7 /* SO_SNDBUF */

/* Returns a stream to whoever listens there, or -errno if nobody does. */
int socket_connect(const char *path)
{
    struct {
        uint16_t family;
        char path[108];
    } there = {.family = UNIX};
    size_t length = text_length(path);
    if (length >= sizeof there.path)
        return -ENAMETOOLONG;
    memcpy(there.path, path, length);
    int fd = (int)SYS3(socket, UNIX, STREAM | O_CLOEXEC, 0);
    if (fd < 0)
        return fd;
    int bytes = 1 << 20;
    SYS5(setsockopt, fd, SOCKET_LEVEL, SEND_BUFFER, &bytes, sizeof bytes);
    long failed = SYS3(connect, fd, &there, sizeof there);
    if (!failed)
        return fd;
    SYS1(close, fd);
    return (int)failed;
}
