/*
 * Reads the configuration: the file, the files it includes, then the command line. It knows the file and line of each
 * directive, and errors name them. directives.c knows the directives.
 *
 *      argv: [CONFIG-FILE] --directive value ... --directive value ...
 *                 │                       │
 *            file_read ── line by line ─> directive_take ──> directive_apply
 *                 ^                             │
 *                 └────────── include ──────────┘
 */
#include "proxy/config/config.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "proxy/base/memory.h"
#include "proxy/config/private.h"
#include "proxy/lock/rule.h"

enum {
    INCLUDE_DEPTH_MAX = 16,
    FILE_MAX_BYTES = 16 * 1024 * 1024,
    SHOWN_MAX = 160, /* bytes of a value or a path in an error */
    PLACE_MAX = SHOWN_MAX + 32,
    LINE_MAX_BYTES = 1024,
};

/* The place of a directive. */
struct place {
    const char *file; /* the name as given; NULL: the command line */
    size_t line;
    unsigned depth; /* nesting of includes */
};

struct reader {
    struct config_build build;
    bool loops; /* files include each other: reported once, not once per level */
    struct config_errors *errors;
};

/* ---- words --------------------------------------------------------------------------------- */

void words_add(struct config_words *w, const char *text, size_t len) {
    *ARRAY_ADD(w->words, w->count) = memory_strndup(text, len);
}

static void words_cut(struct config_words *w, size_t count) {
    for (; w->count > count; w->count--)
        memory_forget(w->words[w->count - 1], strlen(w->words[w->count - 1]));
}

void words_clear(struct config_words *w) {
    words_cut(w, 0);
    memory_free(w->words);
    w->words = NULL;
}

/* redis.conf's syntax: "..." has the escapes \n \r \t \b \a \xHH, and a \ before any other byte is that byte; '...' has
 * only \'. A closing quote ends the word. */

static int hex_digit(char c) {
    static const char DIGITS[] = "0123456789abcdef";
    const char *at = c ? strchr(DIGITS, tolower((unsigned char)c)) : NULL;
    return at ? (int)(at - DIGITS) : -1;
}

static bool is_blank(char c) {
    return isspace((unsigned char)c) != 0;
}

static char escaped(char c) {
    static const char NAMES[] = "nrtba", VALUES[] = "\n\r\t\b\a";
    const char *at = memchr(NAMES, c, sizeof(NAMES) - 1);
    return at ? VALUES[at - NAMES] : c;
}

/* Reads the quoted part that begins at p into out. Returns its end after the closing quote. NULL if it is not closed,
 * or if no blank follows the closing quote. */
static const char *read_quoted(const char *p, const char *end, char *out, size_t *len) {
    char quote = *p++;
    while (p < end && *p != quote) {
        bool escape = *p == '\\' && end - p >= 2 && (quote == '"' || p[1] == '\'');
        if (escape && p[1] == 'x' && end - p >= 4 && hex_digit(p[2]) >= 0 && hex_digit(p[3]) >= 0) {
            out[(*len)++] = (char)(hex_digit(p[2]) * 16 + hex_digit(p[3]));
            p += 4;
        } else {
            out[(*len)++] = escape ? escaped(p[1]) : *p;
            p += escape ? 2 : 1;
        }
    }
    return p == end || (p + 1 < end && !is_blank(p[1])) ? NULL : p + 1;
}

const char *words_split(struct config_words *w, const char *line, size_t len) {
    const char *p = line, *end = line + len;
    const char *wrong = NULL;
    size_t before = w->count;
    char *word = memory_alloc(len + 1);
    while (!wrong) {
        while (p < end && is_blank(*p))
            p++;
        if (p == end)
            break;
        size_t n = 0;
        while (p && p < end && !is_blank(*p)) {
            if (*p == '"' || *p == '\'') {
                p = read_quoted(p, end, word, &n);
                break;
            }
            word[n++] = *p++;
        }
        if (!p)
            wrong = "unbalanced quotes: expected a closing quote, then a blank or the end of the line";
        else if (memchr(word, '\0', n))
            wrong = "a NUL byte: expected text";
        else
            words_add(w, word, n);
    }
    memory_forget(word, len + 1);
    if (wrong)
        words_cut(w, before);
    return wrong;
}

void words_show(const struct config_words *w, struct text *out) {
    for (size_t i = 0; i < w->count; i++)
        text_printf(out, "%s%s", i ? " " : "", w->words[i]);
}

void words_show_word(const char *word, char *out, size_t size) {
    size_t n = 0;
    for (; *word && n + sizeof("\\xff...") <= size; word++) {
        unsigned char c = (unsigned char)*word;
        n += (size_t)snprintf(out + n, size - n, c < 0x20 || c == 0x7f ? "\\x%02x" : "%c", c);
    }
    snprintf(out + n, size - n, "%s", *word ? "..." : "");
}

