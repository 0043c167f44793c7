/*
 * What must hold, said where it must hold. Every folder may include this header.
 *
 *      invariant(u->pins_used <= u->pins_max, "%zu pins are used of %zu", u->pins_used, u->pins_max);
 *      if (!invariant(fence > key->fence, "S2: the fence grows"))
 *          return refuse(...);
 *
 * A failed invariant is a fault of the program, whatever clients and nodes send. It ends the process in debug builds,
 * tests, fuzzers and the simulator. A release build counts it, logs the first one of each place, refuses the request
 * where there is one, and goes on.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* One invariant of the source. */
struct invariant_place {
    const char *condition, *function, *file;
    unsigned line;
    _Atomic uint64_t failures;
};

#ifdef __FILE_NAME__
#define INVARIANT_FILE __FILE_NAME__
#else
#define INVARIANT_FILE __FILE__
#endif

/* Whether the condition holds. The text (as for printf) begins with the rule's code if docs/locks.md has one, and its
 * values are computed only on failure. The text may contain no secrets, lock values or tokens, since the log has it. */
#define invariant(condition, ...)                                                                                      \
    __extension__({                                                                                                    \
        bool invariant_holds = __builtin_expect(!!(condition), 1);                                                     \
        if (__builtin_expect(!invariant_holds, 0)) {                                                                   \
            static struct invariant_place invariant_place = {#condition, __func__, INVARIANT_FILE, __LINE__, 0};       \
            invariant_failed(&invariant_place, __VA_ARGS__);                                                           \
        }                                                                                                              \
        invariant_holds;                                                                                               \
    })

/* Does the same in debug builds, and costs nothing in others: for what is too expensive on the way of every request. */
#ifdef NDEBUG
#define invariant_debug(condition, ...) ((void)sizeof(condition))
#else
#define invariant_debug(condition, ...) ((void)invariant(condition, __VA_ARGS__))
#endif

/* From now on a failed invariant is passed to `tell`, once for each place and without a newline, and then ends the
 * process if `fatal`. Until then failures are fatal and told on standard error. To be called before threads start. */
void invariant_start(void (*tell)(const char *text), bool fatal);
/* How many invariants have failed since the process started. May be called from any thread. */
uint64_t invariant_failures(void);

/* For the macro: counts, tells and, if fatal, ends the process. May be called from any thread. */
void invariant_failed(struct invariant_place *place, const char *format, ...)
    __attribute__((cold, noinline, format(printf, 2, 3)));
