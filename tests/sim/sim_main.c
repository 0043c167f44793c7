/*
 * The simulator: sim [--steps N] [--seed S] [--length L] [--lists | --waits | --fences] [--alone] [--verbose]
 *
 * Runs scenario after scenario, each drawn from the seed, until N steps were made, and checks the rules after every
 * step. A failing scenario is run again to show what led to it, with the command line that replays it alone.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/sim/chance.h"
#include "tests/sim/sim_world.h"

struct options {
    long steps, length;
    uint64_t seed;
    enum about about;
    bool seeded, alone, verbose;
};

struct totals {
    long steps, scenarios, promised_wrong, promised_kept, apart, mistaken;
    uint64_t short_runs[WAYS][2];
    uint64_t granted, lost, renewals, wrong, kept, circles[MODEL_KEYS + 1], waits, published;
};

static bool run(struct world *w, uint64_t seed, const struct options *o, bool log, bool tell) {
    world_open(w, seed, o->about, log, tell);
    while (w->step < o->length && !w->failure)
        world_step(w);
    if (!w->failure)
        world_end(w);
    world_close(w);
    return !w->failure;
}

static void show(struct world *w, const struct options *o) {
    printf("FAILED at step %ld: %s: %s\n", w->step, w->failure, w->failure_text);
    scenario_print(&w->sc);
    size_t max = sizeof(w->events) / sizeof(w->events[0]);
    unsigned shown = w->event_count < max ? w->event_count : (unsigned)max;
    for (unsigned i = w->event_count - shown; i != w->event_count; i++)
        printf("%s\n", w->events[i % max]);
    printf("replay: sim --alone --seed %" PRIu64 " --length %ld%s --verbose\n", w->sc.seed, o->length,
           o->about == ABOUT_LISTS    ? " --lists"
           : o->about == ABOUT_WAITS  ? " --waits"
           : o->about == ABOUT_FENCES ? " --fences"
                                      : "");
}

static bool options_read(struct options *o, int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        bool more = i + 1 < argc;
        if (strcmp(argv[i], "--alone") == 0)
            o->alone = true;
        else if (strcmp(argv[i], "--lists") == 0)
            o->about = ABOUT_LISTS;
        else if (strcmp(argv[i], "--waits") == 0)
            o->about = ABOUT_WAITS;
        else if (strcmp(argv[i], "--fences") == 0)
            o->about = ABOUT_FENCES;
        else if (strcmp(argv[i], "--verbose") == 0)
            o->verbose = true;
        else if (strcmp(argv[i], "--steps") == 0 && more)
            o->steps = atol(argv[++i]);
        else if (strcmp(argv[i], "--length") == 0 && more)
            o->length = atol(argv[++i]);
        else if (strcmp(argv[i], "--seed") == 0 && more) {
            o->seed = strtoull(argv[++i], NULL, 10);
            o->seeded = true;
        } else
            return false;
    }
    return true;
}

static void add(struct totals *t, const struct world *w) {
    t->steps += w->step;
    t->scenarios++;
    bool mistaken = false;
    for (int name = 0; name < IDENTITIES; name++)
        mistaken = mistaken || world_mistaken(w, name);
    t->mistaken += mistaken;
    t->apart += w->sc.apart;
    t->promised_wrong += w->sc.never_wrong;
    t->promised_kept += w->sc.never_kept || w->sc.kept_after_end_only;
    t->granted += w->granted;
    t->lost += w->lost;
    t->renewals += w->renewals;
    t->wrong += w->wrong;
    t->kept += w->kept;
    t->waits += w->waited;
    t->published += w->published;
    for (int i = 0; i < 2 * WAYS; i++)
        t->short_runs[i / 2][i % 2] += w->short_runs[i / 2][i % 2];
    for (unsigned n = 0; n <= MODEL_KEYS; n++)
        t->circles[n] += w->circles[n];
}

/* Prints the results of waiting attempts. False: there were too few to show anything. */
static bool waited_enough(const struct totals *t) {
    bool enough = t->waits > 0 && t->published > 0;
    printf("sim: %" PRIu64 " attempts waited, %" PRIu64 " releases were told to other proxies; circles found:",
           t->waits, t->published);
    for (unsigned n = 2; n <= MODEL_KEYS; n++) {
        printf(" %" PRIu64 " of %u", t->circles[n], n);
        enough = enough && t->circles[n] > 0;
    }
    printf("\n");
    if (!enough && t->steps >= 500000)
        printf("FAILED: that is too little\n");
    return enough || t->steps < 500000;
}

int main(int argc, char **argv) {
    struct options o = {.steps = 1000000, .length = 2000};
    if (!options_read(&o, argc, argv)) {
        fprintf(
            stderr,
            "usage: sim [--steps N] [--seed S] [--length L] [--lists | --waits | --fences] [--alone] [--verbose]\n");
        return 2;
    }
    if (!o.seeded)
        o.seed = (uint64_t)time(NULL) ^ ((uint64_t)clock() << 20);
    if (o.alone)
        o.steps = 1;
    printf("sim: seed %" PRIu64 "\n", o.seed);
    static struct world w;
    struct totals t = {0};
    while (t.steps < o.steps) {
        uint64_t seed = o.alone ? o.seed : chance_seed(o.seed, (uint64_t)t.scenarios);
        if (!run(&w, seed, &o, false, false)) {
            run(&w, seed, &o, true, o.alone && o.verbose);
            show(&w, &o);
            return 1;
        }
        if (o.verbose) {
            printf("scenario %" PRIu64 ": wrong %" PRIu64 " kept %" PRIu64 " granted %" PRIu64 "\n", seed, w.wrong,
                   w.kept, w.granted);
            scenario_print(&w.sc);
        }
        add(&t, &w);
    }
    printf("sim: %ld steps in %ld scenarios (%ld promise that nothing goes wrong, %ld that nothing is kept); "
           "%" PRIu64 " leases, %" PRIu64 " attempts lost, %" PRIu64 " renewals; where nothing was promised: %" PRIu64
           " wrong, %" PRIu64 " kept; %ld of %ld clients' own connections were taken for a pool's\n",
           t.steps, t.scenarios, t.promised_wrong, t.promised_kept, t.granted, t.lost, t.renewals, t.wrong, t.kept,
           t.mistaken, t.apart);
    if (t.short_runs[WAY_BATCH][0])
        printf("sim: batches %" PRIu64 ", followed by acquire.lua %" PRIu64 "; free.lua %" PRIu64
               ", followed by release.lua %" PRIu64 "\n",
               t.short_runs[WAY_BATCH][0], t.short_runs[WAY_BATCH][1], t.short_runs[WAY_FREE][0],
               t.short_runs[WAY_FREE][1]);
    if ((o.about == ABOUT_WAITS && !waited_enough(&t)) || (o.about == ABOUT_FENCES && !fences_enough(t.steps)))
        return 1;
    if (t.mistaken > 3 + t.apart / 20) {
        printf("FAILED: those are too many\n");
        return 1;
    }
    return 0;
}
