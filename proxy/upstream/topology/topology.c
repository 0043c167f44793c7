/*
 * Rounds of questions about which node serves which slots: when, to which nodes, one after the other, within a time
 * limit.
 */
#include "proxy/upstream/topology/private.h"

#include "proxy/upstream/connection/control.h"
#include "proxy/upstream/routing/routing.h"

enum {
    INTERVAL_FIRST_MS = 100,
    INTERVAL_LONGEST_MS = 1000,
    CALM_AFTER_MS = 5000, /* after this time without hints, the next hint is answered quickly again */
    NOW_MS = 10,
    OLD_MS = 1500 /* longer than the longest interval between rounds while hints come */
};

/* ---- when ---- */

void topology_want(struct topology *t) {
    if (!t || t->u->closing)
        return;
    if (t->candidates) {
        t->again = true;
        return;
    }
    int64_t since = clock_ms() - t->started_ms;
    if (since > CALM_AFTER_MS)
        t->interval_ms = INTERVAL_FIRST_MS;
    if (ev_is_active(&t->next) && ev_timer_remaining(t->u->loop, &t->next) * 1000 <= (double)t->interval_ms)
        return;
    int64_t wait = upstream_jitter(t->u, t->interval_ms) - since;
    upstream_timer(t->u, &t->next, wait > 0 ? wait : (int64_t)upstream_random(t->u, NOW_MS));
}

bool topology_is_old(const struct topology *t, int64_t since_ms) {
    return t && (t->ended_ms < since_ms || clock_ms() - t->ended_ms > OLD_MS);
}

void topology_now(struct topology *t) {
    t->interval_ms = INTERVAL_FIRST_MS;
    if (t->candidates)
        t->again = true;
    else
        upstream_timer(t->u, &t->next, (int64_t)upstream_random(t->u, NOW_MS));
}

/* ---- whether a node is still the master ---- */

/*
 * Behind Sentinels a lost master may be back, with old data or none, and act as a master until the Sentinels
 * reconfigure it, while another node has taken over. A lock acquired there could be acquired twice. So a new connection
 * carries no requests until a round that began after the loss has ended. If the round finds another master, map.c
 * closes the connection. If no Sentinel answers, the last known master is used.
 *
 *      handshake's end ──> verify_waits ── round ──> its end ──> conn_ready
 */
bool verify_waits(struct upstream_conn *c) {
    invariant(c->state == CONN_HANDSHAKE && c->handshake_left == 0, "state %d", (int)c->state);
    struct upstream *u = c->u;
    const struct topology *t = u->topology;
    /* If no connection was open, none could be lost: then a round that is overdue counts as a loss. */
    if (u->config->kind != UPSTREAM_SENTINEL ||
        (c->node->lost_ms <= t->asked_ms && clock_ms() - t->asked_ms <= 2 * t->calm_ms)) {
        c->unverified = false;
        return false;
    }
    if (!c->unverified)
        c->deadline_ms = clock_ms() + u->connect_ms;
    c->unverified = true;
    if (!u->topology->candidates)
        topology_now(u->topology);
    return true;
}

static void end_round(struct topology *t, bool changed) {
    invariant(!t->asked.ctx && !t->asked.lookup, "a round ends while a node is asked");
    struct upstream *u = t->u;
    memory_free(t->candidates);
    t->candidates = NULL;
    t->ended_ms = clock_ms();
    t->asked_ms = t->started_ms;
    t->interval_ms = changed ? INTERVAL_FIRST_MS : t->interval_ms * 2;
    if (t->interval_ms > INTERVAL_LONGEST_MS)
        t->interval_ms = INTERVAL_LONGEST_MS;
    upstream_timer(u, &t->next, upstream_jitter(u, u->covered == SLOT_COUNT ? t->calm_ms : t->interval_ms));
    if (t->again)
        topology_want(t);
    t->again = false;
    LIST_EACH(c, &u->conns, struct upstream_conn, link)
        if (c->unverified && c->state != CONN_CLOSED)
            conn_ready(c);
    wait_map_ends(u, t->started_ms);
}

void topology_done(struct topology *t, bool changed) {
    end_round(t, changed);
    upstream_announce(t->u, NULL);
}

/* ---- a connection to one server ---- */

void link_time(struct link *l, int64_t ms) {
    ev_timer_stop(l->u->loop, &l->timer);
    ev_timer_set(&l->timer, (double)ms / 1000, 0.);
    ev_timer_start(l->u->loop, &l->timer);
}

