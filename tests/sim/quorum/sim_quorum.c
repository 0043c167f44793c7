/*
 * The simulator of quorum locks: sim_quorum [--steps N] [--seed S] [--length L] [--broken WHAT] [--alone] [--verbose]
 *
 * Runs scenario after scenario, each drawn from the seed, until N steps were made, and checks S8 after each step. A
 * step is a message that arrives, a timer that rings, or what a client or a proxy does. --broken takes a rule away; the
 * run then has to find two holders.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proxy/base/log.h"
#include "tests/sim/chance.h"
#include "tests/sim/quorum/quorum_world.h"

enum { BEGIN_MS = 1000000, CALM_EACH = 4000, ENOUGH_STEPS = 500000 };

static const char *const BROKEN[] = {"", "quarantine", "majority", "release"};

struct options {
    long steps, length;
    uint64_t seed;
    enum q_broken broken;
    bool seeded, alone, verbose;
};

/* ---- chance, and what is said -------------------------------------------------------------------------- */

uint64_t world_random(struct world *w) {
    return chance_next(&w->random);
}

unsigned world_below(struct world *w, unsigned n) {
    return n ? (unsigned)(world_random(w) % n) : 0;
}

bool world_chance(struct world *w, unsigned percent) {
    return world_below(w, 100) < percent;
}

void world_event(struct world *w, const char *format, ...) {
    if (!w->tell)
        return;
    va_list args;
    va_start(args, format);
    printf("%6ld %8" PRId64 " ", w->step, w->now_ms - BEGIN_MS);
    vprintf(format, args);
    printf("\n");
    va_end(args);
}

void world_fail(struct world *w, const char *rule, const char *format, ...) {
    if (w->failure || (w->broken != Q_WHOLE && strcmp(rule, "S8") != 0))
        return;
    w->failure = rule;
    va_list args;
    va_start(args, format);
    vsnprintf(w->failure_text, sizeof(w->failure_text), format, args);
    va_end(args);
}

/* ---- clocks --------------------------------------------------------------------------------------------- */

struct q_clock q_clock_new(struct world *w) {
    return (struct q_clock){.base_ms = (int64_t)world_below(w, 600) - 300,
                            .since_ms = world_below(w, 2 * Q_TURN_MS),
                            .off = world_below(w, Q_RATE_OFF + 1)};
}

int64_t q_clock_at(const struct q_clock *c, int64_t now_ms) {
    int64_t into_ms = (now_ms + c->since_ms) % (2 * Q_TURN_MS);
    int64_t fast_ms = into_ms < Q_TURN_MS ? into_ms : 2 * Q_TURN_MS - into_ms;
    return c->base_ms + now_ms + fast_ms * c->off / Q_RATE;
}

int64_t q_clock_when(const struct q_clock *c, int64_t says_ms) {
    int64_t at_ms = says_ms - c->base_ms - Q_TURN_MS / 16, missing_ms;
    while ((missing_ms = says_ms - q_clock_at(c, at_ms)) > 0)
        at_ms += missing_ms - missing_ms / 16; /* no clock is so fast */
    return at_ms;
}

/* ---- what goes wrong ------------------------------------------------------------------------------------ */

static void cut_one(struct world *w, struct upstream *u, int64_t ms) {
    u->cut_until_ms = w->now_ms + ms;
    world_event(w, "proxy %u is cut off from server %u for %" PRId64 " ms", u->proxy->index, u->server, ms);
    if (world_chance(w, 50))
        wires_reset(u, false);
}

/* Cuts a proxy off from one server, or from all witnesses; perhaps it is left alone with the old master. */
static void cut(struct world *w, struct q_proxy *p) {
    int64_t ms = world_below(w, world_chance(w, 60) ? 1000 : 6000);
    bool all = world_chance(w, 30);
    for (unsigned i = 0; all && i < p->witness_count; i++)
        cut_one(w, &p->witnesses[i], ms);
    if (all && world_chance(w, 60))
        server_fail_over(w, false, p);
    if (!all)
        cut_one(w, world_chance(w, 20) ? &p->redis : &p->witnesses[world_below(w, p->witness_count)], ms);
}

