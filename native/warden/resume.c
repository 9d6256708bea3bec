/* Taking a broken stream up again. The host gives the warden a token over its first stream. If that
 * breaks, it has `warden connect` run inside by other means (an engine's exec, a cluster's). That
 * one reads the token from its own stdin, which nobody inside can look into, and hands its stdin
 * and stdout over to PID 1, by a datagram to a socket of the sandbox's network namespace.
 *
 * A datagram is whole or not there, so PID 1 has no connection to keep for a stranger: what does
 * not show the token is closed and forgotten. */
#include "warden.h"

#include <linux/prctl.h>
#include <linux/time_types.h>

#define DATAGRAM 2
#define RIGHTS 1
#define NO_WAIT 0x40
#define CLOSE_ON_EXEC 0x40000000
#define SEND_TIMEOUT 67 /* SO_SNDTIMEO with 64-bit seconds */
#define SEND_SECONDS 5
#define START_TRIES 100 /* 5 ms apart: how long a warden may take to listen */

struct vector_k {
    void *base;
    size_t length;
};

struct message_k {
    void *name;
    int name_length;
    struct vector_k *vector;
    size_t vector_length;
    void *control;
    size_t control_length;
    int flags;
};

struct rights {
    size_t length;
    int level, type;
    int fd[STREAM_FDS];
    int padding;
};
#define RIGHTS_LENGTH (offsetof(struct rights, fd) + STREAM_FDS * sizeof(int))

#define NAME "\0ringfence-warden." /* then the warden's pid; the NUL says that it is no file */
struct address {
    uint16_t family;
    char name[sizeof NAME + 20];
};

/* Makes the address of a warden and returns its length. */
static int address_of(uint64_t pid, struct address *address)
{
    size_t length = sizeof NAME - 1;
    address->family = UNIX;
    memcpy(address->name, NAME, length);
    length += number_text(address->name + length, pid);
    return (int)(offsetof(struct address, name) + length);
}

static uint8_t expected[TOKEN_SIZE];
static int first_comer; /* whoever comes first says what the token is */

static struct message_k message(struct vector_k *vector, struct rights *rights)
{
    return (struct message_k){
        .vector = vector,
        .vector_length = 1,
        .control = rights,
        .control_length = sizeof *rights,
    };
}

/* Lets whoever shows this token take the stream up, from now on. */
void resume_listen(const uint8_t *token)
{
    memcpy(expected, token, sizeof expected);
    if (settings.resume >= 0)
        return;
    struct address here;
    int length = address_of((uint64_t)SYS0(getpid), &here);
    int fd = (int)SYS3(socket, UNIX, DATAGRAM | O_CLOEXEC | O_NONBLOCK, 0);
    if (fd >= 0 && SYS3(bind, fd, &here, length) == 0)
        settings.resume = fd;
    else if (fd >= 0) /* somebody has the name: then there is no taking up, as without a token */
        SYS1(close, fd);
}

/* Listens for the first stream of all, before anything else runs here that could bring one. Returns
 * whether it can be brought. */
int resume_await(void)
{
    uint8_t nothing[TOKEN_SIZE] = {0};
    first_comer = 1;
    resume_listen(nothing);
    return settings.resume >= 0;
}

/* Takes one message; returns whether it brought a stream: to read, to write, and to hold open. */
int resume_accept(int stream[STREAM_FDS])
{
    uint8_t shown[TOKEN_SIZE + 1];
    struct rights rights = {0};
    struct vector_k vector = {shown, sizeof shown};
    struct message_k got = message(&vector, &rights);
    long n = SYS3(recvmsg, settings.resume, &got, NO_WAIT | CLOSE_ON_EXEC);
    if (n < 0)
        return 0;
    size_t count = 0;
    if (got.control_length >= offsetof(struct rights, fd) && rights.level == SOCKET_LEVEL &&
        rights.type == RIGHTS && rights.length <= RIGHTS_LENGTH)
        count = (rights.length - offsetof(struct rights, fd)) / sizeof(int);
    uint8_t different = n != TOKEN_SIZE || count != STREAM_FDS;
    if (first_comer && !different) {
        memcpy(expected, shown, sizeof expected);
        first_comer = 0;
    }
    for (size_t i = 0; i < TOKEN_SIZE; i++) /* in the same time for any token */
        different |= (uint8_t)(shown[i] ^ expected[i]);
    for (size_t i = 0; i < count; i++) {
        if (different)
            SYS1(close, rights.fd[i]);
        else
            stream[i] = rights.fd[i];
    }
    return !different;
}

static long send_stream(int fd, uint64_t pid, uint8_t *token, int hold)
{
    struct address there;
    struct rights rights = {RIGHTS_LENGTH, SOCKET_LEVEL, RIGHTS, {0, 1, hold}, 0};
    struct vector_k vector = {token, TOKEN_SIZE};
    struct message_k sent = message(&vector, &rights);
    struct __kernel_sock_timeval patience = {SEND_SECONDS, 0};
    sent.name_length = address_of(pid, &there);
    sent.name = &there;
    SYS5(setsockopt, fd, SOCKET_LEVEL, SEND_TIMEOUT, &patience, sizeof patience);
    long failed;
    for (int tries = 0; (failed = SYS3(sendmsg, fd, &sent, 0)) == -ECONNREFUSED; tries++) {
        if (tries >= START_TRIES) /* it is not only that it has just been started */
            break;
        sleep_us(5000);
    }
    return failed;
}

/* `warden connect [PID]`: hands its own stdin and stdout over to the warden with that pid, and stays
 * while they are in use, since an engine closes the streams of a process that has ended. */
int connect_mode(const char *pid)
{
    uint8_t token[TOKEN_SIZE];
    int hold[2];
    size_t got = 0;
    SYS5(prctl, PR_SET_DUMPABLE, 0, 0, 0, 0);
    while (got < sizeof token) {
        long n = SYS3(read, 0, token + got, sizeof token - got);
        if (n == -EINTR)
            continue;
        if (n <= 0)
            return say("no token came", 0, n), 1;
        got += (size_t)n;
    }
    int fd = (int)SYS3(socket, UNIX, DATAGRAM | O_CLOEXEC, 0);
    long failed = fd < 0 ? fd : SYS2(pipe2, hold, O_CLOEXEC);
    if (!failed)
        failed = send_stream(fd, pid ? text_number(pid) : 1, token, hold[1]);
    if (failed < 0)
        return say("the warden can't be reached", 0, failed), 1;
    SYS1(close, hold[1]);
    SYS1(close, fd);
    uint8_t nothing;
    while (SYS3(read, hold[0], &nothing, 1) == -EINTR)
        ;
    return 0;
}
