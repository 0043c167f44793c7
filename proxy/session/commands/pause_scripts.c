/*
 * Which scripts write, for CLIENT PAUSE WRITE: by the flags that they declare. Redis uses the same flags, and the node
 * enforces them.
 *
 *      EVAL, EVAL_RO         "#!lua flags=no-writes" in the request
 *      EVALSHA, EVALSHA_RO   the same, for scripts that have passed through the proxy: the node can't be asked
 *      FCALL, FCALL_RO       FUNCTION LIST, sent while a pause lasts, and used for a moment
 *
 * A script without such a first line declares nothing: it may write, except in EVAL_RO and EVALSHA_RO.
 */
#include <pthread.h>
#include <string.h>
#include <strings.h>

#include "proxy/base/memory.h"
#include "proxy/net/digest.h"
#include "proxy/session/commands/private.h"

enum { SCRIPTS_KEPT = 4096, SHA1_DIGITS = 2 * DIGEST_SHA1 };

static const double FUNCTIONS_BELIEVED = 1.; /* seconds */

/* ---- reading declarations --------------------------------------------------------------------------- */

/* Finds the next word of [p, end), its length in *len; NULL: there is none. */
static const char *next_word(const char *p, const char *end, size_t *len) {
    while (p < end && (*p == ' ' || *p == '\t' || *p == '\r'))
        p++;
    const char *start = p;
    while (p < end && *p != ' ' && *p != '\t' && *p != '\r')
        p++;
    *len = (size_t)(p - start);
    return p > start ? start : NULL;
}

/* Reads flags, "a,b,c". False: one of them is unknown. */
static bool flags_read(const char *list, size_t len, bool *reads) {
    static const char *const known[] = {"no-writes", "allow-oom", "allow-stale", "no-cluster", "allow-cross-slot-keys"};
    const char *end = list + len;
    while (list < end) {
        const char *comma = memchr(list, ',', (size_t)(end - list));
        size_t n = (size_t)((comma ? comma : end) - list), i = 0;
        while (i < sizeof(known) / sizeof(known[0]) && (strlen(known[i]) != n || memcmp(list, known[i], n) != 0))
            i++;
        if (i == sizeof(known) / sizeof(known[0]))
            return false;
        *reads = *reads || i == 0;
        list += n + 1;
    }
    return true;
}

/* What a script declares. */
enum says { SAYS_NOTHING, SAYS_READS, SAYS_WRITES };

static enum says script_says(const char *code, size_t size) {
    static const char engine[] = "#!lua", flags[] = "flags=";
    size_t len = 0;
    bool reads = false;
    const char *end = memchr(code, '\n', size), *word = end ? next_word(code, end, &len) : NULL;
    if (word != code || len != sizeof(engine) - 1 || memcmp(word, engine, len) != 0)
        return SAYS_NOTHING;
    while ((word = next_word(word + len, end, &len)))
        if (len < sizeof(flags) - 1 || memcmp(word, flags, sizeof(flags) - 1) != 0 ||
            !flags_read(word + sizeof(flags) - 1, len - (sizeof(flags) - 1), &reads))
            return SAYS_NOTHING; /* Redis refuses it */
    return reads ? SAYS_READS : SAYS_WRITES;
}

/* ---- scripts by their SHA1 -------------------------------------------------------------------------- */

/* Scripts with a declaration, of all threads; a new one may overwrite an old one. */
static struct kept {
    unsigned char sha1[DIGEST_SHA1];
    unsigned char says;
} kept[SCRIPTS_KEPT];
static pthread_mutex_t kept_mutex = PTHREAD_MUTEX_INITIALIZER;

static struct kept *kept_place(const unsigned char *sha1) {
    return &kept[(sha1[0] << 8 | sha1[1]) % SCRIPTS_KEPT];
}

void pause_note_script(const struct command *c, const struct resp_request *r, const char *bytes) {
    bool evals = c->id == COMMAND_EVAL || c->id == COMMAND_EVAL_RO;
    bool loads = c->id == COMMAND_SCRIPT && r->argc == 3 && request_arg_is(r, bytes, 1, "load");
    size_t len = 0;
    const char *code = (evals && r->argc > 1) || loads ? request_arg(r, bytes, evals ? 1 : 2, &len) : NULL;
    if (!code || len < 2 || code[0] != '#' || code[1] != '!')
        return;
    struct kept script = {.says = (unsigned char)script_says(code, len)};
    if (script.says == SAYS_NOTHING)
        return;
    digest_sha1(code, len, script.sha1);
    pthread_mutex_lock(&kept_mutex);
    *kept_place(script.sha1) = script;
    pthread_mutex_unlock(&kept_mutex);
}