static void proxy_trouble(struct world *w, struct q_proxy *p) {
    bool crashes = world_chance(w, 50);
    w->totals.crashes += crashes;
    w->totals.handovers += !crashes;
    world_event(w, "proxy %u %s", p->index, crashes ? "crashes" : "ends");
    if (crashes)
        proxy_kill(w, p->index);
    else
        proxy_end(w, p->index);
}

static void trouble(struct world *w) {
    struct q_proxy *p = &w->proxies[world_below(w, Q_PROXIES)];
    unsigned what = world_below(w, 100);
    bool runs = p->runs && !p->ends;
    if (what < 30 && runs) {
        cut(w, p);
    } else if (what < 36) {
        server_fail_over(w, world_chance(w, 20), NULL);
    } else if (what < 42) {
        (void)witness_restart(w, world_below(w, Q_WITNESSES), world_chance(w, 70));
    } else if (what < 52) { /* both forget at once */
        if (witness_restart(w, world_below(w, Q_WITNESSES), true))
            server_fail_over(w, world_chance(w, 50), NULL);
    } else if (what < 64) {
        w->servers[world_below(w, Q_SERVERS)].stopped_until_ms = w->now_ms + world_below(w, 4000);
    } else if (what < 70 && runs) {
        proxy_trouble(w, p);
    } else if (what < 76 && runs) {
        proxy_stop(w, p->index, world_below(w, 4000));
    } else if (what < 90) {
        client_leave(w, &w->clients[world_below(w, Q_CLIENTS)], world_chance(w, 40));
    } else {
        w->slow_until_ms = w->now_ms + world_below(w, 2000);
    }
}

/* ---- liveness ------------------------------------------------------------------------------------------- */

/* How long it takes at most, once nothing goes wrong any more, until each lock has been acquired again: what was
 * promised ends, a witness leaves its quarantine, clients end their work. */
static int64_t calm_ms(const struct world *w) {
    return 2 * w->quarantine_ms + 6 * w->lease_ms + 20000;
}

static void calm_begin(struct world *w) {
    world_event(w, "nothing goes wrong from now on");
    wires_heal(w);
    for (unsigned i = 0; i < Q_PROXIES; i++)
        if (w->proxies[i].runs && w->proxies[i].redis.server != w->master)
            wires_reset(&w->proxies[i].redis, false);
    w->calm_until_ms = w->now_ms + calm_ms(w);
    memcpy(w->calm_acquired, w->acquired, sizeof(w->calm_acquired));
    w->totals.calms++;
}

static void calm_look(struct world *w) {
    bool all = true;
    for (unsigned key = 0; key < Q_KEYS; key++) {
        bool again = w->acquired[key] > w->calm_acquired[key] + 1;
        all = all && again;
        if (!again && w->now_ms >= w->calm_until_ms)
            world_fail(w, "liveness", "lock:%u is not acquired, though nothing goes wrong for %" PRId64 " ms", key,
                       calm_ms(w));
    }
    if (all)
        w->calm_until_ms = 0;
}

/* ---- steps ---------------------------------------------------------------------------------------------- */

/* What is due first. */
struct next {
    int64_t due_ms;
    struct q_message *message;
    struct q_timer *timer;
    struct q_proxy *proxy;
    struct q_client *client;
};

static void take_if_sooner(struct next *n, struct next other) {
    if (other.due_ms < n->due_ms)
        *n = other;
}

