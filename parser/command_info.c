#include "parser/command_info.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_MAX_LEN = 128, SPECS_MAX = 16, SUBS_MAX = 512 };

/* ---- reading ----------------------------------------------------------------------------------- */

/* A place in the reply. `bad` is set by the first element of an unexpected type; nothing is read after that. */
struct cursor {
    const char *p, *end;
    bool bad;
};

/* The element that comes next, which must be of one of these types; an empty one if the reply is bad. */
static struct resp_item next(struct cursor *c, const char *types) {
    struct resp_item item;
    if (!c->bad && resp_item_read(&c->p, c->end, &item) && strchr(types, item.type))
        return item;
    c->bad = true;
    return (struct resp_item){.str = ""};
}

/* The number of elements of the array that comes next. */
static size_t next_array(struct cursor *c) {
    struct resp_item array = next(c, "*");
    c->bad |= array.null;
    return (size_t)array.num;
}

static int next_int(struct cursor *c) {
    struct resp_item item = next(c, ":");
    c->bad |= item.num < INT16_MIN || item.num > INT16_MAX;
    return c->bad ? 0 : (int)item.num;
}

static struct resp_item next_word(struct cursor *c) {
    return next(c, "$+");
}

static void skip(struct cursor *c) {
    const char *behind = c->bad ? NULL : resp_item_end(c->p, c->end);
    c->bad = !behind;
    c->p = behind ? behind : c->p;
}

static bool word_is(struct resp_item w, const char *text) {
    return w.len == strlen(text) && memcmp(w.str, text, w.len) == 0;
}

/* Memory of zeros, which the caller frees. */
static void *allocate(size_t count, size_t size) {
    void *memory = calloc(count, size);
    if (!memory)
        abort();
    return memory;
}

/* ---- where keys are ------------------------------------------------------------------------------ */

/* Copies a keyword in lower case. */
static void read_keyword(struct cursor *c, struct key_spec *spec) {
    struct resp_item keyword = next_word(c);
    if (keyword.len >= sizeof(spec->keyword))
        c->bad = true;
    for (size_t i = 0; !c->bad && i < keyword.len; i++)
        spec->keyword[i] = (char)tolower((unsigned char)keyword.str[i]);
}

/* Reads the value of begin_search or of find_keys: a type, and facts that have other names in each. */
static void read_search(struct cursor *c, struct key_spec *spec) {
    for (size_t n = next_array(c) / 2; n > 0 && !c->bad; n--) {
        if (word_is(next_word(c), "type")) {
            struct resp_item type = next_word(c);
            if (word_is(type, "index") || word_is(type, "keyword"))
                spec->begin = word_is(type, "index") ? KEYS_BEGIN_INDEX : KEYS_BEGIN_KEYWORD;
            if (word_is(type, "range") || word_is(type, "keynum"))
                spec->find = word_is(type, "range") ? KEYS_FIND_RANGE : KEYS_FIND_KEYNUM;
            continue;
        }
        for (size_t m = next_array(c) / 2; m > 0 && !c->bad; m--) {
            struct resp_item key = next_word(c);
            int *to = word_is(key, "index") || word_is(key, "startfrom") ? &spec->at
                      : word_is(key, "lastkey")                          ? &spec->last
                      : word_is(key, "keystep")                          ? &spec->step
                      : word_is(key, "limit")                            ? &spec->limit
                      : word_is(key, "keynumidx")                        ? &spec->number_at
                      : word_is(key, "firstkey")                         ? &spec->first
                                                                         : NULL;
            if (to)
                *to = next_int(c);
            else if (word_is(key, "keyword"))
                read_keyword(c, spec);
            else
                skip(c);
        }
    }
}

/* Reads how to find some of a command's keys. Returns whether the description finds all of them without asking the
 * node. */
static bool read_spec(struct cursor *c, struct key_spec *spec) {
    bool complete = true;
    *spec = (struct key_spec){.begin = KEYS_BEGIN_UNKNOWN, .find = KEYS_FIND_UNKNOWN, .step = 1};
    for (size_t n = next_array(c) / 2; n > 0 && !c->bad; n--) {
        struct resp_item key = next_word(c);
        if (word_is(key, "begin_search") || word_is(key, "find_keys"))
            read_search(c, spec);
        else if (word_is(key, "flags"))
            for (size_t m = next_array(c); m > 0 && !c->bad; m--)
                complete &= !word_is(next_word(c), "incomplete");
        else
            skip(c);
    }
    return complete && !c->bad && spec->step > 0 && spec->begin != KEYS_BEGIN_UNKNOWN &&
           spec->find != KEYS_FIND_UNKNOWN;
}

static void read_specs(struct cursor *c, struct command_info *info) {
    size_t n = next_array(c);
    bool complete = n <= SPECS_MAX;
    struct key_spec *specs = n > 0 && complete ? allocate(n, sizeof(*specs)) : NULL;
    for (size_t i = 0; i < n && !c->bad; i++)
        if (specs)
            complete &= read_spec(c, &specs[i]);
        else
            skip(c);
    if (complete && !c->bad) {
        info->command.specs = specs;
        info->command.spec_count = (uint16_t)n;
    } else {
        free(specs);
    }
}

/* ---- a command ------------------------------------------------------------------------------------- */

struct facts {
    bool blocking, pubsub, noscript, everywhere;
};

