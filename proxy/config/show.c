/*
 * The inverse of reading: writes values of directives as text in the file's syntax, for PROXY CONFIG and to find what a
 * reload has changed. It also knows which bytes of the configuration belong to a directive, and how they are copied and
 * freed. Both are looked up by the directive's reader.
 */
#include <string.h>

#include "proxy/base/memory.h"
#include "proxy/config/private.h"
#include "proxy/lock/fence.h"

typedef void directive_show(const struct config *c, const struct directive *d, struct text *out);

enum { OWN = -1 }; /* use the directive's own offset */

static const void *field(const struct config *c, const struct directive *d) {
    return (const char *)c + d->offset;
}

static int64_t number_of(const struct config *c, const struct directive *d) {
    int64_t n;
    memcpy(&n, field(c, d), sizeof(n));
    return n;
}

static void show_number(const struct config *c, const struct directive *d, struct text *out) {
    text_printf(out, "%lld", (long long)number_of(c, d));
}

static void show_octal(const struct config *c, const struct directive *d, struct text *out) {
    text_printf(out, "%llo", (unsigned long long)number_of(c, d));
}

static void show_time(const struct config *c, const struct directive *d, struct text *out) {
    long long ms = number_of(c, d);
    if (ms % 1000 == 0)
        text_printf(out, "%llds", ms / 1000);
    else
        text_printf(out, "%lldms", ms);
}

static void show_text(const struct config *c, const struct directive *d, struct text *out) {
    const char *text;
    memcpy(&text, field(c, d), sizeof(text));
    text_printf(out, "%s", text ? text : "");
}

static void show_flag(const struct config *c, const struct directive *d, struct text *out) {
    text_printf(out, "%s", d->names[*(const bool *)field(c, d)]);
}

static void show_choice(const struct config *c, const struct directive *d, struct text *out) {
    int i;
    memcpy(&i, field(c, d), sizeof(i));
    text_printf(out, "%s", d->names[i]);
}

static void show_bits(const struct config *c, const struct directive *d, struct text *out) {
    unsigned bits;
    size_t before = out->len;
    memcpy(&bits, field(c, d), sizeof(bits));
    for (size_t i = 0; d->names[i]; i++)
        if (bits & 1u << i)
            text_printf(out, "%s%s", out->len > before ? " " : "", d->names[i]);
}

static void append_words(const struct config_words *w, struct text *out) {
    for (size_t i = 0; i < w->count; i++)
        text_printf(out, "%s%s", i ? " " : "", w->words[i]);
}

static void show_words(const struct config *c, const struct directive *d, struct text *out) {
    append_words(field(c, d), out);
}

static void show_proxy_protocol(const struct config *c, const struct directive *d, struct text *out) {
    networks_text(c->proxy_protocol, out);
}

static void show_output_limit(const struct config *c, const struct directive *d, struct text *out) {
    text_printf(out, "normal %lld %lld %lld pubsub %lld %lld %lld", (long long)c->output_limit_hard,
                (long long)c->output_limit_soft, (long long)c->output_limit_soft_s, (long long)c->output_pubsub_hard,
                (long long)c->output_pubsub_soft, (long long)c->output_pubsub_soft_s);
}

static void show_upstream(const struct config *c, const struct directive *d, struct text *out) {
    static const char *const KINDS[] = {"embedded", "standalone", "cluster", "sentinel"};
    text_printf(out, "%s%s%s%s", KINDS[c->upstream], c->sentinel_name ? " " : "",
                c->sentinel_name ? c->sentinel_name : "", c->upstream_addresses.count > 0 ? " " : "");
    append_words(&c->upstream_addresses, out);
}

/* Shows the rules or the fences, each on a line. */
static void show_rules(const struct config *c, const struct directive *d, struct text *out) {
    bool fences = d->read == config_read_fence;
    size_t count = fences ? lock_rules_fence_count(c->rules) : lock_rules_count(c->rules);
    for (size_t i = 0; i < count; i++) {
        const struct lock_rule *rule = fences ? lock_rules_fence(c->rules, i) : lock_rules_get(c->rules, i);
        size_t (*write)(const struct lock_rule *, char *, size_t) = fences ? lock_fence_text : lock_rule_text;
        size_t len = write(rule, NULL, 0);
        text_printf(out, "%s", i ? "\n" : "");
        write(rule, text_reserve(out, len + 1), len + 1);
        text_commit(out, len);
    }
}

static void show_nothing(const struct config *c, const struct directive *d, struct text *out) {
}

