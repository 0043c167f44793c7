/*
 * A thread's connections to the witnesses, each with an upstream of its own, and the questions that are on their way.
 */
#include "proxy/witness/witness.h"

#include <ev.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "parser/invariant.h"
#include "parser/resp.h"
#include "proxy/base/clock.h"
#include "proxy/base/log.h"
#include "proxy/base/memory.h"
#include "proxy/base/text.h"
#include "proxy/upstream/script.h"
#include "proxy/upstream/upstream.h"

enum { ANSWER_MAX = 160 };
/* A release without an answer is told again: a stopped witness may have an undone attempt in its buffer. */
enum { FREE_AGAIN_MS = 1000, FREE_TRIES = 60, FREES_OWED_MAX = 10000 };
#define MARK "lockkeeper-witness"

struct witness {
    struct list_node link; /* in set->left, once it is no witness any more */
    struct upstream *upstream;
    struct upstream_config config;
    const char *address;      /* its own copy */
    unsigned used;            /* how many questions may ask it */
    int64_t votes_from_ms;    /* it came with a change of the set, and does not vote before; 0: it votes */
    bool voted;               /* it votes here, whatever it says of other proxies' changes */
    bool told;                /* it remembers that it came */
    bool prepared;            /* it has been sent the script of releases */
    enum witness_answer last; /* WITNESS_DUE: none yet */
    uint64_t answers, failures;
};

struct witnesses {
    struct ev_loop *loop;
    struct ev_prepare flush;
    struct ev_idle again; /* a callback of the flush has sent something: there must be another turn */
    bool flushing, closing;
    size_t frees_owed;
    struct list_node questions;
    struct text build;
    struct witness_config config; /* its texts are the set's own; the addresses are the members' */
    struct readable *readable;
    struct chunk_pool *pool;
    unsigned count;
    struct witness *members[WITNESSES_MAX];
    struct list_node left; /* they were taken away, and are freed when no question uses them */
};

struct question;

/* One witness's part in a question. */
struct part {
    struct upstream_request up; /* first, so that the upstream's pointer is also the part's */
    struct question *question;
    struct witness *to; /* a member of the set when the question began */
    unsigned index;
    size_t len;
    char answer[ANSWER_MAX];
};

enum question_kind { QUESTION_TAKE, QUESTION_FREE, QUESTION_TRUST, QUESTION_JOIN, QUESTION_PREPARE };

struct question {
    struct list_node link;
    struct witnesses *set;
    enum question_kind kind;
    struct ev_timer late;
    witness_done_fn done; /* NULL: its caller has heard, or does not want to */
    void (*trusted)(void *arg, bool answered);
    void *arg;
    bool starting; /* the parts are being sent: it must not be freed */
    bool owed;     /* a release that waits to be told again to witnesses that were silent */
    unsigned tries;
    struct text bytes; /* of a release */
    unsigned due;
    struct witness_word word;
    struct part parts[WITNESSES_MAX];
};

/* ---- votes ----------------------------------------------------------------------------------------- */

/* Two majorities of the same witnesses have a witness in common: that is all that the protocol needs of them. Witnesses
 * that are silent or in quarantine count against a lease. */

unsigned vote_majority(unsigned count) {
    return count / 2 + 1;
}

unsigned vote_count(const struct vote *v, enum witness_answer answer) {
    unsigned n = 0;
    for (unsigned i = 0; i < v->count; i++)
        n += v->answers[i] == answer;
    return n;
}

unsigned vote_answered(const struct vote *v) {
    return v->count - vote_count(v, WITNESS_DUE) - vote_count(v, WITNESS_SILENT);
}

bool vote_may_turn(const struct vote *v) {
    unsigned others = vote_count(v, WITNESS_HOLDS);
    return others > 0 && vote_count(v, WITNESS_GRANTS) + vote_count(v, WITNESS_LOW) + others >= vote_majority(v->count);
}

