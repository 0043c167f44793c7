/* What a command alone says of a lock, without its reply: in live traffic, under audit, and in MONITOR's lines. This
 * file keeps no state, and knows no session. */
#include <stdlib.h>
#include <string.h>

#include "proxy/net/digest.h"
#include "proxy/session/locks/lock_commands.h"

enum { KEYS_MAX = EVENT_KEYS_MAX };

/* ---- expiries ---------------------------------------------------------------------------------- */

static bool number_at(const struct resp_request *r, const char *bytes, size_t i, int64_t *n) {
    return i < r->argc && request_arg_integer(r, bytes, i, n);
}

/* Converts an expiry to ms from now. `seconds`: n is in seconds. `absolute`: n counts from 1970. */
static int64_t expiry_ms(int64_t n, bool seconds, bool absolute, int64_t now_ms) {
    if (n > INT64_MAX / 2000 || n < -(INT64_MAX / 2000))
        return n < 0 ? PTTL_GONE : INT64_MAX / 4;
    int64_t ms = (seconds ? n * 1000 : n) - (absolute ? now_ms : 0);
    return ms > 0 ? ms : PTTL_GONE;
}

static int64_t expiry_of_options(const struct resp_request *r, const char *bytes, size_t i, int64_t fallback,
                                 int64_t now_ms) {
    for (; i < r->argc; i++) {
        bool seconds = request_arg_is(r, bytes, i, "ex") || request_arg_is(r, bytes, i, "exat");
        bool absolute = request_arg_is(r, bytes, i, "exat") || request_arg_is(r, bytes, i, "pxat");
        int64_t n;
        if (request_arg_is(r, bytes, i, "keepttl"))
            return PTTL_UNKNOWN;
        if (request_arg_is(r, bytes, i, "persist"))
            return PTTL_NONE;
        if ((seconds || absolute || request_arg_is(r, bytes, i, "px")) && number_at(r, bytes, i + 1, &n))
            return expiry_ms(n, seconds, absolute, now_ms);
    }
    return fallback;
}

static int64_t expiry_of(const struct command *c, const struct resp_request *r, const char *bytes, int64_t now_ms) {
    enum lock_row_expiry how = lock_row_of(c)->expiry;
    int64_t n;
    if (how == EXPIRY_NONE)
        return PTTL_NONE;
    if (how == EXPIRY_SET)
        return expiry_of_options(r, bytes, 3, PTTL_NONE, now_ms);
    if (how == EXPIRY_GETEX)
        return expiry_of_options(r, bytes, 2, PTTL_UNKNOWN, now_ms);
    if (how >= EXPIRY_SECONDS && number_at(r, bytes, 2, &n))
        return expiry_ms(n, how == EXPIRY_SECONDS || how == EXPIRY_AT_SECONDS,
                         how == EXPIRY_AT_SECONDS || how == EXPIRY_AT_MILLISECONDS, now_ms);
    return PTTL_UNKNOWN;
}

/* ---- commands ---------------------------------------------------------------------------------- */

/* By how much the command counts. 0: the reply cannot tell which session has the lock. */
static int64_t counts_by(const struct command *c, const struct resp_request *r, const char *bytes) {
    enum lock_row_count counts = lock_row_of(c)->counts;
    int64_t n = counts == COUNTS_ONE;
    if (counts == COUNTS_BYTES)
        n = (int64_t)r->argv[2].len;
    else if (counts == COUNTS_ARGUMENTS)
        n = (int64_t)r->argc - 2;
    else if ((counts == COUNTS_ARGUMENT || counts == COUNTS_FIELD) &&
             (!number_at(r, bytes, counts == COUNTS_FIELD ? 3 : 2, &n) || n == INT64_MIN))
        return 0;
    return n < 0 ? -n : n;
}

/* Finds what the command means to one of its keys, whose rule has these kinds. False: nothing. */
static bool command_on_key(const struct command_sent *sent, uint32_t index, unsigned kinds, struct lock_command *lc,
                           enum lock_effect *effect) {
    const struct command *c = sent->command;
    const struct resp_request *r = sent->request;
    const char *bytes = sent->bytes;
    uint32_t clobbered[KEYS_MAX];
    *effect = EFFECT_DONE;
    if (c->id == COMMAND_MGET || (c->id == COMMAND_GETEX && r->argc == 2)) {
        *lc = (struct lock_command){.verb = LOCK_READ, .script = SCRIPT_READ};
        return true;
    }
    if (index == 1 && lock_command_of(c, r, bytes, kinds, lc))
        return true;
    if (c->id == COMMAND_DEL || c->id == COMMAND_UNLINK) {
        *lc = lock_release_of_one;
        return true;
    }
    size_t n = lock_clobbers_kinds(c, kinds) ? lock_clobbered_keys(c, r, bytes, clobbered, KEYS_MAX) : 0;
    for (size_t i = 0; i < n && i < KEYS_MAX; i++)
        if (clobbered[i] == index) {
            *lc = (struct lock_command){.verb = LOCK_CLOBBER, .script = SCRIPT_CLOBBER, .shape = SHAPE_INT};
            return true;
        }
    *effect = EFFECT_SCRIPTED;
    *lc = (struct lock_command){.verb = LOCK_SCRIPT, .script = SCRIPT_INSPECT};
    return script_is(c);
}