/* ---- what values point to --------------------------------------------------------------------- */

/* For a value that points to memory: own gives a copied value a copy of that memory, drop frees it. */
struct holding {
    void (*own)(void *value); /* NULL: the value is never copied, since a reload always takes the new one */
    void (*drop)(void *value);
};

static void text_own(void *value) {
    char **text = value;
    *text = *text ? memory_strdup(*text) : NULL;
}

static void text_drop(void *value) {
    config_forget(*(char **)value);
}

static void words_own(void *value) {
    struct config_words from = *(struct config_words *)value, to = {0};
    for (size_t i = 0; i < from.count; i++)
        words_add(&to, from.words[i], strlen(from.words[i]));
    *(struct config_words *)value = to;
}

static void words_drop(void *value) {
    words_clear(value);
}

static void networks_own(void *value) {
    networks_ref(*(struct networks **)value);
}

static void networks_drop(void *value) {
    networks_unref(*(struct networks **)value);
}

static void rules_drop(void *value) {
    lock_rules_unref(*(struct lock_rules **)value);
}

/* The value of `upstream` has three fields, side by side. */
enum {
    UPSTREAM_ADDRESSES = offsetof(struct config, upstream_addresses) - offsetof(struct config, upstream),
    UPSTREAM_NAME = offsetof(struct config, sentinel_name) - offsetof(struct config, upstream),
    UPSTREAM_BYTES = UPSTREAM_NAME + sizeof(char *)
};

static void upstream_own(void *value) {
    words_own((char *)value + UPSTREAM_ADDRESSES);
    text_own((char *)value + UPSTREAM_NAME);
}

static void upstream_drop(void *value) {
    words_drop((char *)value + UPSTREAM_ADDRESSES);
    text_drop((char *)value + UPSTREAM_NAME);
}

static const struct holding TEXT = {text_own, text_drop}, WORDS = {words_own, words_drop},
                            NETWORKS = {networks_own, networks_drop}, RULES = {NULL, rules_drop},
                            UPSTREAM = {upstream_own, upstream_drop};

/* ---- by reader ------------------------------------------------------------------------------ */

#define FIELD(member) (int)offsetof(struct config, member), sizeof(((struct config *)0)->member)

enum { OUTPUT_LIMITS = 6 }; /* hard, soft and seconds, of two classes of clients */

_Static_assert(offsetof(struct config, output_pubsub_soft_s) - offsetof(struct config, output_limit_hard) ==
                   (OUTPUT_LIMITS - 1) * sizeof(int64_t),
               "the numbers of client-output-buffer-limit are side by side");

/* For each reader: how its value is shown, where it is stored, and what it points to. */
static const struct kind {
    directive_read *read;
    directive_show *show;
    int offset;
    size_t bytes;
    const struct holding *holds; /* NULL: nothing */
} KINDS[] = {
    {config_read_number, show_number, OWN, sizeof(int64_t), NULL},
    {config_read_octal, show_octal, OWN, sizeof(int64_t), NULL},
    {config_read_size, show_number, OWN, sizeof(int64_t), NULL},
    {config_read_time, show_time, OWN, sizeof(int64_t), NULL},
    {config_read_text, show_text, OWN, sizeof(char *), &TEXT},
    {config_read_socket_path, show_text, OWN, sizeof(char *), &TEXT},
    {config_read_address, show_text, OWN, sizeof(char *), &TEXT},
    {config_read_supervised, show_text, OWN, sizeof(char *), &TEXT},
    {config_read_flag, show_flag, OWN, sizeof(bool), NULL},
    {config_read_choice, show_choice, OWN, sizeof(int), NULL},
    {config_read_bits, show_bits, OWN, sizeof(unsigned), NULL},
    {config_read_output_limit, show_output_limit, (int)offsetof(struct config, output_limit_hard),
     OUTPUT_LIMITS * sizeof(int64_t), NULL},
    {config_read_lock, show_rules, FIELD(rules), &RULES},
    {config_read_fence, show_rules, 0, 0, NULL}, /* they are part of the set of lock rules */
    {config_read_bind, show_words, OWN, sizeof(struct config_words), &WORDS},
    {config_read_witness, show_words, OWN, sizeof(struct config_words), &WORDS},
    {config_read_words, show_words, OWN, sizeof(struct config_words), &WORDS},
    {config_read_proxy_protocol, show_proxy_protocol, FIELD(proxy_protocol), &NETWORKS},
    {config_read_upstream, show_upstream, (int)offsetof(struct config, upstream), UPSTREAM_BYTES, &UPSTREAM},
    {config_read_include, show_nothing, 0, 0, NULL},
};