static struct next next_of(struct world *w) {
    struct next n = {.due_ms = INT64_MAX};
    struct q_message *m = wires_first(w);
    struct q_timer *t = timers_first(w);
    if (m)
        n = (struct next){.due_ms = m->due_ms, .message = m};
    if (t)
        take_if_sooner(&n, (struct next){.due_ms = t->due_ms, .timer = t});
    for (unsigned i = 0; i < Q_PROXIES; i++)
        take_if_sooner(&n, (struct next){.due_ms = proxy_due(&w->proxies[i]), .proxy = &w->proxies[i]});
    for (unsigned i = 0; i < Q_CLIENTS; i++)
        if (!w->clients[i].sent)
            take_if_sooner(&n, (struct next){.due_ms = w->clients[i].act_ms, .client = &w->clients[i]});
    return n;
}

static void step(struct world *w) {
    struct next n = next_of(w);
    w->step++;
    if (n.due_ms > w->now_ms)
        w->now_ms = n.due_ms;
    clients_check(w);
    if (n.message)
        wires_deliver(w, n.message);
    else if (n.timer)
        timer_rings(w, n.timer);
    else if (n.proxy)
        proxy_work(n.proxy);
    else
        client_act(w, n.client);
    if (world_chance(w, 3))
        server_follow(w, world_below(w, Q_REPLICAS));
    if (world_calm(w))
        calm_look(w);
    else if (w->step % CALM_EACH == 0)
        calm_begin(w);
    else if (world_below(w, 1000) < 5)
        trouble(w);
    clients_check(w);
}

/* ---- a scenario ----------------------------------------------------------------------------------------- */

static void rules_make(struct world *w) {
    char lease[24], delay[24], hold[24], error[200];
    snprintf(lease, sizeof(lease), "%" PRId64 "ms", w->lease_ms);
    snprintf(delay, sizeof(delay), "%" PRId64 "ms", w->delay_ms);
    snprintf(hold, sizeof(hold), "%" PRId64 "ms",
             5 * w->lease_ms); /* a client that comes back may have forgotten its lock */
    const char *words[] = {"lock:*",   "max-hold",      hold,
                           "quorum",   "yes",           "lease",
                           lease,      "on-disconnect", w->releases ? "release" : "keep",
                           "handover", lease,           "lock-delay",
                           delay};
    w->rules = lock_rules_new();
    const char *wrong = lock_rules_add(w->rules, words, sizeof(words) / sizeof(words[0]), error, sizeof(error));
    if (wrong) {
        fprintf(stderr, "%s\n", wrong);
        abort();
    }
}

static void world_open(struct world *w, uint64_t seed, enum q_broken broken, bool tell) {
    memset(w, 0, sizeof(*w));
    w->random = w->seed = seed;
    w->broken = broken;
    w->tell = tell;
    w->now_ms = BEGIN_MS;
    list_init(&w->messages);
    w->lease_ms = 1000 + world_below(w, 2000);
    w->timeout_ms = 50 + world_below(w, 250);
    w->longest_ms = 2 * w->lease_ms;
    w->delay_ms = world_chance(w, 25) ? world_below(w, 1000) : 0;
    int64_t promise_ms = lock_promise_ms(w->longest_ms + w->delay_ms, w->timeout_ms);
    w->quarantine_ms = promise_ms + 20 + world_below(w, 3000);
    w->releases = world_chance(w, 20);
    w->waits.waited = LOCK_WAITED_NONE;
    rules_make(w);
    servers_open(w);
    for (unsigned i = 0; i < Q_PROXIES; i++)
        proxy_start(w, i);
    for (unsigned i = 0; i < Q_CLIENTS; i++) {
        struct q_client *c = &w->clients[i];
        c->clock = q_clock_new(w);
        c->proxy = world_below(w, Q_PROXIES);
        c->number = (uint64_t)i << 32;
        c->act_ms = w->now_ms + world_below(w, 100);
    }
}

static void world_close(struct world *w) {
    for (unsigned i = 0; i < Q_PROXIES; i++)
        if (w->proxies[i].runs)
            proxy_kill(w, i);
    wires_close(w);
    servers_close(w);
    lock_rules_unref(w->rules);
}

