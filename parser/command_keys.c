/*
 * Finds the keys of a request, and decides whether its arguments make it a blocking request.
 *
 * A finder of movable keys reads the arguments that Redis's own implementation of the command reads. For a module's
 * command, the key specifications that the server gave are used.
 */
#include "parser/command_keys.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* ---- finders of movable keys ------------------------------------------------------------- */

/* Keys found so far: `count` counts all of them; those within `max` are written. */
struct found {
    uint32_t *keys;
    size_t max;
    size_t count;
};

static void add(struct found *f, size_t i) {
    if (f->count < f->max) {
        f->keys[f->count] = (uint32_t)i;
    }
    f->count++;
}

/* A number of keys as Redis's key finder reads it: of "1.5" and "1x" it takes the 1 and finds one key; Redis reports
 * the bad number only when the command runs. -1: no number. */
static int64_t number_of_keys(const char *text, size_t len) {
    enum { DIGITS = 9 };
    int64_t n = 0;
    size_t i = 0, digits = 0;
    while (i < len && (text[i] == ' ' || (text[i] >= '\t' && text[i] <= '\r')))
        i++;
    i += i < len && text[i] == '+';
    for (; i < len && text[i] >= '0' && text[i] <= '9' && digits <= DIGITS; i++, digits++)
        n = n * 10 + (text[i] - '0');
    return digits > 0 && digits <= DIGITS ? n : -1;
}

/* Adds the `numkeys` keys, `step` apart, that follow the argument `at` with their number. */
static int add_numkeys(struct found *f, const char *data, const struct resp_request *request, size_t at, size_t step) {
    size_t len;
    if (at >= request->argc) {
        return -1;
    }
    const char *text = request_arg(request, data, at, &len);
    int64_t n = number_of_keys(text, len);
    if (n < 0 || (uint64_t)n > (request->argc - at - 1) / step) {
        return -1;
    }
    for (size_t i = 0; i < (size_t)n; i++) {
        add(f, at + 1 + i * step);
    }
    return (int)f->count;
}

/* ZUNION numkeys key ... */
int keys_numkeys_first(const char *data, const struct resp_request *request, uint32_t *keys, size_t max) {
    struct found f = {keys, max, 0};
    return add_numkeys(&f, data, request, 1, 1);
}

/* EVAL script numkeys key ..., BLMPOP timeout numkeys key ... */
int keys_numkeys_second(const char *data, const struct resp_request *request, uint32_t *keys, size_t max) {
    struct found f = {keys, max, 0};
    return add_numkeys(&f, data, request, 2, 1);
}

/* ZUNIONSTORE destination numkeys key ... */
int keys_destination_numkeys(const char *data, const struct resp_request *request, uint32_t *keys, size_t max) {
    struct found f = {keys, max, 0};
    add(&f, 1);
    int count = add_numkeys(&f, data, request, 2, 1);
    return count > 1 ? count : -1; /* only the destination: ZUNIONSTORE needs a source */
}

/* MSETEX numkeys key value ... */
int keys_pairs(const char *data, const struct resp_request *request, uint32_t *keys, size_t max) {
    struct found f = {keys, max, 0};
    return add_numkeys(&f, data, request, 1, 2);
}

/* The options of XREAD and XREADGROUP, read as Redis reads them: in any order, up to STREAMS. */
struct stream_options {
    size_t streams; /* index of STREAMS, 0: none */
    size_t block;   /* index of BLOCK's time, 0: none */
};

static struct stream_options read_stream_options(const char *data, const struct resp_request *request) {
    struct stream_options o = {0, 0};
    size_t i = 1;
    while (i < request->argc) {
        if (request_arg_is(request, data, i, "streams")) {
            o.streams = i;
            return o;
        } else if (request_arg_is(request, data, i, "block")) {
            o.block = i + 1 < request->argc ? i + 1 : 0;
            i += 2;
        } else if (request_arg_is(request, data, i, "count")) {
            i += 2;
        } else if (request_arg_is(request, data, i, "group")) {
            i += 3;
        } else if (request_arg_is(request, data, i, "noack")) {
            i += 1;
        } else {
            return o;
        }
    }
    return o;
}

/* XREAD ... STREAMS key ... id ... */
int keys_streams(const char *data, const struct resp_request *request, uint32_t *keys, size_t max) {
    struct found f = {keys, max, 0};
    struct stream_options o = read_stream_options(data, request);
    size_t rest = o.streams ? request->argc - o.streams - 1 : 0;
    if (rest == 0 || rest % 2 != 0) {
        return -1;
    }
    for (size_t i = 0; i < rest / 2; i++) {
        add(&f, o.streams + 1 + i);
    }
    return (int)f.count;
}

