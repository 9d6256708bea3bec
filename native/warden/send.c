/* Frames to the host: one buffer, of which a part is kept for frames that are not data. */
#include "serve.h"

#define OUTPUT_SIZE (512u << 10)
#define RESERVE (128u << 10) /* of the output, for frames that are not data */

int only_started; /* nothing but STARTED waits to be sent, and that is in no hurry */

static uint8_t output[OUTPUT_SIZE];
static size_t output_begin, output_end;

static size_t output_room(void)
{
    return OUTPUT_SIZE - output_end;
}

uint8_t *begin_frame(size_t length)
{
    if (output_begin && output_room() < sizeof(struct frame_header) + length) {
        memmove(output, output + output_begin, output_end - output_begin);
        output_end -= output_begin;
        output_begin = 0;
    }
    if (output_room() < sizeof(struct frame_header) + length)
        return 0;
    return output + output_end + sizeof(struct frame_header);
}

void end_frame(uint8_t type, uint32_t channel, size_t length)
{
    struct frame_header header = {(uint32_t)length, channel, type, 0, 0};
    only_started = type == FRAME_STARTED && (only_started || output_begin == output_end);
    memcpy(output + output_end, &header, sizeof header);
    output_end += sizeof header + length;
}

void send_frame(uint8_t type, uint32_t channel, const void *payload, size_t length)
{
    uint8_t *to = begin_frame(length);
    if (!to) { /* the reserve holds what all commands can have to say at once */
        gone = 1;
        return;
    }
    memcpy(to, payload, length);
    end_frame(type, channel, length);
}

void flush_output(void)
{
    while (output_begin < output_end) {
        long n = SYS3(write, settings.output, output + output_begin, output_end - output_begin);
        if (n == -EINTR)
            continue;
        if (n <= 0) {
            if (n != -EAGAIN)
                stream_ended();
            return;
        }
        output_begin += (size_t)n;
    }
    drop_output();
}

void fault(uint32_t code, const char *text)
{
    uint8_t payload[160];
    size_t length = text_length(text);
    memcpy(payload, &code, sizeof code);
    memcpy(payload + sizeof code, text, length);
    send_frame(FRAME_FAULT, 0, payload, sizeof code + length);
    flush_output();
    gone = 1;
}

int has_room(void)
{
    return OUTPUT_SIZE - (output_end - output_begin) > RESERVE + 4096;
}

/* How many bytes of data a frame may have now. */
size_t data_room(void)
{
    return OUTPUT_SIZE - (output_end - output_begin) - RESERVE - sizeof(struct frame_header);
}

int output_waits(void)
{
    return output_begin < output_end;
}

void drop_output(void)
{
    output_begin = output_end = 0;
    only_started = 0;
}
