/*
 * Fenced data: whether a session that writes the data has lost the lock of the data.
 *
 *      SET stock:1 5 ──> fence stock:* by lock:stock:* ──> the session's lease on lock:stock:1 ──┬─ none: as it came
 *                                                                                              └─ a fence
 *                                                                                                   │
 *      the client's reply <── the command's, if the guard record has no greater fence <── fence.lua <──┘
 *                         <── FENCED, and nothing was written, if it has one
 *
 * If the lock is in another slot of a cluster, its guard record is read first:
 *
 *      SET stock:1 5 ──> fence.lua in the lock's slot ──┬─ FENCED: nothing is written
 *                                                       └─ the lock's fence ──> fence.lua in the data's slot
 *      FENCED, or the command's reply <── the watermark beside the data: refused if it is greater, else raised <──┘
 *
 * S7: no step covers both slots. The look refuses a session that has lost the lock, as soon as another session has
 * acquired it. If that comes between the look and the write, the watermark refuses the write, once the new holder has
 * written data of this lock to the slot.
 *
 * Under `mode audit` the write is sent unchanged. A late write is recorded, according to what this process knows of the
 * lock. Under an enforced fence, Redis checks the lock in one step with the write.
 */
#include <string.h>

#include "parser/invariant.h"
#include "parser/slot.h"
#include "proxy/base/memory.h"
#include "proxy/lock/rule.h"
#include "proxy/session/fences/private.h"

enum { NAME_INSIDE = 256, REPLACED_MAX = 2, NOTED_MAX = 16, CHECKED_MAX = 256, ATTEMPTS_MAX = 32 };

#define MIXED    "ERR locks and fenced data in one command; nothing was written: send several"
#define UNKNOWN  "ERR the write of fenced data can't be checked with this command; nothing was written"
#define MANY     "ERR the write of fenced data can't be checked with so many keys; nothing was written: send several"
#define NO_LOCK  "ERR the lock of fenced data is none of a rule that is enforced; nothing was written"
#define OTHER    "ERR the lock of fenced data is in another slot than its key, and not held; nothing was written"
#define SEVERAL  "ERR fenced data of several slots in one command; nothing was written: send several"
#define CROSSES  "CROSSSLOT Keys in request don't hash to the same slot"
#define NO_SENSE "-UPSTREAM the answer about the lock of fenced data makes no sense; nothing was written\r\n"

/* ---- what is written ------------------------------------------------------------------------------- */

/* Whether the request may write. A script of the application is assumed to write. */
static bool writes(const struct request_class *k) {
    if (k->command->id == COMMAND_GETEX && k->request->argc == 2)
        return false;
    return script_is(k->command) || (k->command->flags & COMMAND_WRITE);
}

/* Whether the request writes the key at argument `at`. A command that stores a result only reads its source keys. */
static bool writes_key(const struct request_class *k, uint32_t at) {
    enum lock_row_keys replaces = lock_row_of(k->command)->replaces;
    if (replaces != REPLACES_FIRST && replaces != REPLACES_SECOND && replaces != REPLACES_STORE)
        return true;
    uint32_t found[REPLACED_MAX];
    size_t n = lock_clobbered_keys(k->command, k->request, k->bytes, found, REPLACED_MAX);
    for (size_t i = 0; i < n && i < REPLACED_MAX; i++)
        if (found[i] == at)
            return true;
    return false;
}

/* A fenced key, and its lock. */
struct fenced {
    const struct lock_rule *rule; /* the fence; NULL: the key has none */
    struct lock_key key, lock;
    char *name, inside[NAME_INSIDE];
};

/* Reads the number of a database; Redis answers the error if it is none. */
static bool database_at(const struct resp_request *r, const char *bytes, size_t at, uint32_t *db) {
    size_t len;
    int64_t n;
    const char *number = request_arg(r, bytes, at, &len);
    if (!resp_integer(number, len, &n) || n < 0 || n > INT32_MAX)
        return false;
    *db = (uint32_t)n;
    return true;
}

/* Finds the fence of key i, if the request writes the key. The caller calls fenced_clear afterwards. */
static bool fenced_find(struct fenced *f, struct session *s, const struct request_class *k, size_t i) {
    uint32_t db = session_db(s);
    size_t len;
    const char *key = class_key(k, i, &len);
    f->name = f->inside;
    f->rule = lock_guard_is(key, len) ? NULL : lock_rules_fence_of(s->worker->rules, key, len);
    if (!f->rule || !writes_key(k, k->keys[i]))
        return false;
    lock_clobbers_database(k->command, k->request, k->bytes, &db);
    f->key = (struct lock_key){.db = db, .name = key, .len = len};
    f->lock = (struct lock_key){.db = db, .len = lock_fence_lock(f->rule, key, len, f->inside, NAME_INSIDE)};
    if (f->lock.len > NAME_INSIDE) {
        f->name = memory_alloc(f->lock.len);
        lock_fence_lock(f->rule, key, len, f->name, f->lock.len);
    }
    f->lock.name = f->name;
    return true;
}