/* SORT key [BY pattern] [LIMIT offset count] [GET pattern ...] [ASC|DESC] [ALPHA] [STORE destination]; the last
 * destination counts. */
int keys_sort(const char *data, const struct resp_request *request, uint32_t *keys, size_t max) {
    struct found f = {keys, max, 0};
    size_t destination = 0;
    for (size_t i = 2; i < request->argc; i++) {
        if (request_arg_is(request, data, i, "limit")) {
            i += 2;
        } else if (request_arg_is(request, data, i, "get") || request_arg_is(request, data, i, "by")) {
            i += 1;
        } else if (request_arg_is(request, data, i, "store") && i + 1 < request->argc) {
            destination = i + 1; /* as Redis finds it: in STORE STORE x the second STORE is read as an option, too */
        }
    }
    add(&f, 1);
    if (destination) {
        add(&f, destination);
    }
    return (int)f.count;
}

/* Adds a query's key and its destination, if an option from argument `from` on names one; the last one counts. */
static int add_georadius(struct found *f, const char *data, const struct resp_request *request, size_t from) {
    size_t destination = 0;
    for (size_t i = from; i + 1 < request->argc; i++) {
        if (request_arg_is(request, data, i, "store") || request_arg_is(request, data, i, "storedist")) {
            destination = ++i;
        }
    }
    add(f, 1);
    if (destination) {
        add(f, destination);
    }
    return (int)f->count;
}

/* GEORADIUS key longitude latitude radius unit [...] [STORE key] [STOREDIST key] */
int keys_georadius(const char *data, const struct resp_request *request, uint32_t *keys, size_t max) {
    struct found f = {keys, max, 0};
    return add_georadius(&f, data, request, 6);
}

/* GEORADIUSBYMEMBER key member radius unit [...] [STORE key] [STOREDIST key] */
int keys_georadiusbymember(const char *data, const struct resp_request *request, uint32_t *keys, size_t max) {
    struct found f = {keys, max, 0};
    return add_georadius(&f, data, request, 5);
}

/* MIGRATE host port key|"" db timeout [COPY] [REPLACE] [AUTH password] [AUTH2 user password] [KEYS key ...] */
int keys_migrate(const char *data, const struct resp_request *request, uint32_t *keys, size_t max) {
    struct found f = {keys, max, 0};
    for (size_t i = 6; i < request->argc && request->argv[3].len == 0; i++) {
        if (request_arg_is(request, data, i, "keys")) {
            while (++i < request->argc) {
                add(&f, i);
            }
            return f.count ? (int)f.count : -1;
        } else if (request_arg_is(request, data, i, "auth")) {
            i += 1;
        } else if (request_arg_is(request, data, i, "auth2")) {
            i += 2;
        }
    }
    add(&f, 3);
    return (int)f.count;
}

/* OBJECT ENCODING key, XGROUP CREATE key ..., XINFO STREAM key ...; their HELP has no key. */
int keys_subcommand(const char *data, const struct resp_request *request, uint32_t *keys, size_t max) {
    struct found f = {keys, max, 0};
    if (request->argc > 2) {
        add(&f, 2);
    }
    return (int)f.count;
}

/* MEMORY USAGE key */
int keys_memory(const char *data, const struct resp_request *request, uint32_t *keys, size_t max) {
    return request_arg_is(request, data, 1, "usage") ? keys_subcommand(data, request, keys, max) : 0;
}

/* DEBUG OBJECT key and similar subcommands have one key; DIGEST-VALUE has many. */
int keys_debug(const char *data, const struct resp_request *request, uint32_t *keys, size_t max) {
    static const char *const with_key[] = {"object", "sdslen", "listpack", "ziplist", "quicklist", "htstats-key"};
    struct found f = {keys, max, 0};
    for (size_t i = 0; i < sizeof with_key / sizeof *with_key; i++) {
        if (request_arg_is(request, data, 1, with_key[i])) {
            return keys_subcommand(data, request, keys, max);
        }
    }
    if (request_arg_is(request, data, 1, "digest-value")) {
        for (size_t i = 2; i < request->argc; i++) {
            add(&f, i);
        }
    }
    return (int)f.count;
}

/* ---- keys as Redis 7 describes them ------------------------------------------------------------- */

