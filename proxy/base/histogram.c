#include "proxy/base/histogram.h"

#include "parser/invariant.h"

const int64_t histogram_bounds[HISTOGRAM_BOUNDS] = {50,     100,     250,     500,     1000,    2500,
                                                    5000,   10000,   25000,   50000,   100000,  250000,
                                                    500000, 1000000, 2500000, 5000000, 10000000};

void histogram_note(struct histogram *h, int64_t us) {
    unsigned i = 0;
    while (i < HISTOGRAM_BOUNDS && us > histogram_bounds[i])
        i++;
    h->counts[i]++;
    h->sum_us += us > 0 ? (uint64_t)us : 0;
}

void histogram_add(struct histogram *to, const struct histogram *from) {
    invariant(to != from, "a histogram is added to itself");
    for (unsigned i = 0; i <= HISTOGRAM_BOUNDS; i++)
        to->counts[i] += from->counts[i];
    to->sum_us += from->sum_us;
}
