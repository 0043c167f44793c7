/*
 * What the engine learns of workloads is kept in Redis, in one stream for all proxies before it. So a proxy keeps it
 * over a restart, and also uses what another proxy has learnt.
 *
 *      a fact is learnt ──> XADD record MAXLEN ~ 10000 * is "pooled" not "" client ... rule ... pattern ...
 *                                                 │
 *      at the start, and once a second ──> XRANGE record LAST + ──> engine_learnt
 *      while a release is held back ─────> XREVRANGE record + - COUNT 16
 *
 * The record is a stream because Redis numbers its entries: each proxy reads what has come since its last look, without
 * a need to compare clocks. A proxy adds an entry when it learns a fact, and once a day while the workload is in use.
 * The record is named like a guard record, so no client is shown it; it belongs to no lock. The proxy uses its own
 * login. If this login may not use the record, each proxy learns for itself, and the log says so once.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parser/invariant.h"
#include "parser/slot.h"
#include "proxy/base/clock.h"
#include "proxy/base/log.h"
#include "proxy/base/memory.h"
#include "proxy/session/core/session.h"
#include "proxy/session/locks/observing.h"
#include "proxy/session/locks/private.h"
#include "proxy/session/locks/script_call.h"

static const char RECORD[] = "lockkeeper-learnt";

enum {
    RECORD_ENTRIES = 10000,
    ENTRIES_AT_ONCE = 1000,
    ENTRIES_NEWEST = 16, /* enough while a release is held back */
    GLANCE_MS = 25,
    ACTIVE_MS = 5000,    /* for how long after the last lock command the proxy looks each second */
    IDLE_MS = 10 * 1000, /* between two looks, if there was no lock command lately */
    REFUSED_MS = 60 * 1000,
    FACTS_TEXT_MAX = 64,
    ERROR_SHOWN_MAX = 160
};

static const struct {
    enum workload_fact fact;
    const char *name;
} FACTS[] = {{FACT_POOLED, "pooled"},
             {FACT_LOSERS_RELEASE, "losers-release"},
             {FACT_DEDICATED, "dedicated"},
             {FACT_LOSERS_QUIET, "losers-quiet"}};

enum { FACT_KINDS = sizeof(FACTS) / sizeof(FACTS[0]) };

/* ---- the record ------------------------------------------------------------------------------------------- */

void own_record_begin(struct worker *w, const char *name, const char *command, size_t argc) {
    build_start(w, argc);
    build_text(w, command);
    lock_build_guard(w, name, strlen(name));
}

void own_record_submit(struct worker *w, const char *name, uint32_t login, bool repeatable, call_done_fn done) {
    struct request *r = request_internal(w);
    struct upstream_lane lane = {.login = login, .protocol = 2};
    w->own_works++;
    r->call.done = done;
    r->call.up.repeatable = repeatable;
    call_submit_lane(&r->call, slot_of_key(name, strlen(name)), &lane, w->build.data, w->build.len);
}

void own_record_done(struct call *c, const struct call_end *end) {
    invariant(c->request->worker->own_works > 0, "no work of the proxy's own is under way");
    c->request->worker->own_works--;
    request_reply(c->request, "", 0, true);
}

bool own_record_lost(struct worker *w, const char *name) {
    return upstream_node_lost(upstream_node_of_slot(w->upstream, slot_of_key(name, strlen(name))));
}

/* Sends the call that is in w->build. Each call may be sent again: an entry that is added twice says the same as
 * one. */
static void record_submit(struct worker *w, call_done_fn done) {
    own_record_submit(w, RECORD, 0, true, done);
}

/* Logs, once in the life of the process, why the record cannot be used. `why` is an error reply of Redis, or empty. */
static void log_useless(const char *why, size_t len) {
    static atomic_flag said = ATOMIC_FLAG_INIT;
    const char *end = memchr(why, '\r', len);
    len = end ? (size_t)(end - why) : len;
    if (!atomic_flag_test_and_set(&said))
        log_notice("What is learnt of clients is not shared, each run of the proxy learns it anew: %.*s",
                   (int)(len < ERROR_SHOWN_MAX ? len : ERROR_SHOWN_MAX), why);
}

/* ---- writing ---------------------------------------------------------------------------------------------- */

/* A note of what the engine has learnt. The engine calls with a shard locked, so the worker writes the entry after the
 * engine has returned. */
struct learnt_note {
    struct worker_job job; /* must be the first field */
    struct lock_facts facts;
    char names[];
};

static void written(struct call *c, const struct call_end *end) {
    if (!end->error && end->len > 0 && end->reply[0] == '-')
        log_useless(end->reply + 1, end->len - 1);
    own_record_done(c, end);
}

