/* Lets both sanitizers report into files in REPORTS: the warden has no stderr of its own, and its
 * keepers have their command's. The undefined behaviour sanitizer's own library knows stderr
 * alone, so its handlers are taken over here; each is given first where it was called from. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "log_path=" REPORTS "/report:detect_leaks=0";
}

struct location {
    const char *file;
    uint32_t line, column;
};

static _Noreturn void tell(const char *what, const void *data)
{
    const struct location *where = data;
    char text[512];
    int length = snprintf(text, sizeof text, "undefined behaviour: %s at %s:%u:%u\n", what,
                          where->file, where->line, where->column);
    int fd = open(REPORTS "/undefined", O_WRONLY | O_CREAT | O_APPEND, 0666);
    if (write(fd, text, (size_t)length) < 0)
        _exit(98);
    _exit(99);
}

#define HANDLER(name, ...) \
    void __ubsan_handle_##name##_abort(void *data __VA_ARGS__); \
    void __ubsan_handle_##name##_abort(void *data __VA_ARGS__) \
    { \
        tell(#name, data); \
    }
#define ONE_MORE , __attribute__((unused)) void *a
#define TWO_MORE ONE_MORE, __attribute__((unused)) void *b

HANDLER(add_overflow, TWO_MORE)
HANDLER(sub_overflow, TWO_MORE)
HANDLER(mul_overflow, TWO_MORE)
HANDLER(divrem_overflow, TWO_MORE)
HANDLER(shift_out_of_bounds, TWO_MORE)
HANDLER(pointer_overflow, TWO_MORE)
HANDLER(negate_overflow, ONE_MORE)
HANDLER(out_of_bounds, ONE_MORE)
HANDLER(vla_bound_not_positive, ONE_MORE)
HANDLER(type_mismatch_v1, ONE_MORE)
HANDLER(load_invalid_value, ONE_MORE)
HANDLER(float_cast_overflow, ONE_MORE)
HANDLER(nonnull_arg, )
HANDLER(invalid_builtin, )