enum verdict vote_verdict(const struct vote *v) {
    invariant(v->count > 0 && v->count <= WITNESSES_MAX, "a vote of %u witnesses", v->count);
    unsigned granted = vote_count(v, WITNESS_GRANTS), low = vote_count(v, WITNESS_LOW);
    if (granted >= vote_majority(v->count))
        return VERDICT_GRANTED;
    if (vote_count(v, WITNESS_DUE) > 0) /* also where the rest can't change it: what they say makes the error's text */
        return VERDICT_OPEN;
    if (granted + low >= vote_majority(v->count))
        return VERDICT_LOW;
    return 2 * vote_count(v, WITNESS_HOLDS) > vote_answered(v) ? VERDICT_HELD : VERDICT_NONE;
}

/* ---- the end of a question ------------------------------------------------------------------------- */

static void question_free(struct question *q) {
    invariant(q->due == 0 && !q->done && !q->starting, "a question is freed with %u answers due", q->due);
    ev_timer_stop(q->set->loop, &q->late);
    list_remove(&q->link);
    text_clear(&q->bytes);
    for (unsigned i = 0; i < q->word.vote.count; i++)
        q->parts[i].to->used--;
    q->set->frees_owed -= q->owed;
    memory_free(q);
}

static void question_time(struct question *q, int64_t ms) {
    ev_timer_stop(q->set->loop, &q->late);
    ev_timer_set(&q->late, (double)(ms > 0 ? ms : 1) / 1000, 0.);
    ev_timer_start(q->set->loop, &q->late);
}

/* Tells the caller if the votes have decided, and frees the question if no answer is due. */
static void question_look(struct question *q) {
    if (q->starting)
        return;
    if (q->done && vote_verdict(&q->word.vote) != VERDICT_OPEN) {
        witness_done_fn done = q->done;
        struct witness_word word = q->word;
        void *arg = q->arg;
        q->done = NULL;
        q->starting = true; /* the callback may close what it likes, but not this question */
        done(arg, &word);
        q->starting = false;
    }
    if (q->due > 0)
        return;
    struct witnesses *set = q->set;
    if (q->kind != QUESTION_FREE || set->closing || vote_count(&q->word.vote, WITNESS_SILENT) == 0 ||
        ++q->tries > FREE_TRIES || set->frees_owed >= FREES_OWED_MAX) {
        question_free(q);
        return;
    }
    q->owed = true; /* the release has to be told again */
    set->frees_owed++;
    question_time(q, FREE_AGAIN_MS);
}

/* Says once in the log that a witness has changed its ways. */
static void witness_says(struct witness *m, enum witness_answer answer, int64_t quarantine_ms) {
    enum witness_answer before = m->last;
    long long quarantine_s = (quarantine_ms + 999) / 1000;
    m->last = answer;
    if (answer >= WITNESS_QUARANTINED && before != answer)
        m->prepared = false; /* it may have been started again */
    if (answer == WITNESS_SILENT && before != answer)
        log_warning("Witness %s does not answer", m->address);
    else if (answer == WITNESS_QUARANTINED && before != answer && m->votes_from_ms > 0)
        log_warning("Witness %s has come with a change of 'witness', and votes in %lld s", m->address, quarantine_s);
    else if (answer == WITNESS_QUARANTINED && before != answer)
        log_warning("Witness %s is in quarantine for %lld s: it was started again, and may have forgotten locks",
                    m->address, quarantine_s);
    else if (answer < WITNESS_QUARANTINED && before >= WITNESS_QUARANTINED)
        log_notice("Witness %s votes again", m->address);
}

static void part_ends(struct part *p, enum witness_answer answer) {
    struct question *q = p->question;
    struct witness *m = p->to;
    if (q->kind == QUESTION_TAKE && m->votes_from_ms > 0) {
        /* While leases may be live that were confirmed without a newcomer, it does not vote. */
        int64_t left_ms = m->votes_from_ms - clock_even_ms();
        if (left_ms <= 0) {
            m->votes_from_ms = 0;
        } else if (answer != WITNESS_SILENT) {
            if (left_ms > q->word.quarantine_ms)
                q->word.quarantine_ms = left_ms;
            answer = WITNESS_QUARANTINED;
        }
    }
    invariant(q->due > 0 && q->word.vote.answers[p->index] == WITNESS_DUE, "a witness answers twice");
    q->due--;
    q->word.vote.answers[p->index] = answer;
    m->answers += answer != WITNESS_SILENT;
    m->failures += answer == WITNESS_SILENT;
    if (q->kind == QUESTION_TAKE || answer == WITNESS_SILENT)
        witness_says(m, answer, q->word.quarantine_ms);
    m->told |= q->kind == QUESTION_JOIN && answer == WITNESS_GRANTS;
    if (q->trusted) {
        q->trusted(q->arg, answer == WITNESS_GRANTS);
        q->trusted = NULL;
    }
    question_look(q);
}

