/* The file operations, each in a process of its own whose working directory is the workspace.
 *
 * Paths are relative and are resolved beneath the workspace: links inside it are followed, one
 * that leads out is refused. Only regular files are read and written, and nothing here waits for
 * a FIFO's other end. */
#include "warden.h"

#include <linux/openat2.h>

#define LAST_RESORT_PATH 4096
#define DEEPEST 256

static int64_t pair_ns(const struct statx_timestamp *time)
{
    return time->tv_sec * 1000000000ll + time->tv_nsec;
}

static int kind(const struct statx *info)
{
    return info->stx_mode & S_IFMT;
}

/* gVisor's kernel of 2024 follows a link in spite of O_NOFOLLOW, if a directory is to be opened for
 * reading: so a name is looked up without that, and what was found is opened. */
static int open_directory(int above, const char *name, int flags)
{
    int found = open_at(above, name, O_PATH | O_DIRECTORY | O_NOFOLLOW, 0);
    if (found < 0)
        return found;
    int fd = open_at(found, ".", flags, 0);
    SYS1(close, found);
    return fd;
}

/* Without openat2, as on gVisor: part by part. No link is followed by the kernel: a link's target
 * takes its place in the path, and the walk begins anew, so that each part that was ever entered is
 * a directory beneath the root. */
#define MOST_LINKS 40
#define MOST_WALKS 1000
#define WALK_ANEW (-ERESTART)

struct walk {
    char path[2 * LAST_RESORT_PATH];
    int flags, mode, links;
    int follows; /* links at all */
};

/* Puts a text in the place of a piece of the path. */
static int walk_replace(struct walk *walk, size_t from, size_t to, const char *text, size_t length)
{
    size_t rest = text_length(walk->path + to) + 1;
    if (from + length + rest > sizeof walk->path)
        return -ENAMETOOLONG;
    memmove(walk->path + from + length, walk->path + to, rest);
    memcpy(walk->path + from, text, length);
    return WALK_ANEW;
}

/* Returns WALK_ANEW if a part is a link, whose target is in its place then; 0 if it is none. */
static int walk_link(struct walk *walk, int dir, const char *part, size_t from, size_t to)
{
    char target[LAST_RESORT_PATH];
    long length = SYS4(readlinkat, dir, part, target, sizeof target);
    if (length < 0)
        return 0;
    if (!length || *target == '/')
        return -EXDEV;
    if (length == sizeof target)
        return -ENAMETOOLONG;
    if (++walk->links > MOST_LINKS)
        return -ELOOP;
    return walk_replace(walk, from, to, target, (size_t)length);
}

/* Opens one part, or says why not, or that the path is another one now. */
static int walk_part(struct walk *walk, int dir, size_t from, size_t to, long above)
{
    char part[256];
    int last = !walk->path[to];
    int flags = last ? walk->flags : O_PATH | O_DIRECTORY;
    if (to - from >= sizeof part)
        return -ENAMETOOLONG;
    memcpy(part, walk->path + from, to - from);
    part[to - from] = 0;
    if (text_equal(part, "..")) {
        if (!walk->links || above < 0)
            return -EXDEV;
        return walk_replace(walk, (size_t)above, to + !last, "", 0);
    }
    const char *name = from == to ? "." : part;
    int fd = flags & O_DIRECTORY && !(flags & O_PATH)
                 ? open_directory(dir, name, flags)
                 : open_at(dir, name, O_NOFOLLOW | flags, walk->mode);
    int may_be_link = fd == -ELOOP || fd == -ENOTDIR || (fd >= 0 && flags & O_PATH);
    if (!walk->follows || !may_be_link || (last && walk->flags & O_NOFOLLOW))
        return fd;
    int is_link = walk_link(walk, dir, part, from, to);
    if (is_link && fd >= 0)
        SYS1(close, fd);
    return is_link ? is_link : fd;
}

static int walk_once(struct walk *walk, int root)
{
    int dir = root == AT_FDCWD ? open_at(AT_FDCWD, ".", O_PATH | O_DIRECTORY, 0)
                               : (int)SYS3(fcntl, root, F_DUPFD_CLOEXEC, 0);
    size_t from = 0;
    long above = -1; /* where the name of the directory that we are in begins */
    while (dir >= 0) {
        size_t to = from;
        while (walk->path[to] && walk->path[to] != '/')
            to++;
        int last = !walk->path[to];
        int stays = to == from || (to == from + 1 && walk->path[from] == '.');
        if (last || !stays) {
            int next = walk_part(walk, dir, from, to, above);
            SYS1(close, dir);
            if (last || next < 0)
                return next;
            dir = next;
            above = (long)from;
        }
        from = to + 1;
    }
    return dir;
}

static int open_walking(int root, const char *path, int flags, int mode, int follows)
{
    static struct walk walk;
    size_t size = text_length(path) + 1;
    if (size > LAST_RESORT_PATH)
        return -ENAMETOOLONG;
    memcpy(walk.path, path, size);
    walk.flags = flags, walk.mode = mode, walk.links = 0, walk.follows = follows;
    for (int walks = 0; walks < MOST_WALKS; walks++) {
        int fd = walk_once(&walk, root);
        if (fd != WALK_ANEW)
            return fd;
    }
    return -ELOOP;
}