/* Whether a score is the present time, within ten seconds: in seconds, ms or microseconds since 1970. */
static bool score_is_now(const struct resp_request *r, const char *bytes, size_t i, int64_t now_ms) {
    enum { NEAR_MS = 10 * 1000, DIGITS_MAX = 31 };
    char text[DIGITS_MAX + 1] = "", *end;
    size_t len;
    const char *arg = request_arg(r, bytes, i, &len);
    memcpy(text, arg, len < DIGITS_MAX ? len : DIGITS_MAX);
    double score = strtod(text, &end), now = (double)now_ms;
    double ms = score < now / 100 ? score * 1000 : score > now * 100 ? score / 1000 : score;
    return end != text && *end == '\0' && ms > now - NEAR_MS && ms < now + NEAR_MS;
}

/* What a command does to a semaphore; *value_at is its token or member. A command on several tokens or members at once
 * is not taken for one of a semaphore's. */
static enum permit_sight permit_of(const struct command *c, const struct resp_request *r, const char *bytes,
                                   int64_t now_ms, uint32_t *value_at) {
    *value_at = 0;
    switch ((int)c->id) {
    case COMMAND_LPOP:
    case COMMAND_RPOP:
        return r->argc == 2 ? PERMIT_POPS : PERMIT_NONE;
    case COMMAND_BLPOP:
    case COMMAND_BRPOP:
        return r->argc == 3 ? PERMIT_POPS : PERMIT_NONE;
    case COMMAND_LPUSH:
    case COMMAND_RPUSH:
        *value_at = 2;
        return r->argc == 3 ? PERMIT_PUSHES : PERMIT_NONE;
    case COMMAND_ZADD:
        *value_at = (uint32_t)r->argc - 1;
        return r->argc >= 4 && score_is_now(r, bytes, r->argc - 2, now_ms) ? PERMIT_ADDS : PERMIT_NONE;
    case COMMAND_ZREM:
        *value_at = 2;
        return r->argc == 3 ? PERMIT_REMOVES : PERMIT_NONE;
    case COMMAND_ZRANK:
    case COMMAND_ZCARD:
        return PERMIT_ASKS;
    default:
        return PERMIT_NONE;
    }
}

bool event_read(struct lock_event *e, const struct command_sent *sent, uint32_t index, unsigned kinds, int64_t now_ms,
                struct lock_command *lc) {
    const struct command *c = sent->command;
    const struct resp_request *r = sent->request;
    const char *bytes = sent->bytes;
    enum lock_effect effect;
    int64_t first;
    uint32_t value_at = 0;
    enum permit_sight permit = kinds ? PERMIT_NONE : permit_of(c, r, bytes, now_ms, &value_at);
    if (!command_on_key(sent, index, kinds ? kinds : LOCK_KIND_ANY, lc, &effect)) {
        if (permit == PERMIT_NONE)
            return false;
        *lc = (struct lock_command){.verb = LOCK_INSPECT, .value_at = value_at};
        effect = EFFECT_DONE;
    }
    /* If no rule applies, only PROXY ADVISE asks. MSETNX and MSETEX NX then acquire all of their keys, HDEL releases,
     * and HINCRBY writes: most hashes with counts are data. */
    if (!kinds && lock_acquires_all(c, r, bytes))
        *lc = (struct lock_command){
            .verb = LOCK_ACQUIRE, .script = SCRIPT_ACQUIRE, .value_at = index + 1, .shape = SHAPE_INT};
    else if (!kinds && (c->id == COMMAND_HDEL || c->id == COMMAND_HGETDEL))
        *lc = lock_release_of_one;
    else if (!kinds && c->id == COMMAND_HINCRBY)
        lc->verb = LOCK_REPLACE;
    /* what an enforced rule would answer if it refused */
    const char *refusal = lock_verb_is(lc->verb, VERB_LOCKED) ? "LOCKED"
                          : lc->verb == LOCK_SWAP             ? "the present value"
                          : lc->shape == SHAPE_INT            ? "0"
                                                              : "nil";
    *e = (struct lock_event){.verb = lc->verb,
                             .effect = effect,
                             .permit = permit,
                             .permit_alone = permit && c->id != COMMAND_LPOP && c->id != COMMAND_RPUSH,
                             .advises = lock_row_of(c)->advises,
                             .begun_ms = now_ms,
                             .pttl_ms = expiry_of(c, r, bytes, now_ms),
                             .by = counts_by(c, r, bytes),
                             .queue = lock_row_of(c)->queue,
                             .count = -1,
                             .refusal = refusal};
    e->key.name = request_arg(r, bytes, index, &e->key.len);
    if (e->queue == QUEUE_SET)
        number_at(r, bytes, 2, &e->count); /* the position that LSET names */
    if (e->queue == QUEUE_HEAD && !(number_at(r, bytes, 2, &first) && first == 0))
        e->queue = QUEUE_NONE;
    if (lc->value_at)
        e->value = request_arg(r, bytes, lc->value_at, &e->value_len);
    e->compares = lc->compares;
    if (lc->named_at)
        e->named = request_arg(r, bytes, lc->named_at, &e->named_len);
    return true;
}

