/*
 * What attribution makes of applications' traffic: traffic [--check] [--seed S] [--runs N] [--cell NAME] [--every N]
 * [--in-flight] [--bare] [--figures] [--counts] [--trace]
 *
 * Runs every cell of the table (or those whose name begins with NAME, or each Nth of them), once on bare Redis and once
 * behind the engine, and prints what the spectator counted, per 10,000 acquisitions. With --check a cell has to keep
 * within its bounds, which are those of the executable model of the rules with a margin for chance; the exit status is
 * 1 where one does not, nor in the mean of five runs. --in-flight: commands take their round trip, and others come
 * between their beginning and their end; else each is one instant, as in the executable model. --runs: so many times
 * the cell's own number of runs, also a part of it.
 * --bare: bare Redis alone, against the executable model's. --figures: prints each cell's figures as the table has
 * them. --counts: runs each cell behind the engine alone, and prints its counts for tests/sim/ablate.sh.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/traffic_cells.h"

struct options {
    bool check, in_flight, bare, figures, counts, trace;
    uint64_t seed;
    double runs;
    unsigned every;
    const char *cell;
};

/* ---- one cell ---------------------------------------------------------------------------------- */

static unsigned runs_of(const struct cell *c, const struct options *o) {
    double runs = (c->runs ? c->runs : (unsigned)CELL_RUNS) * o->runs;
    return runs < 1 ? 1 : (unsigned)runs;
}

static unsigned trips_of(const struct cell *c) {
    return c->trips ? c->trips : (unsigned)CELL_TRIPS;
}

static void add(struct tally *sum, const struct tally *y) {
    sum->acquired += y->acquired;
    sum->wrong += y->wrong;
    sum->by_again += y->by_again;
    sum->lost += y->lost;
    sum->cut += y->cut;
    sum->unexpired += y->unexpired;
    sum->moved += y->moved;
    sum->most = y->most > sum->most ? y->most : sum->most;
    sum->idle += y->idle;
}

static bool has_second(const struct cell *c) {
    return c->apps[1].keys[0] != NULL || c->apps[1].identity != NULL;
}

static struct tally run(const struct cell *c, const struct options *o, bool bare) {
    struct tally sum = {0};
    for (unsigned i = 0; i < runs_of(c, o); i++) {
        struct world_plan plan = {.app_count = has_second(c) ? 2 : 1,
                                  .trips = trips_of(c),
                                  .bare = bare,
                                  .instant = !o->in_flight,
                                  .trace = o->trace && bare == o->bare,
                                  .seed = o->seed * 1000003 + i};
        struct tally tallies[TRAFFIC_APPS];
        memcpy(plan.apps, c->apps, sizeof(plan.apps));
        traffic_run(&plan, tallies);
        for (unsigned a = 0; a < plan.app_count; a++)
            if (c->judged == 0 || c->judged == a + 1)
                add(&sum, &tallies[a]);
    }
    return sum;
}

static struct figures figures_of(const struct tally *y, double share, double trips) {
    double unit = 10000.0 / (double)(y->acquired ? y->acquired : 1);
    return (struct figures){.wrong = (double)y->wrong * unit,
                            .lost = (double)y->lost * unit,
                            .cut = (double)y->cut * unit,
                            .unexpired = (double)y->unexpired * unit,
                            .moved = (double)y->moved * unit,
                            .most = (double)y->most,
                            .share = share,
                            .idle = 100 * y->idle / trips};
}

/* ---- bounds ------------------------------------------------------------------------------------ */

/* No two workers share a connection: the wire distinguishes all workers. */
static bool is_apart(const struct cell *c) {
    for (unsigned i = 0; i < TRAFFIC_APPS; i++)
        if (c->apps[i].connections != APP_OWN)
            return false;
    return true;
}

/* Where a release that never comes is the end of a lock on bare Redis, chance alone decides when that is: the share is
 * one of what the executable model's bare Redis reached. */
static double share_of(const struct cell *c, const struct options *o, const struct tally *y, const struct tally *bare) {
    double expected = c->bare.acquired * (double)trips_of(c) * runs_of(c, o) / 10000;
    return (double)y->acquired / (c->stuck ? expected : bare->acquired ? (double)bare->acquired : 1);
}

/* Half as much again, and 20 of 10,000. Where each worker has its own connection and the rules let nothing happen,
 * nothing happens. */
static double bound(const struct cell *c, double rules) {
    return rules <= 0 && is_apart(c) ? 0 : 1.5 * rules + 20;
}

/* Of the time in which a lock stands idle: a quarter more, and 1 % of the time. */
static double bound_idle(const struct cell *c, double rules) {
    return rules <= 0 && is_apart(c) ? 0 : 1.25 * rules + 1;
}