static int digit_of(char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static enum says sha1_says(const char *text, size_t len) {
    unsigned char sha1[DIGEST_SHA1];
    if (len != SHA1_DIGITS)
        return SAYS_NOTHING;
    for (size_t i = 0; i < DIGEST_SHA1; i++) {
        int high = digit_of(text[2 * i]), low = digit_of(text[2 * i + 1]);
        if (high < 0 || low < 0)
            return SAYS_NOTHING;
        sha1[i] = (unsigned char)(high << 4 | low);
    }
    pthread_mutex_lock(&kept_mutex);
    const struct kept *place = kept_place(sha1);
    enum says says = memcmp(place->sha1, sha1, sizeof(sha1)) == 0 ? (enum says)place->says : SAYS_NOTHING;
    pthread_mutex_unlock(&kept_mutex);
    return says;
}

bool pause_script_replicates(const struct command *c, const struct resp_request *r, const char *bytes) {
    bool only_reads = c->id == COMMAND_EVAL_RO || c->id == COMMAND_EVALSHA_RO;
    size_t len;
    const char *word = r->argc > 1 ? request_arg(r, bytes, 1, &len) : NULL;
    enum says says = SAYS_NOTHING;
    if (word)
        says = c->id == COMMAND_EVALSHA || c->id == COMMAND_EVALSHA_RO ? sha1_says(word, len) : script_says(word, len);
    return says == SAYS_WRITES || (says == SAYS_NOTHING && !only_reads);
}

/* ---- functions ------------------------------------------------------------------------------------ */

/* Skips an element. False: there is none. */
static bool skip(const char **p, const char *end) {
    *p = *p < end ? resp_item_end(*p, end) : NULL;
    return *p != NULL;
}

static bool is_word(const struct resp_item *item, const char *word) {
    return item->len == strlen(word) && memcmp(item->str, word, item->len) == 0;
}

/* Reads a list of flags. */
static bool function_flags(const char **p, const char *end, bool *reads) {
    struct resp_item list, flag;
    if (!resp_item_read(p, end, &list))
        return false;
    for (int64_t i = 0; i < list.num; i++) {
        if (!resp_item_read(p, end, &flag))
            return false;
        *reads = *reads || is_word(&flag, "no-writes");
    }
    return true;
}

/* Reads a function; if it has that name, sets *says. */
static bool function_read(const char **p, const char *end, const char *name, size_t len, enum says *says) {
    struct resp_item fields, key, value = {0};
    bool reads = false;
    if (!resp_item_read(p, end, &fields))
        return false;
    for (int64_t i = 0; i + 1 < fields.num; i += 2) {
        bool read = resp_item_read(p, end, &key);
        if (read && is_word(&key, "name"))
            read = resp_item_read(p, end, &value);
        else if (read && is_word(&key, "flags"))
            read = function_flags(p, end, &reads);
        else
            read = read && skip(p, end);
        if (!read)
            return false;
    }
    if (value.str && value.len == len && strncasecmp(value.str, name, len) == 0)
        *says = reads ? SAYS_READS : SAYS_WRITES;
    return true;
}

/* Finds a function in the reply to FUNCTION LIST. */
static enum says list_says(const char *p, const char *end, const char *name, size_t len) {
    struct resp_item libraries, fields, key, functions;
    enum says says = SAYS_NOTHING;
    if (!resp_item_read(&p, end, &libraries) || libraries.type == '-')
        return SAYS_NOTHING;
    for (int64_t i = 0; i < libraries.num; i++) {
        if (!resp_item_read(&p, end, &fields))
            return says;
        for (int64_t k = 0; k + 1 < fields.num; k += 2) {
            if (!resp_item_read(&p, end, &key))
                return says;
            if (!is_word(&key, "functions")) {
                if (!skip(&p, end))
                    return says;
                continue;
            }
            if (!resp_item_read(&p, end, &functions))
                return says;
            for (int64_t f = 0; f < functions.num; f++)
                if (!function_read(&p, end, name, len, &says))
                    return says;
        }
    }
    return says;
}

static void listed(struct call *c, const struct call_end *end) {
    struct request *r = c->request;
    struct worker *w = r->worker;
    bool known = !end->error && end->reply[0] != '-';
    text_clear(&w->functions);
    if (known)
        text_append(&w->functions, end->reply, end->len);
    w->functions_at = ev_now(w->loop);
    request_reply(r, "", 0, true); /* the session continues */
}

/* Sends FUNCTION LIST; the session waits for the reply. */
static void functions_ask(struct session *s) {
    static const char list[] = "*2\r\n$8\r\nFUNCTION\r\n$4\r\nLIST\r\n";
    struct request *request = request_new(s, NULL);
    request_barrier(request);
    request->call.done = listed;
    call_submit(&request->call, SLOT_NONE, list, sizeof(list) - 1);
}

enum function_verdict pause_function(struct session *s, const struct command *c, const struct resp_request *r,
                                     const char *bytes) {
    struct worker *w = s->worker;
    size_t len;
    const char *name = request_arg(r, bytes, 1, &len);
    if (w->functions_at == 0 || ev_now(w->loop) - w->functions_at > FUNCTIONS_BELIEVED) {
        if (s->in_flight == 0)
            functions_ask(s);
        return FUNCTION_ASKED;
    }
    enum says says = list_says(w->functions.data, w->functions.data + w->functions.len, name, len);
    bool writes = says == SAYS_WRITES || (says == SAYS_NOTHING && c->id == COMMAND_FCALL);
    return writes ? FUNCTION_WRITES : FUNCTION_READS;
}
