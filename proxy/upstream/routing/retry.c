/*
 * Errors that send a request to another node, or ask to repeat it. After none of them has the request been executed, so
 * it is safe to repeat any request.
 *
 *      MOVED (map first), ASK (ASKING before it), NOSCRIPT (as EVAL)      at once
 *      TRYAGAIN, CLUSTERDOWN, LOADING, MASTERDOWN, READONLY               after a delay, where there is a topology
 *
 * A request on a pin is repeated by the pin's owner; the slot map still learns from the error.
 */
#include "proxy/upstream/routing/routing.h"

static bool word_is(const char *text, size_t len, const char *word) {
    size_t n = strlen(word);
    return len >= n && memcmp(text, word, n) == 0 && (len == n || text[n] == ' ');
}

/* ---- temporary errors ---- */

struct passing {
    const char *word;
    bool failover; /* there may have been a failover: the topology is asked again */
    bool keyless;  /* requests without keys wait as well. They get the other errors: on a cluster those are the answer
                      (MSETNX k v k) */
};

static const struct passing *passing_find(const char *text, size_t len) {
    static const struct passing all[] = {
        {"TRYAGAIN", .failover = false, .keyless = false},   /* some of the keys have moved, and the others follow */
        {"CLUSTERDOWN", .failover = true, .keyless = false}, /* the slot has no master, for now */
        {"LOADING", .failover = true, .keyless = false},     /* the node has just started */
        {"MASTERDOWN", .failover = true, .keyless = false},  /* a replica that has lost its master */
        {"READONLY", .failover = true, .keyless = true},     /* it was the master, and is a replica now */
    };
    for (size_t i = 0; i < ARRAY_SIZE(all); i++)
        if (word_is(text, len, all[i].word))
            return &all[i];
    return NULL;
}

/* Whether the error is temporary here. Without a topology no node can take over, so the client gets the error. */
static bool passes(const struct upstream *u, const struct passing *p, bool keyed) {
    return u->topology && p && (keyed || !u->slots || p->keyless);
}

bool upstream_error_passes(const struct upstream *u, const char *text, size_t len, bool keyed) {
    return passes(u, passing_find(text, len), keyed);
}

/* Has the topology looked up, or the node's name, since there may have been a failover. */
static void suspect_failover(struct upstream *u, const struct upstream_node *n, const char *text, size_t len) {
    if (u->topology)
        upstream_want_map(u);
    else if (n == upstream_master(u, 0) && u->events.doubt)
        u->events.doubt(u->events.arg, word_is(text, len, "READONLY"));
}

/* ---- redirects ---- */

/* The node that "MOVED SLOT HOST:PORT" or "ASK SLOT HOST:PORT" names. An empty host means the answering node's host. */
static struct upstream_node *redirect_target(struct upstream_node *from, const char *text, size_t len, unsigned *slot) {
    const char *end = text + len, *number = memchr(text, ' ', len);
    if (!number)
        return NULL;
    number++;
    const char *where = memchr(number, ' ', (size_t)(end - number));
    int64_t n;
    if (!where || !resp_integer(number, (size_t)(where - number), &n) || n < 0 || n >= SLOT_COUNT)
        return NULL;
    where++;
    struct address at;
    if (!address_parse(where, (size_t)(end - where), &at) || at.port == 0)
        return NULL;
    if (at.host[0] == '\0')
        memcpy(at.host, from->at.host, sizeof(at.host));
    *slot = (unsigned)n;
    return node_get(from->u, &at);
}

static bool redirect(struct upstream *u, struct upstream_node *from, struct upstream_request *r, const char *text,
                     size_t len, bool ask) {
    unsigned slot;
    struct upstream_node *to = redirect_target(from, text, len, &slot);
    from->redirects++;
    if (!ask)
        upstream_want_map(u);
    if (!to)
        return !ask && wait_delay(u, r); /* "MOVED 1 ?:0": the node does not know the host; a new map may */
    if (r->hops >= HOPS_MAX)
        return false;
    r->hops++;
    if (!ask)
        map_move(u, slot, to);
    r->asking = ask;
    r->told = to;
    r->conn = NULL;
    router_place_again(u, r, to);
    return true;
}