static void fenced_clear(struct fenced *f) {
    if (f->name != f->inside)
        memory_free(f->name);
}

/* ---- late writes ----------------------------------------------------------------------------------- */

/* Records a late write, which was passed on. */
static void late_note(struct session *s, const struct request_class *k, const struct fenced *f,
                      const struct lock_writing *w) {
    char command[LOCK_COMMAND_MAX], who[SESSION_ADDRESS_MAX + 72];
    struct text action = {0};
    invariant(w->how == WRITER_LATE && w->newest > w->fence, "S7: a late write has fence %llu, the newest is %llu",
              (unsigned long long)w->fence, (unsigned long long)w->newest);
    lock_command_text(command, k->bytes + k->request->argv[0].off, k->request->argv[0].len);
    session_who(s, who, sizeof(who));
    text_printf(&action, "passed on under audit: its lease on ");
    text_append_visible(&action, f->lock.name, f->lock.len);
    text_printf(&action, " (fence %llu) is over%s", (unsigned long long)w->fence, w->over_ms ? "" : ", and ");
    if (w->over_ms)
        text_printf(&action, " for %lld ms, and ", (long long)w->over_ms);
    text_printf(&action, "there was fence %llu since", (unsigned long long)w->newest);
    text_append(&action, "", 1);
    struct lock_incident on = {.time_ms = worker_now(s->worker),
                               .key = f->key,
                               .rule = f->rule->pattern,
                               .client = who,
                               .command = command,
                               .action = action.data};
    engine_late_write(s->worker->shared->engine, &s->lock, &f->lock, &on);
    text_clear(&action);
}

void fence_audit(struct session *s, const struct request_class *k) {
    size_t noted = 0;
    for (size_t i = 0; writes(k) && i < k->key_count && noted < NOTED_MAX; i++) {
        struct fenced f;
        if (fenced_find(&f, s, k, i) && f.rule->fence->mode == LOCK_MODE_AUDIT && f.lock.len > 0) {
            struct lock_writing w = engine_writing(s->worker->shared->engine, &s->lock, &f.lock, worker_now(s->worker));
            if (w.how == WRITER_LATE && w.newest > w.fence) {
                atomic_fetch_add_explicit(&f.rule->fence->late, 1, memory_order_relaxed);
                late_note(s, k, &f, &w);
                noted++;
            }
        }
        fenced_clear(&f);
    }
}

/* ---- what is enforced ------------------------------------------------------------------------------- */

/* Whether a request that can be checked may run inside a script. A script would round BITFIELD's numbers, cannot run
 * code, takes a limited number of arguments, and cannot pass on the replies of unknown commands safely. */
static bool in_script(const struct request_class *k) {
    const struct command *c = k->command;
    return c->need == NEED_KEY && c->id != COMMAND_UNKNOWN && c->id != COMMAND_BITFIELD &&
           !(c->flags & COMMAND_RUNS_CODE) && k->request->argc <= SCRIPT_ARGS_MAX && k->key_count <= SCRIPT_ARGS_MAX;
}

/* Whether the key's fence is enforced, and the write needs a question first. Sets *w to what the session has of the
 * lock. */
static bool has_to_ask(struct session *s, const struct fenced *f, struct lock_writing *w) {
    if (f->rule->fence->mode != LOCK_MODE_ENFORCE)
        return false;
    *w = engine_writing(s->worker->shared->engine, &s->lock, &f->lock, worker_now(s->worker));
    if (w->how != WRITER_NONE && !s->name && !atomic_load_explicit(&f->rule->fence->unnamed, memory_order_relaxed))
        atomic_store_explicit(&f->rule->fence->unnamed, true, memory_order_relaxed);
    return w->how != WRITER_NONE || f->rule->fence->unlocked == LOCK_UNLOCKED_REFUSE;
}

static bool is_elsewhere(struct session *s, const struct request_class *k, const struct lock_key *lock) {
    return upstream_is_cluster(s->worker->upstream) && slot_of_key(lock->name, lock->len) != k->slot;
}

