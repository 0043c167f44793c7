/*
 * Translates lines to the observer's events: the session, what the command means to a lock, and its result.
 *
 * The commands of a script are lines after that of its call; they count as the caller's. If the script's text shows its
 * purpose (advise_script_read), the whole script is one event: an acquiring script that has written nothing has lost.
 */
#include <stdio.h>
#include <string.h>

#include "parser/command.h"
#include "proxy/base/memory.h"
#include "proxy/monitor_tap/private.h"
#include "proxy/session/locks/locks.h"

enum {
    SESSIONS = 2048, /* sets of WAYS */
    WAYS = 8,
    HOST_SIZE = 64,
    NAME_SIZE = 48,
    KEYS_MAX = 64,
    KEY_MAX = 512,
    ASKS = 64,       /* PTTLs that are in flight */
    ASKS_MAX = 20000 /* PTTLs in all */
};

struct talker {
    uint64_t hash; /* of its address; 0: unused */
    uint64_t id;
    uint64_t listed; /* the last CLIENT LIST that contained it */
    uint64_t told;   /* the CLIENT LIST that was asked for last before a line set the name or the library; 0: none */
    int64_t seen_ms;
    uint64_t client; /* the hash of its identity */
    bool watches;
    char address[HOST_SIZE]; /* without the port */
    char user[NAME_SIZE], name[NAME_SIZE];
    char library[ADVISE_LIBRARY_MAX];
    char identity[ADVISE_CLIENT_MAX];
};

/* A PTTL that was sent. Its line and its reply come in either order. */
struct ask {
    uint64_t hash;
    int64_t pttl_ms, at_ms; /* of the reply, and of the line, once they have come */
};

struct monitor_tap {
    struct observer *observer;
    struct hash_seed seed;
    struct model model;
    struct overheard counts;
    struct talker talkers[SESSIONS][WAYS];
    uint64_t last_id, lists;
    struct talker *last; /* the sender of the last line that is not a script's */
    struct text bytes;
    struct resp_request request;
    uint32_t counters_seen;
    /* the script that runs at present */
    struct advise_text script;
    struct lock_event script_event; /* its key is script_key, and its value script_value */
    char script_key[KEY_MAX];
    uint64_t script_value;
    bool script_wrote, script_deleted;
    /* the connection that asks */
    char word[NAME_SIZE], self[HOST_SIZE];
    size_t self_len;
    char asked_key[KEY_MAX];
    size_t asked_len; /* 0: no key to ask for */
    uint64_t asked_hash;
    struct ask asks[ASKS];
    size_t lined, answered, asked; /* how many questions have their line, have their reply, and were sent */
};

struct monitor_tap *tap_new(struct observer *a, uint64_t seed, uint64_t number) {
    struct monitor_tap *o = memory_zalloc(sizeof(*o));
    o->observer = a;
    o->seed = hash_seed_make(seed, 5);
    o->last_id = number << 24;
    resp_request_init(&o->request);
    return o;
}

void tap_free(struct monitor_tap *o) {
    if (!o)
        return;
    text_clear(&o->bytes);
    resp_request_clear(&o->request);
    memory_free(o);
}

const struct overheard *tap_counts(const struct monitor_tap *o) {
    return &o->counts;
}

/* ---- a line: time, database, connection, and the command in Redis's quotes ---- */

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
    const char *bracket = memmem(p, (size_t)(end - p), "] \"", 3); /* the sender's end, and where the words begin */
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
    /* Valkey 8.1 does not escape quotes and backslashes within a word. Here they get escapes: a quote ends a word only
     * if another word, or nothing, follows it. */
    struct text mended = {0};
    bool inside = false;
    for (const char *p = line->words, *end = p + line->words_len; p < end; p++) {
        bool ends = p + 1 == end || (end - p > 2 && p[1] == ' ' && p[2] == '"');
        bool escapes = *p == '\\' && p + 1 < end && memchr("nrtab\"\\x", p[1], 8);
        if (*p == '"' && (!inside || ends))
            inside = !inside;
        else if (*p == '"' || (*p == '\\' && !escapes))
            text_append(&mended, "\\", 1);
        text_append(&mended, p, 1);
        if (inside && escapes && p + 2 < end)
            text_append(&mended, ++p, 1);
    }
    bool right = words_scan(mended.data, mended.len, bytes, request);
    text_clear(&mended);
    return right;
}

