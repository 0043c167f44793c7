/*
 * The queues of sessions that wait for locks, under one mutex. Only commands on locks whose rule says `wait` take it,
 * for short steps. Exception: a waiter's place is searched in its queue, from the end, where nearly all waiters belong.
 *
 * A lease may be released after it has refused an attempt, and before that attempt's thread joins the queue: no waiter
 * is called then. So the last releases are remembered, whether or not a session waits.
 */
#include "proxy/lock/waiting.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "proxy/base/memory.h"
#include "proxy/base/mutex.h"

enum {
    KEPT_MAX = 65536,     /* places kept for sessions that may come back; the oldest place goes first */
    FREED = 4096,         /* places in the memory of releases */
    PATIENCE_MS = 4,      /* the first waiter waits so long for an earlier waiter at another proxy, */
    PATIENCE_MAX_MS = 64, /* and twice as long, up to this, each time that waiter came */
    CIRCLE_MAX = 64,      /* sessions that are looked at for a circle */
    SHOWN_MAX = 64        /* bytes of a name */
};

/* A place kept for a session whose time was over. */
struct kept_place {
    struct list_node link;   /* of its queue */
    struct list_node by_age; /* of all */
    struct waiting_queue *queue;
    uint64_t session, place;
    int64_t until_ms;
};

struct waiting_queue {
    struct table_link link;
    uint64_t hash;
    struct list_node waiters; /* by place */
    struct list_node kept;
    size_t count;
    struct waiter *trying;  /* its attempt is under way; NULL: none. A waiter on its last try does not count */
    bool again;             /* a release was seen meanwhile */
    uint64_t asked, proven; /* attempts sent; the newest attempt that is known to have found the lock held */
    uint64_t fence;         /* of the lease that was met last */
    int64_t look_ms;        /* when the first waiter is to try if nothing happens before; 0: not known */
    int64_t elsewhere_ms;   /* since when a session waits at another proxy, as far as is known, or WAITING_NOBODY */
    struct lock_key key;
    char name[];
};

struct freed {
    uint64_t hash, fence;
    int64_t patience_ms; /* how long the first waiter here waits for another proxy's attempt; 0: PATIENCE_MS */
};

struct waiting {
    pthread_mutex_t mutex;
    struct table queues, sessions; /* sessions: waiters, by their session */
    struct list_node kept;         /* oldest first */
    size_t kept_count;
    atomic_size_t count;
    void (*wake)(void *arg, unsigned thread);
    void *arg;
    struct freed freed[FREED];
    struct list_node mail[]; /* of each thread: struct waiter */
};

static uint64_t queue_hash(const struct table_link *link) {
    return LIST_ENTRY(link, struct waiting_queue, link)->hash;
}

static uint64_t session_hash(const struct table_link *link) {
    return LIST_ENTRY(link, struct waiter, by_session)->session; /* ids are consecutive numbers */
}

struct waiting *waiting_new(unsigned threads, void (*wake)(void *arg, unsigned thread), void *arg) {
    struct waiting *t = memory_zalloc(sizeof(*t) + threads * sizeof(t->mail[0]));
    pthread_mutex_init(&t->mutex, NULL);
    table_init(&t->queues, queue_hash);
    table_init(&t->sessions, session_hash);
    list_init(&t->kept);
    t->wake = wake;
    t->arg = arg;
    for (unsigned i = 0; i < threads; i++)
        list_init(&t->mail[i]);
    return t;
}

/* ---- queues -------------------------------------------------------------------------------------------- */

static struct waiting_queue *queue_find(struct waiting *t, const struct lock_key *key, uint64_t hash) {
    TABLE_CHAIN(q, &t->queues, hash, struct waiting_queue, link)
        if (q->hash == hash && q->key.db == key->db && q->key.len == key->len &&
            memcmp(q->name, key->name, key->len) == 0)
            return q;
    return NULL;
}

static void queue_settle(struct waiting *t, struct waiting_queue *q) {
    if (!list_empty(&q->waiters) || !list_empty(&q->kept))
        return;
    table_remove(&t->queues, &q->link, q->hash);
    memory_free(q);
}

/* The first waiter of the queue that is not trying for the last time; NULL: there is none. */
static struct waiter *first_of(const struct waiting_queue *q) {
    LIST_EACH(w, &q->waiters, struct waiter, link)
        if (!w->last)
            return w;
    return NULL;
}

