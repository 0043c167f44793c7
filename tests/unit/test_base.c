/* The base: lists, hash tables, memory, units, output buffers. Globs and the log have tests of their own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proxy/base/bytes.h"
#include "proxy/base/iobuf.h"
#include "proxy/base/list.h"
#include "proxy/base/memory.h"
#include "proxy/base/mutex.h"
#include "proxy/base/table.h"
#include "proxy/base/text.h"
#include "proxy/base/units.h"

/* ---- lists --------------------------------------------------------------------------------- */

struct item {
    int value;
    struct list_node link;
};

/* The values in order, as one number. */
static long digits(const struct list_node *head) {
    long n = 0, back = 0, factor = 1;
    LIST_EACH(it, head, const struct item, link) {
        n = n * 10 + it->value;
    }
    for (const struct list_node *it = head->prev; it != head; it = it->prev, factor *= 10)
        back += factor * LIST_ENTRY(it, struct item, link)->value;
    assert_int_equal(n, back);
    return n;
}

static void test_list(void **state) {
    (void)state;
    struct list_node head, other;
    struct item items[6];
    list_init(&head);
    list_init(&other);
    assert_true(list_empty(&head));
    assert_null(list_first(&head));
    assert_null(list_shift(&head));
    assert_null(LIST_FIRST(&head, struct item, link));
    assert_int_equal(digits(&head), 0);
    for (int i = 0; i < 6; i++) {
        items[i].value = i + 1;
        list_init(&items[i].link);
    }
    list_append(&head, &items[1].link);
    list_append(&head, &items[2].link);
    list_prepend(&head, &items[0].link);
    assert_int_equal(digits(&head), 123);
    list_remove(&items[1].link);
    list_remove(&items[1].link); /* once more does nothing */
    assert_int_equal(digits(&head), 13);
    assert_true(list_first(&head) == &items[0].link);
    assert_ptr_equal(LIST_FIRST(&head, const struct item, link), &items[0]);

    list_splice(&head, &other);
    assert_int_equal(digits(&head), 13);
    list_append(&other, &items[3].link);
    list_append(&other, &items[4].link);
    list_splice(&head, &other);
    assert_true(list_empty(&other));
    assert_int_equal(digits(&head), 1345);
    list_splice(&other, &head);
    assert_true(list_empty(&head));
    assert_int_equal(digits(&other), 1345);

    LIST_EACH_SAFE(it, &other, struct item, link) {
        if (it->value % 2)
            list_remove(&it->link);
    }
    assert_int_equal(digits(&other), 4);
    list_append(&other, &items[4].link);
    LIST_EACH(it, &other, struct item, link) {
        if (it->value == 4)
            break;
        fail();
    }
    assert_ptr_equal(LIST_SHIFT(&other, struct item, link), &items[3]);
    assert_true(list_shift(&other) == &items[4].link);
    assert_null(LIST_SHIFT(&other, struct item, link));
}

static void test_memory(void **state) {
    (void)state;
    char *p = memory_strndup("abcdef", 3), *q = memory_strdup("xyz"), *z = memory_zalloc(16);
    assert_string_equal(p, "abc");
    assert_string_equal(q, "xyz");
    for (size_t i = 0; i < 16; i++)
        assert_int_equal(z[i], 0);
    z = memory_realloc(z, 4096);
    memory_free(memory_alloc(0));
    MEMORY_FREE_ALL(p, q, NULL, z);
    memory_free(NULL);
    memory_forget(memory_strdup("secret"), 6);
    memory_forget(NULL, 6);
    assert_in_range(memory_resident(), 100 * 1024, (size_t)1 << 40);
}

static void test_array(void **state) {
    (void)state;
    static const char *const NAMES[] = {"a", "b", "c"};
    assert_int_equal(ARRAY_SIZE(NAMES), 3);
    size_t *list = NULL, count = 0;
    for (size_t round = 0; round < 3; round++) { /* it shrinks between the rounds, at most to 7 */
        for (size_t i = count; i < 1000; i++)
            *ARRAY_ADD(list, count) = i;
        for (size_t i = 0; i < count; i++)
            assert_int_equal(list[i], i);
        assert_int_equal(count, 1000);
        count = round ? 7 : 512;
    }
    memory_free(list);
}

