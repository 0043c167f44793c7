/* One line of MONITOR's output: time, database, connection, and the command in Redis's quotes. */
#include <string.h>

#include "proxy/monitor_tap/private.h"

/* Reads digits up to the byte that must follow them, and moves *p after it. */
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

/* Finds where the words begin, after the sender: "] \"". */
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

bool monitor_line_read(struct monitor_line *to, const char *line, size_t len) {
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
    *to = (struct monitor_line){.time_ms = seconds * 1000 + micros / 1000,
                                .db = (uint32_t)db,
                                .from = p,
                                .from_len = (size_t)(bracket - p),
                                .words = bracket + 2,
                                .words_len = (size_t)(end - bracket) - 2};
    return true;
}

/* Valkey 8.1 does not escape quotes and backslashes within a word. Writes the words with escapes: a quote ends a word
 * only if another word, or nothing, follows it. */
static void words_mend(const char *p, const char *end, struct text *to) {
    for (bool inside = false; p < end; p++) {
        bool ends = p + 1 == end || (end - p > 2 && p[1] == ' ' && p[2] == '"');
        bool escapes = *p == '\\' && p + 1 < end && memchr("nrtab\"\\x", p[1], 8);
        if (*p == '"' && (!inside || ends))
            inside = !inside;
        else if (*p == '"' || (*p == '\\' && !escapes))
            text_append(to, "\\", 1);
        text_append(to, p, 1);
        if (inside && escapes && p + 2 < end)
            text_append(to, ++p, 1);
    }
}

static bool words_scan(const char *words, size_t len, struct text *bytes, struct resp_request *request) {
    const struct resp_limits limits = {INT64_MAX, false};
    bytes->len = 0;
    int64_t n = resp_inline_encode(words, len, text_reserve(bytes, resp_inline_bound(len)));
    if (n <= 0)
        return false;
    text_commit(bytes, (size_t)n);
    resp_request_reset(request);
    return resp_request_scan(request, bytes->data, bytes->len, &limits) == RESP_OK && request->argc > 0;
}

bool monitor_args_read(const struct monitor_line *line, struct text *bytes, struct resp_request *request) {
    if (memchr(line->words, '\0', line->words_len)) /* MONITOR writes a NUL as \x00 */
        return false;
    if (words_scan(line->words, line->words_len, bytes, request))
        return true;
    struct text mended;
    text_init(&mended);
    words_mend(line->words, line->words + line->words_len, &mended);
    bool right = words_scan(mended.data, mended.len, bytes, request);
    text_clear(&mended);
    return right;
}
