/* Globs: cases by hand, then random patterns against the KEYS of a real Redis. */
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
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "proxy/base/glob.h"

static bool match(const char *pattern, const char *text) {
    return glob_match(pattern, strlen(pattern), text, strlen(text));
}

static void test_cases(void **state) {
    (void)state;
    static const struct {
        const char *pattern, *text;
        bool matches;
    } CASES[] = {
        {"", "", true},
        {"", "a", false},
        {"*", "", true},
        {"*", "anything", true},
        {"**", "", false}, /* as Redis has it: only KEYS * sees the empty key */
        {"lock:*", "lock:", true},
        {"lock:*", "lock:a", true},
        {"lock:*", "lock", false},
        {"lock:**", "lock:", true},
        {"lock:*", "xlock:a", false},
        {"h?llo", "hello", true},
        {"h?llo", "hllo", false},
        {"h[ae]llo", "hallo", true},
        {"h[^e]llo", "hello", false},
        {"h[^e]llo", "hallo", true},
        {"h[a-c]llo", "hbllo", true},
        {"h[c-a]llo", "hbllo", true},
        {"h[a-c]llo", "hdllo", false},
        {"\\*", "*", true},
        {"\\*", "a", false},
        {"a\\", "a\\", true},
        {"[\\]]", "]", true},
        {"[abc", "c", true}, /* unclosed: ends with the pattern */
        {"[", "[", false},
        {"[^", "x", true},
        {"[a-]", "b", false}, /* a range from a down to ] */
        {"[a-]", "^", true},
        {"*.*.*", "a.b.c", true},
        {"*.*.*", "a.b", false},
        {"*lock*:v[12]", "my-lock:a:lock:v2", true},
        {"*lock*:v[12]", "my-lock:a:lock:v3", false},
    };
    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        if (match(CASES[i].pattern, CASES[i].text) != CASES[i].matches)
            fail_msg("'%s' with '%s': expected %d", CASES[i].pattern, CASES[i].text, CASES[i].matches);
    }
}

static void test_bytes(void **state) {
    (void)state;
    assert_true(glob_match("a*\0b", 4, "a\0\0b", 4));
    assert_false(glob_match("a?b", 3, "a\0\0b", 4));
    assert_true(glob_match("[\xff]", 3, "\xff", 1));
}

/* A star for every second byte; a matcher that goes back to every star would not end before the sun does. */
static void test_no_blow_up(void **state) {
    (void)state;
    enum { STARS = 2000, LEN = 20000 };
    char *pattern = malloc(2 * STARS + 1), *text = malloc(LEN);
    assert_non_null(pattern);
    assert_non_null(text);
    for (size_t i = 0; i < STARS; i++)
        memcpy(pattern + 2 * i, "a*", 2);
    pattern[2 * STARS] = 'b';
    memset(text, 'a', LEN);
    struct timespec t0, t1;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t0);
    assert_false(glob_match(pattern, 2 * STARS + 1, text, LEN));
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t1);
    assert_true(t1.tv_sec - t0.tv_sec < 10);
    text[LEN - 1] = 'b';
    assert_true(glob_match(pattern, 2 * STARS + 1, text, LEN));
    free(pattern);
    free(text);
}

/* ---- a real Redis -------------------------------------------------------------------------- */

struct redis {
    char folder[64], path[96];
    pid_t pid;
    FILE *in, *out;
};

static int64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Connects as soon as the server listens; false if it ended, or does not listen within 20 s. */
static bool redis_connect(struct redis *r) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", r->path);
    for (int64_t deadline = now_ms() + 20000; now_ms() < deadline;) {
        int status, fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_true(fd >= 0);
        if (connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0) {
            r->in = fdopen(fd, "r");
            r->out = fdopen(dup(fd), "w");
            return r->in && r->out;
        }
        close(fd);
        if (waitpid(r->pid, &status, WNOHANG) == r->pid) {
            r->pid = 0;
            return false;
        }
        nanosleep(&(struct timespec){.tv_nsec = 10 * 1000 * 1000}, NULL);
    }
    return false;
}

static bool redis_start(struct redis *r) {
    *r = (struct redis){.folder = "/tmp/lockkeeper-glob-XXXXXX"};
    assert_non_null(mkdtemp(r->folder));
    snprintf(r->path, sizeof(r->path), "%s/redis.sock", r->folder);
    r->pid = fork();
    assert_true(r->pid >= 0);
    if (r->pid == 0) {
        execlp("redis-server", "redis-server", "--port", "0", "--unixsocket", r->path, "--save", "", "--appendonly",
               "no", "--dir", r->folder, "--logfile", "/dev/null", (char *)NULL);
        _exit(127);
    }
    return redis_connect(r);
}

static void redis_stop(struct redis *r) {
    if (r->in)
        fclose(r->in);
    if (r->out)
        fclose(r->out);
    if (r->pid > 0) {
        kill(r->pid, SIGTERM);
        waitpid(r->pid, NULL, 0);
    }
    unlink(r->path);
    rmdir(r->folder);
}