/* ---- errors -------------------------------------------------------------------------------- */

/* Adds an error. d: the directive with the wrong value, or NULL. where: the place, or NULL. */
static void __attribute__((format(printf, 4, 0)))
errors_add(struct config_errors *e, const struct directive *d, const char *where, const char *format, va_list args) {
    char what[LINE_MAX_BYTES];
    if (d) {
        if (!e->wrong)
            e->wrong = memory_zalloc((config_directive_count() + 1) * sizeof(*e->wrong)); /* 1: for tls-* */
        e->wrong[directive_index(d)] = true;
    }
    if (e->count++ >= CONFIG_ERRORS_MAX)
        return;
    vsnprintf(what, sizeof(what), format, args);
    text_printf(&e->lines, "%s%s%s%s", e->lines.len > 0 ? "\n" : "", where ? where : "", where ? ": " : "", what);
}

bool config_refuse(struct config_errors *errors, const struct config *config, const char *directive, const char *format,
                   ...) {
    const struct directive *d = directive_find(directive);
    va_list args;
    va_start(args, format);
    errors_add(errors, d, d ? config->places[directive_index(d)] : NULL, format, args);
    va_end(args);
    return false;
}

bool config_is_wrong(const struct config_errors *errors, const char *directive) {
    return errors->wrong && errors->wrong[directive_index(directive_find(directive))];
}

void config_errors_each(const struct config_errors *errors, void (*tell)(int len, const char *line)) {
    for (const char *line = errors->lines.data; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
        tell((int)strcspn(line, "\n"), line);
}

void config_errors_clear(struct config_errors *errors) {
    text_clear(&errors->lines);
    memory_free(errors->wrong);
    *errors = (struct config_errors){0};
}

/* Writes a place as text, "lockkeeper.conf:3". */
static void place_text(const struct place *at, char where[PLACE_MAX]) {
    char path[SHOWN_MAX];
    if (!at->file) {
        snprintf(where, PLACE_MAX, "command line");
        return;
    }
    words_show_word(at->file, path, sizeof(path));
    if (at->line > 0)
        snprintf(where, PLACE_MAX, "%s:%zu", path, at->line);
    else
        snprintf(where, PLACE_MAX, "%s", path);
}

/* Adds an error about a directive (NULL: an unknown one): first the place, then the text. Always returns false. */
static bool __attribute__((format(printf, 4, 5)))
fail(struct reader *r, const struct place *at, const struct directive *d, const char *format, ...) {
    char where[PLACE_MAX];
    place_text(at, where);
    va_list args;
    va_start(args, format);
    errors_add(r->errors, d, where, format, args);
    va_end(args);
    return false;
}

/* Whether reading stops: a file of another kind would give an error for each line. */
static bool too_many(const struct reader *r) {
    return r->loops || r->errors->count >= CONFIG_ERRORS_MAX;
}

/* Reports why a directive's value was refused. If the value may be a password, it is not shown. */
static bool fail_value(struct reader *r, const struct place *at, const char *name, const struct directive *d,
                       const struct config_words *values) {
    char shown_name[64], shown[SHOWN_MAX];
    bool family = strchr(d->shown.name, '*') != NULL; /* tls-*: the directive is named as it was given */
    words_show_word(family ? name : d->shown.name, shown_name, sizeof(shown_name));
    if (values->count == 0)
        return fail(r, at, d, "%s without a value: %s", shown_name, r->build.why);
    if (d->flags & SECRET)
        return fail(r, at, d, "%s: %s", shown_name, r->build.why);
    struct text line = {0};
    words_show(values, &line);
    words_show_word(line.len > 0 ? line.data : "", shown, sizeof(shown));
    text_clear(&line);
    return fail(r, at, d, "%s '%s': %s", shown_name, shown, r->build.why);
}

/* ---- one directive ------------------------------------------------------------------------- */

static bool include_read(struct reader *r, const struct place *at, const char *pattern);

/* Takes a directive: its name, then its values. */
static bool directive_take(struct reader *r, const struct place *at, const struct config_words *words) {
    const char *name = words->words[0];
    struct config_words values = {.words = words->words + 1, .count = words->count - 1};
    const struct directive *d = directive_find(name);
    if (!d) {
        char shown[64];
        words_show_word(name, shown, sizeof(shown));
        const struct directive *nearest = directive_nearest(name);
        if (nearest)
            return fail(r, at, NULL, "unknown directive '%s': did you mean '%s'?", shown, nearest->shown.name);
        return fail(r, at, NULL, "unknown directive '%s': expected a directive that --help lists", shown);
    }
    if (!directive_apply(&r->build, d, &values))
        return fail_value(r, at, name, d, &values);
    char where[PLACE_MAX];
    place_text(at, where);
    char **place = &r->build.config->places[directive_index(d)];
    memory_free(*place);
    *place = memory_strdup(where);
    return strcasecmp(name, "include") != 0 || include_read(r, at, values.words[0]);
}

/* ---- files --------------------------------------------------------------------------------- */

/* The text of standard input, which can only be read once; kept for reloads. */
static char *stdin_text;
static size_t stdin_len;

/* Reads a descriptor to its end; NULL with errno, which is EFBIG if it is too long. */
static char *read_all(int fd, size_t *len) {
    size_t cap = 4096;
    char *text = memory_alloc(cap);
    *len = 0;
    for (;;) {
        if (*len == cap) {
            char *larger = memory_alloc(cap * 2);
            memcpy(larger, text, cap);
            memory_forget(text, cap);
            text = larger;
            cap *= 2;
        }
        ssize_t n = read(fd, text + *len, cap - *len);
        if (n == 0)
            return text;
        if (n < 0 && errno == EINTR)
            continue;
        if (n > 0)
            *len += (size_t)n;
        if (n < 0 || *len > FILE_MAX_BYTES) {
            int saved = n < 0 ? errno : EFBIG;
            memory_free(text);
            errno = saved;
            return NULL;
        }
    }
}

static char *read_path(const char *path, size_t *len) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    char *text = read_all(fd, len);
    int saved = errno;
    close(fd);
    errno = saved;
    return text;
}

