/* What is in regular files, one or many at a time. Nothing here waits for a FIFO's other end. */
#include "files.h"

/* Opens a regular file. What it is is looked at before opening it, since opening a device can do
 * things, and again after, since it may have changed. */
static int open_file(const char *path, int flags, int mode, struct statx *info)
{
    int seen = open_beneath(AT_FDCWD, path, O_PATH, 0);
    if (seen >= 0) {
        int failed = describe(seen, "", info);
        SYS1(close, seen);
        if (failed)
            return failed;
        if (kind(info) != S_IFREG)
            return kind(info) == S_IFDIR ? -EISDIR : -NOT_A_FILE;
    } else if (!(flags & O_CREAT) || seen != -ENOENT) {
        return seen;
    }
    int fd = open_beneath(AT_FDCWD, path, flags | O_NONBLOCK | O_NOCTTY, mode);
    if (fd < 0)
        return fd;
    int failed = describe(fd, "", info);
    if (!failed && kind(info) != S_IFREG)
        failed = -NOT_A_FILE;
    if (failed)
        SYS1(close, fd);
    return failed ? failed : fd;
}

int write_all(int fd, const void *data, size_t size)
{
    const uint8_t *from = data;
    while (size) {
        long n = SYS3(write, fd, from, size);
        if (n == -EINTR)
            continue;
        if (n < 0)
            return (int)n;
        from += n;
        size -= (size_t)n;
    }
    return 0;
}

uint8_t buffer[128 << 10];

int read_file(const char *path, uint64_t offset, uint64_t most)
{
    struct statx info;
    int fd = open_file(path, O_RDONLY, 0, &info);
    if (fd < 0)
        return fd;
    struct file_head head = {info.stx_size};
    int failed = write_all(1, &head, sizeof head);
    while (!failed && most) {
        size_t size = most < sizeof buffer ? most : sizeof buffer;
        long n = SYS4(pread64, fd, buffer, size, offset);
        if (n == -EINTR)
            continue;
        if (n <= 0)
            return (int)n;
        offset += (uint64_t)n;
        most -= (uint64_t)n;
        failed = write_all(1, buffer, (size_t)n);
    }
    return failed;
}

/* Reads a file into memory until it really ends, if that is within `most`. */
static long read_whole(const char *path, uint8_t *to, uint64_t most)
{
    struct statx info;
    int fd = open_file(path, O_RDONLY, 0, &info);
    uint64_t size = 0;
    long n = fd < 0 ? fd : info.stx_size > most ? -EFBIG : 1;
    while (n > 0) {
        do
            n = SYS4(pread64, fd, to + size, most + 1 - size, size);
        while (n == -EINTR);
        size += n > 0 ? (uint64_t)n : 0;
        if (size > most)
            n = -EFBIG;
    }
    if (fd >= 0)
        SYS1(close, fd);
    return n < 0 ? n : (long)size;
}

/* Tells each file's own failure in its head: none stops the others. */
int read_many(char **paths, uint32_t count, uint64_t most)
{
    static uint8_t whole[sizeof(struct file_whole) + MAX_WHOLE + 1]; /* 1: to see that it ends */
    int failed = 0;
    for (uint32_t i = 0; i < count && !failed; i++) {
        long size = read_whole(paths[i], whole + sizeof(struct file_whole),
                               most < MAX_WHOLE ? most : MAX_WHOLE);
        struct file_whole head = {size < 0 ? (uint32_t)-size : 0, size < 0 ? 0 : (uint32_t)size};
        memcpy(whole, &head, sizeof head);
        most -= head.length;
        failed = write_all(1, whole, sizeof head + head.length);
    }
    return failed;
}