static enum fence_verdict judge_key(struct session *s, const struct request_class *k, const struct fenced *f,
                                    const char **error) {
    struct lock_writing w;
    if (f->rule->fence->mode != LOCK_MODE_ENFORCE)
        return FENCE_NOTHING;
    if (lock_script_busy(s, f->lock.name, f->lock.len))
        return FENCE_LATER;
    *error = NO_LOCK;
    const struct lock_rule *rule = lock_rules_rule_of(s->worker->rules, f->lock.name, f->lock.len);
    if (f->lock.len == 0 || f->lock.len > LOCK_NAME_MAX || !rule || rule->mode != LOCK_MODE_ENFORCE)
        return FENCE_REFUSED;
    if (!has_to_ask(s, f, &w))
        return FENCE_NOTHING;
    *error = k->slot != SLOT_SEVERAL ? OTHER : k->command->split == SPLIT_NONE ? CROSSES : SEVERAL;
    bool nothing_to_compare = (s->queues || k->enforced) && w.how == WRITER_NONE && is_elsewhere(s, k, &f->lock);
    return k->slot < 0 || nothing_to_compare ? FENCE_REFUSED : FENCE_CHECKED;
}

/* Returns what all keys together demand. Sets *asks to the number of keys that need a question. */
static enum fence_verdict judge_keys(struct session *s, const struct request_class *k, size_t *asks,
                                     const char **error) {
    enum fence_verdict verdict = FENCE_NOTHING;
    *asks = 0;
    for (size_t i = 0; i < k->key_count; i++) {
        struct fenced f;
        const char *why = NULL;
        bool fenced = fenced_find(&f, s, k, i);
        enum fence_verdict of_key = fenced ? judge_key(s, k, &f, &why) : FENCE_NOTHING;
        if (fenced && of_key == FENCE_NOTHING && k->command->id == COMMAND_MOVE && k->request->argc == 3 &&
            database_at(k->request, k->bytes, 2, &f.lock.db)) /* it writes to a second database */
            of_key = judge_key(s, k, &f, &why);
        fenced_clear(&f);
        if (of_key == FENCE_LATER)
            return FENCE_LATER;
        *asks += of_key == FENCE_CHECKED;
        if (of_key == FENCE_REFUSED && verdict != FENCE_REFUSED)
            *error = why;
        if (of_key > verdict)
            verdict = of_key;
    }
    return verdict;
}

const char *fence_refuses_databases(struct session *s, const struct command *c, const struct resp_request *r,
                                    const char *bytes) {
    if (c->id != COMMAND_SWAPDB || r->argc != 3 || lock_rules_fence_count(s->worker->rules) == 0)
        return NULL;
    uint32_t db;
    for (size_t i = 1; i < 3; i++)
        if (database_at(r, bytes, i, &db) && engine_has_tenure(s->worker->shared->engine, &s->lock, db))
            return UNKNOWN;
    return NULL;
}

/* Returns the slot of the keys that are no locks. */
static int data_slot(const struct session *s, const struct request_class *k) {
    int slot = SLOT_NONE;
    for (size_t i = 0; i < k->key_count; i++) {
        size_t len;
        const char *key = class_key(k, i, &len);
        int own = upstream_is_cluster(s->worker->upstream) ? slot_of_key(key, len) : 0;
        if (class_enforced(k, i))
            continue;
        if (slot != SLOT_NONE && slot != own)
            return SLOT_SEVERAL;
        slot = own;
    }
    return slot;
}

enum fence_verdict fence_judge(struct session *s, const struct request_class *k, const char **error) {
    struct lock_command lc;
    struct nonblocking_form as;
    struct request_class data;
    size_t asks;
    uint32_t db;
    if (!k->fenced || !writes(k))
        return FENCE_NOTHING;
    bool removes = k->command->id == COMMAND_DEL || k->command->id == COMMAND_UNLINK;
    bool apart = removes && k->enforced && !k->audited && !s->queues; /* locks and data, which are served apart */
    if (apart) {
        data = *k;
        data.slot = data_slot(s, k);
        k = &data;
    }
    enum fence_verdict verdict = judge_keys(s, k, &asks, error);
    if (verdict != FENCE_CHECKED)
        return verdict;
    /* MOVE, and COPY with DB, write in a database where another lock applies. MIGRATE and PFDEBUG are for operators. */
    bool checkable = k->command->id != COMMAND_MIGRATE && k->command->id != COMMAND_MOVE &&
                     k->command->id != COMMAND_PFDEBUG &&
                     !lock_clobbers_database(k->command, k->request, k->bytes, &db);
    if (!checkable || (s->queues && !in_script(k) && !nonblocking_form_unblocked(k, &as)))
        *error = UNKNOWN;
    else if (asks > CHECKED_MAX)
        *error = MANY;
    else if (apart)
        return FENCE_APART;
    else if (k->audited || lock_meaning_of(k, &lc) != MEANS_NOTHING)
        *error = MIXED;
    else
        return FENCE_CHECKED;
    return FENCE_REFUSED;
}

