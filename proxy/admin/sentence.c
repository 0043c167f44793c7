/* Incidents as sentences. */
#include "proxy/admin/sentence.h"

#include <stdbool.h>
#include <string.h>
#include <time.h>

/* The words for each kind of incident: before and after the key. */
struct deed {
    const char *kind, *before, *behind;
    bool against; /* the sentence names the holder, which is another client */
};

static const struct deed *deed_of(const char *kind) {
    static const struct deed rows[] = {
        {"late_release", "tried to release", "", true},
        {"foreign_release", "tried to release", "", true},
        {"ambiguous", "released", " with one of several leases", true},
        {"foreign_extend", "tried to change the expiry of", "", true},
        {"overwrite", "tried to overwrite", "", true},
        {"no_expiry", "acquired", " without an expiry", false},
        {"overrun", "had", " for longer than its lease", false},
        {"abandoned", "left without releasing", "", false},
        {"lost_head", "lost its place in the queue of", "", false},
        {"renewal_lost", "lost the lease of", "", false},
        {"lost", "lost the lease of", "", false},
        {"unconfirmed", "did not get", "", false},
        {"remembered", "was refused", "", false},
        {"overtaken", "has lost", "", false},
        {"operator_release", "released", " as an operator", true},
        {"shared", "was found to share connections for", "", false},
        {"believed", "released", " for another connection", true},
        {"deadlock", "would have waited in a circle for", "", false},
        {"late_write", "wrote", " without its lock", true},
        {"held_long", "has held", " for long", false},
        {"one_shot", "keeps", " as a one-shot client", false},
        {"permit_returned", "did not give back a permit of", "", false},
        {"permit_lost", "may have a permit of", "", false},
    };
    static const struct deed other = {"", "had an incident with", "", true};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (strcmp(rows[i].kind, kind) == 0)
            return &rows[i];
    return &other;
}

void sentence_append(const struct incident *i, struct text *out) {
    const struct deed *deed = deed_of(i->kind);
    text_printf(out, "%s %s ", i->client[0] ? i->client : "The proxy", deed->before);
    text_append_visible(out, i->key, i->key_len);
    text_printf(out, "%s", deed->behind);
    if (deed->against && i->holder[0])
        text_printf(out, "; held by %s", i->holder);
    text_printf(out, ": %s", i->action);
}

void sentence_time(int64_t time_ms, struct text *out) {
    time_t seconds = (time_t)(time_ms / 1000);
    struct tm tm;
    char date[32];
    localtime_r(&seconds, &tm);
    strftime(date, sizeof(date), "%Y-%m-%d %H:%M:%S", &tm);
    text_printf(out, "%s.%03d", date, (int)(time_ms % 1000));
}