static int open_resolving(int root, const char *path, int flags, int mode, uint64_t resolve)
{
    static int works; /* 0 unknown, 1 yes, -1 no */
    struct open_how how = {
        .flags = (uint64_t)(uint32_t)(flags | O_CLOEXEC),
        .mode = flags & O_CREAT ? (uint64_t)mode : 0,
        .resolve = resolve | RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS,
    };
    if (!works) {
        struct open_how probe = {.flags = O_PATH | O_CLOEXEC, .resolve = RESOLVE_BENEATH};
        int fd = (int)SYS4(openat2, root, ".", &probe, sizeof probe);
        works = fd >= 0 ? 1 : -1;
        if (fd >= 0)
            SYS1(close, fd);
    }
    if (works < 0)
        return open_walking(root, path, flags, mode, !(resolve & RESOLVE_NO_SYMLINKS));
    for (int tries = 0;; tries++) { /* a rename elsewhere can make the kernel ask for another try */
        int fd = (int)SYS4(openat2, root, path, &how, sizeof how);
        if (fd != -EAGAIN || tries == 100)
            return fd;
    }
}

int open_beneath(int root, const char *path, int flags, int mode)
{
    return open_resolving(root, path, flags, mode, 0);
}

int open_cwd(int root, const char *path)
{
    return open_resolving(root, path, O_PATH | O_DIRECTORY, 0, RESOLVE_NO_SYMLINKS);
}

/* Opens the directory above a path's last part, and says what that part is. */
static int open_parent(const char *path, const char **last)
{
    static char above[LAST_RESORT_PATH];
    const char *slash = 0;
    for (const char *c = path; *c; c++)
        if (*c == '/')
            slash = c;
    *last = slash ? slash + 1 : path;
    size_t length = slash ? (size_t)(slash - path) : 0;
    if (length >= sizeof above)
        return -ENAMETOOLONG;
    memcpy(above, path, length);
    above[length] = 0;
    return open_beneath(AT_FDCWD, length ? above : ".", O_PATH | O_DIRECTORY, 0);
}

static int describe(int dir, const char *name, struct statx *info)
{
    int flags = AT_SYMLINK_NOFOLLOW | (*name ? 0 : AT_EMPTY_PATH);
    return (int)SYS5(statx, dir, name, flags, STATX_BASIC_STATS, info);
}

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

static int write_all(int fd, const void *data, size_t size)
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

static uint8_t buffer[128 << 10];

static int read_file(const char *path, uint64_t offset, uint64_t most)
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
static int read_many(char **paths, uint32_t count, uint64_t most)
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

static int make_dir(const char *path)
{
    static char prefix[LAST_RESORT_PATH];
    size_t length = text_length(path);
    if (length >= sizeof prefix)
        return -ENAMETOOLONG;
    for (size_t i = 1; i <= length; i++) {
        if (path[i] != '/' && path[i])
            continue;
        memcpy(prefix, path, i);
        prefix[i] = 0;
        const char *last;
        int parent = open_parent(prefix, &last);
        if (parent < 0)
            return parent;
        int failed = (int)SYS3(mkdirat, parent, last, 0755);
        SYS1(close, parent);
        if (failed && failed != -EEXIST)
            return failed;
        int made = open_beneath(AT_FDCWD, prefix, O_PATH | O_DIRECTORY, 0);
        if (made < 0)
            return made == -ENOTDIR && i == length ? -EEXIST : made;
        SYS1(close, made);
    }
    return 0;
}