static int held(pthread_mutex_t *mutex) {
    int result = pthread_mutex_trylock(mutex);
    if (result == 0)
        pthread_mutex_unlock(mutex);
    return result;
}

static int held_at_return(pthread_mutex_t *mutex) {
    MUTEX_GUARD(mutex);
    return held(mutex);
}

static void test_mutex(void **state) {
    (void)state;
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    assert_int_equal(held_at_return(&mutex), EBUSY);
    assert_int_equal(held(&mutex), 0);
    for (int i = 0; i < 3; i++) {
        MUTEX_GUARD(&mutex);
        assert_int_equal(held(&mutex), EBUSY);
        if (i == 1)
            continue;
    }
    assert_int_equal(held(&mutex), 0);
}

static void test_text(void **state) {
    (void)state;
    struct text t = {0};
    size_t expected = 0;
    text_append(&t, NULL, 0);
    assert_string_equal(t.data, "");
    for (int i = 0; i < 3000; i++) {
        char number[16];
        expected += (size_t)snprintf(number, sizeof(number), "%d,", i);
        if (i % 2)
            text_printf(&t, "%d,", i);
        else
            text_append(&t, number, strlen(number));
        assert_int_equal(t.len, expected);
        assert_int_equal(strlen(t.data), expected);
    }
    assert_memory_equal(t.data, "0,1,2,3,", 8);
    assert_string_equal(t.data + t.len - 10, "2998,2999,");
    memset(text_reserve(&t, 100000), 'x', 100000);
    text_commit(&t, 99999);
    assert_int_equal(t.len, expected + 99999);
    assert_int_equal(strlen(t.data), t.len);
    text_clear(&t);
    assert_null(t.data);
    text_clear(&t);
}

/* ---- units --------------------------------------------------------------------------------- */

static void test_sizes(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int64_t bytes; /* -1: no size */
    } CASES[] = {
        {"0", 0},
        {"100", 100},
        {"7b", 7},
        {"1k", 1000},
        {"1kb", 1024},
        {"64mb", 64 * 1024 * 1024},
        {"64MB", 64 * 1024 * 1024},
        {"2m", 2000000},
        {"1g", 1000000000},
        {"1Gb", 1024 * 1024 * 1024},
        {"9223372036854775807", INT64_MAX},
        {"9223372036854775808", -1},
        {"9007199254740992kb", -1},
        {"", -1},
        {"mb", -1},
        {"-1", -1},
        {"+1", -1},
        {"1.5mb", -1},
        {"1 mb", -1},
        {" 1", -1},
        {"1tb", -1},
        {"1kbx", -1},
    };
    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        int64_t bytes = -1;
        bool is_size = units_size(CASES[i].text, &bytes);
        if (is_size != (CASES[i].bytes >= 0) || (is_size && bytes != CASES[i].bytes))
            fail_msg("'%s': %d, %lld", CASES[i].text, is_size, (long long)bytes);
    }
}

static void test_eight_digits(void **state) {
    (void)state;
    for (uint32_t n = 0; n < 100000000; n += n < 20000 ? 1 : 9973) {
        char text[9];
        uint64_t word = bytes_as_eight_digits(n), back;
        snprintf(text, sizeof(text), "%08u", (unsigned)n);
        if (memcmp(&word, text, 8) != 0 || !bytes_eight_digits(word, &back) || back != n)
            fail_msg("%u: %.8s", (unsigned)n, (const char *)&word);
    }
    for (size_t i = 0; i < 8; i++)
        for (unsigned c = 0; c < 256; c++) {
            char text[] = "90123456";
            uint64_t word, n;
            text[i] = (char)c;
            memcpy(&word, text, sizeof(word));
            assert_int_equal(bytes_eight_digits(word, &n), c >= '0' && c <= '9');
        }
}

/* One byte of difference is seen at each place, in texts of each length. */
static void short_texts_are_compared(void **state) {
    char a[48], b[48];
    memset(a, 'x', sizeof(a));
    memcpy(b, a, sizeof(b));
    for (size_t len = 0; len <= 40; len++) {
        assert_true(bytes_same(a, b, len));
        for (size_t i = 0; i < sizeof(b); i++) {
            b[i] = 'y';
            assert_int_equal(bytes_same(a, b, len), i >= len);
            b[i] = 'x';
        }
    }
}