static const struct kind *kind_of(const struct directive *d) {
    for (size_t i = 0; i < sizeof(KINDS) / sizeof(KINDS[0]); i++)
        if (KINDS[i].read == d->read)
            return &KINDS[i];
    return NULL;
}

/* ---- called by other files --------------------------------------------------------------------- */

bool config_shown(size_t i) {
    const struct kind *kind = kind_of(directive_get(i));
    return kind && kind->show != show_nothing;
}

void config_show(const struct config *config, size_t i, struct text *out) {
    const struct directive *d = directive_get(i);
    if (!(d->flags & DIRECTIVE_SECRET)) {
        kind_of(d)->show(config, d, out);
        return;
    }
    const char *secret;
    memcpy(&secret, field(config, d), sizeof(secret));
    if (secret)
        text_printf(out, "(set)");
}

/* Whether the addresses are those of witnesses that the proxy has started. */
static bool started_here(const struct config_words *witnesses) {
    return witnesses->count > 0 && strncmp(witnesses->words[0], "unix:", 5) == 0;
}

static bool differs(const struct config *a, const struct config *b, const struct directive *d) {
    struct text x = {0}, y = {0};
    if (d->read == config_read_witness && config_witness_embedded(b) && started_here(&a->witnesses))
        return false;
    kind_of(d)->show(a, d, &x);
    kind_of(d)->show(b, d, &y);
    bool different = x.len != y.len || (x.len > 0 && memcmp(x.data, y.data, x.len) != 0);
    if (x.len > 0)
        explicit_bzero(x.data, x.len); /* they may be passwords */
    if (y.len > 0)
        explicit_bzero(y.data, y.len);
    text_clear(&x);
    text_clear(&y);
    return different;
}

/* Whether a reload may apply a value. */
static bool is_live(const struct config *a, const struct config *b, const struct directive *d) {
    if (d->read == config_read_proxy_protocol &&
        config_logs_in(a)) { /* a reload must not change which user clients without login have */
        struct config changed = *a;
        changed.proxy_protocol = b->proxy_protocol;
        return config_shares_user(a) == config_shares_user(&changed);
    }
    if (d->read == config_read_witness) /* witnesses may change, not come or go as a whole */
        return a->witnesses.count > 0 && b->witnesses.count > 0 && !started_here(&a->witnesses) &&
               !config_witness_embedded(b);
    if (d->flags & DIRECTIVE_LIVE_LOGIN) /* a login changes which user clients without login have */
        return config_logs_in(a) && config_logs_in(b);
    if (!(d->flags & DIRECTIVE_LIVE_SET))
        return d->flags & DIRECTIVE_LIVE;
    const char *x, *y;
    memcpy(&x, field(a, d), sizeof(x));
    memcpy(&y, field(b, d), sizeof(y));
    return x && y;
}

static void *value_of(struct config *c, const struct directive *d) {
    const struct kind *kind = kind_of(d);
    return (char *)c + (kind->offset == OWN ? d->offset : (size_t)kind->offset);
}

/* Whether the directive is the upstream, at the address that PROXY SWITCH has changed to. */
static bool was_switched(const struct config *fresh, const struct directive *d, const char *switched) {
    return switched && strcmp(d->shown.name, "upstream") == 0 && fresh->upstream == CONFIG_STANDALONE &&
           strcmp(fresh->upstream_addresses.words[0], switched) == 0;
}

size_t config_keep(struct config *fresh, const struct config *in_force, const char *switched, struct text *waiting) {
    size_t count = 0;
    for (size_t i = 0; i < config_directive_count(); i++) {
        const struct directive *d = directive_get(i);
        if (is_live(in_force, fresh, d) || was_switched(fresh, d, switched))
            continue;
        if (differs(in_force, fresh, d))
            text_printf(waiting, "%s%s", count++ > 0 ? " " : "", d->shown.name);
        const struct kind *kind = kind_of(d);
        void *value = value_of(fresh, d);
        if (kind->holds)
            kind->holds->drop(value);
        memcpy(value, (const char *)in_force + ((char *)value - (char *)fresh), kind->bytes);
        if (kind->holds)
            kind->holds->own(value);
    }
    return count;
}

void config_drop_values(struct config *config) {
    for (size_t i = 0; i < config_directive_count(); i++) {
        const struct holding *holds = kind_of(directive_get(i))->holds;
        if (holds)
            holds->drop(value_of(config, directive_get(i)));
    }
}