static void send_command(struct redis *r, int argc, const char *const *argv, const size_t *lens) {
    fprintf(r->out, "*%d\r\n", argc);
    for (int i = 0; i < argc; i++) {
        fprintf(r->out, "$%zu\r\n", lens[i]);
        fwrite(argv[i], 1, lens[i], r->out);
        fprintf(r->out, "\r\n");
    }
    assert_int_equal(fflush(r->out), 0);
}

static long read_header(struct redis *r, char type) {
    char line[64];
    assert_non_null(fgets(line, sizeof(line), r->in));
    assert_int_equal(line[0], type);
    return strtol(line + 1, NULL, 10);
}

enum { KEYS = 300, KEY_MAX = 8, PATTERNS = 20000, PATTERN_MAX = 12 };

static size_t random_text(char *out, size_t max, const char *alphabet, size_t letters) {
    size_t len = (size_t)rand() % (max + 1);
    for (size_t i = 0; i < len; i++)
        out[i] = alphabet[(size_t)rand() % letters];
    return len;
}

static void test_like_redis(void **state) {
    (void)state;
    static const char KEY_LETTERS[] = "aabbc-^]\\[*?\xff\x80\0", PATTERN_LETTERS[] = "aabbc***??[[[]]]^^--\\\\\xff\x80";
    static char keys[KEYS][KEY_MAX];
    static size_t key_lens[KEYS];
    struct redis r;
    if (!redis_start(&r)) {
        redis_stop(&r);
        print_message("redis-server could not be started: not compared\n");
        skip();
    }
    srand(1); /* the same cases in every run */
    long key_count = 0;
    for (size_t i = 0; i < KEYS; i++) {
        key_lens[i] = random_text(keys[i], KEY_MAX, KEY_LETTERS, sizeof(KEY_LETTERS) - 1);
        const char *argv[] = {"SETNX", keys[i], "1"};
        send_command(&r, 3, argv, (const size_t[]){5, key_lens[i], 1});
        if (read_header(&r, ':') == 0)
            i--; /* there already */
        else
            key_count++;
    }
    assert_int_equal(key_count, KEYS);

    long matches = 0;
    for (size_t i = 0; i < PATTERNS; i++) {
        char pattern[PATTERN_MAX + 1] = {0};
        size_t len = random_text(pattern, PATTERN_MAX, PATTERN_LETTERS, sizeof(PATTERN_LETTERS) - 1);
        const char *argv[] = {"KEYS", pattern};
        send_command(&r, 2, argv, (const size_t[]){4, len});
        long expected = 0, found = read_header(&r, '*');
        for (size_t k = 0; k < KEYS; k++)
            expected += glob_match(pattern, len, keys[k], key_lens[k]);
        matches += found;
        for (long k = 0; k < found; k++) {
            char key[KEY_MAX + 2];
            size_t key_len = (size_t)read_header(&r, '$');
            assert_int_equal(fread(key, 1, key_len + 2, r.in), key_len + 2);
            if (!glob_match(pattern, len, key, key_len))
                fail_msg("'%s': Redis finds the key '%.*s'", pattern, (int)key_len, key);
        }
        if (found != expected)
            fail_msg("'%s': Redis finds %ld keys, glob_match %ld", pattern, found, expected);
    }
    assert_true(matches > PATTERNS); /* the patterns are not all hopeless */
    redis_stop(&r);
}

/* What the stars of a pattern stand for, with '|' between; "-": it does not match. */
static void test_pieces(void **state) {
    (void)state;
    static const struct {
        const char *pattern, *text, *pieces;
    } CASES[] = {
        {"stock:*", "stock:17", "17|"},
        {"stock:*", "stock:", "|"},
        {"stock:*", "stocks", "-"},
        {"a", "a", ""},
        {"a", "ab", "-"},
        {"a:*:*", "a:1:2:3", "1|2:3|"},
        {"a:*:b*", "a:x:y:bz", "x:y|z|"},
        {"*:sum", "a:sum:sum", "a:sum|"},
        {"**x", "abx", "|ab|"},
        {"?[bc]\\**", "ab*z", "z|"},
        {"[a-c]*[^z]", "bcy", "c|"},
        {"[a-c]*[^z]", "bcz", "-"},
        {"*", "", "|"},
        {"*a*b", "xaybab", "x|yba|"},
    };
    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        struct glob_piece pieces[4];
        char shown[100] = "";
        size_t n = 0;
        int stars =
            glob_pieces(CASES[i].pattern, strlen(CASES[i].pattern), CASES[i].text, strlen(CASES[i].text), pieces, 4);
        for (int k = 0; k < stars; k++)
            n += (size_t)snprintf(shown + n, sizeof(shown) - n, "%.*s|", (int)pieces[k].len, pieces[k].text);
        assert_string_equal(stars < 0 ? "-" : shown, CASES[i].pieces);
    }
    struct glob_piece two[2];
    assert_int_equal(glob_pieces("*a*b*", 5, "ab", 2, two, 2), -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),      cmocka_unit_test(test_bytes),  cmocka_unit_test(test_no_blow_up),
        cmocka_unit_test(test_like_redis), cmocka_unit_test(test_pieces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
