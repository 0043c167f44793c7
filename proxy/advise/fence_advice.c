/* Which pairs of data and lock deserve a `fence` line. The counts of writes show which pairs are coincidences. */
#include <stdlib.h>
#include <string.h>

#include "proxy/advise/private.h"
#include "proxy/base/glob.h"

enum {
    FENCE_ENOUGH = 20, /* writes before a fence is advised */
    FENCE_NEARLY = 10  /* of so many writes one may be by a client without the lock */
};

static bool advised(const struct written_pair *pair) {
    return pair->writes >= FENCE_ENOUGH && (pair->writes - pair->held - pair->late) * FENCE_NEARLY <= pair->writes;
}

/* Whether the line for `other` makes the line for `pair` superfluous: it has the same data under a lock that is held
 * for more of its writes, or a more specific lock; or a wider pattern of data under the same lock. */
static bool outdone(const struct written_pair *pair, const struct written_pair *other) {
    if (pair == other || !advised(other) || pair->db != other->db)
        return false;
    uint64_t by = pair->held + pair->late, by_other = other->held + other->late;
    if (strcmp(pair->pattern, other->pattern) == 0)
        return by < by_other || (by == by_other && (strlen(pair->lock) < strlen(other->lock) ||
                                                    (strlen(pair->lock) == strlen(other->lock) && pair > other)));
    return strcmp(pair->lock, other->lock) == 0 &&
           glob_match(other->pattern, strlen(other->pattern), pair->pattern, strlen(pair->pattern));
}

static int most_writes_first(const void *x, const void *y) {
    uint64_t a = ((const struct written_pair *)x)->writes, b = ((const struct written_pair *)y)->writes;
    return a < b ? 1 : a > b ? -1 : 0;
}

void advise_each_fence(struct observer *o, void (*fn)(void *arg, const char *line, size_t len), void *arg) {
    struct written_pair pairs[OBSERVED_PAIRS], said[OBSERVED_PAIRS];
    size_t count = 0, all = observer_pairs(o, pairs);
    for (size_t i = 0; i < all; i++) {
        bool says = advised(&pairs[i]);
        for (size_t k = 0; says && k < all; k++)
            says = !outdone(&pairs[i], &pairs[k]);
        if (says)
            said[count++] = pairs[i];
    }
    qsort(said, count, sizeof(*said), most_writes_first);
    for (size_t i = 0; i < count; i++) {
        struct text line = {0};
        advise_fence_line(&said[i], &line);
        advise_say(&line, fn, arg);
    }
}