/* ---- the question ----------------------------------------------------------------------------------- */

void fence_forget(struct fence_question *q) {
    if (!q)
        return;
    fence_looks_forget(q->looks);
    lock_rules_unref(q->rules);
    text_clear(&q->names);
    text_clear(&q->head);
    text_clear(&q->tail);
    memory_free(q);
}

static void question_owner_free(struct request_owner *owner) {
    fence_forget((struct fence_question *)(void *)owner);
}

/* Gives up a write whose session has closed before it was sent. */
static void question_left(struct request *r) {
    struct fence_question *q = REQUEST_OWNER(r, struct fence_question);
    if (!q->looks)
        return;
    request_disown(r);
    fence_forget(q);
    request_reply(r, "", 0, true);
}

static const struct request_owner_ops question_ops = {.left = question_left, .free = question_owner_free};

static struct fence_question *question_new(struct session *s, const struct request_class *k) {
    struct fence_question *q = memory_zalloc(sizeof(*q) + k->key_count * sizeof(q->keys[0]));
    q->rules = lock_rules_ref(s->worker->rules);
    q->slot = k->slot;
    q->id = k->command->id;
    q->array = q->id == COMMAND_LMPOP || q->id == COMMAND_ZMPOP ||
               ((q->id == COMMAND_LPOP || q->id == COMMAND_RPOP) && k->request->argc > 2) ||
               (k->command->need == NEED_BLOCKING && q->id != COMMAND_BLMOVE && q->id != COMMAND_BRPOPLPUSH);
    q->protocol = s->lane.protocol;
    lock_command_text(q->command, k->bytes + k->request->argv[0].off, k->request->argv[0].len);
    session_who(s, q->who, sizeof(q->who));
    /* the keys that need a question: first those with the lock in the data's slot, then those with it elsewhere */
    for (int elsewhere = 0; elsewhere <= 1; elsewhere++) {
        for (size_t i = 0; i < k->key_count && q->count < k->key_count; i++) {
            struct fenced f;
            struct asked *a = &q->keys[q->count];
            if (fenced_find(&f, s, k, i) && has_to_ask(s, &f, &a->writing) &&
                is_elsewhere(s, k, &f.lock) == elsewhere) {
                *a = (struct asked){.rule = f.rule,
                                    .db = f.key.db,
                                    .writing = a->writing,
                                    .mark = a->writing.fence,
                                    .key = q->names.len,
                                    .key_len = f.key.len,
                                    .lock = q->names.len + f.key.len,
                                    .lock_len = f.lock.len};
                text_append(&q->names, f.key.name, f.key.len);
                text_append(&q->names, f.lock.name, f.lock.len);
                q->count++;
            }
            fenced_clear(&f);
        }
        if (!elsewhere)
            q->here = q->count;
    }
    return q;
}

bool fence_awaits(const struct request_class *k) {
    return k->command->need == NEED_BLOCKING && command_blocks(k->command, k->bytes, k->request);
}

const char *fence_words(struct session *s, const struct request_class *k) {
    const char *error = "";
    struct fence_question *q;
    bool elsewhere;
    switch (fence_judge(s, k, &error)) {
    case FENCE_NOTHING:
        return "passes as it came";
    case FENCE_LATER:
        return "waits for this session's commands on the lock";
    case FENCE_CHECKED:
        if (fence_awaits(k))
            return "asks whether the lock has had another holder, in one step with an attempt that does not block, and "
                   "again until something comes";
        q = question_new(s, k);
        elsewhere = fence_is_elsewhere(q);
        fence_forget(q);
        return elsewhere ? "looks at the lock, and asks in one step with the write whether a later holder has written"
                         : "asks in one step with the write whether the lock has had another holder";
    case FENCE_APART:
        return "asks in one step with the removal of the data whether the lock has had another holder, and releases "
               "then";
    case FENCE_REFUSED:
        break;
    }
    return error;
}

/* Whether the command replies with types that only RESP3 has (doubles, sets), to a client of RESP3. Some other commands
 * reply with arrays that contain nil. In RESP3, a script cuts such an array off at the nil, so the script uses RESP2
 * for these commands. */
static bool is_typed(const struct fence_question *q) {
    enum command_id id = q->id;
    return q->protocol == 3 && (id == COMMAND_ZADD || id == COMMAND_ZINCRBY || id == COMMAND_ZPOPMIN ||
                                id == COMMAND_ZPOPMAX || id == COMMAND_ZMPOP || id == COMMAND_BZPOPMIN ||
                                id == COMMAND_BZPOPMAX || id == COMMAND_BZMPOP || id == COMMAND_SPOP);
}

