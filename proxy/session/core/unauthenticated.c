/*
 * Whether the node serves clients without login: it is asked now and then, and its answer counts for the sessions that
 * have come before.
 */
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "parser/invariant.h"
#include "proxy/base/log.h"
#include "proxy/session/core/session.h"

static const double ASK_SECONDS = 1.0, ASK_AGAIN_SECONDS = 0.05, DENIED_LOG_SECONDS = 10.0;

const char WORKER_DENIED[] =
    "-DENIED The Redis behind this proxy is in protected mode and has no password: it serves its own machine alone, "
    "and so does the proxy. To let in clients of other machines, either 1) set requirepass in the proxy's "
    "configuration, "
    "or a password in Redis; or 2) set protected-mode no in the proxy's configuration, if only machines that you trust "
    "reach this port; or 3) set protected-mode no in Redis.\r\n";

/* Whether the address is one of this machine's own: loopback, or a unix socket. */
static bool is_local(const struct sockaddr_storage *a) {
    const struct sockaddr_in6 *in6 = (const void *)a;
    if (a->ss_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
    if (a->ss_family != AF_INET6)
        return true;
    bool mapped = IN6_IS_ADDR_V4MAPPED(&in6->sin6_addr) && in6->sin6_addr.s6_addr[12] == IN_LOOPBACKNET;
    return mapped || IN6_IS_ADDR_LOOPBACK(&in6->sin6_addr);
}

bool worker_denies(struct worker *w, const struct sockaddr_storage *peer) {
    bool protects = w->redis_protected && w->strangers == UNAUTHENTICATED_SERVED && w->config->protected_mode &&
                    !w->config->requirepass && !config_logs_in(w->config);
    if (!protects || is_local(peer))
        return false;
    double now = ev_now(w->loop);
    if (now - w->denied_logged >= DENIED_LOG_SECONDS) {
        char address[SESSION_ADDRESS_MAX];
        session_address_text(peer, address, sizeof(address));
        log_notice("%s is refused: Redis is in protected mode and has no password, so clients of other machines need "
                   "requirepass, or protected-mode no",
                   address);
        w->denied_logged = now;
    }
    return true;
}

/* Takes the node's answer. It counts for the sessions that had come before the question. As on a node itself, a session
 * that was served then stays served if a password is set later. */
static void take_word(struct worker *w, const char *reply) {
    invariant(w->probing && w->asked <= w->arrivals, "asked for %llu of %llu sessions", (unsigned long long)w->asked,
              (unsigned long long)w->arrivals);
    bool first = w->served == 0, doubted = w->word_doubted, unknown = w->strangers == UNAUTHENTICATED_UNKNOWN;
    w->strangers = strncmp(reply, "-NOAUTH", 7) == 0 ? UNAUTHENTICATED_REFUSED : UNAUTHENTICATED_SERVED;
    w->word_doubted = false;
    if (w->strangers != UNAUTHENTICATED_SERVED) {
        if (doubted) /* they were served over connections that are gone */
            w->served = 0;
        return;
    }
    w->served = w->asked;
    if (unknown) /* clients of other machines may have come before Redis was asked */
        LIST_EACH_SAFE(s, &w->sessions, struct session, link) {
            struct sockaddr_storage peer = {.ss_family = AF_UNSPEC};
            socklen_t len = sizeof(peer);
            if (getpeername(s->fd, (struct sockaddr *)&peer, &len) == 0 && worker_denies(w, &peer))
                session_close(s, "protected mode");
        }
    for (const struct session_room *const *room = w->hooks->rooms; first && *room; room++)
        if ((*room)->worker_serves)
            (*room)->worker_serves(w);
}

void worker_wake_waiting(struct worker *w) {
    LIST_EACH(s, &w->sessions, struct session, link)
        if (s->input)
            session_mark_runnable(s);
}

static void probed(struct call *c, const struct call_end *end) {
    struct worker *w = c->request->worker;
    bool first = w->strangers == UNAUTHENTICATED_UNKNOWN;
    if (end->error) { /* the request that waited for the answer was not sent, so the error says so */
        bool own = strncmp(end->error, "UPSTREAM ", 9) == 0;
        int len = own ? (int)strcspn(end->error, ";") : (int)strlen(end->error);
        w->probe_failed_at = ev_now(w->loop);
        snprintf(w->probe_error, sizeof(w->probe_error), "%.*s%s",
                 len < PROBE_ERROR_MAX - 64 ? len : PROBE_ERROR_MAX - 64, end->error,
                 own ? "; the request was not sent" : "");
    } else {
        take_word(w, end->reply);
    }
    w->probing = false;
    if (first)
        worker_wake_waiting(w);
    request_reply(c->request, "", 0, true);
    w->probed(w, end->error);
}

/* Takes the answer to CONFIG GET protected-mode. A node that does not tell is not the user's own on this machine, or it
 * has users and rights. */
static void protection_told(struct call *c, const struct call_end *end) {
    struct worker *w = c->request->worker;
    const char *p = end->reply, *over = p ? p + end->len : p;
    struct resp_item pair, name, value;
    bool told = !end->error && resp_item_read(&p, over, &pair) && pair.type == '*' && pair.num == 2 &&
                resp_item_read(&p, over, &name) && resp_item_read(&p, over, &value) && value.type == '$';
    if (!end->error) {
        w->protection_hidden = !told;
        w->redis_protected = told && value.len == 3 && memcmp(value.str, "yes", 3) == 0;
    }
    request_reply(c->request, "", 0, true);
}

/* A node without RESET is asked over a new connection each time. */
static void was_reset(struct call *c, const struct call_end *end) {
    if (!end->error)
        c->request->worker->cannot_reset = end->reply[0] == '-';
    call_swallow(c, end);
}

static void ask(struct worker *w, const struct upstream_lane *lane, const char *command, call_done_fn done) {
    struct request *request = request_internal(w, done);
    call_submit_lane(&request->call, SLOT_NONE, lane, command, strlen(command));
}

/* Whether clients without login use the proxy's own user, which logs in. */
static bool unauthenticated_are_known(const struct worker *w) {
    return config_logs_in(w->config) && w->shared->stranger_login == 0;
}

struct upstream_lane worker_unauthenticated_lane(const struct worker *w) {
    return (struct upstream_lane){.login = unauthenticated_are_known(w) ? 0 : UPSTREAM_LOGIN_ASKED, .protocol = 2};
}

/* An old connection without login does not show what a new one would: it was accepted earlier. RESET makes it like a
 * new one. HELLO is answered when PING is,
 * and needs no right, so it does not appear in ACL LOG. */
void worker_probe(struct worker *w) {
    if (w->probing)
        return;
    w->probing = true;
    w->asked = w->arrivals;
    w->probed_at = ev_now(w->loop);
    struct upstream_lane lane = worker_unauthenticated_lane(w);
    if (!unauthenticated_are_known(w))
        ask(w, &lane, "*1\r\n$5\r\nRESET\r\n", was_reset);
    if (w->shared->reachable && w->config->protected_mode && !w->protection_hidden && !unauthenticated_are_known(w))
        ask(w, &lane, "*3\r\n$6\r\nCONFIG\r\n$3\r\nGET\r\n$14\r\nprotected-mode\r\n", protection_told);
    ask(w, &lane, "*2\r\n$5\r\nHELLO\r\n$1\r\n2\r\n", probed);
    if (w->cannot_reset)
        ask(w, &lane, "*1\r\n$4\r\nQUIT\r\n", call_swallow);
}

void worker_probe_again(struct worker *w) {
    if (ev_now(w->loop) - w->probed_at >= ASK_AGAIN_SECONDS)
        worker_probe(w);
}

void worker_doubt_word(struct worker *w) {
    if (!w->opened || unauthenticated_are_known(w))
        return;
    w->word_doubted = true;
    worker_probe_again(w);
}

const char *session_await_word(struct session *s) {
    struct worker *w = s->worker;
    bool failed = w->probe_failed_at > 0 && ev_now(w->loop) - w->probe_failed_at < ASK_AGAIN_SECONDS;
    if (!failed)
        worker_probe(w);
    if (!w->probing)
        return w->probe_error;
    return session_doubted(s) ? NULL : "UPSTREAM the node has just answered; the request was not sent";
}

uint64_t worker_arrival(struct worker *w) {
    w->arrivals++;
    if (w->opened && ev_now(w->loop) - w->probed_at >= ASK_SECONDS && !unauthenticated_are_known(w))
        worker_probe(w);
    return w->arrivals;
}

void worker_arrivals_look(struct worker *w) {
    if (w->opened && (w->asked < w->arrivals || w->word_doubted) && !unauthenticated_are_known(w))
        worker_probe(w);
}
