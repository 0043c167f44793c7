/*
 * S7: retries of a blocking command on fenced data. If Redis itself blocked the command, the question about the lock
 * would be asked at the beginning. The session might have lost the lock when the element comes. So the proxy tries the
 * command again and again, in its form that does not block and together with the question (fence_transaction.c):
 *
 *      BLPOP stock:1 5 ──> an attempt ──┬─ something: the client's reply
 *                            ^          ├─ FENCED
 *                            └─ 1 to 50 ms, until its time is over, CLIENT UNBLOCK, or the client leaves
 *
 * A session that waits this way has no place in Redis's queue of blocked clients. An element that comes between two
 * attempts goes to a client that Redis itself blocks. Scripts of Redis 7.0 must not call blocking commands either:
 * BLPOP a b 5 becomes an LPOP of the first of the two keys that has an element.
 */
#include "parser/invariant.h"
#include "proxy/base/memory.h"
#include "proxy/session/fences/private.h"

enum { LONGEST_MS = 50, DOUBLINGS = 6 };

/* ---- the form that does not block ---- */

struct nonblocking_form nonblocking_form_as_it_came(const struct request_class *k) {
    return (struct nonblocking_form){.end = k->request->argc};
}

/* Whether the argument is a timeout in the usual notation. Redis accepts some other notations, too. The proxy does not
 * try to tell which. */
static bool is_time(const struct request_class *k, size_t at) {
    enum { DIGITS_MAX = 9 };
    size_t len, digits = 0, dots = 0;
    const char *text = request_arg(k->request, k->bytes, at, &len);
    for (size_t i = 0; i < len; i++) {
        digits += text[i] >= '0' && text[i] <= '9';
        dots += text[i] == '.' && i > 0 && i + 1 < len;
    }
    return digits > 0 && digits <= DIGITS_MAX && dots <= 1 && digits + dots == len;
}

bool nonblocking_form_unblocked(const struct request_class *k, struct nonblocking_form *as) {
    size_t last = k->request->argc - 1, time = last;
    *as = (struct nonblocking_form){.first = 1, .end = last};
    switch ((int)k->command->id) {
    case COMMAND_BLMOVE:
        as->name = "LMOVE";
        break;
    case COMMAND_BRPOPLPUSH:
        as->name = "RPOPLPUSH";
        break;
    case COMMAND_BLMPOP:
    case COMMAND_BZMPOP:
        *as = (struct nonblocking_form){
            .name = k->command->id == COMMAND_BLMPOP ? "LMPOP" : "ZMPOP", .first = 2, .end = last + 1};
        time = 1;
        break;
    case COMMAND_BLPOP:
    case COMMAND_BRPOP:
        as->name = k->command->id == COMMAND_BLPOP ? "LPOP" : "RPOP";
        as->each = true;
        break;
    case COMMAND_BZPOPMIN:
    case COMMAND_BZPOPMAX:
        as->name = k->command->id == COMMAND_BZPOPMIN ? "ZPOPMIN" : "ZPOPMAX";
        as->each = true;
        break;
    default:
        return false;
    }
    return k->request->argc <= SCRIPT_ARGS_MAX && is_time(k, time);
}

/* ---- retries ---- */

struct fence_retry {
    struct request *request;
    struct ev_timer timer;
    double until;   /* by worker_steady; 0: the wait has no end */
    unsigned times; /* how often nothing came, up to DOUBLINGS */
    bool idle;      /* no attempt is under way */
    bool last;      /* no attempt follows the attempt that is under way or due */
    bool unblocked, error;
    fence_retry_fn again, over;
    void *arg;
};

static void fence_retry_arm(struct fence_retry *a, int64_t least_ms) {
    struct worker *w = a->request->worker;
    int64_t ms = a->times < DOUBLINGS ? 1 << a->times++ : LONGEST_MS;
    if (ms < least_ms)
        ms = least_ms;
    double in = (double)ms / 1000., left = a->until - worker_steady(w);
    a->last = a->until > 0 && left <= in;
    if (a->last)
        in = left > 0 ? left : 0;
    ev_timer_set(&a->timer, in, 0.);
    ev_timer_start(w->loop, &a->timer);
}

static void on_timer(struct ev_loop *loop, struct ev_timer *timer, int events) {
    struct fence_retry *a = timer->data;
    bool paused = a->request->worker->pause != PAUSE_NONE; /* CLIENT PAUSE holds back attempts, too */
    if (paused && !a->last) {
        fence_retry_arm(a, 0);
        return;
    }
    a->idle = false;
    if (paused)
        a->over(a->arg);
    else
        a->again(a->arg);
}

struct fence_retry *fence_retry_new(struct request *r, const struct request_class *k, fence_retry_fn again,
                                    fence_retry_fn over, void *arg) {
    struct fence_retry *a = memory_zalloc(sizeof(*a));
    int64_t ms = command_wait_ms(k->command, k->bytes, k->request);
    a->request = r;
    a->until = ms > 0 ? worker_steady(r->worker) + (double)ms / 1000. : 0;
    a->again = again;
    a->over = over;
    a->arg = arg;
    ev_timer_init(&a->timer, on_timer, 0., 0.);
    a->timer.data = a;
    session_delay(r->session, DELAY_BLOCKED, true);
    return a;
}

void fence_retry_free(struct fence_retry *a) {
    if (!a)
        return;
    ev_timer_stop(a->request->worker->loop, &a->timer);
    if (a->request->session)
        session_delay(a->request->session, DELAY_BLOCKED, false);
    memory_free(a);
}

bool fence_retry_more(struct fence_retry *a, int64_t least_ms) {
    invariant(!a->idle, "two attempts are due");
    struct session *s = a->request->session;
    session_delay(s, DELAY_BLOCKED, true);
    if (a->last || a->unblocked || session_half_closed(s))
        return false;
    a->idle = true;
    fence_retry_arm(a, least_ms);
    return true;
}

bool fence_retry_takes(struct fence_retry *a) {
    invariant(!a->idle && a->request->session, "an attempt takes an element after it has ended");
    struct session *s = a->request->session;
    if (!a->unblocked)
        session_delay(s, DELAY_BLOCKED,
                      false); /* a stop of the proxy now waits for the attempt, which may take an element */
    return !a->unblocked;
}

bool fence_retry_idle(const struct fence_retry *a) {
    return a && a->idle;
}

void fence_retry_answer(const struct fence_retry *a, struct text *out) {
    const struct session *s = a->request->session;
    if (session_half_closed(s))
        return;
    if (a->error)
        text_printf(out, "-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n");
    else
        text_printf(out, s->lane.protocol == 3 ? "_\r\n" : "*-1\r\n");
}

void fence_retry_leaves(struct fence_retry *a) {
    if (!a->idle)
        return;
    ev_timer_stop(a->request->worker->loop, &a->timer);
    a->idle = false;
    a->over(a->arg);
}

bool fence_retry_unblock(struct fence_retry *a, bool error) {
    if (a->unblocked)
        return false;
    a->unblocked = true;
    a->error = error;
    fence_retry_leaves(a);
    return true;
}