/* Adds the name of a lock's watermark in the slot of the data: lockkeeper:{TAG}:{TAG}:LOCK. The watermark is named like
 * the guard record of a key {TAG}:LOCK. */
static void build_watermark(struct worker *w, const struct fence_question *q, const struct asked *a) {
    struct text key = {0};
    text_printf(&key, "{%s}:", slot_tag((uint16_t)q->slot));
    text_append(&key, q->names.data + a->lock, a->lock_len);
    lock_build_guard(w, key.data, key.len);
    text_clear(&key);
}

/* The part of a question that one node is asked: the keys from index `at` on. The first `guards` keys are checked by
 * their guard records, the next `marks` keys by their watermarks. */
struct part {
    const struct fence_question *q;
    size_t at, guards, marks;
};

static struct part whole(const struct fence_question *q) {
    invariant(q->here <= q->count, "%zu locks of %zu are here", q->here, q->count);
    return (struct part){q, 0, q->here, q->count - q->here};
}

/* Begins the call of fence.lua in w->build, up to the fences; the caller calls build_fences next. The call has the keys
 * of `k` (NULL: none), whose form is `as`, and `words` arguments of the command behind the fences. */
static void build_head(struct session *s, struct lock_queue *queue, const struct part *p, const struct request_class *k,
                       const struct nonblocking_form *as, size_t words) {
    struct worker *w = s->worker;
    const struct asked *a = p->q->keys + p->at;
    size_t len;
    invariant(p->at + p->guards + p->marks <= p->q->count, "%zu locks of %zu are asked about", p->guards + p->marks,
              p->q->count);
    lock_build_script(w, SCRIPT_FENCE, queue, 2 * p->guards + p->marks + (k ? k->key_count : 0),
                      4 + p->guards + p->marks + words);
    for (size_t i = 0; i < p->guards; i++, a++) {
        lock_build_guard(w, p->q->names.data + a->lock, a->lock_len);
        build_bulk(w, p->q->names.data + a->lock, a->lock_len);
    }
    for (size_t i = 0; i < p->marks; i++, a++)
        build_watermark(w, p->q, a);
    for (size_t i = 0; k && i < k->key_count; i++) {
        const char *key = class_key(k, i, &len);
        build_bulk(w, key, len);
    }
    const char *identity = lock_client_name(s->lock.client, &len);
    build_number(w, (int64_t)p->guards);
    if (as && as->each)
        build_text(w, is_typed(p->q) ? "3 each" : "2 each");
    else
        build_text(w, is_typed(p->q) ? "3" : "2");
    build_bulk(w, identity, len);
    build_number(w, (int64_t)p->marks);
}

static void build_fences(struct session *s, const struct part *p) {
    const struct asked *a = p->q->keys + p->at;
    for (size_t i = 0; i < p->guards + p->marks; i++, a++) {
        if (i < p->guards && a->mine_len > 0)
            build_bulk(s->worker, p->q->names.data + a->mine, a->mine_len);
        else
            build_number(s->worker, (int64_t)(i < p->guards ? a->writing.fence : a->mark));
    }
}

/* Builds what follows the fences. */
static void question_tail(struct session *s, const struct request_class *k, const struct nonblocking_form *as) {
    if (as->name)
        build_text(s->worker, as->name);
    for (size_t i = as->first; i < as->end; i++)
        build_bulk(s->worker, k->bytes + k->request->argv[i].off, k->request->argv[i].len);
}

#define REFUSES "-FENCED "

/* The refusal of fence.lua. */
struct refusal {
    const struct asked *key;
    uint64_t now; /* the fence of the lock's last lease; 0: the lock has no guard record */
    const char *owner;
    size_t owner_len;
};

static bool take_number(const char **p, const char *end, uint64_t *n) {
    const char *blank = memchr(*p, ' ', (size_t)(end - *p));
    int64_t number;
    if (!blank || !resp_integer(*p, (size_t)(blank - *p), &number) || number < 0)
        return false;
    *n = (uint64_t)number;
    *p = blank + 1;
    return true;
}

bool fence_refuses(const char *reply, size_t len) {
    return reply_begins(reply, len, REFUSES);
}

static bool refusal_read(const struct fence_question *q, size_t at, const char *reply, size_t len, struct refusal *r) {
    const char *p = reply + sizeof(REFUSES) - 1, *stop = reply + len - 2;
    uint64_t i;
    if (!fence_refuses(reply, len) || !take_number(&p, stop, &i) || !take_number(&p, stop, &r->now) || i < 1 ||
        i > q->count - at)
        return false;
    invariant(at + i <= q->count, "S7: the refusal names lock %llu of %zu", (unsigned long long)i, q->count);
    r->key = &q->keys[at + i - 1];
    r->owner = p;
    r->owner_len = (size_t)(stop - p);
    return true;
}

