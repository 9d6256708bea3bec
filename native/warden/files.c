/* The file operations, each in a process of its own whose working directory is the workspace.
 *
 * Paths are relative and are resolved beneath the workspace: links inside it are followed, one
 * that leads out is refused. Only regular files are read and written, and nothing here waits for
 * a FIFO's other end. */
#include "files.h"

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