/* ---- answers --------------------------------------------------------------------------------------- */

/* Takes off an answer that the witness has come with another process's change of the set. If it has voted here before,
 * it goes on. */
static void joins_read(struct witness *m, char *text) {
    char *joins = strstr(text, " joins ");
    long long n = 0;
    if (!joins) {
        m->voted |= m->votes_from_ms == 0 && strncmp(text, "quarantine", strlen("quarantine")) != 0;
        return;
    }
    if (sscanf(joins, " joins %lld", &n) == 1 && !m->voted && clock_even_ms() + n > m->votes_from_ms)
        m->votes_from_ms = clock_even_ms() + n;
    *joins = '\0';
}

/* Reads what witness_take.lua answers. */
static enum witness_answer take_read(struct part *p, const struct resp_item *item) {
    struct witness_word *word = &p->question->word;
    char text[ANSWER_MAX + 1];
    snprintf(text, sizeof(text), "%.*s", (int)item->len, item->str);
    joins_read(p->to, text);
    long long n = 0;
    if (strcmp(text, "ok") == 0)
        return WITNESS_GRANTS;
    if (sscanf(text, "quarantine %lld", &n) == 1) {
        if (n > word->quarantine_ms)
            word->quarantine_ms = n;
        return WITNESS_QUARANTINED;
    }
    if (sscanf(text, "low %lld", &n) == 1 && n > 0) {
        word->fences[p->index] = (uint64_t)n;
        return WITNESS_LOW;
    }
    if (strcmp(text, "none") == 0)
        return WITNESS_EMPTY;
    if (sscanf(text, "held %63s", word->tokens[p->index]) == 1)
        return WITNESS_HOLDS;
    return WITNESS_SILENT;
}

static void on_reply(struct upstream_request *r, const char *data, size_t len, bool last) {
    struct part *p = (struct part *)(void *)r;
    size_t room = sizeof(p->answer) - p->len;
    memcpy(p->answer + p->len, data, len < room ? len : room);
    p->len += len < room ? len : room;
    if (!last)
        return;
    struct resp_item item;
    const char *at = p->answer;
    bool read = resp_item_read(&at, p->answer + p->len, &item) && item.type != '-';
    if (!read)
        log_verbose("Witness %s answers: %.*s", p->to->address, (int)p->len, p->answer);
    part_ends(p, !read ? WITNESS_SILENT : p->question->kind == QUESTION_TAKE ? take_read(p, &item) : WITNESS_GRANTS);
}

static void on_fail(struct upstream_request *r, enum upstream_failure why, const char *error) {
    struct part *p = (struct part *)(void *)r;
    struct witnesses *set = p->question->set;
    log_verbose("Witness %s: %s", p->to->address, error);
    if (set->flushing && !ev_is_active(&set->again))
        ev_idle_start(set->loop, &set->again);
    part_ends(p, WITNESS_SILENT);
}

/* ---- asking ---------------------------------------------------------------------------------------- */

static void word(struct text *t, const char *text) {
    text_bulk(t, text, strlen(text));
}

static void number(struct text *t, uint64_t n) {
    char digits[24];
    int len = snprintf(digits, sizeof(digits), "%llu", (unsigned long long)n);
    text_bulk(t, digits, (size_t)len);
}

