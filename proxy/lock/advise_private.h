/* Private to proxy/lock/advise*.c: what is counted of a pattern and a client. */
#ifndef LOCKKEEPER_LOCK_ADVISE_PRIVATE_H
#define LOCKKEEPER_LOCK_ADVISE_PRIVATE_H

#include "proxy/lock/advise.h"

struct advise_row {
    char pattern[ADVISE_PATTERN_MAX]; /* "": the row is empty */
    char client[ADVISE_CLIENT_MAX];
    char library[ADVISE_LIBRARY_MAX];
    uint64_t client_hash;
    size_t stem_len; /* of the pattern, up to the last separator */
    bool ruled;      /* the pattern is a rule's */
    int64_t last_ms;
    uint64_t last_value;
    uint64_t sessions; /* a bit for some of those that acquired */
    uint64_t acquired, lost, self_lost, endless, valued, repeated;
    uint64_t by_holder, by_sibling, by_other, late, unknown, in_vain; /* releases */
    uint64_t expired;                                                 /* ended without a release */
};

/* Writes the row's line; returns its length. */
size_t advise_line(const struct advise_row *row, char out[ADVISE_LINE_MAX]);
/* All events of the row. */
uint64_t advise_events(const struct advise_row *row);

#endif