static unsigned say_over(const char *what, double is, double most) {
    if (is <= most)
        return 0;
    printf("      %s: %.1f, at most %.1f\n", what, is, most);
    return 1;
}

/* Says what is out of bounds. Returns in how many ways. While a release takes its round trip its lock stands idle, so
 * that the time counts where a command is one instant. */
static unsigned out_of_bounds(const struct cell *c, const struct options *o, const struct figures *f) {
    const struct figures *r = &c->rules;
    double least = c->stuck ? r->share / 2 : r->share - 0.05;
    unsigned n = say_over("wrong", f->wrong, bound(c, r->wrong));
    n += say_over("lost", f->lost, bound(c, r->lost));
    n += say_over("cut", f->cut, bound(c, r->cut));
    n += say_over("unexpired", f->unexpired, bound(c, r->unexpired));
    n += say_over("moved", f->moved, bound(c, r->moved));
    n += say_over("lost in a row", f->most, 1.5 * r->most + 2);
    n += o->in_flight ? 0 : say_over("idle %", f->idle, bound_idle(c, r->idle));
    if (f->share >= least)
        return n;
    printf("      acquisitions: %.2f of bare Redis's, at least %.2f\n", f->share, least);
    return n + 1;
}

/* Counts how the traffic on bare Redis differs from the executable model's by more than a tenth, and three times the
 * deviation that is to be expected of such numbers. One wrong release leads to the next: theirs is more than twice the
 * usual. */
static unsigned bare_differs(const struct cell *c, const struct options *o, const struct tally *bare) {
    double trips = (double)trips_of(c) * runs_of(c, o), acquired = (double)bare->acquired;
    double expected = c->bare.acquired * trips / 10000, wrong = c->bare.wrong * acquired / 10000;
    unsigned n = 0;
    if (c->stuck)
        return 0;
    if (fabs(acquired - expected) > 0.1 * expected + 3 * sqrt(expected)) {
        printf("      bare Redis: %.0f acquisitions, the model's %.0f\n", acquired, expected);
        n++;
    }
    if (fabs((double)bare->wrong - wrong) > 0.1 * wrong + 7 * sqrt(wrong) + 3) {
        printf("      bare Redis: %.0f wrong releases, the model's %.0f\n", (double)bare->wrong, wrong);
        n++;
    }
    return n;
}

/* ---- the table --------------------------------------------------------------------------------- */

static void head(const struct options *o) {
    printf("%-58s %s\n", "per 10,000 acquisitions; in brackets what the rules reach",
           o->bare ? "  wrong (model)   acquired (model)"
                   : " Redis | wrong (rules)   lost (rules)  in a row   idle% (rules)   share (rules)");
}

static void print_bare(const struct cell *c, const struct options *o, const struct tally *y) {
    double trips = (double)trips_of(c) * runs_of(c, o), unit = 10000.0 / (double)(y->acquired ? y->acquired : 1);
    printf("%-58s %7.0f (%5.0f)    %7.0f (%5.0f)\n", c->name, (double)y->wrong * unit, c->bare.wrong,
           (double)y->acquired * 10000 / trips, c->bare.acquired);
}

static double trips_in_all(const struct cell *c, const struct options *o) {
    return (double)trips_of(c) * runs_of(c, o);
}

static void print(const struct cell *c, const struct options *o, const struct tally *y, const struct tally *bare) {
    struct figures f = figures_of(y, share_of(c, o, y, bare), trips_in_all(c, o));
    struct figures b = figures_of(bare, 1, trips_in_all(c, o));
    if (o->figures) {
        printf("%s|{%.1f, %.1f, %.1f, %.1f, %.1f, %.0f, %.2f, %.2f}|{%.0f, %.0f}\n", c->name, f.wrong, f.lost, f.cut,
               f.unexpired, f.moved, f.most, f.share, f.idle, b.wrong,
               (double)bare->acquired * 10000 / trips_in_all(c, o));
        return;
    }
    printf("%-58s %6.0f | %5.0f (%5.0f)  %5.0f (%5.0f)  %4.0f (%2.0f)  %5.1f (%5.1f)  %5.2f (%5.2f)", c->name, b.wrong,
           f.wrong, c->rules.wrong, f.lost, c->rules.lost, f.most, c->rules.most, f.idle, c->rules.idle, f.share,
           c->rules.share);
    if (f.cut > 0 || c->rules.cut > 0)
        printf("  cut %.0f (%.0f)", f.cut, c->rules.cut);
    if (f.unexpired > 0 || c->rules.unexpired > 0)
        printf("  unexpired %.0f (%.0f)", f.unexpired, c->rules.unexpired);
    if (f.moved > 0 || c->rules.moved > 0)
        printf("  moved %.0f (%.0f)", f.moved, c->rules.moved);
    printf("\n");
}