/* ---- clients ---- */

/* Writes a client's identity as the proxy does, but without the user `default`: the user of a new connection is not
 * known. */
static void identify(struct monitor_tap *o, struct talker *t) {
    const char *user = strcmp(t->user, "default") == 0 ? "" : t->user;
    size_t len = (size_t)snprintf(t->identity, sizeof(t->identity), "%s%s%s%s%s", t->address, *user ? " user=" : "",
                                  user, t->name[0] ? " name=" : "", t->name);
    t->client = hash_bytes(&o->seed, t->identity, len < ADVISE_CLIENT_MAX ? len : ADVISE_CLIENT_MAX - 1);
}

static void copy(char *to, size_t size, const char *from, size_t len) {
    snprintf(to, size, "%.*s", (int)(len < size ? len : size - 1), from);
}

/* The hash of a key of this database, or with database 0 of an address or a value. Never 0. */
static uint64_t hash_of(const struct monitor_tap *o, uint32_t db, const char *text, size_t len) {
    return (hash_bytes(&o->seed, text, len) + db) | 1;
}

static struct talker *talker_get(struct monitor_tap *o, const char *address, size_t len) {
    uint64_t hash = hash_of(o, 0, address, len);
    struct talker *set = o->talkers[(hash >> 1) % SESSIONS], *t = set;
    size_t end = len;
    for (size_t i = 0; i < WAYS; i++)
        if (set[i].hash == hash)
            return &set[i];
    for (size_t i = 1; i < WAYS && t->hash; i++)
        if (!set[i].hash || set[i].seen_ms < t->seen_ms)
            t = &set[i];
    *t = (struct talker){.hash = hash, .id = ++o->last_id};
    invariant(o->last_id != 0, "connections have run out of numbers");
    /* The host of "127.0.0.1:4000" or "[::1]:4000"; "unix" for the path of a socket. */
    if (len > 5 && memcmp(address, "unix:", 5) == 0)
        end = 4;
    else
        while (end > 0 && address[end - 1] != ':')
            end--;
    bool bracketed = end > 2 && address[0] == '[';
    copy(t->address, HOST_SIZE, address + bracketed, end == 4 ? 4 : end > 0 ? end - 1 - (bracketed ? 2 : 0) : len);
    identify(o, t);
    return t;
}

static void talker_left(struct monitor_tap *o, struct talker *t) {
    observer_left(o->observer, t->id, false); /* MONITOR does not show one-shot clients */
    t->hash = 0;
}

void tap_ask_clients(struct monitor_tap *o) {
    o->lists++;
}

/* The value of a field of a client's line, " name=cron". */
static void field_copy(char *out, size_t size, const char *line, size_t len, const char *field) {
    const char *end = line + len;
    size_t n = strlen(field);
    out[0] = '\0';
    for (const char *stop; (size_t)(end - line) > n; line = stop + (stop < end)) {
        stop = memchr(line, ' ', (size_t)(end - line));
        stop = stop ? stop : end;
        if ((size_t)(stop - line) >= n && memcmp(line, field, n) == 0) {
            copy(out, size, line + n, (size_t)(stop - line) - n);
            return;
        }
    }
}

void tap_clients(struct monitor_tap *o, const char *text, size_t len) {
    const char *end = text + len;
    while (text < end) {
        const char *stop = memchr(text, '\n', (size_t)(end - text));
        size_t line = (size_t)((stop ? stop : end) - text);
        char address[128];
        field_copy(address, sizeof(address), text, line, "addr=");
        if (address[0]) {
            struct talker *t = talker_get(o, address, strlen(address));
            t->listed = o->lists;
            field_copy(t->user, sizeof(t->user), text, line, "user=");
            /* The list may be older than a line that has come since the list was asked for. */
            if (t->told == 0 || t->told != o->lists) {
                field_copy(t->name, sizeof(t->name), text, line, "name=");
                field_copy(t->library, sizeof(t->library), text, line, "lib-name=");
            }
            identify(o, t);
        }
        text = stop ? stop + 1 : end;
    }
    for (size_t i = 0; i < SESSIONS * WAYS; i++) {
        struct talker *t = &o->talkers[i / WAYS][i % WAYS];
        if (t->hash && t->listed < o->lists && strcmp(t->address, "unix") != 0)
            talker_left(o, t);
    }
}