/* Opens a file to be written anew or at its end, with the directories above it. */
static int open_to_write(const char *path, uint32_t mode, int append)
{
    struct statx info;
    int failed = make_parents(path);
    if (failed)
        return failed;
    int fd = open_file(path, O_WRONLY | O_CREAT | (append ? O_APPEND : 0),
                       mode == MODE_UNSET ? 0644 : (int)mode, &info);
    if (fd < 0)
        return fd;
    if (!append)
        failed = (int)SYS2(ftruncate, fd, 0);
    if (!failed && mode != MODE_UNSET)
        failed = (int)SYS2(fchmod, fd, mode);
    if (failed)
        SYS1(close, fd);
    return failed ? failed : fd;
}

static long read_stdin(void)
{
    long n;
    do
        n = SYS3(read, 0, buffer, sizeof buffer);
    while (n == -EINTR);
    return n;
}

int write_file(const char *path, uint32_t mode, int append)
{
    int fd = open_to_write(path, mode, append);
    int failed = fd < 0 ? fd : 0;
    while (!failed) {
        long n = read_stdin();
        if (n <= 0)
            return (int)n;
        failed = write_all(fd, buffer, (size_t)n);
    }
    return failed;
}

/* What is left of the piece of stdin that was read last. */
struct piece {
    const uint8_t *at;
    size_t size;
};

/* Takes at most so many bytes; returns how many, 0 at the end of stdin. */
static long take(struct piece *piece, size_t most, const uint8_t **data)
{
    if (!piece->size) {
        long n = read_stdin();
        if (n <= 0)
            return n;
        *piece = (struct piece){buffer, (size_t)n};
    }
    size_t size = most < piece->size ? most : piece->size;
    *data = piece->at;
    piece->at += size;
    piece->size -= size;
    return (long)size;
}

static int take_head(struct piece *piece, struct file_new *head)
{
    uint8_t *to = (uint8_t *)head;
    size_t lacking = sizeof *head;
    while (lacking) {
        const uint8_t *data;
        long n = take(piece, lacking, &data);
        if (n <= 0)
            return n ? (int)n : -EINVAL;
        memcpy(to, data, (size_t)n);
        to += n;
        lacking -= (size_t)n;
    }
    return 0;
}

/* Leaves nothing of a file that did not come whole, also not behind a link by which it was opened. */
static void drop_part(int fd, const char *path)
{
    struct statx ours, named;
    const char *name;
    int parent = open_parent(path, &name);
    SYS2(ftruncate, fd, 0);
    if (parent < 0)
        return;
    if (!describe(fd, "", &ours) && !describe(parent, name, &named) &&
        ours.stx_ino == named.stx_ino && kind(&named) == S_IFREG)
        SYS3(unlinkat, parent, name, 0);
    SYS1(close, parent);
}

/* Writes one file of many, and removes it again if it can't be written whole. What fails is its
 * own affair, told in `status`; the return value says whether stdin goes on behind it. */
static int write_next(const char *path, struct piece *piece, int *status)
{
    struct file_new head;
    int failed = take_head(piece, &head);
    if (failed)
        return failed;
    int fd = open_to_write(path, head.mode, 0);
    *status = fd < 0 ? fd : 0;
    while (head.length && !failed) {
        const uint8_t *data;
        long n = take(piece, head.length, &data);
        if (n <= 0)
            failed = n ? (int)n : -EINVAL;
        else if (!*status)
            *status = write_all(fd, data, (size_t)n);
        head.length -= n > 0 ? (uint32_t)n : 0;
    }
    if (fd >= 0 && (failed || *status))
        drop_part(fd, path);
    if (fd >= 0)
        SYS1(close, fd);
    return failed;
}

/* Tells each file's own failure by its status: none stops the others. */
int write_many(char **paths, uint32_t count)
{
    uint32_t statuses[64];
    size_t untold = 0;
    struct piece piece = {0, 0};
    int failed = 0;
    for (uint32_t i = 0; i < count && !failed; i++) {
        int status = 0;
        failed = write_next(paths[i], &piece, &status);
        if (!failed)
            statuses[untold++] = (uint32_t)-status;
        if (untold == 64 || failed || i + 1 == count) {
            int lost = write_all(1, statuses, untold * sizeof *statuses);
            failed = failed ? failed : lost;
            untold = 0;
        }
    }
    return failed;
}
