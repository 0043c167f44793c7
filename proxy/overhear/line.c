/* A line of MONITOR's: time, database, connection, and the command in the quotes that Redis writes. */
#include <string.h>

#include "proxy/overhear/private.h"

/* Reads digits up to a byte that must follow them, and leaves *p behind it. */
static bool number_read(const char **p, const char *end, char behind, int64_t *n) {
    const char *from = *p;
    *n = 0;
    for (; *p < end && **p >= '0' && **p <= '9' && *p - from < 15; ++*p)
        *n = *n * 10 + (**p - '0');
    if (*p == from || *p == end || **p != behind)
        return false;
    ++*p;
    return true;
}

/* Finds where the words begin behind who sent them: "] \"". */
static const char *words_find(const char *p, const char *end) {
    for (; end - p >= 3; p++) {
        p = memchr(p, ']', (size_t)(end - p) - 2);
        if (!p)
            return NULL;
        if (p[1] == ' ' && p[2] == '"')
            return p;
    }
    return NULL;
}

bool overheard_line_read(struct overheard_line *to, const char *line, size_t len) {
    const char *p = line, *end = line + len;
    int64_t seconds, micros, db;
    if (p < end && *p == '+')
        p++;
    if (p < end && end[-1] == '\r')
        end--;
    if (!number_read(&p, end, '.', &seconds))
        return false;
    const char *fraction = p;
    if (!number_read(&p, end, ' ', &micros) || p - fraction != 7 || p == end || *p++ != '[' ||
        !number_read(&p, end, ' ', &db) || db > UINT32_MAX)
        return false;
    const char *bracket = words_find(p, end);
    if (!bracket || bracket == p || seconds > INT64_MAX / 2000)
        return false;
    *to = (struct overheard_line){.time_ms = seconds * 1000 + micros / 1000,
                                  .db = (uint32_t)db,
                                  .from = p,
                                  .from_len = (size_t)(bracket - p),
                                  .words = bracket + 2,
                                  .words_len = (size_t)(end - bracket) - 2};
    return true;
}

bool overheard_words_read(const struct overheard_line *line, struct text *bytes, struct resp_request *request) {
    const struct resp_limits limits = {INT64_MAX, false};
    if (memchr(line->words, '\0', line->words_len)) /* MONITOR writes \x00 */
        return false;
    bytes->len = 0;
    int64_t n =
        resp_inline_encode(line->words, line->words_len, text_reserve(bytes, resp_inline_bound(line->words_len)));
    if (n <= 0)
        return false;
    text_commit(bytes, (size_t)n);
    resp_request_reset(request);
    return resp_request_scan(request, bytes->data, bytes->len, &limits) == RESP_OK && request->argc > 0;
}