/* ---- places that are kept ------------------------------------------------------------------------------ */

static void kept_remove(struct waiting *t, struct kept_place *k) {
    invariant(t->kept_count > 0, "no place is kept");
    struct waiting_queue *q = k->queue;
    list_remove(&k->link);
    list_remove(&k->by_age);
    t->kept_count--;
    memory_free(k);
    queue_settle(t, q);
}

/* Forgets places for which no session has come back. The rules keep places for different times, so the list is not
 * quite in the order of the places' ends. */
static void kept_trim(struct waiting *t, int64_t now_ms) {
    for (struct kept_place *k; (k = LIST_FIRST(&t->kept, struct kept_place, by_age));) {
        if (k->until_ms > now_ms && t->kept_count <= KEPT_MAX)
            break;
        kept_remove(t, k);
    }
}

static struct kept_place *kept_find(const struct waiting_queue *q, uint64_t session, int64_t now_ms) {
    LIST_EACH(k, &q->kept, struct kept_place, link)
        if (k->session == session && k->until_ms > now_ms)
            return k;
    return NULL;
}

/* Whether the lease with this fence is known to have been released. */
static bool is_freed(const struct waiting *t, uint64_t hash, uint64_t fence) {
    const struct freed *f = &t->freed[hash % FREED];
    return fence && f->hash == hash && f->fence >= fence;
}

static struct waiter *session_waiter(struct waiting *t, uint64_t session) {
    TABLE_CHAIN(w, &t->sessions, session, struct waiter, by_session)
        if (w->session == session)
            return w;
    return NULL;
}

struct waiter *waiting_find(struct waiting *t, uint64_t session) {
    MUTEX_GUARD(&t->mutex);
    return session_waiter(t, session);
}

const struct lock_key *waiting_key(const struct waiter *w) {
    return &w->queue->key;
}

/* ---- joining ------------------------------------------------------------------------------------------- */

/* The waiter's attempt is under way from now on. */
static void try_now(struct waiting_queue *q, struct waiter *w) {
    invariant(!q->trying, "two attempts are under way for one queue");
    q->trying = w;
    q->again = false;
    w->attempt = ++q->asked;
}

/* Joins the queue, in the place that is kept for the session if there is one. */
static void join(struct waiting *t, struct waiting_queue *q, struct waiter *w, struct kept_place *kept) {
    if (kept)
        w->place = kept->place;
    invariant_debug(!session_waiter(t, w->session), "a session waits twice");
    struct list_node *behind = q->waiters.prev;
    while (behind != &q->waiters && LIST_ENTRY(behind, struct waiter, link)->place > w->place)
        behind = behind->prev;
    list_prepend(behind, &w->link); /* which puts it right after `behind` */
    list_init(&w->mail);
    table_insert(&t->sessions, &w->by_session, w->session);
    w->queue = q;
    w->joined = q->asked;
    w->attempt = 0;
    w->called = w->mailed = w->last = false;
    q->count++;
    atomic_fetch_add_explicit(&t->count, 1, memory_order_relaxed);
    if (kept)
        kept_remove(t, kept);
}

bool waiting_join_behind(struct waiting *t, const struct lock_key *key, uint64_t hash, struct waiter *w,
                         int64_t now_ms) {
    MUTEX_GUARD(&t->mutex);
    kept_trim(t, now_ms);
    struct waiting_queue *q = queue_find(t, key, hash);
    const struct waiter *first = q ? first_of(q) : NULL;
    struct kept_place *k = first ? kept_find(q, w->session, now_ms) : NULL;
    uint64_t place = k ? k->place : w->place;
    bool joins = first && first->place < place;
    if (joins)
        join(t, q, w, k);
    return joins;
}

