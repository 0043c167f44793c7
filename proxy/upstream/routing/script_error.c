/* Errors from inside a script: cuts off where in the script they occurred. It stands alone, for the simulator. */
#include <string.h>

#include "proxy/upstream/script.h"

static bool starts_with(const char *text, const char *end, const char *start) {
    size_t len = strlen(start);
    return (size_t)(end - text) >= len && memcmp(text, start, len) == 0;
}

/* Skips "@user_script:LINE: " or "@user_script: LINE: "; NULL if `p` points at neither. */
static const char *behind_line(const char *p, const char *end) {
    static const char script[] = "@user_script:";
    if (!starts_with(p, end, script))
        return NULL;
    p += sizeof(script) - 1;
    if (p < end && *p == ' ')
        p++;
    const char *digits = p;
    while (p < end && *p >= '0' && *p <= '9')
        p++;
    return p > digits && starts_with(p, end, ": ") ? p + 2 : NULL;
}

/* Redis 6 puts the origin in front: once if the command failed, twice if Redis did not let the script run the command:
 *
 *      ERR Error running script (call to f_SHA1): @user_script:LINE: WRONGTYPE Operation ...
 *      ERR Error running script (call to f_SHA1): @user_script:LINE: @user_script: LINE: -READONLY You ...
 *      @user_script: LINE: -READONLY You ...                                    if the script returned the error itself
 *
 * Returns the start of the error itself, which may have a '-'. Returns `error` if there is no origin. */
static const char *behind_origin(const char *error, const char *end) {
    static const char running[] = "ERR Error running script (call to f_", closes[] = "): ";
    const char *p = error;
    if (starts_with(p, end, running)) {
        p = memmem(p, (size_t)(end - p), closes, sizeof(closes) - 1);
        p = p ? p + sizeof(closes) - 1 : NULL;
        if (!p || !behind_line(p, end))
            return error;
    }
    for (const char *next = p; next; next = behind_line(p, end))
        p = next;
    return p;
}

bool script_error_plain(const char *error, size_t len, char *out, size_t size, size_t *out_len) {
    /* Redis 7 appends the origin: " script: SHA1, on @user_script:LINE." */
    static const char FROM[] = " script: ", ON[] = ", on @user_script:";
    enum { SHA1 = 40, ORIGIN = sizeof(FROM) - 1 + SHA1 };
    const char *whole_end = error + len, *end = whole_end, *code = "";
    const char *begin = behind_origin(error, whole_end), *on = memmem(error, len, ON, sizeof(ON) - 1);
    if (on && on - error >= ORIGIN && memcmp(on - ORIGIN, FROM, sizeof(FROM) - 1) == 0)
        end = on - ORIGIN;
    if ((begin == error && end == whole_end) || end <= begin)
        return false;
    if (begin != error) {
        begin += *begin == '-';
        while (end > begin && end[-1] == ' ') /* Redis replaced its CR LF by spaces */
            end--;
        if (begin == end)
            return false;
        const char *p = begin;
        while (p < end && ((*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9')))
            p++;
        if (p == begin || p == end || *p != ' ')
            code = "ERR "; /* Redis 6's own errors to scripts have no code (ERR, WRONGTYPE, ...) */
    }
    size_t code_len = strlen(code), rest = (size_t)(end - begin);
    if (code_len + rest > size)
        return false;
    memcpy(out, code, code_len);
    memcpy(out + code_len, begin, rest);
    *out_len = code_len + rest;
    return true;
}
