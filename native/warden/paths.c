/* Names resolved beneath the workspace: links inside it are followed, one that leads out is refused. */
#include "files.h"

#include <linux/openat2.h>

/* gVisor's kernel of 2024 follows a link in spite of O_NOFOLLOW, if a directory is to be opened for
 * reading: so a name is looked up without that, and what was found is opened. */
int open_directory(int above, const char *name, int flags)
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

int open_parent(const char *path, const char **last)
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

int describe(int dir, const char *name, struct statx *info)
{
    int flags = AT_SYMLINK_NOFOLLOW | (*name ? 0 : AT_EMPTY_PATH);
    return (int)SYS5(statx, dir, name, flags, STATX_BASIC_STATS, info);
}