enum waiting_joined waiting_join(struct waiting *t, const struct lock_key *key, uint64_t hash, uint64_t fence,
                                 struct waiter *w, int64_t now_ms) {
    MUTEX_GUARD(&t->mutex);
    kept_trim(t, now_ms);
    struct waiting_queue *q = queue_find(t, key, hash);
    if (!q) {
        q = memory_zalloc(sizeof(*q) + key->len);
        q->hash = hash;
        memcpy(q->name, key->name, key->len);
        q->key = (struct lock_key){.db = key->db, .name = q->name, .len = key->len};
        q->elsewhere_ms = WAITING_NOBODY;
        list_init(&q->waiters);
        list_init(&q->kept);
        table_insert(&t->queues, &q->link, hash);
    }
    join(t, q, w, kept_find(q, w->session, now_ms));
    if (fence)
        q->fence = fence;
    bool freed = is_freed(t, hash, fence);
    enum waiting_joined joined = first_of(q) != w ? JOINED_BEHIND : freed && !q->trying ? JOINED_FREED : JOINED_FIRST;
    if (joined == JOINED_FREED)
        try_now(q, w);
    return joined;
}

/* ---- other proxies ------------------------------------------------------------------------------------- */

static int64_t waited(const struct waiter *w, int64_t now_ms) {
    return now_ms > w->since_ms ? now_ms - w->since_ms : 0;
}

/* Whether a session at another proxy has waited longer than the first waiter. */
static bool yields(const struct waiting_queue *q, const struct waiter *first) {
    return q->elsewhere_ms < first->since_ms;
}

int64_t waiting_behind(struct waiting *t, const struct waiter *w, int64_t now_ms) {
    MUTEX_GUARD(&t->mutex);
    const struct list_node *n = w->link.next;
    return n == &w->queue->waiters ? -1 : waited(LIST_ENTRY(n, struct waiter, link), now_ms);
}

void waiting_elsewhere(struct waiting *t, struct waiter *w, int64_t since_ms) {
    MUTEX_GUARD(&t->mutex);
    w->queue->elsewhere_ms = since_ms;
}

/* ---- trying -------------------------------------------------------------------------------------------- */

/* Puts mail for the waiter's thread: the waiter is to try, or it has become the first waiter. */
static void call(struct waiting *t, struct waiter *w, bool tries) {
    w->called |= tries;
    if (w->mailed)
        return;
    w->mailed = true;
    list_append(&t->mail[w->thread], &w->mail);
    t->wake(t->arg, w->thread);
}

/* Calls the first waiter. If an attempt is under way, the queue notes that the first waiter is to try after it. */
static void call_first(struct waiting *t, struct waiting_queue *q) {
    struct waiter *first = first_of(q);
    if (q->trying)
        q->again = true;
    else if (first)
        call(t, first, true);
}

bool waiting_try(struct waiting *t, struct waiter *w) {
    MUTEX_GUARD(&t->mutex);
    struct waiting_queue *q = w->queue;
    bool tries = first_of(q) == w && !q->trying;
    if (tries)
        try_now(q, w);
    return tries;
}

void waiting_try_last(struct waiting *t, struct waiter *w) {
    MUTEX_GUARD(&t->mutex);
    struct waiting_queue *q = w->queue;
    invariant(q && !w->last, "a session tries for the last time twice");
    bool was_first = first_of(q) == w;
    w->attempt = ++q->asked;
    w->last = true;
    struct waiter *first = first_of(q);
    if (w->called)
        call_first(t, q);
    else if (was_first && first)
        call(t, first, false);
    list_remove(&w->mail);
    w->called = w->mailed = false;
}

/* Notes that an attempt has found the lock held, or has acquired it. */
static void note_held(struct waiting_queue *q, const struct waiter *w) {
    invariant(w->attempt <= q->asked, "attempt %llu of %llu", (unsigned long long)w->attempt,
              (unsigned long long)q->asked);
    if (w->attempt > q->proven)
        q->proven = w->attempt;
}

/* The waiter has let a session at another proxy try first, and its own attempt shows whether that session came. If so,
 * the next wait is twice as long. Otherwise it is as short as at first. */
static void note_patience(struct waiting *t, struct waiter *w, bool has_come) {
    struct freed *f = &t->freed[w->queue->hash % FREED];
    int64_t twice_ms = 2 * w->yields_ms;
    if (w->yields_ms && f->hash == w->queue->hash)
        f->patience_ms = !has_come ? PATIENCE_MS : twice_ms < PATIENCE_MAX_MS ? twice_ms : PATIENCE_MAX_MS;
    w->yields_ms = 0;
}