/* Sends a call of a script that the node does not know once more, with the script's source. If a later request has
 * carried the source over the same connection, the call is repeated unchanged behind that request: so of 10,000
 * requests in flight only one carries the source. */
static bool resend_script(struct upstream *u, struct upstream_node *from, struct upstream_request *r) {
    struct upstream_conn *c = r->conn;
    uint64_t *at = NULL; /* where the connection notes which request carried the source; NULL: no room */
    for (size_t i = 0; c && !at && i < SCRIPT_TOTAL; i++) {
        if (c->sourced[i].script && c->sourced[i].script != r->script)
            continue;
        c->sourced[i].script = r->script;
        at = &c->sourced[i].at;
    }
    if (at && c->replies < *at && r->hops < HOPS_MAX) {
        r->hops++;
        r->sent_before = false;
        r->conn = NULL;
        router_place_again(u, r, from);
        return true;
    }
    size_t len, before = c ? c->in_flight : 0;
    char *bytes = request_by_source(r, 0, &len);
    if (!bytes)
        return false;
    r->eval = true;
    r->sent_before = false;
    r->conn = NULL;
    r->bytes = bytes;
    r->len = len;
    router_place_again(u, r, from); /* copies the bytes, or ends the request */
    memory_free(bytes);
    if (at && c->in_flight == before + 1)
        *at = c->replies + c->in_flight;
    return true;
}

static void pinned_error(struct upstream *u, struct upstream_node *from, const char *text, size_t len) {
    unsigned slot;
    const struct passing *p = passing_find(text, len);
    if (p && p->failover)
        suspect_failover(u, from, text, len);
    if (!u->slots || !word_is(text, len, "MOVED"))
        return;
    struct upstream_node *to = redirect_target(from, text, len, &slot);
    from->redirects++;
    upstream_want_map(u);
    if (to)
        map_move(u, slot, to);
}

bool retry_on_error(struct upstream *u, struct upstream_node *from, struct upstream_request *r, const char *text,
                    size_t len) {
    const struct passing *p = passing_find(text, len);
    if (r->lane.replica) {
        /* The master answers: the replica may not have the slot, or may load its data, or lack the client's user. */
        if (word_is(text, len, "MOVED") || (p && p->failover)) {
            replicas_doubt(from);
            upstream_want_map(u);
        }
        r->lane.replica = 0;
        r->sent_before = false;
        r->conn = NULL;
        router_place_again(u, r, NULL);
        return true;
    }
    bool about_logins = r->lane.login == UPSTREAM_LOGIN_ASKED || r->lane.login == UPSTREAM_LOGIN_TRIED;
    if (word_is(text, len, "NOAUTH") && u->events.noauth && (r->pinned || !about_logins))
        u->events.noauth(u->events.arg);
    if (r->pinned) {
        pinned_error(u, from, text, len);
        return false;
    }
    if (r->script && !r->eval && !r->leading && word_is(text, len, "NOSCRIPT"))
        return resend_script(u, from, r);
    char plain[REPLY_HELD_MAX];
    if (r->script && script_error_plain(text, len, plain, sizeof(plain), &len)) {
        text = plain;
        p = passing_find(text, len);
    }
    if (p && p->failover)
        suspect_failover(u, from, text, len);
    if (!u->topology || r->node)
        return false;
    r->sent_before = false; /* it was answered, so it was not executed */
    if (u->slots && word_is(text, len, "MOVED"))
        return redirect(u, from, r, text, len, false);
    if (u->slots && word_is(text, len, "ASK"))
        return redirect(u, from, r, text, len, true);
    if (r->leading > 0 && word_is(text, len, "TRYAGAIN")) /* the owner's command alone may need fewer keys */
        return false;
    return passes(u, p, r->slot >= 0) && wait_delay(u, r);
}

struct upstream_node *upstream_pin_redirect(struct upstream_pin *pin, const char *text, size_t len, bool *ask) {
    unsigned slot;
    *ask = len > 4 && memcmp(text, "ASK ", 4) == 0;
    if (!pin->conn || (!*ask && (len < 6 || memcmp(text, "MOVED ", 6) != 0)))
        return NULL;
    pinned_error(pin->u, pin->conn->node, text, len);
    return redirect_target(pin->conn->node, text, len, &slot);
}