static void build_facts(struct worker *w, unsigned facts) {
    char text[FACTS_TEXT_MAX] = "";
    for (size_t i = 0; i < FACT_KINDS; i++)
        if (facts & FACTS[i].fact) {
            size_t len = strlen(text);
            snprintf(text + len, sizeof(text) - len, "%s%s", len ? " " : "", FACTS[i].name);
        }
    build_text(w, text);
}

static void note_run(struct worker *w, struct worker_job *job) {
    const struct lock_facts *f = &((struct learnt_note *)(void *)job)->facts;
    own_record_begin(w, RECORD, "XADD", 16);
    build_text(w, "MAXLEN");
    build_text(w, "~");
    build_number(w, RECORD_ENTRIES);
    build_text(w, "*");
    build_text(w, "is");
    build_facts(w, f->facts);
    build_text(w, "not");
    build_facts(w, f->over);
    build_text(w, "client");
    build_bulk(w, f->identity, f->identity_len);
    build_text(w, "rule");
    build_bulk(w, f->rule, f->rule_len);
    build_text(w, "pattern");
    build_bulk(w, f->pattern, f->pattern_len);
    record_submit(w, written);
    own_record_begin(w, RECORD, "PEXPIRE", 3);
    build_number(w, FACT_MS);
    record_submit(w, written);
}

void lock_note_learnt(void *arg, const struct lock_facts *facts) {
    struct learnt_note *note = memory_alloc(sizeof(*note) + facts->identity_len + facts->rule_len + facts->pattern_len);
    char *to = note->names;
    note->facts = *facts;
    note->facts.identity = memcpy(to, facts->identity, facts->identity_len);
    to += facts->identity_len;
    note->facts.rule = memcpy(to, facts->rule, facts->rule_len);
    to += facts->rule_len;
    note->facts.pattern = memcpy(to, facts->pattern, facts->pattern_len);
    note->job.run = note_run;
    worker_add_job(worker_here(), &note->job);
}

/* ---- reading ---------------------------------------------------------------------------------------------- */

/* Reads names of facts, separated by spaces. Unknown names come from a later version, and are skipped. */
static unsigned facts_read(const struct resp_item *text) {
    unsigned facts = 0;
    const char *p = text->str, *end = p + text->len;
    while (p < end) {
        const char *space = memchr(p, ' ', (size_t)(end - p));
        size_t len = (size_t)((space ? space : end) - p);
        for (size_t i = 0; i < FACT_KINDS; i++)
            if (strlen(FACTS[i].name) == len && memcmp(FACTS[i].name, p, len) == 0)
                facts |= FACTS[i].fact;
        p += len + 1;
    }
    return facts;
}

static bool is_text(const struct resp_item *item, const char *text) {
    return strlen(text) == item->len && memcmp(item->str, text, item->len) == 0;
}

/* Reads the fields of an entry from *p on: `count` texts, names and values by turns. Returns whether the fields name a
 * workload and a fact. */
static bool fields_read(const char **p, const char *over, int64_t count, struct lock_facts *f) {
    struct resp_item name, value;
    for (; count >= 2; count -= 2) {
        if (!resp_item_read(p, over, &name) || name.type != '$' || !resp_item_read(p, over, &value) ||
            value.type != '$')
            return false;
        if (is_text(&name, "is")) {
            f->facts = facts_read(&value);
        } else if (is_text(&name, "not")) {
            f->over = facts_read(&value);
        } else if (is_text(&name, "client")) {
            f->identity = value.str;
            f->identity_len = value.len;
        } else if (is_text(&name, "rule")) {
            f->rule = value.str;
            f->rule_len = value.len;
        } else if (is_text(&name, "pattern")) {
            f->pattern = value.str;
            f->pattern_len = value.len;
        }
    }
    return f->identity && f->rule && f->pattern && f->identity_len <= LOCK_IDENTITY_MAX && (f->facts || f->over);
}

/* Reads one entry from *p on. Copies its id to `last`, which has LEARNT_ID_MAX bytes. If `last` has this id already,
 * the entry is not taken again. Returns false if the bytes are no entry of a stream. */
static bool entry_read(struct worker *w, const char **p, const char *over, char *last) {
    struct resp_item pair, id, fields;
    const char *at = *p;
    *p = resp_item_end(at, over);
    if (!*p || !resp_item_read(&at, *p, &pair) || pair.type != '*' || pair.num != 2 || !resp_item_read(&at, *p, &id) ||
        id.type != '$' || id.len >= LEARNT_ID_MAX || !resp_item_read(&at, *p, &fields) || fields.type != '*')
        return false;
    bool seen = is_text(&id, last);
    memcpy(last, id.str, id.len);
    last[id.len] = '\0';
    int64_t age_ms = clock_wall_ms() - (int64_t)strtoll(last, NULL, 10); /* the id begins with the node's time */
    struct lock_facts facts = {.age_ms = age_ms > 0 ? age_ms : 0};
    if (!seen && fields_read(&at, *p, fields.num, &facts))
        engine_learnt(w->shared->engine, &facts, worker_now(w));
    return true;
}