static void question_refused(struct session *s, const struct fence_question *q, const struct refusal *r,
                             struct text *out) {
    invariant(r->key >= q->keys && r->key < q->keys + q->count, "S7: a refusal names a lock that was not asked about");
    struct lock_fence *fence = r->key->rule->fence;
    const struct lock_writing *w = &r->key->writing;
    bool late = w->how != WRITER_NONE;
    struct text error = {0}; /* the incident has the same text, and names the client as well */
    text_printf(&error, "FENCED %s", late ? "the lease on " : "");
    text_append_visible(&error, q->names.data + r->key->lock, r->key->lock_len);
    if (late && r->now)
        text_printf(&error, " is over (fence %llu, now %llu)", (unsigned long long)w->fence,
                    (unsigned long long)r->now);
    else if (late)
        text_printf(&error, " is over (fence %llu, its record is gone)", (unsigned long long)w->fence);
    else
        text_printf(&error, " is not held by this client");
    text_printf(&error, "; nothing was written");
    text_append(&error, "", 1);
    atomic_fetch_add_explicit(&fence->refused, 1, memory_order_relaxed);
    if (late)
        atomic_fetch_add_explicit(&fence->late, 1, memory_order_relaxed);
    if (late && s) {
        struct lock_key key = {r->key->db, q->names.data + r->key->key, r->key->key_len};
        struct lock_key lock = {r->key->db, q->names.data + r->key->lock, r->key->lock_len};
        struct text action = {0};
        text_printf(&action, "refused: %s", error.data + sizeof("FENCED"));
        text_append(&action, "", 1);
        struct lock_incident on = {.time_ms = worker_now(s->worker),
                                   .key = key,
                                   .rule = r->key->rule->pattern,
                                   .client = q->who,
                                   .holder = r->owner_len ? r->owner : NULL,
                                   .holder_len = r->owner_len,
                                   .command = q->command,
                                   .action = action.data};
        engine_late_write(s->worker->shared->engine, &s->lock, &lock, &on);
        text_clear(&action);
    }
    text_printf(out, "-%s\r\n", error.data);
    text_clear(&error);
}

/* fence_reply for a call of fence.lua whose first key is the question's key `at`. */
static void fence_reply_from(struct session *s, const struct fence_question *q, size_t at, const char *reply,
                             size_t len, struct text *out) {
    struct refusal refusal;
    if (refusal_read(q, at, reply, len, &refusal)) {
        question_refused(s, q, &refusal, out);
        return;
    }
    /* the command's own reply, as it would have been outside of a script */
    char error[LOCK_ANSWER_MAX];
    struct lock_envelope e = {.reply = reply, .reply_len = len};
    struct resp_item item;
    const char *p = reply;
    bool counts = q->id == COMMAND_INCR || q->id == COMMAND_INCRBY || q->id == COMMAND_DECR ||
                  q->id == COMMAND_DECRBY || q->id == COMMAND_HINCRBY;
    if (reply[0] == '-')
        lock_error_words(&e, error);
    if (counts && reply[0] == '$' && resp_item_read(&p, p + len, &item) &&
        !item.null) /* the number is beyond what a script can return as an integer */
        text_printf(out, ":%.*s\r\n", (int)item.len, item.str);
    else if (q->array && len == 5 && memcmp(reply, "$-1\r\n", 5) == 0)
        text_append(out, "*-1\r\n", 5);
    else
        text_append(out, e.reply, e.reply_len);
}

void fence_reply(struct session *s, const struct fence_question *q, const char *reply, size_t len, struct text *out) {
    fence_reply_from(s, q, 0, reply, len, out);
}

static void question_done(struct call *c, const struct call_end *end) {
    struct request *request = c->request;
    struct fence_question *q = REQUEST_OWNER(request, struct fence_question);
    request_disown(request);
    if (end->error) {
        request_fail(request, end->error);
    } else {
        struct text out = {0};
        fence_reply(request->session, q, end->reply, end->len, &out);
        request_reply(request, out.data, out.len, true);
        text_clear(&out);
    }
    fence_forget(q);
}

/* Writes the fence that the session may write with, and the tokens of the attempts that are queued before the write.
 * The session may write with a lease of its own. A lease that another session of its client has does not count: the
 * session's own attempt asks for the lock anew. If there are more than ATTEMPTS_MAX attempts, the first one and the
 * last ones count. */