/* Begins a call of a script: its name and its two keys. */
static void build_call(struct witnesses *set, enum script_id id, const struct witness_lease *lease,
                       unsigned arguments) {
    struct text *t = &set->build, name = {0};
    t->len = 0;
    text_printf(t, "*%u\r\n", 5 + arguments);
    text_append(t, script_get(id)->call, SCRIPT_CALL_LEN);
    text_printf(&name, MARK);
    if (lease) {
        text_printf(&name, ":%s:%u:", set->config.space, (unsigned)lease->db);
        text_append(&name, lease->name, lease->len);
    }
    text_bulk(t, name.data, name.len);
    word(t, MARK);
    text_clear(&name);
}

/* Sends what is in set->build to one witness. */
static void part_send(struct question *q, unsigned i, enum script_id id) {
    static const struct upstream_request_ops ops = {.reply = on_reply, .fail = on_fail};
    struct witnesses *set = q->set;
    const struct upstream_lane lane = {.login = 0, .protocol = 2};
    struct part *p = &q->parts[i];
    p->question = q;
    p->index = i;
    p->up.ops = &ops;
    p->up.script = script_get(id);
    q->due++;
    const char *error =
        set->closing ? "the proxy stops"
                     : upstream_submit(p->to->upstream, &p->up, SLOT_NONE, &lane, set->build.data, set->build.len);
    if (error)
        part_ends(p, WITNESS_SILENT);
}

/* The time of a question is over: what is still due comes too late. A release that is owed is told again. */
static void on_late(struct ev_loop *loop, struct ev_timer *timer, int events) {
    struct question *q = timer->data;
    struct witnesses *set = q->set;
    bool again = q->owed;
    q->starting = true;
    if (again) {
        q->owed = false;
        set->frees_owed--;
        set->build.len = 0;
        text_append(&set->build, q->bytes.data, q->bytes.len);
        question_time(q, set->config.timeout_ms);
    }
    for (unsigned i = 0; i < q->word.vote.count; i++) {
        struct part *p = &q->parts[i];
        if (again && q->word.vote.answers[i] == WITNESS_SILENT) {
            q->word.vote.answers[i] = WITNESS_DUE;
            *p = (struct part){.to = p->to};
            part_send(q, i, SCRIPT_WITNESS_FREE);
        } else if (!again && p->up.in_flight) {
            upstream_abandon(&p->up);
            part_ends(p, WITNESS_SILENT);
        }
    }
    q->starting = false;
    question_look(q);
}

static struct question *question_new(struct witnesses *set, enum question_kind kind, int64_t wait_ms) {
    struct question *q = memory_zalloc(sizeof(*q));
    q->set = set;
    q->kind = kind;
    q->starting = true;
    q->word.vote.count = set->count;
    for (unsigned i = 0; i < set->count; i++) {
        q->parts[i].to = set->members[i];
        set->members[i]->used++;
    }
    list_append(&set->questions, &q->link);
    ev_timer_init(&q->late, on_late, 0., 0.);
    q->late.data = q;
    question_time(q, wait_ms);
    return q;
}

/* Sends it to `count` witnesses, from number `from` on. */
static void question_send(struct question *q, enum script_id id, unsigned from, unsigned count) {
    for (unsigned i = from; i < from + count; i++)
        part_send(q, i, id);
    q->starting = false;
    question_look(q);
}

static const struct witness_lease no_lease = {.name = "", .token = ""};

/* Frees no lock at the witnesses that may not know the script of releases, so that they learn it before the first
 * release. Else that release would be answered with NOSCRIPT, and be repeated behind a later attempt on the same lock,
 * which would be refused. */
static void prepare(struct witnesses *set) {
    for (unsigned i = 0; i < set->count; i++) {
        struct witness *m = set->members[i];
        if (m->prepared || m->last == WITNESS_SILENT)
            continue;
        m->prepared = true;
        struct question *q = question_new(set, QUESTION_PREPARE, set->config.timeout_ms);
        build_call(set, SCRIPT_WITNESS_FREE, &no_lease, 2);
        word(&set->build, no_lease.token);
        number(&set->build, no_lease.fence);
        question_send(q, SCRIPT_WITNESS_FREE, i, 1);
    }
}