/* Takes the entries since the last look. The range begins with the last entry that was read. If the range is empty, the
 * record was lost, and the next look reads from its beginning. */
static void looked(struct call *c, const struct call_end *end) {
    invariant(c->request->worker->locks->learnt.asking, "the record is read twice");
    struct worker *w = c->request->worker;
    struct learnt_look *l = &w->locks->learnt;
    const char *p = end->reply, *over = p ? p + end->len : p;
    struct resp_item array;
    bool answered = !end->error && resp_item_read(&p, over, &array), read = answered && array.type == '*';
    l->asking = false;
    l->refused = answered && !read;
    l->read |= answered;
    if (!answered)
        l->looked_ms = l->read ? l->looked_ms : 0; /* the first look is repeated after a second */
    else if (!read)
        log_useless(p && end->len > 1 ? end->reply + 1 : "", end->len > 1 ? end->len - 1 : 0);
    else if (array.num == 0)
        l->last[0] = '\0';
    for (int64_t i = 0; read && i < array.num && !w->stopping; i++)
        if (!entry_read(w, &p, over, l->last))
            break;
    if (read && array.num == ENTRIES_AT_ONCE && !w->stopping)
        learnt_begin(w);
    own_record_done(c, end);
}

void learnt_begin(struct worker *w) {
    struct learnt_look *l = &w->locks->learnt;
    l->asking = true;
    l->looked_ms = worker_now(w);
    own_record_begin(w, RECORD, "XRANGE", 6);
    build_text(w, l->last[0] ? l->last : "-");
    build_text(w, "+");
    build_text(w, "COUNT");
    build_number(w, ENTRIES_AT_ONCE);
    record_submit(w, looked);
}

/* Takes the newest entries. Redis sends the newest one first; the engine gets the oldest one first. The next look of
 * the first worker reads these entries once more. */
static void glanced(struct call *c, const struct call_end *end) {
    invariant(c->request->worker->locks->glancing, "the record is read twice");
    struct worker *w = c->request->worker;
    const char *p = end->reply, *over = p ? p + end->len : p, *entries[ENTRIES_NEWEST];
    char last[LEARNT_ID_MAX] = "";
    struct resp_item array;
    size_t count = 0;
    bool read = !end->error && resp_item_read(&p, over, &array) && array.type == '*' && !w->stopping;
    for (int64_t i = 0; read && p && i < array.num && count < ENTRIES_NEWEST; i++) {
        entries[count++] = p;
        p = resp_item_end(p, over);
    }
    while (count > 0)
        (void)entry_read(w, &entries[--count], over, last);
    w->locks->glancing = false;
    own_record_done(c, end);
}

/* C6: what another proxy has just learnt may decide about a release that is held back here. */
void learnt_glance(struct worker *w) {
    struct worker_locks *locks = w->locks;
    if (locks->glancing || w->stopping || !engine_elsewhere(w->shared->engine) ||
        worker_now(w) - locks->glanced_ms < GLANCE_MS || own_record_lost(w, RECORD))
        return;
    locks->glancing = true;
    locks->glanced_ms = worker_now(w);
    own_record_begin(w, RECORD, "XREVRANGE", 6);
    build_text(w, "+");
    build_text(w, "-");
    build_text(w, "COUNT");
    build_number(w, ENTRIES_NEWEST);
    record_submit(w, glanced);
}

/* Whether a look is due: each second while locks are in use, otherwise every IDLE_MS. So an idle proxy knows what the
 * others have learnt when clients come to it. */
static bool is_due(struct worker *w, int64_t now_ms) {
    struct learnt_look *l = &w->locks->learnt;
    uint64_t begun = engine_begun(w->shared->engine);
    if (begun != l->begun)
        l->active_ms = now_ms;
    l->begun = begun;
    int64_t pause_ms = l->refused ? REFUSED_MS : now_ms - l->active_ms < ACTIVE_MS ? 0 : IDLE_MS;
    return now_ms - l->looked_ms >= pause_ms;
}

void learnt_tick(struct worker *w) {
    if (w->index > 0 || w->locks->learnt.asking || w->stopping || !w->opened || !is_due(w, worker_now(w)) ||
        own_record_lost(w, RECORD))
        return;
    learnt_begin(w);
}
