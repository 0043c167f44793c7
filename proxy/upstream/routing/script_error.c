/*
 * Errors from inside a script: what they say beside of where in the script it was. Knows no scripts.
 */
#include <string.h>

#include "proxy/upstream/script.h"

static bool starts_with(const char *text, const char *end, const char *start) {
    size_t len = strlen(start);
    return (size_t)(end - text) >= len && memcmp(text, start, len) == 0;
}

/* Cuts off where the error came from, which Redis 7 says behind it: " script: SHA1, on @user_script:LINE." Returns the
 * error's end without that. */
static const char *before_origin(const char *error, const char *end) {
    static const char FROM[] = " script: ", ON[] = ", on @user_script:";
    enum { SHA1 = 40, ORIGIN = sizeof(FROM) - 1 + SHA1 };
    const char *on = memmem(error, (size_t)(end - error), ON, sizeof(ON) - 1);
    if (!on || on - error < ORIGIN || memcmp(on - ORIGIN, FROM, sizeof(FROM) - 1) != 0)
        return end;
    return on - ORIGIN;
}

/* Skips "@user_script:LINE: " or "@user_script: LINE: "; NULL where `p` is not at one of these. */
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

/* Redis 6 says it before, once where the command has failed, and once more where Redis did not let the script run it:
 *
 *      ERR Error running script (call to f_SHA1): @user_script:LINE: WRONGTYPE Operation ...
 *      ERR Error running script (call to f_SHA1): @user_script:LINE: @user_script: LINE: -READONLY You ...
 *      @user_script: LINE: -READONLY You ...                                    where the script handed it on itself
 *
 * Returns where the error proper begins, which may have a '-'; `error` where there is nothing before it. */
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

/* Whether an error begins with a code (ERR, WRONGTYPE, ...): what Redis 6 itself tells scripts has none. */
static bool has_code(const char *error, const char *end) {
    const char *p = error;
    while (p < end && ((*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9')))
        p++;
    return p > error && p < end && *p == ' ';
}

bool script_error_plain(const char *error, size_t len, char *out, size_t size, size_t *out_len) {
    const char *whole_end = error + len;
    const char *begin = behind_origin(error, whole_end), *end = before_origin(error, whole_end), *code = "";
    if ((begin == error && end == whole_end) || end <= begin)
        return false;
    if (begin != error) {
        begin += *begin == '-';
        while (end > begin && end[-1] == ' ') /* its CR LF were made spaces */
            end--;
        if (begin == end)
            return false;
        code = has_code(begin, end) ? "" : "ERR ";
    }
    size_t code_len = strlen(code), rest = (size_t)(end - begin);
    if (code_len + rest > size)
        return false;
    memcpy(out, code, code_len);
    memcpy(out + code_len, begin, rest);
    *out_len = code_len + rest;
    return true;
}