static int make_parents(const char *path)
{
    static char above[LAST_RESORT_PATH];
    size_t length = text_length(path);
    while (length && path[length - 1] != '/')
        length--;
    if (length < 2)
        return 0;
    if (length >= sizeof above)
        return -ENAMETOOLONG;
    memcpy(above, path, length - 1);
    above[length - 1] = 0;
    int failed = make_dir(above);
    return failed == -EEXIST ? -ENOTDIR : failed;
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

static int write_file(const char *path, uint32_t mode, int append)
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
static int write_many(char **paths, uint32_t count)
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

static struct file_entry entry_of(const struct statx *info, size_t name_length)
{
    return (struct file_entry){
        .size = info->stx_size,
        .mtime_ns = pair_ns(&info->stx_mtime),
        .mode = info->stx_mode,
        .name_length = (uint32_t)name_length,
    };
}

static int stat_path(const char *path)
{
    struct statx info;
    const char *last;
    int parent = open_parent(path, &last);
    if (parent < 0)
        return parent;
    int failed = describe(parent, last, &info);
    if (failed)
        return failed;
    struct file_entry entry = entry_of(&info, text_length(last));
    failed = write_all(1, &entry, sizeof entry);
    return failed ? failed : write_all(1, last, entry.name_length);
}

static int is_dots(const char *name)
{
    return name[0] == '.' && (!name[1] || (name[1] == '.' && !name[2]));
}

static int list_dir(const char *path)
{
    static uint8_t entries[32 << 10];
    size_t filled = 0;
    int dir = open_beneath(AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_NONBLOCK, 0);
    if (dir < 0)
        return dir;
    for (;;) {
        long n = SYS3(getdents64, dir, entries, sizeof entries);
        if (n <= 0)
            return n < 0 ? (int)n : write_all(1, buffer, filled);
        for (long at = 0; at < n;) {
            struct dirent_k *found = (struct dirent_k *)(entries + at);
            struct statx info;
            at += found->length;
            if (is_dots(found->name) || describe(dir, found->name, &info))
                continue; /* gone since it was listed */
            struct file_entry entry = entry_of(&info, text_length(found->name));
            if (filled + sizeof entry + entry.name_length > sizeof buffer) {
                int failed = write_all(1, buffer, filled);
                if (failed)
                    return failed;
                filled = 0;
            }
            memcpy(buffer + filled, &entry, sizeof entry);
            memcpy(buffer + filled + sizeof entry, found->name, entry.name_length);
            filled += sizeof entry + entry.name_length;
        }
    }
}

static int remove_entry(int dir, const char *name, int top, int depth);

/* Moves a directory that lies too deep to a name of its own at the top, to be met there again. */
static int lift(int dir, const char *name, int top)
{
    static uint64_t count;
    char to[40] = ".ringfence-removing-";
    number_text(to + text_length(to), count++);
    return (int)SYS5(renameat2, dir, name, top, to, 0);
}

static int remove_children(int dir, int top, int depth)
{
    uint8_t entries[2048];
    for (;;) {
        size_t removed = 0;
        long n;
        SYS3(lseek, dir, 0, 0);
        while ((n = SYS3(getdents64, dir, entries, sizeof entries)) > 0)
            for (long at = 0; at < n;) {
                struct dirent_k *found = (struct dirent_k *)(entries + at);
                at += found->length;
                if (is_dots(found->name))
                    continue;
                int failed = remove_entry(dir, found->name, top, depth);
                if (failed == -EACCES && !SYS2(fchmod, dir, 0700))
                    failed = remove_entry(dir, found->name, top, depth);
                if (failed && failed != -ENOENT)
                    return failed;
                removed++;
            }
        if (n < 0)
            return (int)n;
        if (!removed)
            return 0;
    }
}

static int remove_entry(int dir, const char *name, int top, int depth)
{
    int failed = (int)SYS3(unlinkat, dir, name, 0);
    if (failed != -EISDIR)
        return failed;
    failed = (int)SYS3(unlinkat, dir, name, AT_REMOVEDIR);
    if (failed != -ENOTEMPTY && failed != -EEXIST)
        return failed;
    if (depth >= DEEPEST)
        return lift(dir, name, top);
    int flags = O_RDONLY | O_DIRECTORY | O_NONBLOCK;
    int below = open_directory(dir, name, flags);
    if (below == -EACCES && !SYS3(fchmodat, dir, name, 0700))
        below = open_directory(dir, name, flags);
    if (below < 0)
        return below;
    failed = remove_children(below, top < 0 ? below : top, depth + 1);
    SYS1(close, below);
    return failed ? failed : (int)SYS3(unlinkat, dir, name, AT_REMOVEDIR);
}

static int remove_path(const char *path)
{
    const char *last;
    if (text_equal(path, "."))
        return -EBUSY;
    int parent = open_parent(path, &last);
    return parent < 0 ? parent : remove_entry(parent, last, -1, 0);
}

/* Writes a byte if it is about the target that it fails. */
static int move_path(const char *path, const char *target)
{
    const char *from_name, *to_name;
    struct statx info;
    int from = open_parent(path, &from_name);
    int failed = from < 0 ? from : describe(from, from_name, &info);
    if (failed)
        return failed;
    int to = open_parent(target, &to_name);
    failed = to < 0 ? to : (int)SYS5(renameat2, from, from_name, to, to_name, 0);
    if (failed)
        write_all(1, "t", 1);
    return failed;
}

static int run_operation(const struct request *request)
{
    const struct frame_start *head = &request->head;
    const char *path = request->argv[0], *target = request->argv[1];
    switch (head->operation) {
    case OP_READ:
        return read_file(path, head->number_a, head->number_b);
    case OP_WRITE:
        return write_file(path, (uint32_t)head->number_a, head->number_b & WRITE_APPEND);
    case OP_LIST:
        return list_dir(path);
    case OP_STAT:
        return stat_path(path);
    case OP_MAKE_DIR:
        return make_dir(path);
    case OP_REMOVE:
        return remove_path(path);
    case OP_MOVE:
        return target ? move_path(path, target) : -EINVAL;
    case OP_READ_MANY:
        return read_many(request->argv, head->argc, head->number_a);
    case OP_WRITE_MANY:
        return write_many(request->argv, head->argc);
    default:
        return -ENOSYS;
    }
}

int file_operation(const struct request *request)
{
    return -run_operation(request);
}
