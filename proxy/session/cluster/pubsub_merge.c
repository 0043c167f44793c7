/*
 * Merges the masters' replies about subscriptions. A client of the proxy subscribes at one master, and each master only
 * knows its own subscribers.
 */
#include <stdlib.h>
#include <string.h>

#include "proxy/base/memory.h"
#include "proxy/base/sum.h"
#include "proxy/session/cluster/private.h"
#include "proxy/session/core/session.h"

struct name {
    const char *data; /* the whole element */
    size_t len;
};

static int name_compare(const void *a, const void *b) {
    const struct name *x = a, *y = b;
    if (x->len != y->len)
        return x->len < y->len ? -1 : 1;
    return memcmp(x->data, y->data, x->len);
}

static bool array_of(const struct text *reply, const char **p, int64_t *count) {
    struct resp_item item;
    *p = reply->data;
    if (!resp_item_read(p, reply->data + reply->len, &item) || item.type != '*' || item.null)
        return false;
    *count = item.num;
    return true;
}

bool pubsub_merge_names(const struct text *replies, size_t count, struct text *out) {
    size_t total = 0, at = 0, shown = 0;
    const char *p;
    int64_t n;
    for (size_t i = 0; i < count; i++) {
        if (!array_of(&replies[i], &p, &n))
            return false;
        total += (size_t)n;
    }
    struct name *names = memory_alloc((total + 1) * sizeof(*names));
    bool right = true;
    for (size_t i = 0; right && i < count; i++) {
        right = array_of(&replies[i], &p, &n);
        for (int64_t k = 0; right && k < n; k++) {
            const char *next = resp_item_end(p, replies[i].data + replies[i].len);
            right = next != NULL;
            if (right)
                names[at++] = (struct name){p, (size_t)(next - p)};
            p = next;
        }
    }
    qsort(names, at, sizeof(*names), name_compare);
    for (size_t i = 0; i < at; i++)
        if (shown == 0 || name_compare(&names[shown - 1], &names[i]) != 0)
            names[shown++] = names[i];
    text_printf(out, "*%zu\r\n", shown);
    for (size_t i = 0; i < shown; i++)
        text_append(out, names[i].data, names[i].len);
    memory_free(names);
    return right;
}

bool pubsub_merge_counts(const struct text *replies, size_t count, struct text *out) {
    const char **at = memory_alloc(count * sizeof(*at));
    int64_t n = 0, more = 0;
    bool right = true;
    for (size_t i = 0; right && i < count; i++) {
        right = array_of(&replies[i], &at[i], &more) && (i == 0 || more == n);
        n = more;
    }
    text_printf(out, "*%lld\r\n", (long long)n);
    for (int64_t k = 0; right && k < n / 2; k++) {
        int64_t sum = 0;
        for (size_t i = 0; right && i < count; i++) {
            const char *end = replies[i].data + replies[i].len, *start = at[i];
            struct resp_item name, number;
            right = resp_item_read(&at[i], end, &name);
            if (right && i == 0)
                text_append(out, start, (size_t)(at[i] - start));
            right = right && resp_item_read(&at[i], end, &number) && number.type == ':';
            sum = sum_add(sum, right ? number.num : 0);
        }
        text_printf(out, ":%lld\r\n", (long long)sum);
    }
    memory_free(at);
    return right;
}