static void print_counts(const struct cell *c, const struct options *o) {
    struct tally y = run(c, o, false);
    printf("%s|%" PRIu64 "|%" PRIu64 "|%" PRIu64 "|%.1f|%.0f\n", c->name, y.acquired, y.wrong, y.lost, y.idle,
           trips_in_all(c, o));
}

static struct figures behind_engine(const struct cell *c, const struct options *o, const struct tally *bare) {
    struct tally y = run(c, o, false);
    print(c, o, &y, bare);
    return figures_of(&y, share_of(c, o, &y, bare), trips_in_all(c, o));
}

static void figures_add(struct figures *sum, const struct figures *f, double weight) {
    sum->wrong += weight * f->wrong;
    sum->lost += weight * f->lost;
    sum->cut += weight * f->cut;
    sum->unexpired += weight * f->unexpired;
    sum->moved += weight * f->moved;
    sum->most += weight * f->most;
    sum->share += weight * f->share;
    sum->idle += weight * f->idle;
}

/* What is seldom comes in clumps: a workload that has learnt wrongly does so until it learns better. So a cell that is
 * out of bounds runs four times more, as others would have, and the mean decides: the rules' figures are means, too. */
static unsigned again(const struct cell *c, const struct options *o, const struct figures *first) {
    enum { RUNS = 5 };
    struct figures mean = {0};
    struct options other = *o;
    figures_add(&mean, first, 1.0 / RUNS);
    for (int i = 1; i < RUNS; i++) {
        other.seed += 1000;
        struct tally bare = run(c, &other, true);
        struct figures f = behind_engine(c, &other, &bare);
        figures_add(&mean, &f, 1.0 / RUNS);
    }
    printf("      of all five:\n");
    return out_of_bounds(c, o, &mean);
}

/* Returns whether it is as it should be. */
static bool cell_run(const struct cell *c, const struct options *o) {
    if (o->counts) {
        print_counts(c, o);
        return true;
    }
    struct tally bare = run(c, o, true);
    unsigned wrong = 0;
    if (o->bare) {
        print_bare(c, o, &bare);
        wrong = bare_differs(c, o, &bare);
    } else {
        struct figures f = behind_engine(c, o, &bare);
        if (o->check && out_of_bounds(c, o, &f))
            wrong = again(c, o, &f);
        wrong += o->check ? bare_differs(c, o, &bare) : 0;
    }
    fflush(stdout);
    return wrong == 0;
}

static bool options_read(struct options *o, int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        bool more = i + 1 < argc;
        if (strcmp(argv[i], "--check") == 0)
            o->check = true;
        else if (strcmp(argv[i], "--in-flight") == 0)
            o->in_flight = true;
        else if (strcmp(argv[i], "--bare") == 0)
            o->bare = true;
        else if (strcmp(argv[i], "--figures") == 0)
            o->figures = true;
        else if (strcmp(argv[i], "--counts") == 0)
            o->counts = true;
        else if (strcmp(argv[i], "--trace") == 0)
            o->trace = true;
        else if (strcmp(argv[i], "--seed") == 0 && more)
            o->seed = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--runs") == 0 && more)
            o->runs = strtod(argv[++i], NULL);
        else if (strcmp(argv[i], "--cell") == 0 && more)
            o->cell = argv[++i];
        else if (strcmp(argv[i], "--every") == 0 && more)
            o->every = (unsigned)strtoul(argv[++i], NULL, 10);
        else
            return false;
    }
    return o->runs > 0 && o->every > 0;
}

int main(int argc, char **argv) {
    struct options o = {.seed = 1, .runs = 1, .every = 1};
    if (!options_read(&o, argc, argv)) {
        fprintf(stderr,
                "usage: traffic [--check] [--seed S] [--runs N] [--cell NAME] [--every N] [--in-flight] [--bare] "
                "[--figures] [--counts] [--trace]\n");
        return 2;
    }
    unsigned done = 0, failed = 0, named = 0;
    if (!o.counts)
        head(&o);
    for (unsigned i = 0; i < TRAFFIC_CELL_COUNT; i++) {
        const struct cell *c = &TRAFFIC_CELLS[i];
        if (o.cell && strncmp(c->name, o.cell, strlen(o.cell)) != 0)
            continue;
        if (named++ % o.every != 0)
            continue;
        done++;
        failed += !cell_run(c, &o);
    }
    if (!o.counts)
        printf("traffic: %u cells, %u out of bounds (seed %" PRIu64 ")\n", done, failed, o.seed);
    return done == 0 || failed > 0;
}