void witness_take(struct witnesses *set, const struct witness_lease *lease, const char *over, int64_t promise_ms,
                  int64_t wait_ms, witness_done_fn done, void *arg) {
    invariant(promise_ms > 0 && promise_ms <= set->config.quarantine_ms,
              "S8: a promise of %lld ms may be forgotten by a witness that votes again", (long long)promise_ms);
    prepare(set);
    struct question *q = question_new(set, QUESTION_TAKE, wait_ms);
    q->done = done;
    q->arg = arg;
    build_call(set, SCRIPT_WITNESS_TAKE, lease, 6);
    word(&set->build, lease->token);
    number(&set->build, lease->fence);
    word(&set->build, over);
    number(&set->build, (uint64_t)promise_ms);
    number(&set->build, (uint64_t)set->config.quarantine_ms);
    word(&set->build, set->config.space);
    question_send(q, SCRIPT_WITNESS_TAKE, 0, set->count);
}

void witness_free(struct witnesses *set, const struct witness_lease *lease) {
    struct question *q = question_new(set, QUESTION_FREE, set->config.timeout_ms);
    build_call(set, SCRIPT_WITNESS_FREE, lease, 2);
    word(&set->build, lease->token);
    number(&set->build, lease->fence);
    text_append(&q->bytes, set->build.data, set->build.len);
    question_send(q, SCRIPT_WITNESS_FREE, 0, set->count);
}

void witness_probe(struct witnesses *set) {
    /* Newcomers are to remember that they are: processes that are started meanwhile hear it from them. */
    for (unsigned i = 0; i < set->count; i++) {
        const struct witness *m = set->members[i];
        int64_t left_ms = m->votes_from_ms - clock_even_ms();
        if (m->told || left_ms <= 0)
            continue;
        struct question *q = question_new(set, QUESTION_JOIN, set->config.timeout_ms);
        build_call(set, SCRIPT_WITNESS_JOIN, NULL, 2);
        number(&set->build, (uint64_t)left_ms);
        word(&set->build, set->config.space);
        question_send(q, SCRIPT_WITNESS_JOIN, i, 1);
    }
    witness_take(set, &no_lease, "", 1, set->config.timeout_ms, NULL, NULL);
}

const char *witness_trust(struct witnesses *set, const char *address, size_t len,
                          void (*done)(void *arg, bool answered), void *arg) {
    unsigned i = 0;
    while (i < set->count && !text_is(address, len, set->members[i]->address))
        i++;
    if (i == set->count)
        return "ERR no witness has this address; PROXY CONFIG WITNESS shows them";
    if (set->members[i]->votes_from_ms > clock_even_ms())
        return "ERR the witness has come with a reload: leases may be live that it does not know, and it votes when "
               "they are over (docs/quorum.md)";
    struct question *q = question_new(set, QUESTION_TRUST, set->config.timeout_ms);
    q->trusted = done;
    q->arg = arg;
    build_call(set, SCRIPT_WITNESS_TRUST, NULL, 0);
    question_send(q, SCRIPT_WITNESS_TRUST, i, 1);
    return NULL;
}

/* ---- life ------------------------------------------------------------------------------------------ */

static void witness_close(struct witness *m) {
    list_remove(&m->link);
    if (m->upstream)
        upstream_free(m->upstream);
    memory_free((char *)(uintptr_t)m->address);
    memory_free(m);
}

static void on_flush(struct ev_loop *loop, struct ev_prepare *prepare, int events) {
    struct witnesses *set = prepare->data;
    ev_idle_stop(loop, &set->again);
    set->flushing = true;
    for (unsigned i = 0; i < set->count; i++)
        upstream_flush(set->members[i]->upstream);
    LIST_EACH(m, &set->left, struct witness, link)
        upstream_flush(m->upstream);
    set->flushing = false;
    LIST_EACH_SAFE(m, &set->left, struct witness, link)
        if (m->used == 0)
            witness_close(m);
}

static void on_again(struct ev_loop *loop, struct ev_idle *again, int events) {
}