static void on_found(void *arg, const struct addrinfo *found, const char *error) {
    struct link *l = arg;
    invariant(l->lookup && !l->ctx, "a lookup answers that was not asked");
    l->lookup = NULL;
    ev_timer_stop(l->u->loop, &l->timer);
    for (; found && l->count < HOST_ADDRESSES; found = found->ai_next)
        resolve_number(found->ai_addr, found->ai_addrlen, l->addresses[l->count++]);
    l->looked_up(l, error);
}

bool link_find(struct link *l) {
    invariant(!l->ctx && !l->lookup, "two nodes are asked at once");
    l->count = l->tried = 0;
    if (resolve_is_number(l->at.host)) {
        snprintf(l->addresses[l->count++], RESOLVE_NUMBER_MAX, "%.*s", RESOLVE_NUMBER_MAX - 1, l->at.host);
        return true;
    }
    link_time(l, l->u->connect_ms);
    l->lookup = resolve_start(l->u->loop, l->at.host, l->at.port, on_found, l);
    return false;
}

bool link_connect(struct link *l, char *why, size_t size) {
    invariant(!l->ctx && !l->lookup, "a server has two connections");
    invariant(l->tried <= l->count && l->count <= HOST_ADDRESSES, "address %u of %u", l->tried, l->count);
    if (l->tried < l->count)
        l->ctx = control_connect(l->u, &l->at, l->addresses[l->tried++], why, size);
    if (l->ctx)
        link_time(l, l->u->connect_ms);
    return l->ctx;
}

void link_drop(struct link *l) {
    redisAsyncContext *ctx = l->ctx;
    ev_timer_stop(l->u->loop, &l->timer);
    resolve_cancel(l->lookup);
    l->lookup = NULL;
    l->ctx = NULL;
    if (ctx)
        redisAsyncFree(ctx);
}

/* ---- candidates ---- */

void topology_add(struct topology *t, const struct address *at) {
    for (size_t i = 0; i < t->candidate_count; i++)
        if (address_same(&t->candidates[i], at))
            return;
    *ARRAY_ADD(t->candidates, t->candidate_count) = *at;
}

void topology_rotate(struct topology *t, size_t from) {
    invariant(from <= t->candidate_count, "candidate %zu of %zu", from, t->candidate_count);
    size_t count = t->candidate_count - from;
    if (count < 2)
        return;
    size_t by = upstream_random(t->u, (uint32_t)count);
    struct address *part = t->candidates + from, *copy = memory_alloc(count * sizeof(*copy));
    for (size_t i = 0; i < count; i++)
        copy[i] = part[(i + by) % count];
    memcpy(part, copy, count * sizeof(*copy));
    memory_free(copy);
}

void topology_reason(const struct topology *t, char *out, size_t size) {
    if (t->u->config->kind == UPSTREAM_SENTINEL)
        snprintf(out, size, "the master '%s' is not known yet: no Sentinel has named a master that answers (last: %s)",
                 t->u->config->sentinel_name, t->reason);
    else
        snprintf(out, size, "the cluster's slot map is not known yet: no seed node answers (last: %s)", t->reason);
}

/* ---- one node ---- */

static void note_failure(struct topology *t, const char *reason) {
    char text[ADDRESS_MAX + 16];
    address_text(&t->asked.at, text, sizeof(text));
    snprintf(t->reason, sizeof(t->reason), "%s: %s", text, reason);
    text_printable(t->reason, sizeof(t->reason), t->reason, strlen(t->reason), '?');
    log_verbose("No topology from %s", t->reason);
}

void topology_failed(struct topology *t, const char *reason) {
    if (!t->refused)
        note_failure(t, reason);
    link_drop(&t->asked);
    topology_next(t);
}

static void on_answer(redisAsyncContext *ctx, void *reply, void *arg) {
    struct topology *t = arg;
    if (t->asked.ctx != ctx)
        return; /* the connection was dropped before */
    if (reply) {
        invariant(t->answered < t->sent, "answer %u to %u questions", t->answered, t->sent);
        t->answers[t->answered++](t, reply);
        return;
    }
    t->asked.ctx = NULL; /* hiredis frees it after this call */
    topology_failed(t, control_error(ctx));
}