static void read_flags(struct cursor *c, struct command *command, struct facts *facts) {
    for (size_t n = next_array(c); n > 0 && !c->bad; n--) {
        struct resp_item flag = next_word(c);
        command->flags |= word_is(flag, "write") ? COMMAND_WRITE : 0;
        command->flags |= word_is(flag, "readonly") ? COMMAND_READONLY : 0;
        command->flags |= word_is(flag, "admin") ? COMMAND_ADMIN : 0;
        command->flags |= word_is(flag, "movablekeys") ? COMMAND_MOVABLE_KEYS : 0;
        facts->blocking |= word_is(flag, "blocking");
        facts->pubsub |= word_is(flag, "pubsub");
        facts->noscript |= word_is(flag, "noscript");
    }
}

static void read_tips(struct cursor *c, struct command_info *info, struct facts *facts) {
    static const char *const responses[] = {
        [RESPONSE_ALL_SUCCEEDED] = "response_policy:all_succeeded",
        [RESPONSE_ONE_SUCCEEDED] = "response_policy:one_succeeded",
        [RESPONSE_SUM] = "response_policy:agg_sum",
        [RESPONSE_MIN] = "response_policy:agg_min",
        [RESPONSE_MAX] = "response_policy:agg_max",
        [RESPONSE_AND] = "response_policy:agg_logical_and",
        [RESPONSE_OR] = "response_policy:agg_logical_or",
    };
    for (size_t n = next_array(c); n > 0 && !c->bad; n--) {
        struct resp_item tip = next_word(c);
        facts->everywhere |= word_is(tip, "request_policy:all_shards") || word_is(tip, "request_policy:all_nodes");
        for (unsigned i = RESPONSE_ALL_SUCCEEDED; i <= RESPONSE_OR; i++)
            if (word_is(tip, responses[i]))
                info->response = (enum command_response)i;
    }
}

static bool read_info(struct cursor *c, struct command_info *info, bool nested);

static void read_subs(struct cursor *c, struct command_info *info) {
    size_t n = next_array(c);
    if (n == 0 || n > SUBS_MAX)
        return;
    info->subs = allocate(n, sizeof(*info->subs));
    for (; n > 0 && !c->bad; n--)
        if (read_info(c, &info->subs[info->sub_count++], true))
            c->bad |= strchr(info->subs[info->sub_count - 1].command.name, '|') == NULL;
}

/* Reads an element of COMMAND's reply: name, arity, flags, first, last, step. Redis 6 adds categories; Redis 7 adds
 * tips, key specifications and subcommands. */
static bool read_info(struct cursor *c, struct command_info *info, bool nested) {
    struct facts facts = {false, false, false, false};
    struct command *command = &info->command;
    size_t n = next_array(c);
    if (n < 6)
        c->bad = true;
    struct resp_item name = next_word(c);
    if (name.len == 0 || name.len > NAME_MAX_LEN)
        c->bad = true;
    if (c->bad)
        return false;
    command->name = memcpy(allocate(1, name.len + 1), name.str, name.len);
    command->arity = (int16_t)next_int(c);
    read_flags(c, command, &facts);
    command->first = (int16_t)next_int(c);
    command->last = (int16_t)next_int(c);
    command->step = (int16_t)next_int(c);
    for (size_t i = 6; i < n && !c->bad; i++)
        if (i == 7)
            read_tips(c, info, &facts);
        else if (i == 8)
            read_specs(c, info);
        else if (i == 9 && !nested)
            read_subs(c, info);
        else
            skip(c);
    if (command->arity == 0 || command->first < 0 || (command->first > 0 && command->step <= 0))
        c->bad = true;
    info->ask_keys = (command->flags & COMMAND_MOVABLE_KEYS) && command->spec_count == 0;
    int least = command->arity < 0 ? -command->arity : command->arity; /* arguments, its name among them */
    if (command->first > 0 && command->first == command->last && command->first < least &&
        !(command->flags & COMMAND_MOVABLE_KEYS))
        command->only = command->first;
    bool subscribes = facts.pubsub && facts.noscript;
    bool has_keys = command->first > 0 || command->spec_count > 0 || info->ask_keys;
    command->need = subscribes         ? NEED_REFUSED
                    : facts.blocking   ? NEED_BLOCKING
                    : has_keys         ? NEED_KEY
                    : facts.everywhere ? NEED_MASTERS
                                       : NEED_NODE;
    return !c->bad;
}

static void info_clear(struct command_info *info) {
    for (size_t i = 0; i < info->sub_count; i++)
        info_clear(&info->subs[i]);
    free(info->subs);
    free((void *)(uintptr_t)info->command.specs);
    free((void *)(uintptr_t)info->command.name);
}

struct command_info *command_info_read(const char *p, const char *end) {
    struct cursor c = {p, end, false};
    struct command_info *info = allocate(1, sizeof(*info));
    if (read_info(&c, info, false))
        return info;
    command_info_free(info);
    return NULL;
}

void command_info_free(struct command_info *info) {
    if (!info)
        return;
    info_clear(info);
    free(info);
}

const struct command_info *command_info_of(const struct command_info *info, const char *data,
                                           const struct resp_request *request) {
    for (size_t i = 0; i < info->sub_count && request->argc > 1; i++)
        if (request_arg_is(request, data, 1, strchr(info->subs[i].command.name, '|') + 1))
            return &info->subs[i];
    return info;
}