/* ---- events ---- */

/* Tells the observer what a command did, if it did anything to a lock. */
static void note(struct monitor_tap *o, const struct talker *t, enum seen_event what, struct lock_event *e) {
    if (what == SEEN_NOTHING)
        return;
    e->session_id = t->id;
    e->library = t->library[0] ? t->library : NULL;
    e->identity = t->identity;
    e->identity_len = strlen(t->identity);
    e->identity_hash = t->client;
    o->counts.attempts += what == SEEN_ACQUIRED || what == SEEN_LOST;
    if (observer_samples(o->observer, e->key.name, e->key.len, o->counts.last_ms))
        observer_note(o->observer, what, e, o->counts.last_ms);
}

/* Whether the command can acquire a lock, so that its key is followed from then on. */
static bool attempts(const struct command *c, const struct lock_event *sight, bool watched) {
    return (lock_verb_is(sight->verb, VERB_ACQUIRES) && (watched || sight->verb != LOCK_REPLACE)) ||
           sight->verb == LOCK_QUEUE_PUSH || c->id == COMMAND_LREM;
}

static void ask_for(struct monitor_tap *o, const struct lock_event *sight, uint64_t hash) {
    if (!o->word[0] || sight->key.db != 0 || sight->key.len == 0 || sight->key.len > KEY_MAX || o->asked >= ASKS_MAX ||
        o->asked - (o->lined < o->answered ? o->lined : o->answered) >= ASKS)
        return;
    memcpy(o->asked_key, sight->key.name, sight->key.len);
    o->asked_len = sight->key.len;
    o->asked_hash = hash;
}

static bool in_script(const struct monitor_tap *o, const struct lock_event *sight) {
    const struct lock_key *key = &o->script_event.key;
    return o->script.kind != ADVISE_SCRIPT_OTHER && sight->key.db == key->db && sight->key.len == key->len &&
           memcmp(sight->key.name, key->name, key->len) == 0;
}

static bool sets_field(const struct command *c) {
    return c->id == COMMAND_HSETNX || c->id == COMMAND_HSETEX;
}

static struct lock_interest interest_of(struct monitor_tap *o, const struct talker *t) {
    return (struct lock_interest){o->observer, &o->counters_seen, t->watches, o->counts.last_ms};
}

/* Reports a command on one key. `sure`: its result is known. */
static void tell(struct monitor_tap *o, const struct talker *t, const struct command *c, struct lock_event *sight,
                 bool sure) {
    const struct lock_interest in = interest_of(o, t);
    bool wanted = event_wanted(&in, c, &o->request, o->bytes.data, sight->key.name, sight->key.len);
    if (wanted && sure)
        note(o, t, seen_of(sight), sight);
    if (!wanted || sure)
        return;
    o->counts.unsure += sight->verb == LOCK_ACQUIRE || sight->verb == LOCK_RELEASE || sight->verb == LOCK_COUNT_UP ||
                        sight->verb == LOCK_COUNT_DOWN;
    if (sight->verb == LOCK_ACQUIRE && !sets_field(c))
        observer_arm(o->observer, sight->key.name, sight->key.len, o->counts.last_ms);
}

/* HSETNX, HDEL, HSETEX and HGETDEL concern fields of a hash: the key is followed while it is one field, the same. */
static void field_follow(struct monitor_tap *o, struct model_key *k, const struct command *c) {
    size_t len, at = c->id == COMMAND_HSETNX || c->id == COMMAND_HDEL ? 2 : 0;
    for (size_t i = 2; !at && (c->id == COMMAND_HSETEX || c->id == COMMAND_HGETDEL) && i + 2 < o->request.argc; i++)
        if (request_arg_is(&o->request, o->bytes.data, i, "fields"))
            at = i + 2;
    if (!at)
        return;
    const char *field = request_arg(&o->request, o->bytes.data, at, &len);
    uint64_t hash = hash_of(o, 0, field, len);
    size_t one = sets_field(c) ? 2 : 1;
    if ((k->field && k->field != hash) || o->request.argc > at + one)
        k->state = MODEL_UNKNOWN;
    k->field = hash;
}