static void test_times(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int64_t bare, ms;
    } CASES[] = {
        {"0", 1000, 0},           {"5", 1000, 5000},    {"5", 1, 5},        {"500ms", 1000, 500},
        {"30s", 1, 30000},        {"5m", 1000, 300000}, {"1h", 1, 3600000}, {"2D", 1, 172800000},
        {"200000000000d", 1, -1}, {"", 1000, -1},       {"s", 1000, -1},    {"-1s", 1000, -1},
        {"1.5s", 1000, -1},       {"1min", 1000, -1},   {"1s ", 1000, -1},  {"1us", 1, -1},
    };
    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        int64_t ms = -1;
        bool is_time = units_time(CASES[i].text, CASES[i].bare, &ms);
        if (is_time != (CASES[i].ms >= 0) || (is_time && ms != CASES[i].ms))
            fail_msg("'%s': %d, %lld", CASES[i].text, is_time, (long long)ms);
    }
}

static void test_time_text(void **state) {
    (void)state;
    static const struct {
        int64_t ms;
        const char *text;
    } CASES[] = {
        {0, "0s"},      {1, "1ms"},     {1500, "1500ms"}, {30000, "30s"},
        {90000, "90s"}, {300000, "5m"}, {3600000, "1h"},  {86400000, "1d"},
    };
    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        char text[32];
        int64_t back = -1;
        assert_int_equal(units_time_text(CASES[i].ms, text, sizeof(text)), strlen(CASES[i].text));
        assert_string_equal(text, CASES[i].text);
        assert_true(units_time(text, 1, &back));
        assert_int_equal(back, CASES[i].ms);
    }
}

/* ---- output buffers ------------------------------------------------------------------------ */

