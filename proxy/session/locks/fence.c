/*
 * Fenced data: whether who writes it has lost the lock that it is written under.
 *
 *      SET stock:1 5 ──> fence stock:* by lock:stock:* ──> what the session has of lock:stock:1 ──> late, or not
 *
 * Under `mode audit` the write goes on as it came, and a late one is recorded, by what this process knows of the lock.
 */
#include <string.h>

#include "proxy/base/memory.h"
#include "proxy/lock/fence.h"
#include "proxy/session/locks/private.h"

enum { NAME_INSIDE = 256, REPLACED_MAX = 2, NOTED_MAX = 16 };

/* ---- what is written ------------------------------------------------------------------------------- */

/* Whether the request writes anything; an application's script is taken to. */
static bool writes(const struct request_class *k) {
    if (k->command->id == COMMAND_GETEX && k->request->argc == 2)
        return false;
    return script_is(k->command) || (k->command->flags & COMMAND_WRITE);
}

/* Whether the request writes the key at argument `at`. What stores a result only reads its sources. */
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

/* A key that is fenced, and its lock. */
struct fenced {
    const struct lock_rule *rule; /* the fence; NULL: the key is none */
    struct lock_key key, lock;
    char *name, inside[NAME_INSIDE];
};

/* Finds the fence of key i, if the request writes it. fenced_clear afterwards. */
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

static void command_text(const struct request_class *k, char out[LOCK_COMMAND_MAX]) {
    size_t len, i;
    const char *name = request_arg(k->request, k->bytes, 0, &len);
    for (i = 0; i < len && i < LOCK_COMMAND_MAX - 1; i++)
        out[i] = name[i] >= 'a' && name[i] <= 'z' ? (char)(name[i] - 'a' + 'A') : name[i];
    out[i] = '\0';
}

/* Records a late write, with what was done. */
static void late_note(struct session *s, const struct request_class *k, const struct fenced *f,
                      const struct lock_writing *w, const char *done) {
    char command[LOCK_COMMAND_MAX], who[SESSION_ADDRESS_MAX + 72];
    struct text action = {0};
    command_text(k, command);
    session_who(s, who, sizeof(who));
    text_printf(&action, "%s: its lease on ", done);
    text_append_visible(&action, f->lock.name, f->lock.len);
    text_printf(&action, " (fence %llu) is over%s", (unsigned long long)w->fence, w->over_ms ? "" : ", and ");
    if (w->over_ms)
        text_printf(&action, " for %lld ms, and ", (long long)w->over_ms);
    text_printf(&action, "there was fence %llu since", (unsigned long long)w->newest);
    text_append(&action, "", 1);
    engine_late_write(s->worker->shared->engine, &s->lock, &f->key, &f->lock, f->rule->pattern, command, who, NULL, 0,
                      action.data, worker_now(s->worker));
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
                late_note(s, k, &f, &w, "passed on under audit");
                noted++;
            }
        }
        fenced_clear(&f);
    }
}