/* Handles a command on one key. `lost`: another of MSETNX's keys exists. */
static void on_key(struct monitor_tap *o, struct talker *t, const struct monitor_line *line, const struct command *c,
                   uint32_t index, bool scripted, bool lost) {
    struct lock_event sight;
    struct lock_command lc;
    const struct command_sent sent = {c, &o->request, o->bytes.data};
    int64_t now_ms = line->time_ms;
    if (script_is(c) || !event_read(&sight, &sent, index, 0, now_ms, &lc))
        return;
    sight.key.db = line->db;
    sight.scripted = scripted;
    sight.behind_watch = t->watches;
    uint64_t hash = hash_of(o, line->db, sight.key.name, sight.key.len);
    struct model_key *k = model_find(&o->model, hash, now_ms);
    if (!k && !attempts(c, &sight, t->watches) && !in_script(o, &sight))
        return;
    if (!k)
        k = model_follow(&o->model, hash, now_ms);
    field_follow(o, k, c);
    /* The model follows no change of a list in the middle, no push at the head, no pop at the tail, and no change of
     * several nodes at once. */
    bool lost_queue = c->id == COMMAND_LPUSH || c->id == COMMAND_LPUSHX || c->id == COMMAND_LINSERT ||
                      c->id == COMMAND_RPOP || (c->id == COMMAND_RPUSH && o->request.argc > 3) ||
                      (c->id == COMMAND_LPOP && o->request.argc > 2);
    bool was_unknown = k->state == MODEL_UNKNOWN, sure = false;
    k->assumed = false;
    if (lost && sight.verb == LOCK_ACQUIRE) {
        sight.effect = EFFECT_LOST;
        sure = true;
    } else if (lost_queue) {
        k->state = MODEL_UNKNOWN;
    } else if (c->id == COMMAND_RPUSHX && k->state != MODEL_PRESENT) {
        sure = false;
    } else {
        sure = model_run(k, &sight, event_conditional(c, o->request.argc), sets_field(c), now_ms);
    }
    bool acquires = sight.verb == LOCK_ACQUIRE || sight.verb == LOCK_QUEUE_PUSH;
    if (was_unknown && acquires && !scripted)
        ask_for(o, &sight, hash);
    o->counts.assumed += k->assumed && sight.verb == LOCK_ACQUIRE; /* a push alone is no attempt */
    if (!scripted || !in_script(o, &sight)) {
        tell(o, t, c, &sight, sure);
        return;
    }
    /* The whole script is reported as one event. */
    bool deletes = sight.verb == LOCK_RELEASE && sight.effect == EFFECT_DONE;
    o->script_deleted |= deletes;
    o->script_wrote |=
        !deletes && sight.effect != EFFECT_LOST && sight.verb != LOCK_READ && sight.verb != LOCK_QUEUE_READ;
}

/* Reports what a command does to what may be a semaphore. Each pop counts as one that has found a token. */
static void on_permit(struct monitor_tap *o, const struct talker *t, const struct monitor_line *line,
                      const struct command *c) {
    const struct command_sent sent = {c, &o->request, o->bytes.data};
    const struct lock_interest in = interest_of(o, t);
    struct lock_event sight;
    struct lock_command lc;
    size_t len;
    const char *key = request_arg(&o->request, o->bytes.data, 1, &len);
    if (!event_permit_wanted(&in, c, key, len) || !event_read(&sight, &sent, 1, 0, line->time_ms, &lc))
        return;
    sight.key.db = line->db;
    sight.effect = EFFECT_DONE;
    sight.value = sight.permit == PERMIT_POPS ? NULL : sight.value;
    note(o, t, seen_permit(&sight), &sight);
}