/* The argument where a spec's keys begin; 0: the request has no keys of this spec. */
static size_t spec_begin(const struct key_spec *spec, const char *data, const struct resp_request *request) {
    long argc = (long)request->argc;
    if (spec->begin == KEYS_BEGIN_INDEX)
        return spec->at > 0 ? (size_t)spec->at : 0;
    bool forwards = spec->at > 0;
    long stop = forwards ? argc - 1 : 1;
    for (long i = forwards ? spec->at : argc + spec->at; i >= 1 && i < argc && i != stop; i += forwards ? 1 : -1) {
        if (request_arg_is(request, data, (size_t)i, spec->keyword))
            return (size_t)i + 1;
    }
    return 0;
}

/* Adds the keys that a spec finds. False: the request is malformed. */
static bool spec_find(const struct key_spec *spec, const char *data, const struct resp_request *request,
                      struct found *f) {
    int64_t argc = (int64_t)request->argc, first = (int64_t)spec_begin(spec, data, request), last, number;
    if (first == 0) {
        return true;
    }
    if (spec->find == KEYS_FIND_KEYNUM) {
        size_t len;
        if (first + spec->number_at < 1 || first + spec->number_at >= argc) {
            return false;
        }
        const char *text = request_arg(request, data, (size_t)(first + spec->number_at), &len);
        if (!resp_integer(text, len, &number) || number < 0 || number > argc) {
            return false;
        }
        if (number == 0) {
            return true;
        }
        first += spec->first;
        last = first + (number - 1) * spec->step;
    } else if (spec->last >= 0) {
        last = first + spec->last;
    } else if (spec->limit > 1) {
        last = first + (argc - first) / spec->limit + spec->last;
    } else {
        last = argc + spec->last;
    }
    if (first < 1 || last < first || last >= argc) {
        return false;
    }
    for (int64_t i = first; i <= last; i += spec->step) {
        add(f, (size_t)i);
    }
    return true;
}

/* Several specs may name one argument. If a server's specs name more keys than there are arguments, they are
 * malformed. */
static int find_by_specs(const struct command *c, const char *data, const struct resp_request *request, uint32_t *keys,
                         size_t max) {
    struct found f = {keys, max, 0};
    for (size_t i = 0; i < c->spec_count; i++) {
        if (!spec_find(&c->specs[i], data, request, &f)) {
            return -1;
        }
    }
    return f.count < request->argc ? (int)f.count : -1;
}

int command_keys(const struct command *c, const char *data, const struct resp_request *request, uint32_t *keys,
                 size_t max) {
    if (c->find) {
        return c->find(data, request, keys, max);
    }
    if (c->spec_count > 0) {
        return find_by_specs(c, data, request, keys, max);
    }
    if (c->first == 0) {
        return 0;
    }
    struct found f = {keys, max, 0};
    size_t first = (size_t)c->first;
    size_t step = (size_t)c->step;
    /* The arity of a command in the table guarantees all of its keys; a server's description of another command may
     * not. */
    if (c->last < 0 ? (size_t)-c->last > request->argc : (size_t)c->last >= request->argc) {
        return -1;
    }
    /* The argument after the last key's group. */
    size_t end = c->last < 0 ? request->argc + 1 - (size_t)-c->last : (size_t)c->last + 1;
    /* MSET k v k: a key without its value. Redis would refuse it when it runs. */
    if (end > first && (end - first) % step != 0) {
        return -1;
    }
    for (size_t i = first; i < end; i += step) {
        add(&f, i);
    }
    return (int)f.count;
}

bool command_blocks(const struct command *c, const char *data, const struct resp_request *request) {
    if (c->id == COMMAND_XREAD || c->id == COMMAND_XREADGROUP) {
        return read_stream_options(data, request).block > 0;
    }
    return c->need == NEED_BLOCKING;
}

int64_t command_wait_ms(const struct command *c, const char *data, const struct resp_request *request) {
    enum { LONGEST_TEXT = 40 };
    static const double longest_ms = 9007199254740992.; /* 2^53: up to here a double represents every whole number */
    size_t at = request->argc - 1, len;
    bool seconds = false;
    char text[LONGEST_TEXT + 1], *end;
    if (c->id == COMMAND_XREAD || c->id == COMMAND_XREADGROUP) {
        at = read_stream_options(data, request).block;
    } else if (c->id != COMMAND_WAIT && c->id != COMMAND_WAITAOF) {
        seconds = true;
        if (c->id == COMMAND_BLMPOP || c->id == COMMAND_BZMPOP)
            at = 1;
    }
    const char *word = request_arg(request, data, at, &len);
    if (at == 0 || len == 0 || len > LONGEST_TEXT) {
        return 0;
    }
    memcpy(text, word, len);
    text[len] = '\0';
    double ms = strtod(text, &end) * (seconds ? 1000 : 1);
    return end == text + len && ms > 0 && ms < longest_ms ? (int64_t)ms + 1 : 0;
}