static void name_attempts(const struct lock_queue *queue, struct fence_question *q, struct asked *a) {
    struct lock_key lock = {.db = a->db, .name = q->names.data + a->lock, .len = a->lock_len};
    const struct list_node *node = &queue->calls;
    const char *token;
    invariant(a >= q->keys && a < q->keys + q->here, "a lock in another slot is acquired in a transaction");
    size_t attempts = 0;
    while (lock_queue_attempt(queue, &node, &lock))
        attempts++;
    if (attempts == 0)
        return;
    if (!a->writing.own)
        a->writing = (struct lock_writing){.how = WRITER_NONE};
    struct text mine = {0};
    text_printf(&mine, "%llu", (unsigned long long)a->writing.fence);
    node = &queue->calls;
    for (size_t at = 0; (token = lock_queue_attempt(queue, &node, &lock)); at++)
        if (at == 0 || at + ATTEMPTS_MAX > attempts)
            text_printf(&mine, " %s", token);
    a->mine = q->names.len;
    a->mine_len = mine.len;
    text_append(&q->names, mine.data, mine.len);
    text_clear(&mine);
}

static struct fence_question *question_of(struct session *s, struct lock_queue *queue, const struct request_class *k) {
    struct fence_question *q = question_new(s, k);
    /* a lock in another slot cannot be acquired in the same transaction */
    for (size_t i = 0; queue && i < q->here; i++)
        name_attempts(queue, q, &q->keys[i]);
    return q;
}

struct fence_question *fence_prepare(struct session *s, struct lock_queue *queue, const struct request_class *k) {
    struct fence_question *q = question_of(s, queue, k);
    struct part p = whole(q);
    struct nonblocking_form as = {.end = k->request->argc};
    session_note_overlap(s);
    if (k->command->need == NEED_BLOCKING && !nonblocking_form_unblocked(k, &as))
        as = (struct nonblocking_form){.end = k->request->argc};
    build_head(s, queue, &p, k, &as, (as.name != NULL) + as.end - as.first);
    build_fences(s, &p);
    question_tail(s, k, &as);
    return q;
}

struct fence_question *fence_watch(struct session *s, const struct request_class *k) {
    struct fence_question *q = question_of(s, NULL, k);
    build_start(s->worker, 1 + q->count);
    build_text(s->worker, "WATCH");
    for (size_t i = 0; i < q->here; i++)
        lock_build_guard(s->worker, q->names.data + q->keys[i].lock, q->keys[i].lock_len);
    for (size_t i = q->here; i < q->count; i++)
        build_watermark(s->worker, q, &q->keys[i]);
    return q;
}

void fence_ask(struct session *s, const struct fence_question *q) {
    struct lock_queue queue = {.sources = 0};
    struct part p = whole(q);
    build_head(s, &queue, &p, NULL, NULL, 1);
    build_fences(s, &p);
    build_text(s->worker, "PING");
}

/* ---- locks in other slots ------------------------------------------------------------------------------ */

struct fence_looks {
    struct session *session; /* NULL: the session no longer needs the answers */
    fence_looked_fn done;
    void *arg;
    size_t left;       /* how many answers are still to come, plus 1 until all looks are sent */
    struct text error; /* the first error, for the client; empty: there is none */
};

/* One look under way. */
struct look {
    struct request_owner owner; /* must be the first field */
    struct fence_looks *looks;
    struct fence_question *question;
    size_t at; /* the index of the key in the question */
};

bool fence_is_elsewhere(const struct fence_question *q) {
    return q->here < q->count;
}

struct fence_looks *fence_looks_new(struct session *s, fence_looked_fn done, void *arg) {
    struct fence_looks *l = memory_alloc(sizeof(*l));
    *l = (struct fence_looks){.session = s, .done = done, .arg = arg, .left = 1};
    return l;
}

/* Takes each answer of a look, and is called once when all looks are sent: the looks that are being sent count as one.
 */
void fence_looks_go(struct fence_looks *l) {
    invariant(l->left > 0, "more answers come than looks were sent");
    if (--l->left > 0)
        return;
    if (l->session)
        l->done(l->arg, l->error.len > 0 ? l->error.data : NULL, l->error.len);
    text_clear(&l->error);
    memory_free(l);
}

void fence_looks_forget(struct fence_looks *l) {
    if (l)
        l->session = NULL;
}