/* Whether one of the keys of MSETNX, or of MSETEX with NX, exists, so that it does nothing. */
static bool msetnx_lost(struct monitor_tap *o, const struct monitor_line *line, const struct command *c) {
    uint32_t keys[EVENT_KEYS_MAX];
    bool all = lock_acquires_all(c, &o->request, o->bytes.data);
    int count = all ? command_keys(c, o->bytes.data, &o->request, keys, EVENT_KEYS_MAX) : 0;
    for (int i = 0; i < count && i < EVENT_KEYS_MAX; i++) {
        size_t len;
        const char *key = request_arg(&o->request, o->bytes.data, keys[i], &len);
        const struct model_key *k = model_find(&o->model, hash_of(o, line->db, key, len), line->time_ms);
        if (k && k->state == MODEL_PRESENT)
            return true;
    }
    return false;
}

/* ---- scripts ---- */

void tap_end(struct monitor_tap *o) {
    struct lock_event *e = &o->script_event;
    bool running = o->last && o->script.kind != ADVISE_SCRIPT_OTHER;
    o->script.kind = ADVISE_SCRIPT_OTHER;
    if (!running || (e->verb != LOCK_ACQUIRE && !observer_knows(o->observer, e->key.name, e->key.len)))
        return;
    bool wrote = o->script_wrote; /* a release that only writes leaves a lock that was entered several times */
    if (e->verb == LOCK_RELEASE)
        e->effect = o->script_deleted ? EFFECT_DONE : wrote ? EFFECT_NOTHING : EFFECT_ABSENT;
    else
        e->effect = wrote ? EFFECT_DONE : e->verb == LOCK_ACQUIRE ? EFFECT_LOST : EFFECT_NOTHING;
    if (e->effect != EFFECT_DONE)
        e->value = NULL;
    note(o, o->last, seen_of(e), e);
}

/* A script is called: the next lines show its commands. */
static void script_called(struct monitor_tap *o, const struct monitor_line *line, const struct command *c) {
    struct lock_event e = {.effect = EFFECT_NOTHING};
    if (!event_read_script(&e, o->observer, c, &o->request, o->bytes.data, &o->script) || e.key.len > KEY_MAX) {
        o->script.kind = ADVISE_SCRIPT_OTHER;
        return;
    }
    memcpy(o->script_key, e.key.name, e.key.len);
    e.key.name = o->script_key;
    e.key.db = line->db;
    o->script_value = e.value ? hash_of(o, 0, e.value, e.value_len) : o->script.value == ADVISE_LITERAL;
    e.value = o->script_value ? (const char *)&o->script_value : NULL;
    e.value_len = sizeof(o->script_value);
    o->script_event = e;
    o->script_wrote = o->script_deleted = false;
}

/* ---- lines ---- */

static void on_client(struct monitor_tap *o, struct talker *t) {
    const struct resp_request *r = &o->request;
    size_t len;
    const char *bytes = o->bytes.data, *last = request_arg(r, bytes, r->argc - 1, &len);
    if (r->argc == 3 && request_arg_is(r, bytes, 1, "setname"))
        copy(t->name, sizeof(t->name), last, len);
    else if (r->argc == 4 && request_arg_is(r, bytes, 1, "setinfo") && request_arg_is(r, bytes, 2, "lib-name"))
        copy(t->library, sizeof(t->library), last, len);
    else
        return;
    t->told = o->lists;
    identify(o, t);
}

/* Handles commands without keys. False: the command is none. */
static bool on_other(struct monitor_tap *o, struct talker *t, const struct monitor_line *line,
                     const struct command *c) {
    switch ((int)c->id) {
    case COMMAND_CLIENT:
        on_client(o, t);
        break;
    case COMMAND_WATCH:
    case COMMAND_EXEC:
    case COMMAND_DISCARD:
    case COMMAND_UNWATCH:
        t->watches = c->id == COMMAND_WATCH;
        break;
    case COMMAND_QUIT:
        talker_left(o, t);
        break;
    case COMMAND_FLUSHALL:
    case COMMAND_FLUSHDB:
    case COMMAND_SWAPDB:
        memset(&o->model, 0, sizeof(o->model)); /* all keys are forgotten */
        break;
    case COMMAND_SCRIPT:
        event_script_loaded(o->observer, &o->request, o->bytes.data);
        break;
    default:
        if (script_is(c))
            script_called(o, line, c);
        return script_is(c);
    }
    return true;
}

