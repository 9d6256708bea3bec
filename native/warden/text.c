/* Memory and strings. The compiler may call the first four by itself. */
#include "sys.h"

#ifndef WARDEN_HOSTED
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("no-tree-loop-distribute-patterns")
#endif

void *memcpy(void *to, const void *from, size_t size)
{
    return memmove(to, from, size);
}

void *memmove(void *to, const void *from, size_t size)
{
    uint8_t *t = to;
    const uint8_t *f = from;
#if defined(__x86_64__)
    if (t <= f || t >= f + size) {
        void *d = to;
        __asm__ volatile("rep movsb" : "+D"(d), "+S"(f), "+c"(size) : : "memory");
        return to;
    }
#endif
    if (t <= f)
        for (size_t i = 0; i < size; i++)
            t[i] = f[i];
    else
        while (size--)
            t[size] = f[size];
    return to;
}

void *memset(void *to, int value, size_t size)
{
    uint8_t *t = to;
    for (size_t i = 0; i < size; i++)
        t[i] = (uint8_t)value;
    return to;
}

int memcmp(const void *a, const void *b, size_t size)
{
    const uint8_t *x = a, *y = b;
    for (size_t i = 0; i < size; i++)
        if (x[i] != y[i])
            return x[i] < y[i] ? -1 : 1;
    return 0;
}
#endif

size_t text_length(const char *text)
{
    size_t length = 0;
    while (text[length])
        length++;
    return length;
}

int text_equal(const char *a, const char *b)
{
    while (*a && *a == *b)
        a++, b++;
    return *a == *b;
}

const char *text_find(const char *text, char wanted)
{
    for (; *text; text++)
        if (*text == wanted)
            return text;
    return 0;
}

/* One that is too large to be told is the largest. */
uint64_t text_number(const char *text)
{
    uint64_t value = 0;
    for (; *text >= '0' && *text <= '9'; text++) {
        if (value > UINT64_MAX / 10 - 1)
            return UINT64_MAX;
        value = value * 10 + (uint64_t)(*text - '0');
    }
    return value;
}

size_t number_text(char *to, uint64_t value)
{
    char digits[20];
    size_t count = 0, length = 0;
    do
        digits[count++] = (char)('0' + value % 10);
    while (value /= 10);
    while (count)
        to[length++] = digits[--count];
    to[length] = 0;
    return length;
}