void topology_send(struct topology *t, topology_answer_fn answer, const char *format, ...) {
    va_list args;
    invariant(t->sent < QUESTIONS_MAX, "%u questions", t->sent);
    t->answers[t->sent++] = answer;
    va_start(args, format);
    redisvAsyncCommand(t->asked.ctx, on_answer, t, format, args);
    va_end(args);
}

static void on_auth(redisAsyncContext *ctx, void *data, void *arg) {
    struct topology *t = arg;
    const redisReply *reply = data;
    if (t->asked.ctx != ctx || !reply || reply->type != REDIS_REPLY_ERROR)
        return;
    t->refused = true;
    note_failure(t, reply->str);
    if (strncmp(reply->str, "WRONGPASS", 9) != 0)
        return;
    login_own_refused();
    t->before[t->own] = !t->before[t->own] && login_own_has_before(t->own);
}

void topology_login(struct topology *t, redisAsyncContext *ctx, enum upstream_own at, bool heard) {
    size_t len;
    char *text = login_text(at, 0, t->before[at], &len);
    if (!text)
        return;
    redisAsyncFormattedCommand(ctx, heard ? on_auth : NULL, t, text, len);
    memory_forget(text, len);
}

/* Asks the node at the next address of its name. */
static bool ask_found(struct topology *t) {
    char why[REASON_MAX];
    while (t->asked.tried < t->asked.count) {
        t->refused = false;
        t->sent = t->answered = 0;
        if (link_connect(&t->asked, why, sizeof(why))) {
            topology_login(t, t->asked.ctx, t->own, true);
            t->ask(t);
            return true;
        }
        note_failure(t, why);
    }
    return false;
}

static void looked_up(struct link *l, const char *error) {
    struct topology *t = (struct topology *)(void *)l;
    if (error)
        topology_failed(t, error);
    else if (!ask_found(t))
        topology_next(t);
}

bool topology_find(struct topology *t, const struct address *at, topology_ask_fn ask, enum upstream_own own) {
    t->refused = false;
    t->asked.at = *at;
    t->ask = ask;
    t->own = own;
    return !link_find(&t->asked) || ask_found(t);
}

/* ---- a round ---- */

void topology_next(struct topology *t) {
    invariant(!t->asked.ctx && !t->asked.lookup && t->candidate_at <= t->candidate_count, "candidate %zu of %zu",
              t->candidate_at, t->candidate_count);
    if (ask_found(t))
        return;
    while (t->candidate_at < t->candidate_count)
        if (topology_find(t, &t->candidates[t->candidate_at++], t->kind->ask, t->kind->own))
            return;
    if (t->kind->in_vain)
        t->kind->in_vain(t);
    end_round(t, false);
    if (t->u->announced)
        return;
    char error[sizeof(t->reason) + 128];
    topology_reason(t, error, sizeof(error));
    log_warning("Upstream: %s", error);
    upstream_announce(t->u, error);
}

static void on_timeout(struct ev_loop *loop, ev_timer *w, int revents) {
    struct topology *t = w->data;
    char reason[64];
    snprintf(reason, sizeof(reason), "no answer%s within %lld ms", t->asked.lookup ? " from the name server" : "",
             (long long)t->u->connect_ms);
    t->refused = false;
    topology_failed(t, reason);
}

static void on_next(struct ev_loop *loop, ev_timer *w, int revents) {
    invariant(!((struct topology *)w->data)->candidates, "two rounds are under way");
    struct topology *t = w->data;
    t->started_ms = clock_ms();
    t->candidate_count = t->candidate_at = 0;
    t->asked.count = t->asked.tried = 0;
    t->kind->collect(t);
    topology_next(t);
}

void topology_init(struct topology *t, struct upstream *u, const struct topology_kind *kind, int64_t calm_ms) {
    t->u = t->asked.u = u;
    t->kind = kind;
    t->calm_ms = calm_ms;
    t->interval_ms = INTERVAL_FIRST_MS;
    t->asked.looked_up = looked_up;
    snprintf(t->reason, sizeof(t->reason), "no node was asked so far");
    ev_timer_init(&t->next, on_next, 0., 0.);
    ev_timer_init(&t->asked.timer, on_timeout, 0., 0.);
    t->next.data = t->asked.timer.data = t;
    ev_timer_start(u->loop, &t->next);
}

void topology_free(struct topology *t) {
    link_drop(&t->asked);
    ev_timer_stop(t->u->loop, &t->next);
    if (t->kind->clear)
        t->kind->clear(t);
    MEMORY_FREE_ALL(t->candidates, t);
}