/* Takes an answer: the fence of the lock's last lease, or an error that forbids the write. */
static void look_read(const struct look *look, const struct call_end *end) {
    struct fence_looks *l = look->looks;
    struct asked *a = &look->question->keys[look->at];
    invariant(look->at >= look->question->here && look->at < look->question->count, "look %zu of %zu", look->at,
              look->question->count);
    struct resp_item item;
    const char *p = end->reply;
    int64_t fence;
    if (end->error)
        text_printf(&l->error, "-UPSTREAM the lock of fenced data can't be looked at; nothing was written: %s\r\n",
                    end->error);
    else if (end->reply[0] == '-')
        fence_reply_from(l->session, look->question, look->at, end->reply, end->len, &l->error);
    else if (!resp_item_read(&p, p + end->len, &item) || item.type != '$' || item.null ||
             !resp_integer(item.str, item.len, &fence) || fence <= 0)
        text_printf(&l->error, NO_SENSE);
    else if (a->writing.how == WRITER_NONE)
        a->mark = (uint64_t)fence;
}

static void look_done(struct call *c, const struct call_end *end) {
    struct request *r = c->request;
    struct look *look = REQUEST_OWNER(r, struct look);
    struct fence_looks *l = look->looks;
    if (l->session && l->error.len == 0)
        look_read(look, end);
    request_disown(r);
    memory_free(look);
    request_reply(r, "", 0, true);
    fence_looks_go(l);
}

void fence_looks_add(struct fence_looks *l, struct fence_question *q) {
    struct worker *w = l->session->worker;
    struct upstream_lane lane = l->session->lane;
    invariant(l->left > 0 && q->here <= q->count, "%zu locks of %zu are here", q->here, q->count);
    lane.dedicated = 0; /* the dedicated connection may be in MULTI */
    for (size_t i = q->here; i < q->count; i++) {
        const struct asked *a = &q->keys[i];
        struct request *r = request_internal(w, look_done);
        struct look *look = memory_alloc(sizeof(*look));
        *look = (struct look){.looks = l, .question = q, .at = i};
        l->left++;
        request_own(r, &look->owner, &request_owner_silent);
        r->call.up.script = script_get(SCRIPT_FENCE);
        struct part p = {q, i, 1, 0};
        build_head(l->session, NULL, &p, NULL, NULL, 3); /* fence.lua answers the fence of the lock's last lease */
        build_fences(l->session, &p);
        build_text(w, "HGET");
        lock_build_guard(w, q->names.data + a->lock, a->lock_len);
        build_text(w, "fence");
        call_submit_lane(&r->call, slot_of_key(q->names.data + a->lock, a->lock_len), &lane, w->build.data,
                         w->build.len);
    }
}

/* ---- sending ----------------------------------------------------------------------------------------- */

static void question_send(struct request *request, const struct fence_question *q) {
    struct worker *w = request->worker;
    request->call.done = question_done;
    request->call.up.script = script_get(SCRIPT_FENCE);
    call_submit(&request->call, q->slot, w->build.data, w->build.len);
}

static void question_looked(void *arg, const char *error, size_t len) {
    struct request *request = arg;
    struct fence_question *q = REQUEST_OWNER(request, struct fence_question);
    struct part p = whole(q);
    struct worker *w = request->worker;
    invariant(q->looks && request->session, "an answer about a lock comes twice");
    q->looks = NULL;
    if (error) {
        request_disown(request);
        request_reply(request, error, len, true);
        fence_forget(q);
        return;
    }
    w->build.len = 0;
    text_append(&w->build, q->head.data, q->head.len);
    build_fences(request->session, &p);
    text_append(&w->build, q->tail.data, q->tail.len);
    question_send(request, q);
}

enum dispatch_result fence_dispatch(struct session *s, const struct request_class *k) {
    if (!in_script(k)) {
        if (s->in_flight > 0)
            return DISPATCH_WAIT;
        fence_transaction_dispatch(s, k);
        return DISPATCHED;
    }
    struct worker *w = s->worker;
    counter_add(&w->counters.requests_locks, 1);
    struct request *request = request_new(s, k->command);
    struct fence_question *q = question_of(s, NULL, k);
    struct part p = whole(q);
    session_note_overlap(s);
    request_barrier(request);
    request_own(request, &q->owner, &question_ops);
    struct nonblocking_form as = {.end = k->request->argc};
    build_head(s, NULL, &p, k, &as, (as.name != NULL) + as.end - as.first);
    if (fence_is_elsewhere(q)) { /* the call is kept until the locks in other slots were looked at */
        text_append(&q->head, w->build.data, w->build.len);
        w->build.len = 0;
        question_tail(s, k, &as);
        text_append(&q->tail, w->build.data, w->build.len);
        q->looks = fence_looks_new(s, question_looked, request);
        fence_looks_add(q->looks, q);
        fence_looks_go(q->looks);
        return DISPATCHED;
    }
    build_fences(s, &p);
    question_tail(s, k, &as);
    question_send(request, q);
    return DISPATCHED;
}