void tap_answer(struct monitor_tap *o, int64_t pttl_ms) {
    if (o->answered == o->asked)
        return;
    bool lined = o->lined > o->answered;
    struct ask *a = &o->asks[o->answered++ % ASKS];
    a->pttl_ms = pttl_ms;
    struct model_key *k = lined ? model_find(&o->model, a->hash, a->at_ms) : NULL;
    if (k && k->asked)
        model_told(k, pttl_ms, a->at_ms);
}

void tap_self(struct monitor_tap *o, const char *word) {
    copy(o->word, sizeof(o->word), word, strlen(word));
}

bool tap_asks(struct monitor_tap *o, const char **key, size_t *len) {
    if (o->asked_len == 0 || o->self_len == 0)
        return false;
    *key = o->asked_key;
    *len = o->asked_len;
    invariant(o->lined <= o->asked && o->answered <= o->asked, "questions %zu, %zu, %zu", o->lined, o->answered,
              o->asked);
    o->asks[o->asked++ % ASKS] = (struct ask){.hash = o->asked_hash};
    o->asked_len = 0;
    return true;
}

static bool is_self(struct monitor_tap *o, const struct monitor_line *line, const struct command *c) {
    size_t len;
    if (!o->word[0])
        return false;
    if (o->self_len == 0 && c && c->id == COMMAND_ECHO && o->request.argc == 2) {
        const char *word = request_arg(&o->request, o->bytes.data, 1, &len);
        if (len == strlen(o->word) && memcmp(word, o->word, len) == 0 && line->from_len <= HOST_SIZE) {
            memcpy(o->self, line->from, line->from_len);
            o->self_len = line->from_len;
        }
    }
    return o->self_len > 0 && line->from_len == o->self_len && memcmp(line->from, o->self, o->self_len) == 0;
}

static void on_command(struct monitor_tap *o, const struct monitor_line *line, const struct command *c) {
    bool scripted = line->from_len == 3 && memcmp(line->from, "lua", 3) == 0;
    uint32_t keys[KEYS_MAX];
    if (!scripted) {
        tap_end(o);
        o->last = talker_get(o, line->from, line->from_len);
        o->counts.nameless += strcmp(o->last->address, "unix") == 0;
    }
    struct talker *t = o->last;
    if (!t || !c || !command_arity_ok(c, o->request.argc))
        return;
    t->seen_ms = line->time_ms;
    t->listed = o->lists; /* its line shows that it is connected */
    if (!scripted && on_other(o, t, line, c))
        return;
    if (!scripted && o->request.argc > 1)
        on_permit(o, t, line, c);
    if (!lock_row_of(c)->name)
        return;
    int n = command_keys(c, o->bytes.data, &o->request, keys, KEYS_MAX);
    bool lost = msetnx_lost(o, line, c);
    for (int i = 0; i < n && i < KEYS_MAX; i++)
        on_key(o, t, line, c, keys[i], scripted, lost);
}

bool tap_line(struct monitor_tap *o, const char *text, size_t len) {
    struct monitor_line line;
    o->asked_len = 0;
    if (!monitor_line_read(&line, text, len) || !monitor_args_read(&line, &o->bytes, &o->request)) {
        tap_end(o);
        o->last = NULL; /* the lines of an unknown script may follow */
        o->counts.garbage++;
        return false;
    }
    const struct command *c = command_of_request(&o->request, o->bytes.data);
    if (is_self(o, &line, c)) {
        tap_end(o);
        if (!c || c->id != COMMAND_PTTL || o->lined == o->asked)
            return true;
        bool answered = o->answered > o->lined; /* a PTTL's reply applies at the point of its line */
        struct ask *a = &o->asks[o->lined++ % ASKS];
        struct model_key *k = model_find(&o->model, a->hash, line.time_ms);
        a->at_ms = line.time_ms;
        if (k && answered)
            model_told(k, a->pttl_ms, a->at_ms);
        else if (k)
            k->asked = true;
        return true;
    }
    o->counts.lines++;
    if (!o->counts.first_ms)
        o->counts.first_ms = line.time_ms;
    if (line.time_ms > o->counts.last_ms)
        o->counts.last_ms = line.time_ms;
    line.time_ms = o->counts.last_ms; /* time must not go back */
    on_command(o, &line, c);
    return true;
}