bool waiting_refused(struct waiting *t, struct waiter *w, uint64_t fence) {
    MUTEX_GUARD(&t->mutex);
    struct waiting_queue *q = w->queue;
    invariant(q && w->attempt > 0, "an attempt is refused that was not sent");
    note_held(q, w);
    note_patience(t, w, true);
    if (fence)
        q->fence = fence;
    bool again = false;
    if (q->trying == w) {
        q->trying = NULL;
        q->again |= is_freed(t, q->hash, fence); /* the release came behind the attempt, over another connection */
        struct waiter *first = first_of(q);
        again = q->again && first == w;
        if (again)
            try_now(q, w);
        else if (q->again)
            call_first(t, q);
        else if (first && first != w) /* it came meanwhile, and may be the waiter that has to look */
            call(t, first, false);
        q->again = false;
    }
    return again;
}

void waiting_look(struct waiting *t, struct waiter *w, int64_t look_ms) {
    MUTEX_GUARD(&t->mutex);
    w->queue->look_ms = look_ms;
}

bool waiting_proves(struct waiting *t, const struct waiter *w, uint64_t *fence) {
    MUTEX_GUARD(&t->mutex);
    const struct waiting_queue *q = w->queue;
    bool proves = q->proven > w->joined;
    *fence = q->fence;
    return proves;
}

void waiting_leave(struct waiting *t, struct waiter *w, enum waiting_end end, int64_t keep_ms, int64_t now_ms) {
    MUTEX_GUARD(&t->mutex);
    struct waiting_queue *q = w->queue;
    invariant(q && q->count > 0, "a session leaves a queue in which it is not");
    bool was_first = first_of(q) == w, owes = w->called;
    if (end == WAIT_GRANTED) {
        note_held(q, w);
        note_patience(t, w, false);
        q->look_ms = 0;
    }
    if (q->trying == w) {
        q->trying = NULL;
        owes |= q->again || end != WAIT_GRANTED; /* a release was seen meanwhile, or the attempt's outcome is lost */
        q->again = false;
    }
    if (end == WAIT_GRANTED) /* the releases that were seen came before this grant, except this lease's own */
        owes = is_freed(t, q->hash, w->fence);
    list_remove(&w->link);
    list_remove(&w->mail);
    table_remove(&t->sessions, &w->by_session, w->session);
    if (end == WAIT_OVER && keep_ms > 0) {
        struct kept_place *k = memory_zalloc(sizeof(*k));
        *k = (struct kept_place){.queue = q, .session = w->session, .place = w->place, .until_ms = now_ms + keep_ms};
        list_append(&q->kept, &k->link);
        list_append(&t->kept, &k->by_age);
        t->kept_count++;
    }
    w->queue = NULL;
    q->count--;
    atomic_fetch_sub_explicit(&t->count, 1, memory_order_relaxed);
    struct waiter *first = first_of(q);
    if (first && (owes || (was_first && end == WAIT_GONE)))
        call_first(t, q);
    else if (first && (was_first || end == WAIT_GRANTED))
        call(t, first, false);
    queue_settle(t, q);
}

/* ---- releases ------------------------------------------------------------------------------------------ */

bool waiting_handover(struct waiting *t, const struct lock_key *key, uint64_t hash, unsigned thread, uint64_t way,
                      int64_t now_ms, int64_t *left_ms) {
    if (waiting_count(t) == 0)
        return false;
    MUTEX_GUARD(&t->mutex);
    struct waiting_queue *q = queue_find(t, key, hash);
    struct waiter *first = q ? first_of(q) : NULL;
    bool leaves = first && yields(q, first);
    bool hands = first && first->thread == thread && first->way == way && !q->trying && !first->called && !leaves;
    if (hands)
        call(t, first, true);
    else if (leaves && left_ms)
        *left_ms = waited(first, now_ms);
    return hands;
}

void waiting_freed(struct waiting *t, const struct lock_key *key, uint64_t hash, uint64_t fence, bool handed) {
    MUTEX_GUARD(&t->mutex);
    struct freed *f = &t->freed[hash % FREED];
    if (fence && f->hash != hash)
        *f = (struct freed){.hash = hash};
    if (fence > f->fence)
        f->fence = fence;
    struct waiting_queue *q = queue_find(t, key, hash);
    if (q && !(handed && q->trying))
        call_first(t, q);
}

void waiting_told(struct waiting *t, const struct lock_key *key, uint64_t hash, unsigned thread) {
    MUTEX_GUARD(&t->mutex);
    struct waiting_queue *q = queue_find(t, key, hash);
    const struct waiter *first = q ? first_of(q) : NULL;
    if (first && first->thread == thread) {
        q->elsewhere_ms = WAITING_NOBODY;
        call_first(t, q);
    }
}