static bool run(struct world *w, uint64_t seed, const struct options *o, bool tell) {
    world_open(w, seed, o->broken, tell);
    while (w->step < o->length && !w->failure)
        step(w);
    world_close(w);
    return !w->failure;
}

/* ---- what has happened ------------------------------------------------------------------------------------ */

static void add(struct q_totals *sum, const struct q_totals *t) {
    uint64_t *to = (uint64_t *)(void *)sum;
    const uint64_t *from = (const uint64_t *)(const void *)t;
    for (size_t i = 0; i < sizeof(*sum) / sizeof(*to); i++)
        to[i] += from[i];
}

/* Prints how often things have happened. False: one of them too rarely to show anything. */
static bool enough(const struct q_totals *t, long steps, long scenarios) {
    static const char *const names[] = {Q_TOTALS(Q_TOTAL_NAME)};
    const uint64_t *counts = (const uint64_t *)(const void *)t;
    bool all = t->acquired * 200 > (uint64_t)steps;
    printf("sim_quorum: %ld steps in %ld scenarios", steps, scenarios);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        printf(", %" PRIu64 " %s", counts[i], names[i]);
        all = all && counts[i] > 0;
    }
    printf("\n");
    if (!all && steps >= ENOUGH_STEPS)
        printf("FAILED: that is too little\n");
    return all || steps < ENOUGH_STEPS;
}

/* ---- the program ---------------------------------------------------------------------------------------- */

static bool broken_read(struct options *o, const char *name) {
    for (unsigned i = 0; i < sizeof(BROKEN) / sizeof(BROKEN[0]); i++)
        if (strcmp(BROKEN[i], name) == 0)
            o->broken = (enum q_broken)i;
    return o->broken != Q_WHOLE;
}

static bool options_read(struct options *o, int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        bool more = i + 1 < argc;
        if (strcmp(argv[i], "--alone") == 0)
            o->alone = true;
        else if (strcmp(argv[i], "--verbose") == 0)
            o->verbose = true;
        else if (strcmp(argv[i], "--steps") == 0 && more)
            o->steps = atol(argv[++i]);
        else if (strcmp(argv[i], "--length") == 0 && more)
            o->length = atol(argv[++i]);
        else if (strcmp(argv[i], "--seed") == 0 && more)
            o->seeded = (o->seed = strtoull(argv[++i], NULL, 10)) != 0;
        else if (strcmp(argv[i], "--broken") != 0 || !more || !broken_read(o, argv[++i]))
            return false;
    }
    return true;
}

int main(int argc, char **argv) {
    struct options o = {.steps = 1000000, .length = 20000, .seed = 1};
    static struct world w;
    if (!options_read(&o, argc, argv)) {
        fprintf(stderr, "usage: sim_quorum [--steps N] [--seed S] [--length L] [--broken quarantine|majority|release] "
                        "[--alone] [--verbose]\n");
        return 2;
    }
    log_set_level(LOG_LEVEL_NOTHING);
    command_table_init();
    slot_tags_init();
    struct q_totals totals = {0};
    long steps = 0, scenarios = 0;
    for (; steps < (o.alone ? 1 : o.steps); scenarios++) {
        uint64_t seed = o.alone ? o.seed : chance_seed(o.seed, (uint64_t)scenarios);
        if (!run(&w, seed, &o, o.alone && o.verbose)) {
            printf("FAILED at step %ld of scenario %ld: %s: %s\nreplay: sim_quorum --alone --seed %" PRIu64
                   " --length %ld%s%s --verbose\n",
                   w.step, scenarios + 1, w.failure, w.failure_text, seed, o.length, o.broken ? " --broken " : "",
                   BROKEN[o.broken]);
            return 1;
        }
        steps += w.step;
        add(&totals, &w.totals);
    }
    return enough(&totals, steps, scenarios) ? 0 : 1;
}
