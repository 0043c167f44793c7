/*
 * Blocking commands in a form that does not block. fence.lua runs this form in a transaction.
 *
 * Scripts of Redis 7.0 must not call blocking commands. BLPOP a b 5 therefore becomes an LPOP of the first of the two
 * keys that has an element.
 */
#include "proxy/session/fences/private.h"

struct nonblocking_form nonblocking_form_as_it_came(const struct request_class *k) {
    return (struct nonblocking_form){.end = k->request->argc};
}

/* Whether the argument is a timeout in the usual notation. Redis accepts some other notations, too. The proxy does not
 * try to tell which. */
static bool is_time(const struct request_class *k, size_t at) {
    enum { DIGITS_MAX = 9 };
    size_t len, digits = 0, dots = 0;
    const char *text = request_arg(k->request, k->bytes, at, &len);
    for (size_t i = 0; i < len; i++) {
        digits += text[i] >= '0' && text[i] <= '9';
        dots += text[i] == '.' && i > 0 && i + 1 < len;
    }
    return digits > 0 && digits <= DIGITS_MAX && dots <= 1 && digits + dots == len;
}

bool nonblocking_form_unblocked(const struct request_class *k, struct nonblocking_form *as) {
    size_t last = k->request->argc - 1, time = last;
    *as = (struct nonblocking_form){.first = 1, .end = last};
    switch ((int)k->command->id) {
    case COMMAND_BLMOVE:
        as->name = "LMOVE";
        break;
    case COMMAND_BRPOPLPUSH:
        as->name = "RPOPLPUSH";
        break;
    case COMMAND_BLMPOP:
    case COMMAND_BZMPOP:
        *as = (struct nonblocking_form){
            .name = k->command->id == COMMAND_BLMPOP ? "LMPOP" : "ZMPOP", .first = 2, .end = last + 1};
        time = 1;
        break;
    case COMMAND_BLPOP:
    case COMMAND_BRPOP:
        as->name = k->command->id == COMMAND_BLPOP ? "LPOP" : "RPOP";
        as->each = true;
        break;
    case COMMAND_BZPOPMIN:
    case COMMAND_BZPOPMAX:
        as->name = k->command->id == COMMAND_BZPOPMIN ? "ZPOPMIN" : "ZPOPMAX";
        as->each = true;
        break;
    default:
        return false;
    }
    return k->request->argc <= SCRIPT_ARGS_MAX && is_time(k, time);
}