struct waiter *waiting_next(struct waiting *t, unsigned thread, bool *tries) {
    MUTEX_GUARD(&t->mutex);
    struct waiter *w = LIST_SHIFT(&t->mail[thread], struct waiter, mail);
    *tries = false;
    if (w) {
        struct waiting_queue *q = w->queue;
        bool called = w->called;
        bool may = called && !q->trying && first_of(q) == w;
        w->mailed = w->called = false;
        const struct freed *f = &t->freed[q->hash % FREED];
        int64_t patience_ms = f->hash == q->hash && f->patience_ms ? f->patience_ms : PATIENCE_MS;
        w->yields_ms = may && yields(q, w) ? patience_ms : 0;
        w->look_ms = q->look_ms;
        *tries = may && !w->yields_ms;
        if (*tries)
            try_now(q, w);
        else if (called && !may)
            call_first(t, q); /* a waiter took its kept place before it, or another attempt is under way */
    }
    return w;
}

/* ---- circles ------------------------------------------------------------------------------------------- */

bool waiting_circle(struct waiting *t, struct lock_engine *e, uint64_t session, int64_t now_ms, struct text *out) {
    struct text name = {0};
    uint64_t at = session, hash = 0;
    bool circle = false;
    for (unsigned steps = 0; steps < CIRCLE_MAX && at && !circle; steps++) {
        struct lock_key key;
        pthread_mutex_lock(&t->mutex);
        const struct waiter *w = session_waiter(t, at);
        if (w) {
            key = w->queue->key;
            hash = w->queue->hash;
            name.len = 0;
            text_append(&name, key.name, key.len); /* the engine is asked without the mutex */
            text_printf(out, "%s%s waits for %.*s since %lld ms, held by", steps ? " " : "", w->who ? w->who : "",
                        (int)(key.len > SHOWN_MAX ? SHOWN_MAX : key.len), key.name, (long long)(now_ms - w->since_ms));
        }
        pthread_mutex_unlock(&t->mutex);
        if (!w)
            break;
        key.name = name.data;
        at = engine_holder(e, &key, hash, now_ms);
        if (at == session && steps == 0) /* the engine does not yet know the lease that has refused the session */
            break;
        circle = at == session;
    }
    if (circle)
        text_printf(out, " the first");
    text_clear(&name);
    return circle;
}

/* ---- looking in ---------------------------------------------------------------------------------------- */

size_t waiting_count(const struct waiting *t) {
    return atomic_load_explicit(&t->count, memory_order_relaxed);
}

struct waiting_view waiting_of(struct waiting *t, const struct lock_key *key, uint64_t hash, size_t max, int64_t now_ms,
                               struct text *who) {
    struct waiting_view v = {0};
    size_t shown = 0;
    if (waiting_count(t) == 0)
        return v;
    MUTEX_GUARD(&t->mutex);
    const struct waiting_queue *q = queue_find(t, key, hash);
    if (!q)
        return v;
    v.count = q->count;
    LIST_EACH(w, &q->waiters, const struct waiter, link) {
        if (v.since_ms == 0 || w->since_ms < v.since_ms)
            v.since_ms = w->since_ms;
        if (who && shown < max)
            text_printf(who, "%s%s since %lld ms", shown++ ? "; " : "", w->who ? w->who : "",
                        (long long)(now_ms - w->since_ms));
    }
    if (who && v.count > shown)
        text_printf(who, "; and %zu more", v.count - shown);
    return v;
}

int64_t waiting_since(struct waiting *t) {
    int64_t since_ms = 0;
    if (waiting_count(t) == 0)
        return 0;
    MUTEX_GUARD(&t->mutex);
    TABLE_EACH(w, &t->sessions, const struct waiter, by_session)
        if (since_ms == 0 || w->since_ms < since_ms)
            since_ms = w->since_ms;
    return since_ms;
}

void waiting_free(struct waiting *t) {
    LIST_EACH_SAFE(k, &t->kept, struct kept_place, by_age)
        kept_remove(t, k);
    table_clear(&t->queues);
    table_clear(&t->sessions);
    pthread_mutex_destroy(&t->mutex);
    memory_free(t);
}
