/* What the files of the file operations know of one another, grouped by the file that defines it. */
#ifndef WARDEN_FILES_H
#define WARDEN_FILES_H

#include "warden.h"

#define LAST_RESORT_PATH 4096

/* paths.c: names resolved beneath the workspace. */
int open_parent(const char *path, const char **last); /* the directory above a path's last part */
int open_directory(int above, const char *name, int flags);
int describe(int dir, const char *name, struct statx *info);
static inline int kind(const struct statx *info)
{
    return info->stx_mode & S_IFMT;
}

/* contents.c: what is in regular files. */
extern uint8_t buffer[128 << 10]; /* one operation runs in a process, and may use it */
int write_all(int fd, const void *data, size_t size);
int read_file(const char *path, uint64_t offset, uint64_t most);
int read_many(char **paths, uint32_t count, uint64_t most);
int write_file(const char *path, uint32_t mode, int append);
int write_many(char **paths, uint32_t count);

/* entries.c: names and directories. */
int make_dir(const char *path);
int make_parents(const char *path); /* all directories above a path's last part */
int stat_path(const char *path);
int list_dir(const char *path);
int remove_path(const char *path);
int move_path(const char *path, const char *target);

#endif