static struct witness *witness_open(struct witnesses *set, const char *address) {
    static const struct upstream_events none;
    struct witness *m = memory_zalloc(sizeof(*m));
    list_init(&m->link);
    m->address = memory_strdup(address);
    m->config = (struct upstream_config){.kind = UPSTREAM_STANDALONE,
                                         .own = UPSTREAM_OWN_WITNESSES,
                                         .addresses = &m->address,
                                         .address_count = 1,
                                         .connections = 1,
                                         .timeout_ms = set->config.timeout_ms,
                                         .tls = set->config.tls};
    m->upstream = upstream_new(set->loop, set->readable, &m->config, set->pool, &none);
    invariant(m->upstream, "a witness's address was found wrong too late");
    return m;
}

void witnesses_change(struct witnesses *set, const char *const *addresses, size_t count) {
    struct witness *before[WITNESSES_MAX];
    unsigned n = set->count;
    memcpy(before, set->members, sizeof(before));
    invariant(count > 0 && count <= WITNESSES_MAX, "%zu witnesses", count);
    set->count = (unsigned)count;
    for (size_t i = 0; i < count; i++) {
        unsigned k = 0;
        while (k < n && (!before[k] || strcasecmp(before[k]->address, addresses[i]) != 0))
            k++;
        set->members[i] = k < n ? before[k] : witness_open(set, addresses[i]);
        if (k < n)
            before[k] = NULL;
        else if (n > 0)
            set->members[i]->votes_from_ms = clock_even_ms() + witness_change_ms(set->config.quarantine_ms);
    }
    for (unsigned k = 0; k < n; k++)
        if (before[k])
            list_append(&set->left, &before[k]->link);
}

struct witnesses *witnesses_new(struct ev_loop *loop, struct readable *readable, struct chunk_pool *pool,
                                const struct witness_config *config) {
    struct witnesses *set = memory_zalloc(sizeof(*set));
    set->loop = loop;
    set->readable = readable;
    set->pool = pool;
    set->config = *config;
    set->config.space = memory_strdup(config->space ? config->space : "");
    list_init(&set->questions);
    list_init(&set->left);
    ev_prepare_init(&set->flush, on_flush);
    ev_set_priority(&set->flush, EV_MINPRI); /* behind the worker's own work of the turn, which may ask */
    set->flush.data = set;
    ev_prepare_start(loop, &set->flush);
    ev_idle_init(&set->again, on_again);
    witnesses_change(set, config->addresses, config->count);
    return set;
}

void witnesses_free(struct witnesses *set) {
    if (!set)
        return;
    set->closing = true;
    ev_prepare_stop(set->loop, &set->flush);
    ev_idle_stop(set->loop, &set->again);
    for (unsigned i = 0; i < set->count; i++)
        list_append(&set->left, &set->members[i]->link);
    LIST_EACH(m, &set->left, struct witness, link) {
        upstream_free(m->upstream);
        m->upstream = NULL;
    }
    LIST_EACH_SAFE(q, &set->questions, struct question, link)
        question_free(q); /* a release that is owed */
    LIST_EACH_SAFE(m, &set->left, struct witness, link)
        witness_close(m);
    text_clear(&set->build);
    MEMORY_FREE_ALL((char *)(uintptr_t)set->config.space, set);
}

/* ---- looking in ------------------------------------------------------------------------------------ */

size_t witness_count(const struct witnesses *set) {
    return set ? set->count : 0;
}

static void note_trip(void *arg, const struct upstream_node_info *info) {
    struct witness_view *view = arg;
    view->round_trip_us = info->round_trip_us;
}

void witness_look(const struct witnesses *set, size_t i, struct witness_view *view) {
    const struct witness *m = set->members[i];
    static const char *const states[WITNESS_SILENT + 1] = {
        [WITNESS_DUE] = "unknown", [WITNESS_QUARANTINED] = "quarantined", [WITNESS_SILENT] = "down"};
    *view = (struct witness_view){.address = m->address,
                                  .answers = m->answers,
                                  .failures = m->failures,
                                  .state = states[m->last] ? states[m->last] : "up",
                                  .votes = m->last < WITNESS_QUARANTINED};
    upstream_each_node(m->upstream, note_trip, view);
}
