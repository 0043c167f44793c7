#include "tests/fuzz/people.h"

#include <errno.h>
#include <stdint.h>
#include <sys/socket.h>
#include <unistd.h>

#include "parser/resp.h"
#include "proxy/base/text.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/fuzz_world.h"

enum { EXPECTED_MAX = 1024, UNSENT_MAX = 1 << 20 };

struct person {
    int fd; /* -1: not connected */
    bool deaf, half_closed;
    struct text out, in;
    struct resp_reply frame;
    struct expect expected[EXPECTED_MAX];
    size_t first, count;
    struct expect queued[EXPECTED_MAX];
    size_t queued_count;
};

static struct person people[PEOPLE];
static bool people_strict;
static bool people_loud; /* to examine a finding: LOCKKEEPER_FUZZ_LOUD */

void people_begin(bool strict) {
    people_strict = strict;
    people_loud = getenv("LOCKKEEPER_FUZZ_LOUD") != NULL;
    for (unsigned i = 0; i < PEOPLE; i++)
        people[i].fd = -1;
}

static void person_end(struct person *p) {
    close(p->fd);
    p->fd = -1;
    p->count = p->first = p->queued_count = 0;
    p->deaf = p->half_closed = false;
    text_clear(&p->out);
    text_clear(&p->in);
}

void people_end(void) {
    for (unsigned i = 0; i < PEOPLE; i++)
        if (people[i].fd >= 0)
            person_end(&people[i]);
}

static struct person *person_at(unsigned client) {
    struct person *p = &people[client % PEOPLE];
    if (p->fd < 0) {
        p->fd = world_connect();
        resp_reply_init(&p->frame);
    }
    return p;
}

void people_send(unsigned client, const char *bytes, size_t len) {
    struct person *p = person_at(client);
    if (people_loud)
        fprintf(stderr, "client %d > %.*s\n", (int)(p - people), (int)len, bytes);
    if (!p->half_closed && p->out.len < UNSENT_MAX)
        text_append(&p->out, bytes, len);
}

void people_expect(unsigned client, const struct expect *expect) {
    struct person *p = person_at(client);
    CHECK(p->count < EXPECTED_MAX);
    p->expected[(p->first + p->count++) % EXPECTED_MAX] = *expect;
}

void people_leave(unsigned client) {
    struct person *p = &people[client % PEOPLE];
    if (p->fd >= 0)
        person_end(p);
}

void people_half_close(unsigned client) {
    struct person *p = person_at(client);
    if (p->out.len == 0)
        shutdown(p->fd, SHUT_WR);
    p->half_closed = true;
}

void people_deafen(unsigned client, bool deaf) {
    people[client % PEOPLE].deaf = deaf;
}

bool people_content(void) {
    for (unsigned i = 0; i < PEOPLE; i++)
        if (people[i].fd >= 0 && (people[i].count > 0 || people[i].out.len > 0))
            return false;
    return true;
}

/* ---- what they are told --------------------------------------------------------------------------- */

static void check_name(const struct resp_item *item, unsigned number) {
    char name[32];
    int len = snprintf(name, sizeof name, "k%u", number);
    CHECK(item->type == '$' && item->len == (size_t)len && memcmp(item->str, name, item->len) == 0);
}

/* Reads the reply that was expected. Elements of EXEC are no errors' exceptions: they may be errors too. */
static void check_reply(struct person *p, const char **at, const char *end, const struct expect *e, bool queueing) {
    struct resp_item item;
    CHECK(resp_item_read(at, end, &item));
    if (item.type == '-')
        return;
    if (queueing && item.type == '+' && item.len == 6 && memcmp(item.str, "QUEUED", 6) == 0) {
        CHECK(p->queued_count < EXPECTED_MAX);
        p->queued[p->queued_count++] = *e;
        return;
    }
    switch (e->kind) {
    case EXPECT_STATUS:
        CHECK(item.type == '+');
        p->queued_count = 0; /* of MULTI */
        break;
    case EXPECT_NUMBER:
        CHECK(item.type == ':');
        break;
    case EXPECT_NAMES:
        if (e->count == 1) {
            check_name(&item, e->first);
            break;
        }
        CHECK(item.type == '*' && item.num == (int64_t)e->count);
        for (unsigned i = 0; i < e->count; i++) {
            CHECK(resp_item_read(at, end, &item));
            check_name(&item, e->first + i);
        }
        break;
    case EXPECT_EXEC:
        CHECK(item.type == '*' && (item.null || item.num == (int64_t)p->queued_count));
        for (size_t i = 0; !item.null && i < p->queued_count; i++)
            check_reply(p, at, end, &p->queued[i], false);
        break;
    }
}

static void person_reply(struct person *p, const char *reply, size_t len) {
    if (people_loud)
        fprintf(stderr, "client %d < %.*s\n", (int)(p - people), (int)len, reply);
    if (!people_strict)
        return;
    CHECK(p->count > 0);
    struct expect e = p->expected[p->first];
    p->first = (p->first + 1) % EXPECTED_MAX;
    p->count--;
    const char *at = reply;
    check_reply(p, &at, reply + len, &e, e.kind != EXPECT_EXEC);
    CHECK(*reply == '-' || at == reply + len);
    if (e.kind == EXPECT_EXEC)
        p->queued_count = 0;
}

static void person_hear(struct person *p) {
    size_t at = 0, used;
    while (at < p->in.len) {
        resp_reply_init(&p->frame);
        enum resp_status status = resp_reply_scan(&p->frame, p->in.data + at, p->in.len - at, &used);
        if (status == RESP_BAD && people_loud)
            fprintf(stderr, "client %d < what is no RESP: %.*s\n", (int)(p - people), (int)(p->in.len - at),
                    p->in.data + at);
        CHECK(status != RESP_BAD);
        if (status == RESP_MORE)
            break;
        person_reply(p, p->in.data + at, used);
        at += used;
    }
    if (at > 0) {
        memmove(p->in.data, p->in.data + at, p->in.len - at);
        p->in.len -= at;
    }
}

/* ---- a turn -------------------------------------------------------------------------------------- */

static bool person_read(struct person *p) {
    char *room = text_reserve(&p->in, 65536);
    ssize_t n = read(p->fd, room, 65536);
    if (n > 0) {
        text_commit(&p->in, (size_t)n);
        person_hear(p);
        return true;
    }
    if (n < 0 && errno == EAGAIN)
        return false;
    CHECK(!people_strict || (p->half_closed && p->count == 0));
    person_end(p);
    return true;
}

static bool person_write(struct person *p) {
    ssize_t n = p->out.len > 0 ? send(p->fd, p->out.data, p->out.len, MSG_NOSIGNAL) : 0;
    if (n < 0 && errno != EAGAIN)
        p->out.len = 0; /* the proxy has closed: what it said is still to be read */
    if (n <= 0)
        return false;
    memmove(p->out.data, p->out.data + n, p->out.len - (size_t)n);
    p->out.len -= (size_t)n;
    if (p->out.len == 0 && p->half_closed)
        shutdown(p->fd, SHUT_WR);
    return true;
}

bool people_turn(void) {
    bool any = false;
    for (unsigned i = 0; i < PEOPLE; i++) {
        struct person *p = &people[i];
        if (p->fd >= 0)
            any |= person_write(p);
        if (p->fd >= 0 && !p->deaf)
            any |= person_read(p);
    }
    return any;
}