bool event_conditional(const struct command *c, size_t argc) {
    return c->id == COMMAND_PERSIST || (argc > 3 && c->arity == -3 && c->id != COMMAND_SET);
}

/* ---- scripts ----------------------------------------------------------------------------------- */

enum { SOURCE_MAX = 4096, SHA1_HEX = 40 };

static struct advise_text script_learnt(struct observer *a, const char *source, size_t len) {
    struct advise_text text = {.kind = ADVISE_SCRIPT_OTHER};
    if (len <= SOURCE_MAX)
        text = advise_script_read(source, len);
    if (text.kind != ADVISE_SCRIPT_OTHER)
        observer_script_note(a, digest_sha1_head(source, len), &text);
    return text;
}

void event_script_loaded(struct observer *a, const struct resp_request *r, const char *bytes) {
    size_t len;
    if (r->argc != 3 || !request_arg_is(r, bytes, 1, "load"))
        return;
    const char *source = request_arg(r, bytes, 2, &len);
    script_learnt(a, source, len);
}

struct advise_text event_script_text(struct observer *a, const struct command *c, const struct resp_request *r,
                                     const char *bytes) {
    size_t len;
    uint64_t head = 0; /* the first 16 digits of the SHA1 in hex */
    const char *text = request_arg(r, bytes, 1, &len);
    if (c->id == COMMAND_EVAL)
        return script_learnt(a, text, len);
    if (c->id != COMMAND_EVALSHA || len != SHA1_HEX)
        return (struct advise_text){.kind = ADVISE_SCRIPT_OTHER};
    for (size_t i = 0; i < 16; i++)
        head = head << 4 | (uint64_t)((text[i] & 15) + (text[i] > '9' ? 9 : 0));
    return observer_script(a, head);
}

bool event_script_acquires(const struct advise_text *text) {
    return text->kind == ADVISE_SCRIPT_ACQUIRES || text->kind == ADVISE_SCRIPT_ENTERS;
}

/* The argument index of a script's ARGV with this number, behind `keys` keys; 0: none. */
static uint32_t script_arg(const struct resp_request *r, uint8_t number, int64_t keys) {
    size_t at = number && number != ADVISE_LITERAL ? 2 + (size_t)keys + number : 0;
    return at < r->argc ? (uint32_t)at : 0;
}

bool event_read_script(struct lock_event *e, struct observer *a, const struct command *c, const struct resp_request *r,
                       const char *bytes, struct advise_text *text) {
    int64_t keys, n;
    *text = event_script_text(a, c, r, bytes);
    if (text->kind == ADVISE_SCRIPT_OTHER || !number_at(r, bytes, 2, &keys) || keys < text->key || keys > KEYS_MAX ||
        text->key == 0 || 2u + text->key >= r->argc) {
        text->kind = ADVISE_SCRIPT_OTHER;
        return false;
    }
    bool acquires = event_script_acquires(text);
    uint32_t value = acquires ? script_arg(r, text->value, keys) : 0;
    e->verb = acquires ? LOCK_ACQUIRE : text->kind == ADVISE_SCRIPT_EXTENDS ? LOCK_REWRITE : LOCK_RELEASE;
    e->effect = EFFECT_DONE;
    e->scripted = true;
    uint32_t expiry = script_arg(r, text->expiry, keys);
    e->pttl_ms = text->endless                                        ? PTTL_NONE
                 : expiry && number_at(r, bytes, expiry, &n) && n > 0 ? expiry_ms(n, text->seconds, false, 0)
                                                                      : INT64_MAX;
    e->key.name = request_arg(r, bytes, 2u + text->key, &e->key.len);
    if (value)
        e->value = request_arg(r, bytes, value, &e->value_len);
    return true;
}