/* Two ends of a connection; the writing one takes little at a time and does not block. */
static void small_pair(int fds[2]) {
    int size = 1;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    assert_int_equal(setsockopt(fds[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof(size)), 0);
}

/* Asserts that no chunk is out: what the pool counts is what lies in it. */
static void assert_all_back(struct chunk_pool *pool) {
    assert_int_equal(pool->total_bytes, pool->free_count * IOBUF_CHUNK);
    assert_true(pool->free_count <= pool->free_max);
    chunk_pool_clear(pool);
    assert_int_equal(pool->total_bytes, 0);
    assert_int_equal(pool->free_count, 0);
}

enum { PIECES = 3000, PIECE_MAX = 40000 };

struct piece {
    struct chunk *holder; /* NULL: not held, or released */
    const char *at;
    size_t offset, len; /* in the stream */
};

/* The byte at an offset of the stream. */
static char stream_byte(size_t offset) {
    return (char)((offset * 2654435761u) >> 13);
}

static void assert_stream(const char *data, size_t offset, size_t len) {
    for (size_t i = 0; i < len; i++) {
        if (data[i] != stream_byte(offset + i))
            fail_msg("the byte at %zu of the stream is wrong", offset + i);
    }
}

/* Appends bytes where there is room for `room` contiguous bytes, which may be more. */
static void append_within(struct iobuf *b, const void *data, size_t len, size_t room) {
    struct chunk *c = iobuf_room(b, room) ? iobuf_room(b, room) : iobuf_make_room(b, room);
    memcpy(c->data + c->used, data, len);
    c->used += len;
    b->unsent += len;
}

/* Appends the next piece in one of the three ways; returns its length. */
static size_t append_piece(struct iobuf *b, struct piece *piece, size_t offset) {
    static char data[PIECE_MAX];
    size_t len = (size_t)rand() % (rand() % 50 == 0 ? PIECE_MAX : 600);
    for (size_t i = 0; i < len; i++)
        data[i] = stream_byte(offset + i);
    *piece = (struct piece){.offset = offset, .len = len};
    switch (rand() % 3) {
    case 0:
        iobuf_append(b, data, len);
        iobuf_append(b, NULL, 0);
        break;
    case 1: {
        size_t more = (size_t)rand() % 100; /* reserved, and not all of it used */
        append_within(b, data, len, len + more);
        break;
    }
    default:
        piece->at = iobuf_append_held(b, data, len, &piece->holder);
        break;
    }
    return len;
}

/* Checks a piece that is held: its bytes are there, and whether any has left. */
static void check_piece(const struct piece *piece, size_t written) {
    assert_stream(piece->at, piece->offset, piece->len);
    if (piece->len > 0)
        assert_int_equal(iobuf_sent(piece->holder, piece->at), written > piece->offset);
}

static size_t drain(int fd, size_t offset, size_t max) {
    char data[8192];
    ssize_t n = read(fd, data, max < sizeof(data) ? max : sizeof(data));
    if (n < 0) {
        assert_int_equal(errno, EAGAIN);
        return 0;
    }
    assert_stream(data, offset, (size_t)n);
    return (size_t)n;
}

static void test_iobuf_stream(void **state) {
    (void)state;
    static struct piece pieces[PIECES];
    struct chunk_pool pool;
    struct iobuf b;
    int fds[2];
    size_t made = 0, released = 0, appended = 0, written = 0, received = 0, partial = 0;
    small_pair(fds);
    chunk_pool_init(&pool, 8);
    iobuf_init(&b, &pool);
    srand(2);
    while (made < PIECES || b.unsent > 0 || received < appended) {
        if (made < PIECES && rand() % 2) {
            appended += append_piece(&b, &pieces[made], appended);
            made++;
        }
        if (rand() % 2) {
            ssize_t n = iobuf_write(&b, fds[0]);
            assert_true(n >= 0);
            written += (size_t)n;
            partial += b.unsent > 0;
        }
        assert_int_equal(b.unsent, appended - written);
        if (rand() % 2)
            received += drain(fds[1], received, (size_t)rand() % 5000 + 1);
        /* Holders let go in order, some way behind, some of them before their bytes have left. */
        while (released < made && (rand() % 4 == 0 || made - released > 40)) {
            struct piece *piece = &pieces[released++];
            if (piece->holder) {
                check_piece(piece, written);
                chunk_release(piece->holder);
            }
        }
    }
    assert_true(partial > 100); /* the socket was full often enough */
    for (; released < made; released++) {
        if (pieces[released].holder) {
            check_piece(&pieces[released], written);
            chunk_release(pieces[released].holder);
        }
    }
    assert_int_equal(received, appended);
    iobuf_clear(&b);
    assert_all_back(&pool);
    close(fds[0]);
    close(fds[1]);
}

/* Bytes are peeked in pieces of any size, for another function to write: all bytes in order, in pieces as long as
 * possible. */
static void test_iobuf_peek(void **state) {
    (void)state;
    struct chunk_pool pool;
    struct iobuf b;
    static unsigned char sent[1000000], got[1000000];
    static char copy[IOBUF_CHUNK];
    size_t in = 0, out = 0, gathered = 0;
    chunk_pool_init(&pool, 8);
    iobuf_init(&b, &pool);
    srand(3);
    for (size_t i = 0; i < sizeof(sent); i++)
        sent[i] = (unsigned char)rand();
    while (out < sizeof(sent)) {
        size_t len = (size_t)rand() % (rand() % 8 ? 3000 : 60000);
        if (len > sizeof(sent) - in)
            len = sizeof(sent) - in;
        if (len > 0 && rand() % 3)
            append_within(&b, sent + in, len, len); /* leaves gaps */
        else if (len > 0)
            iobuf_append(&b, sent + in, len);
        in += len;
        while (b.unsent > 0 && (rand() % 2 || in == sizeof(sent))) {
            const char *at;
            size_t max = (size_t)rand() % sizeof(copy) + 1, n = iobuf_peek(&b, copy, max, &at);
            assert_int_equal(n, max < b.unsent ? max : b.unsent);
            gathered += at == copy;
            n = (size_t)rand() % (n + 1); /* not all of it is taken */
            memcpy(got + out, at, n);
            out += n;
            iobuf_skip(&b, n);
            assert_int_equal(b.unsent, in - out);
        }
    }
    assert_memory_equal(sent, got, sizeof(sent));
    assert_true(gathered > 20);
    iobuf_clear(&b);
    assert_all_back(&pool);
}

/* More chunks than one writev takes. */
static void test_iobuf_many_chunks(void **state) {
    (void)state;
    struct chunk_pool pool;
    struct iobuf b;
    int fds[2];
    size_t written = 0, received = 0;
    static char data[200 * 16 * 1024];
    small_pair(fds);
    chunk_pool_init(&pool, 4);
    iobuf_init(&b, &pool);
    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = stream_byte(i);
    iobuf_append(&b, data, sizeof(data));
    assert_int_equal(pool.total_bytes, sizeof(data));
    while (received < sizeof(data)) {
        ssize_t n = iobuf_write(&b, fds[0]);
        assert_true(n >= 0);
        written += (size_t)n;
        received += drain(fds[1], received, 8192);
    }
    assert_int_equal(written, sizeof(data));
    assert_int_equal(iobuf_write(&b, fds[0]), 0);
    assert_true(pool.total_bytes <= 4 * IOBUF_CHUNK); /* memory comes back down */
    assert_all_back(&pool);
    close(fds[0]);
    close(fds[1]);
}

/* A piece lives as long as its holder, whatever becomes of the buffer. */
static void test_iobuf_clear_held(void **state) {
    (void)state;
    struct chunk_pool pool;
    struct iobuf b;
    struct chunk *first, *second, *large;
    chunk_pool_init(&pool, 4);
    iobuf_init(&b, &pool);
    const char *one = iobuf_append_held(&b, "GET a", 5, &first);
    const char *two = iobuf_append_held(&b, "GET b", 5, &second);
    assert_ptr_equal(first, second);
    char *big = memory_alloc(100000);
    memset(big, 'x', 100000);
    const char *three = iobuf_append_held(&b, big, 100000, &large);
    memory_free(big);
    assert_ptr_not_equal(large, first);
    assert_false(iobuf_sent(first, one));
    iobuf_clear(&b);
    assert_int_equal(b.unsent, 0);
    assert_memory_equal(one, "GET a", 5);
    assert_memory_equal(two, "GET b", 5);
    assert_int_equal(three[99999], 'x');
    assert_false(iobuf_sent(second, two));
    chunk_release(first);
    assert_memory_equal(two, "GET b", 5);
    chunk_release(second);
    assert_int_equal(pool.free_count, 1);
    chunk_release(large); /* of an unusual size: freed, not kept */
    assert_int_equal(pool.free_count, 1);
    assert_all_back(&pool);
}

/* Reservations that are given up, or grow, leave nothing behind. */
static void test_iobuf_reserve(void **state) {
    (void)state;
    struct chunk_pool pool;
    struct iobuf b;
    int fds[2];
    char got[16];
    small_pair(fds);
    chunk_pool_init(&pool, 4);
    iobuf_init(&b, &pool);
    for (size_t i = 0; i < 100; i++)
        append_within(&b, "", 0, IOBUF_CHUNK + i * 1000);
    assert_int_equal(iobuf_write(&b, fds[0]), 0);
    iobuf_append_secret(&b, "hello", 5);
    assert_int_equal(iobuf_write(&b, fds[0]), 5);
    assert_int_equal(read(fds[1], got, sizeof(got)), 5);
    assert_memory_equal(got, "hello", 5);
    iobuf_append(&b, "", 0);
    iobuf_append(&b, NULL, 0);
    assert_int_equal(b.unsent, 0);
    iobuf_clear(&b);
    assert_all_back(&pool);
    close(fds[0]);
    close(fds[1]);
}

static void test_iobuf_broken(void **state) {
    (void)state;
    struct chunk_pool pool;
    struct iobuf b;
    int fds[2];
    small_pair(fds);
    chunk_pool_init(&pool, 4);
    iobuf_init(&b, &pool);
    iobuf_append(&b, "lost", 4);
    close(fds[1]);
    assert_int_equal(iobuf_write(&b, fds[0]), -1);
    assert_int_equal(errno, EPIPE);
    assert_int_equal(b.unsent, 4);
    iobuf_clear(&b);
    assert_all_back(&pool);
    close(fds[0]);
}

/* ---- hash tables ------------------------------------------------------------------------------- */

struct numbered {
    struct table_link link;
    uint64_t number;
};

static unsigned asked; /* how often for a hash */

static uint64_t number_of(const struct table_link *link) {
    asked++;
    return LIST_ENTRY(link, struct numbered, link)->number / 2; /* pairs share a hash */
}

static struct numbered *find_number(const struct table *t, uint64_t number) {
    TABLE_CHAIN(it, t, number / 2, struct numbered, link) {
        if (it->number == number)
            return it;
    }
    return NULL;
}

static void test_table(void **state) {
    (void)state;
    enum { MANY = 1000, FEW = 10 };
    static struct numbered all[MANY];
    struct table t;
    uint64_t sum = 0;
    table_init(&t, number_of);
    uint32_t first = t.size;
    for (uint64_t i = 0; i < MANY; i++) {
        all[i].number = i;
        asked = 0;
        table_insert(&t, &all[i].link, i / 2);
        assert_true(asked <= 8); /* an insertion moves the elements of one bucket, however many there are in all */
    }
    assert_int_equal(t.count, MANY);
    assert_true(t.size >= MANY);
    for (uint64_t i = 0; i < MANY; i++)
        assert_ptr_equal(find_number(&t, i), &all[i]);
    assert_null(find_number(&t, MANY));
    TABLE_EACH(n, &t, struct numbered, link) {
        sum += n->number;
        if (n->number >= FEW)
            table_remove(&t, &n->link, n->number / 2);
    }
    assert_int_equal(sum, MANY * (MANY - 1) / 2);
    assert_int_equal(t.count, FEW);
    for (uint32_t size; size = t.size, table_trim(&t), t.size < size;)
        ;
    assert_true(t.size >= first && t.size <= FEW * 8);
    for (uint64_t i = 0; i < MANY; i++)
        assert_ptr_equal(find_number(&t, i), i < FEW ? &all[i] : NULL);
    table_clear(&t);
}

enum { STAYING = 1000, PASSING = 20000 };

static void meet(void *arg, struct table_link *link) {
    unsigned *met = arg;
    met[LIST_ENTRY(link, struct numbered, link)->number]++;
}

/* A walk in steps visits an element that stays exactly once, and others at most once, while the table's size
 * changes. */
static void test_table_walk(void **state) {
    (void)state;
    static struct numbered all[STAYING + PASSING];
    for (unsigned round = 0; round < 40; round++) {
        static unsigned met[STAYING + PASSING];
        struct table t;
        struct table_walk walk = {0};
        size_t passing = 0, steps = 0;
        table_init(&t, number_of);
        memset(met, 0, sizeof(met));
        for (uint64_t i = 0; i < STAYING + PASSING; i++)
            all[i].number = i;
        for (; passing < (round % 4) * 4000; passing++)
            table_insert(&t, &all[STAYING + passing].link, (STAYING + passing) / 2);
        for (uint64_t i = 0; i < STAYING; i++)
            table_insert(&t, &all[i].link, i / 2);
        while (table_walk_step(&t, &walk, 1 + round, meet, met)) {
            bool come = round % 8 < 4;
            for (unsigned i = 0; come && i < 500 && passing < PASSING; i++, passing++)
                table_insert(&t, &all[STAYING + passing].link, (STAYING + passing) / 2);
            for (unsigned i = 0; !come && i < 500 && passing > 0; i++, passing--)
                table_remove(&t, &all[STAYING + passing - 1].link, (STAYING + passing - 1) / 2);
            table_trim(&t);
            assert_true(++steps < 100000);
        }
        for (uint64_t i = 0; i < STAYING; i++)
            assert_int_equal(met[i], 1);
        for (uint64_t i = STAYING; i < STAYING + PASSING; i++)
            assert_true(met[i] <= 1);
        table_clear(&t);
    }
}

int main(void) {
    signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_list),
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_table_walk),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_array),
        cmocka_unit_test(test_mutex),
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_eight_digits),
        cmocka_unit_test(short_texts_are_compared),
        cmocka_unit_test(test_times),
        cmocka_unit_test(test_time_text),
        cmocka_unit_test(test_iobuf_stream),
        cmocka_unit_test(test_iobuf_peek),
        cmocka_unit_test(test_iobuf_many_chunks),
        cmocka_unit_test(test_iobuf_clear_held),
        cmocka_unit_test(test_iobuf_reserve),
        cmocka_unit_test(test_iobuf_broken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