static char *read_stdin(size_t *len) {
    if (!stdin_text)
        stdin_text = read_all(STDIN_FILENO, &stdin_len);
    if (!stdin_text)
        return NULL;
    *len = stdin_len;
    return memory_strndup(stdin_text, stdin_len);
}

/* Reports an error in a line, with the name of its directive. The line, which may contain a password, is not shown. */
static bool fail_line(struct reader *r, const struct place *at, const char *line, size_t len, const char *wrong) {
    char name[64];
    size_t n = 0;
    while (n < len && n < sizeof(name) - 1 && !isspace((unsigned char)line[n]))
        n++;
    memcpy(name, line, n);
    name[n] = '\0';
    const struct directive *d = directive_find(name);
    return d ? fail(r, at, d, "%s: %s", d->shown.name, wrong) : fail(r, at, NULL, "%s", wrong);
}

static bool line_take(struct reader *r, const struct place *at, const char *line, size_t len) {
    while (len > 0 && isspace((unsigned char)line[0])) {
        line++;
        len--;
    }
    if (len == 0 || line[0] == '#')
        return true;
    struct config_words words = {0};
    const char *wrong = words_split(&words, line, len);
    bool done = wrong ? fail_line(r, at, line, len, wrong) : directive_take(r, at, &words);
    words_clear(&words);
    return done;
}

static bool text_take(struct reader *r, const char *file, unsigned depth, const char *text, size_t len) {
    struct place at = {.file = file, .depth = depth};
    const char *p = text, *end = text + len;
    bool right = true;
    while (p < end && !too_many(r)) {
        const char *newline = memchr(p, '\n', (size_t)(end - p));
        const char *stop = newline ? newline : end;
        at.line++;
        right = line_take(r, &at, p, (size_t)(stop - p)) && right;
        p = stop + 1;
    }
    return right;
}

static const char *read_error(int code) {
    return code == EFBIG ? "more than 16mb: expected a configuration file" : strerror(code);
}

/* Includes one file. `at` is the place of the include. */
static bool include_file(struct reader *r, const struct place *at, const char *path) {
    char shown[SHOWN_MAX];
    words_show_word(path, shown, sizeof(shown));
    r->loops = at->depth == INCLUDE_DEPTH_MAX;
    if (r->loops)
        return fail(r, at, NULL, "include '%s': expected at most %d files inside each other", shown, INCLUDE_DEPTH_MAX);
    size_t len;
    char *text = read_path(path, &len);
    if (!text)
        return fail(r, at, NULL, "include '%s': expected a file that can be read: %s", shown, read_error(errno));
    bool done = text_take(r, path, at->depth + 1, text, len);
    memory_forget(text, len);
    return done;
}

/* Includes files as Redis does: a name with wildcards includes all matches, perhaps none; another name must exist. */
static bool include_read(struct reader *r, const struct place *at, const char *pattern) {
    if (!strpbrk(pattern, "*?["))
        return include_file(r, at, pattern);
    glob_t found;
    int rc = glob(pattern, 0, NULL, &found);
    bool done = true;
    if (rc == GLOB_NOSPACE) {
        done = fail(r, at, NULL, "include: out of memory");
    } else if (rc == 0) {
        for (size_t i = 0; i < found.gl_pathc && !too_many(r); i++)
            done = include_file(r, at, found.gl_pathv[i]) && done;
    }
    if (rc == 0)
        globfree(&found);
    return done;
}

