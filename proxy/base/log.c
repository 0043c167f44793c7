/*
 * The log. A line is composed on the stack and written in one write, so that lines of several threads, or of several
 * processes that append to one file, never mix.
 *
 *      12345:P 21 Nov 2026 01:18:43.123 * Ready to accept connections
 *      {"time":"2026-11-21T00:18:43.123Z","pid":12345,"role":"proxy","level":"notice","message":"Ready to ..."}
 *
 * A message is always one line: it contains names that clients chose, and a client must not be able to forge a line.
 *
 * The process never waits for the log: if its reader (a pipe, a terminal, journald) does not read, lines are lost, and
 * the next line reports their number. Of a line longer than PIPE_BUF only the end may be lost.
 */
#include "proxy/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "proxy/base/memory.h"
#include "proxy/base/text.h"

enum {
    LOG_MESSAGE_MAX = 2048,
    LOG_FRAME_MAX = 160,  /* everything except the message */
    LOG_TEXTS_MAX = 1024, /* of all fields of a line together */
    LOG_FIELDS_MAX = 16,
    LOG_FIELD_FRAME = 48, /* the name of a field, its number, and punctuation */
};

static atomic_int log_level = LOG_LEVEL_NOTICE;
static atomic_bool log_json = false;
/* Held while the descriptor is used or replaced. */
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static int log_fd = STDOUT_FILENO;
static char *log_path;                                      /* NULL: standard output */
static enum { LOG_UNKNOWN, LOG_FILE, LOG_READER } log_kind; /* the kind of log_fd */
static unsigned long log_lost;                              /* lines lost since the last one written */
static bool log_torn;                                       /* the last line written was cut */

/* Switches to another descriptor; -1: standard output. Takes over the path's memory. */
static void use(int fd, char *path) {
    pthread_mutex_lock(&log_lock);
    int old = log_fd;
    log_fd = fd < 0 ? STDOUT_FILENO : fd;
    log_kind = LOG_UNKNOWN;
    log_torn = false;
    memory_free(log_path);
    log_path = path;
    pthread_mutex_unlock(&log_lock);
    if (old != STDOUT_FILENO)
        close(old);
}

static int open_file(const char *path, int flags) {
    return open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | flags, 0644);
}

bool log_open(const char *path) {
    bool file = path && *path;
    int fd = file ? open_file(path, 0) : -1;
    if (file && fd < 0)
        return false;
    use(fd, file ? memory_strdup(path) : NULL);
    return true;
}

bool log_reopen(void) {
    pthread_mutex_lock(&log_lock);
    char *path = log_path ? memory_strdup(log_path) : NULL;
    pthread_mutex_unlock(&log_lock);
    if (!path)
        return true;
    int fd = open_file(path, O_NONBLOCK);
    if (fd < 0) {
        int error = errno;
        memory_free(path);
        errno = error;
        return false;
    }
    use(fd, path);
    return true;
}

void log_set_level(enum log_level level) {
    atomic_store_explicit(&log_level, (int)level, memory_order_relaxed);
}

void log_set_json(bool json) {
    atomic_store_explicit(&log_json, json, memory_order_relaxed);
}

bool log_enabled(enum log_level level) {
    return (int)level >= atomic_load_explicit(&log_level, memory_order_relaxed) && level != LOG_LEVEL_NOTHING;
}

/* Copies a message into a line; control characters become visible. Returns the end. */
static char *escape_text(char *out, const char *message, size_t len) {
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)message[i];
        if (c == '\n')
            out += sprintf(out, "\\n");
        else if (c < 0x20 || c == 0x7f)
            out += sprintf(out, "\\x%02x", (unsigned)c);
        else
            *out++ = (char)c;
    }
    return out;
}

static char *put_fields(char *p, const struct log_field *fields, size_t count) {
    size_t room = LOG_TEXTS_MAX;
    for (const struct log_field *f = fields; f < fields + count && f < fields + LOG_FIELDS_MAX; f++) {
        size_t len = f->len < room ? f->len : room;
        if (!f->text) {
            p += sprintf(p, ",\"%s\":%lld", f->name, f->number);
            continue;
        }
        p += sprintf(p, ",\"%s\":\"", f->name);
        p = json_escape(p, f->text, len);
        *p++ = '"';
        room -= len;
    }
    return p;
}

