/*
 * RESP framing: where a request or a reply ends, and where a request's arguments are.
 *
 * Both scanners are incremental: they are fed bytes as these come, keep their place between calls,
 * and give the same result however the bytes were cut. They hold no descriptor, know no command
 * names, copy no payload, and enforce every limit with Redis's own error texts.
 *
 * Sources: the RESP2 and RESP3 specifications of the Redis documentation; the behaviour of
 * redis-server 7.0 for everything that is malformed.
 */
#ifndef LOCKKEEPER_PARSER_RESP_H
#define LOCKKEEPER_PARSER_RESP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum resp_status {
    RESP_OK,   /* a message is complete */
    RESP_MORE, /* all bytes were looked at, the message goes on */
    RESP_BAD   /* not RESP; the connection has to be closed */
};

/* Bytes enough for "*N\r\n", "$N\r\n" or ":N\r\n". */
enum { RESP_HEADER_MAX = 24 };

/* ---- requests ---------------------------------------------------------------------------- */

enum {
    RESP_INLINE_MAX = 64 * 1024,      /* an inline request, or a length line, without its end */
    RESP_UNAUTH_ARGS_MAX = 10,        /* before authentication */
    RESP_UNAUTH_BULK_MAX = 16 * 1024, /* before authentication */
    RESP_ARGV_INLINE = 8,             /* arguments kept without an allocation */
    RESP_ERROR_TEXT = 48              /* bytes of an error text that is made up */
};

struct resp_limits {
    int64_t bulk_max;     /* proto-max-bulk-len */
    bool unauthenticated; /* the stricter limits apply */
};

/* An argument has `len` bytes at `off` from the start of the request. */
struct resp_arg {
    size_t off;
    size_t len;
};

enum resp_form {
    RESP_EMPTY,     /* *0, *-1, an empty line: nothing to do, nothing to answer */
    RESP_MULTIBULK, /* argv is filled */
    RESP_INLINE     /* argv is empty: the line is [0, line_len); see resp_inline_encode */
};

/* A request being scanned, and the result. Fields above the line are the result after RESP_OK. */
struct resp_request {
    enum resp_form form;
    size_t len;            /* bytes of the whole request */
    size_t argc;           /* arguments found */
    struct resp_arg *argv; /* argv_inline, or an allocation of this structure's */
    bool irregular;        /* accepted as Redis accepts it, but not in canonical form (a bulk or a length line
                              with other bytes than CR LF at its end): encode it anew before forwarding */
    size_t line_len;       /* RESP_INLINE: the line without its CR LF or LF */
    const char *error;     /* after RESP_BAD: "Protocol error: ..." as Redis words it; static or in error_text */
    /* ---- the scanner's place ---- */
    size_t pos;       /* where the line or the bulk being read begins; 0: nothing is complete yet */
    size_t seen;      /* the bytes before it hold no end of the line that begins at pos */
    size_t args_left; /* arguments to come */
    int64_t bulk_len; /* of the bulk being read, -1: its length line comes next */
    size_t argv_cap;
    bool quick; /* scanned at once: but for the result, only pos was changed */
    char error_text[RESP_ERROR_TEXT];
    struct resp_arg argv_inline[RESP_ARGV_INLINE];
};

/* The structure must not be copied afterwards, since argv may point into it: see resp_request_move. */
void resp_request_init(struct resp_request *r);
/* Makes it ready for the next request; keeps an argv of moderate size for it. */
void resp_request_reset(struct resp_request *r);
/* Makes it ready for the next request behind RESP_OK, as resp_request_reset does, without a call where it was quick. */
static inline void resp_request_next(struct resp_request *r) {
    if (r->quick)
        r->pos = 0;
    else
        resp_request_reset(r);
}
/* Frees what the scanner has allocated (argv). */
void resp_request_clear(struct resp_request *r);
/* Moves a scanner with its place to `to`, which holds nothing; `from` is ready for another request afterwards. */
void resp_request_move(struct resp_request *to, struct resp_request *from);

/* Scans on. `data` always begins at the first byte of the request, `len` is all that has come of it so
 * far (and perhaps of the requests behind it); bytes scanned by an earlier call are not looked at again.
 * The buffer may have moved between calls. After RESP_OK it is reset before the next scan; after RESP_BAD
 * only clearing it is left. Memory for argv grows with the arguments that have come, never with a count
 * that was merely announced; running out of it ends the process. */
enum resp_status resp_request_scan(struct resp_request *r, const char *data, size_t len,
                                   const struct resp_limits *limits) __attribute__((warn_unused_result));

/* ---- the rest of a request whose beginning is on its way already ---- */

