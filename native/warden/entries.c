/* Names and directories: made, described, listed, removed and moved. */
#include "files.h"

#define DEEPEST 256

static int64_t pair_ns(const struct statx_timestamp *time)
{
    return time->tv_sec * 1000000000ll + time->tv_nsec;
}

int make_dir(const char *path)
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

int make_parents(const char *path)
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

static struct file_entry entry_of(const struct statx *info, size_t name_length)
{
    return (struct file_entry){
        .size = info->stx_size,
        .mtime_ns = pair_ns(&info->stx_mtime),
        .mode = info->stx_mode,
        .name_length = (uint32_t)name_length,
    };
}

int stat_path(const char *path)
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

int list_dir(const char *path)
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

int remove_path(const char *path)
{
    const char *last;
    if (text_equal(path, "."))
        return -EBUSY;
    int parent = open_parent(path, &last);
    return parent < 0 ? parent : remove_entry(parent, last, -1, 0);
}

/* Writes a byte if it is about the target that it fails. */
int move_path(const char *path, const char *target)
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
