/*
 * Rewrites errors that Redis raised in a lock script into the errors that the application's command would get from
 * Redis. This file knows no commands and no outcomes.
 */
#include <string.h>

#include "proxy/session/locks/script_call.h"
#include "proxy/upstream/script.h"

/* Returns the error for a user that may not run the script. The user has sent a SETNX, for example, and knows nothing
 * of scripts. So the error says which permission is missing. NULL: the error is about something else. */
static const char *permission_error(const char *error, size_t len) {
    static const char IN_SCRIPT[] =
        "-NOPERM this user has no permissions to run a command in lockkeeper's script for this "
        "lock command: grant the command itself and +time +exists +type +get +set +del +hget +hmget "
        "+hset +pttl +pexpire +persist; for list, hash and counter locks also +hexists +hincrby +hdel +hlen +hkeys "
        "+lindex +llen +lpos +lpop\r\n";
    static const struct {
        const char *start, *word, *answer;
    } errors[] = {
        {"-NOPERM", "eval",
         "-NOPERM this user has no permissions to run the 'evalsha' command, which lockkeeper uses for "
         "commands on lock keys: grant +eval +evalsha ~lockkeeper:{*}:*\r\n"},
        {"-NOPERM", "to access", /* ... one of the keys used as arguments; since 7.2: a key */
         "-NOPERM this user has no permissions to access the lock's key, or the guard record "
         "beside it: grant ~lockkeeper:{*}:* too, with +eval +evalsha\r\n"},
        {"-ERR The user executing", "", IN_SCRIPT},
        {"-ERR ACL failure in script", "", IN_SCRIPT}, /* since 7.2 */
    };
    for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
        if (len > strlen(errors[i].start) && memcmp(error, errors[i].start, strlen(errors[i].start)) == 0 &&
            memmem(error, len, errors[i].word, strlen(errors[i].word)))
            return errors[i].answer;
    return NULL;
}

void lock_error_words(struct lock_envelope *e, char out[LOCK_ANSWER_MAX]) {
    size_t len;
    if (e->reply_len > 3 && e->reply[0] == '-' &&
        script_error_plain(e->reply + 1, e->reply_len - 3, out + 1, LOCK_ANSWER_MAX - 3, &len)) {
        out[0] = '-';
        memcpy(out + 1 + len, "\r\n", 2);
        e->reply = out;
        e->reply_len = len + 3;
    }
    const char *missing = permission_error(e->reply, e->reply_len);
    if (missing) {
        e->reply = missing;
        e->reply_len = strlen(missing);
    }
}