/* Reads the configuration file of the command line. */
static bool file_read(struct reader *r, const char *path) {
    bool from_stdin = strcmp(path, "-") == 0;
    struct place at = {.file = from_stdin ? "standard input" : path};
    size_t len;
    char *text = from_stdin ? read_stdin(&len) : read_path(path, &len);
    if (!text)
        return fail(r, &at, NULL, "expected a configuration file that can be read: %s", read_error(errno));
    bool done = text_take(r, at.file, 0, text, len);
    memory_forget(text, len);
    if (done && !from_stdin) {
        char *absolute = realpath(path, NULL);
        r->build.config->file = memory_strdup(absolute ? absolute : path);
        free(absolute);
    }
    return done;
}

/* ---- the command line ---------------------------------------------------------------------- */

static bool is_option(const char *arg) {
    return arg[0] == '-' && arg[1] == '-';
}

/* Splits a text and adds its words. On failure the error names the directive with which `text_of` begins. */
static bool argument_split(struct reader *r, const struct place *at, struct config_words *words, const char *text,
                           const char *text_of) {
    const char *wrong = words_split(words, text, strlen(text));
    return wrong ? fail_line(r, at, text_of, strlen(text_of), wrong) : true;
}

/* Reads one --DIRECTIVE VALUE ... group that starts at argv[*i], and moves *i past it. Like redis-server, it accepts
 * directive and values in one argument ("--port 6380"). */
static bool group_read(struct reader *r, const struct place *at, int argc, char *const *argv, int *i) {
    struct config_words words = {0};
    const char *name = argv[*i] + 2;
    bool done = argument_split(r, at, &words, name, name);
    if (done && words.count == 0)
        done = fail(r, at, NULL, "'--': expected --DIRECTIVE and its value");
    int first = ++*i;
    while (*i < argc && !is_option(argv[*i]))
        ++*i;
    /* A rule in one argument is split: as a single word it would be a pattern with blanks, which matches nothing. */
    if (done && words.count == 1 && *i - first == 1 &&
        (strcasecmp(words.words[0], "lock") == 0 || strcasecmp(words.words[0], "fence") == 0))
        done = argument_split(r, at, &words, argv[first++], name);
    for (; first < *i; first++)
        words_add(&words, argv[first], strlen(argv[first]));
    if (done)
        done = directive_take(r, at, &words);
    words_clear(&words);
    return done;
}

/* ---- the whole ----------------------------------------------------------------------------- */

struct config *config_load(int argc, char *const *argv, struct config_errors *errors) {
    struct reader r = {.errors = errors};
    const struct place at = {0};
    int i = 1;
    r.build.config = memory_zalloc(sizeof(*r.build.config));
    atomic_init(&r.build.config->refs, 1);
    r.build.config->rules = lock_rules_new();
    r.build.config->places = memory_zalloc((config_directive_count() + 1) * sizeof(char *));
    directive_defaults(&r.build, false);
    if (i < argc && !is_option(argv[i]))
        (void)file_read(&r, argv[i++]);
    if (i < argc && !is_option(argv[i])) {
        char shown[SHOWN_MAX];
        words_show_word(argv[i], shown, sizeof(shown));
        fail(&r, &at, NULL, "'%s': expected --DIRECTIVE and its value", shown);
        while (i < argc && !is_option(argv[i]))
            i++;
    }
    while (i < argc && !too_many(&r))
        (void)group_read(&r, &at, argc, argv, &i);
    config_check_together(r.build.config, errors);
    directive_defaults(&r.build, true);
    char why[CONFIG_WHY_MAX + SHOWN_MAX];
    if (!config_is_wrong(errors, "lock") && !config_is_wrong(errors, "fence") &&
        !lock_fences_check(r.build.config->rules, why, sizeof(why))) /* all rules have been read */
        config_refuse(errors, r.build.config, "fence", "fence %s", why);
    return r.build.config;
}

const struct config *config_ref(const struct config *config) {
    atomic_fetch_add(&((struct config *)(uintptr_t)config)->refs, 1);
    return config;
}

void config_unref(const struct config *config) {
    struct config *c = (struct config *)(uintptr_t)config;
    if (!c || atomic_fetch_sub(&c->refs, 1) > 1)
        return;
    config_drop_values(c);
    for (size_t i = 0; i < config_directive_count(); i++)
        memory_free(c->places[i]);
    MEMORY_FREE_ALL(c->places, c->file, c);
}