/* Finds the end of a multibulk without keeping any of it: no arguments, no bytes. */
struct resp_body {
    size_t args_left;   /* whose end has not come yet */
    uint64_t bulk_left; /* bytes of the argument being read, with the two behind it; 0: a length line comes */
    uint64_t bulk_len;  /* of this argument or the one before */
    const char *error;  /* after RESP_BAD, as in resp_request */
    /* ---- private ---- */
    size_t line_len;  /* bytes of the length line so far */
    bool line_hidden; /* behind a NUL byte, as resp_request_scan has it */
    bool line_ended;  /* its CR has come; the byte behind it belongs to it */
    char line[RESP_HEADER_MAX];
    char error_text[RESP_ERROR_TEXT];
};

/* Goes on where a scan of a multibulk has come to (RESP_MORE): the next byte is the one at r->pos. */
void resp_body_init(struct resp_body *b, const struct resp_request *r);
/* Scans the next `len` bytes. RESP_OK: the request ends with the first *used of them; RESP_MORE: all belong to it;
 * RESP_BAD: as resp_request_scan, with the same errors. */
enum resp_status resp_body_scan(struct resp_body *b, const char *data, size_t len, const struct resp_limits *limits,
                                size_t *used) __attribute__((warn_unused_result));

/* An upper bound for the output of resp_inline_encode. */
size_t resp_inline_bound(size_t line_len);
/* Splits an inline request's line as Redis does (quotes, \x escapes) and writes the same request as a
 * multibulk to `out`. Returns its length, 0 for a line without a word, -1 for unbalanced quotes (see
 * resp_unbalanced_quotes). A NUL byte ends the line. */
int64_t resp_inline_encode(const char *line, size_t line_len, char *out);

/* What Redis says, behind "-ERR ", before it closes a connection that sent unbalanced quotes. */
extern const char resp_unbalanced_quotes[];

/* ---- replies ----------------------------------------------------------------------------- */

/* A reply being framed. RESP2 and RESP3; nested replies need no stack. */
struct resp_reply {
    char type;       /* first byte of the top-level reply ('>' is a push); 0 before any byte, '|' while only
                        attributes in front of it have come */
    uint8_t state;   /* private */
    uint8_t kind;    /* private: of the element being read */
    int64_t number;  /* private: its length as far as that was read; then payload bytes still to come */
    int64_t pending; /* private: elements still to come, the one being read among them */
};

void resp_reply_init(struct resp_reply *r);
/* Whether nothing of the reply has come yet. */
static inline bool resp_reply_begins(const struct resp_reply *r) {
    return r->type == 0;
}
/* The length of the reply that the bytes begin with, where it is as most are: complete, one line that is no error, or
 * one string. 0: resp_reply_scan has to look at it. For replies of which nothing has come before. */
size_t resp_reply_quick(const char *data, size_t len);

/* Frames on over the next `len` bytes of the stream. *used is how many belong to this reply: all of them
 * after RESP_MORE. After RESP_OK the caller calls resp_reply_init for the next one; `type` says what it
 * was. An attribute ('|') is part of the reply behind it. RESP_BAD is for unknown types, malformed lengths,
 * bulks without CR LF at their end, and streamed types; what a line says is not looked at. */
enum resp_status resp_reply_scan(struct resp_reply *r, const char *data, size_t len, size_t *used)
    __attribute__((warn_unused_result));

/* How many bytes are known to come after RESP_MORE, at least. */
int64_t resp_reply_ahead(const struct resp_reply *r);

/* ---- looking into a complete reply ------------------------------------------------------- */

/* An element of a well-formed reply that is complete in memory. */
struct resp_item {
    char type;       /* its first byte */
    bool null;       /* $-1, *-1 or _ */
    const char *str; /* a scalar's text, without type, length and CR LF ('=': with its "txt:"); borrowed,
                        never NULL; empty for nulls and aggregates */
    size_t len;      /* of str */
    int64_t num;     /* integer and boolean: the value; aggregates: how many elements follow (a map of n
                        pairs: 2n; an attribute's are not the reply, which follows them) */
};

/* Reads the element at *p and moves *p behind it (for an aggregate: to its first element). Returns false at
 * `end`, and where the bytes are not what their type promises (also an integer that is none). */
bool resp_item_read(const char **p, const char *end, struct resp_item *item) __attribute__((warn_unused_result));

/* The end of the whole element (with all that is nested in it and attributes in front of it) that begins at
 * p, or NULL where it is malformed or goes beyond `end`. */
const char *resp_item_end(const char *p, const char *end);

/* ---- writing ----------------------------------------------------------------------------- */

/* Writes the digits of n so that they end before `end` (at most 20); returns where they begin. */
char *resp_digits_write(char *end, uint64_t n);
/* Writes TYPE, the number and CR LF; returns the length. */
size_t resp_header_write(char *out, char type, int64_t n);
/* Bytes that a bulk string of `len` bytes takes, and the writing of it; returns the end. */
size_t resp_bulk_size(size_t len);
char *resp_bulk_write(char *out, const void *data, size_t len);

/* Redis's string2ll: a canonical decimal integer (no sign but '-', no spaces, no leading zeros). */
bool resp_integer(const char *s, size_t len, int64_t *value) __attribute__((warn_unused_result));

#endif