/* Writes a line; returns its length. */
static size_t format_line(char *line, enum log_level level, const char *message, size_t len,
                          const struct log_field *fields, size_t count) {
    static const char *const NAMES[] = {"debug", "verbose", "notice", "warning"};
    bool json = atomic_load_explicit(&log_json, memory_order_relaxed);
    struct timespec now;
    struct tm tm;
    char date[40], *p = line;
    clock_gettime(CLOCK_REALTIME, &now);
    int pid = (int)getpid(), ms = (int)(now.tv_nsec / 1000000);
    json ? gmtime_r(&now.tv_sec, &tm) : localtime_r(&now.tv_sec, &tm);
    strftime(date, sizeof(date), json ? "%Y-%m-%dT%H:%M:%S" : "%d %b %Y %H:%M:%S", &tm);
    if (json) {
        p += sprintf(p, "{\"time\":\"%s.%03dZ\",\"pid\":%d,\"role\":\"proxy\",\"level\":\"%s\",\"message\":\"", date,
                     ms, pid, NAMES[level]);
        p = json_escape(p, message, len);
        *p++ = '"';
        p = put_fields(p, fields, count);
        *p++ = '}';
    } else {
        p += sprintf(p, "%d:P %s.%03d %c ", pid, date, ms, ".-*#"[level]);
        p = escape_text(p, message, len);
    }
    *p++ = '\n';
    return (size_t)(p - line);
}

/* Whether a write would not block. A writable pipe has room for PIPE_BUF bytes. */
static bool takes_more(void) {
    struct stat st;
    if (log_kind == LOG_UNKNOWN)
        log_kind = fstat(log_fd, &st) == 0 && S_ISREG(st.st_mode) ? LOG_FILE : LOG_READER;
    struct pollfd p = {.fd = log_fd, .events = POLLOUT};
    return log_kind == LOG_FILE || (poll(&p, 1, 0) == 1 && (p.revents & POLLOUT));
}

/* Returns whether any byte of the line was written. The caller holds the lock. */
static bool put_line(const char *line, size_t len) {
    const char *p = line, *end = line + len;
    while (p < end && takes_more()) {
        size_t part = (size_t)(end - p);
        if (log_kind == LOG_READER && part > PIPE_BUF)
            part = PIPE_BUF;
        ssize_t n = write(log_fd, p, part);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        p += n;
    }
    log_torn = p < end && (p > line || log_torn);
    return p > line;
}

/* Writes a line that reports the lost lines. */
static void put_lost(void) {
    char message[64], line[sizeof(message) * JSON_ESCAPED_MAX + LOG_FRAME_MAX];
    if (log_torn && !put_line("\n", 1))
        return;
    if (log_lost == 0)
        return;
    int n = snprintf(message, sizeof(message), "%lu log lines were lost: the reader was too slow", log_lost);
    if (put_line(line, format_line(line, LOG_LEVEL_WARNING, message, (size_t)n, NULL, 0)))
        log_lost = 0;
}

void log_write_fields(enum log_level level, const struct log_field *fields, size_t count, const char *format, ...) {
    if (!log_enabled(level))
        return;
    int saved = errno;
    char message[LOG_MESSAGE_MAX];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(message, sizeof(message), format, args);
    va_end(args);
    if (n < 0)
        n = 0;
    if (n >= LOG_MESSAGE_MAX) {
        n = sizeof(message) - 1;
        memcpy(message + n - 3, "...", 3);
    }
    char line[(LOG_MESSAGE_MAX + LOG_TEXTS_MAX) * JSON_ESCAPED_MAX + LOG_FRAME_MAX + LOG_FIELDS_MAX * LOG_FIELD_FRAME];
    size_t len = format_line(line, level, message, (size_t)n, fields, count);
    pthread_mutex_lock(&log_lock);
    put_lost();
    if (log_lost > 0 || !put_line(line, len))
        log_lost++;
    pthread_mutex_unlock(&log_lock);
    errno = saved; /* callers log while they handle an error */
}
