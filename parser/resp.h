/*
 * RESP framing: where a request or a reply ends, and where a request's arguments are.
 *
 * Both scanners take bytes as they arrive, and the result does not depend on where these were cut. They know no command
 * names, copy no payload, and enforce every limit with Redis's own error texts.
 *
 * Sources: the RESP2 and RESP3 specifications of the Redis documentation; redis-server 7.0 for all that is malformed.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum resp_status {
    RESP_OK,   /* a message is complete */
    RESP_MORE, /* all bytes were scanned, the message is not complete */
    RESP_BAD   /* not RESP; the connection has to be closed */
};

/* Bytes enough for "*N\r\n", "$N\r\n" or ":N\r\n". */
enum { RESP_HEADER_MAX = 24 };

/* ---- requests ---------------------------------------------------------------------------- */

enum {
    RESP_INLINE_MAX = 64 * 1024,      /* length of an inline request, or of a length line, without its end */
    RESP_UNAUTH_ARGS_MAX = 10,        /* before authentication */
    RESP_UNAUTH_BULK_MAX = 16 * 1024, /* before authentication */
    RESP_ARGV_INLINE = 8,             /* arguments kept without an allocation */
    RESP_ERROR_TEXT = 48              /* bytes of an error text that is composed */
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
    RESP_EMPTY,     /* *0, *-1, an empty line: nothing to do, no reply */
    RESP_MULTIBULK, /* argv is filled */
    RESP_INLINE     /* argv is empty: the line is [0, line_len); see resp_inline_encode */
};

/* A request being scanned, and the result. Fields above the line are the result after RESP_OK. */
struct resp_request {
    enum resp_form form;
    size_t len;            /* bytes of the whole request */
    size_t argc;           /* arguments found */
    struct resp_arg *argv; /* argv_inline, or memory that this structure owns */
    bool irregular;        /* a bulk or a length line does not end with CR LF: to be encoded anew before forwarding */
    size_t line_len;       /* RESP_INLINE: the line without its CR LF or LF */
    const char *error;     /* after RESP_BAD: "Protocol error: ..." as Redis words it; static or in error_text */
    /* ---- the scanner's place ---- */
    size_t pos;       /* where the line or the bulk being read begins; 0: nothing is complete yet */
    size_t seen;      /* the bytes before this offset contain no end of the line that begins at pos */
    size_t args_left; /* arguments to come */
    int64_t bulk_len; /* length of the bulk being read; -1: its length line comes next */
    size_t argv_cap;
    bool quick; /* scanned in one step: apart from the result, only pos was changed */
    char error_text[RESP_ERROR_TEXT];
    struct resp_arg argv_inline[RESP_ARGV_INLINE];
};

/* Initialises `r`. The structure must not be copied afterwards, since argv may point into it: see resp_request_move. */
void resp_request_init(struct resp_request *r);
/* Prepares `r` for the next request; keeps an argv of moderate size. */
void resp_request_reset(struct resp_request *r);
/* Does the same as resp_request_reset after RESP_OK, without a function call if the last scan was quick. */
static inline void resp_request_next(struct resp_request *r) {
    if (r->quick)
        r->pos = 0;
    else
        resp_request_reset(r);
}
/* Frees what the scanner has allocated (argv). */
void resp_request_clear(struct resp_request *r);
/* Moves a scanner with its place to `to`, which must own no memory. `from` is ready for another request afterwards. */
void resp_request_move(struct resp_request *to, struct resp_request *from);

/* Continues a scan. `data` always begins at the first byte of the request, but may have moved; `len` bytes have come,
 * perhaps with following requests. Nothing is scanned twice. After RESP_OK the caller resets `r` before the next scan;
 * after RESP_BAD it may only clear `r`. Memory for argv grows with the arguments that have come, never with an
 * announced count. If memory runs out, the process aborts. */
enum resp_status resp_request_scan(struct resp_request *r, const char *data, size_t len,
                                   const struct resp_limits *limits) __attribute__((warn_unused_result));

/* Initialises `r`, and scans a request that is whole in memory, for example one that was kept, without limits. False:
 * the bytes are no whole request. The caller clears `r` in any case. */
bool resp_request_read(struct resp_request *r, const char *data, size_t len) __attribute__((warn_unused_result));

/* ---- the rest of a request whose first part has already been forwarded ---- */

/* Finds the end of a multibulk without storing it: no arguments, no bytes. */
struct resp_body {
    size_t args_left;   /* arguments whose end has not come yet */
    uint64_t bulk_left; /* bytes of this argument still to come, with its CR LF; 0: a length line comes */
    uint64_t bulk_len;  /* length of this argument, or of the one before */
    const char *error;  /* after RESP_BAD, as in resp_request */
    /* ---- private ---- */
    size_t line_len;  /* bytes of the length line so far */
    bool line_hidden; /* the rest of the line is behind a NUL byte, as in resp_request_scan */
    bool line_ended;  /* its CR has come; the next byte belongs to it */
    char line[RESP_HEADER_MAX];
    char error_text[RESP_ERROR_TEXT];
};

/* Continues after resp_request_scan returned RESP_MORE in a multibulk: the next byte is the one at r->pos. */
void resp_body_init(struct resp_body *b, const struct resp_request *r);
/* Scans the next `len` bytes. RESP_OK: the request ends with the first *used bytes. RESP_MORE: all bytes belong to the
 * request. RESP_BAD: the same errors as resp_request_scan. */
enum resp_status resp_body_scan(struct resp_body *b, const char *data, size_t len, const struct resp_limits *limits,
                                size_t *used) __attribute__((warn_unused_result));

/* An upper bound for the output of resp_inline_encode. */
size_t resp_inline_bound(size_t line_len);
/* Splits an inline request's line as Redis does (quotes, \x escapes) and writes the same request as a
 * multibulk to `out`. Returns its length, 0 for a line without a word, -1 for unbalanced quotes (see
 * resp_unbalanced_quotes). A NUL byte ends the line. */
int64_t resp_inline_encode(const char *line, size_t line_len, char *out);

/* Redis's text, after "-ERR ", before it closes a connection that sent unbalanced quotes. */
extern const char resp_unbalanced_quotes[];

/* ---- replies ----------------------------------------------------------------------------- */

/* A reply being framed. RESP2 and RESP3; nested replies need no stack. */
struct resp_reply {
    char type; /* first byte of the top-level reply ('>' is a push). 0: no byte has come. '|': only attributes in front
                  of the reply have come */
    uint8_t state;  /* private */
    uint8_t kind;   /* private: of the element being read */
    int64_t number; /* private: the element's length as far as it has been read; then the payload bytes still to come */
    int64_t pending; /* private: elements still to come, including the one being read */
};

void resp_reply_init(struct resp_reply *r);
/* Whether nothing of the reply has come yet. */
static inline bool resp_reply_begins(const struct resp_reply *r) {
    return r->type == 0;
}
/* The length of the reply at the start of the bytes, if the reply is complete and simple: one line that is no error, or
 * one string. 0: the caller must use resp_reply_scan. Only valid if no byte of the reply was scanned before. */
size_t resp_reply_quick(const char *data, size_t len);

/* Frames the next `len` bytes of the stream. *used is how many of them belong to this reply: all after RESP_MORE. After
 * RESP_OK, `type` is set; the caller calls resp_reply_init for the next reply. An attribute ('|') is part of the reply
 * after it. RESP_BAD: an unknown or streamed type, a malformed length, or a bulk without CR LF at its end. The text of
 * a line is not checked. */
enum resp_status resp_reply_scan(struct resp_reply *r, const char *data, size_t len, size_t *used)
    __attribute__((warn_unused_result));

/* How many bytes are known to come after RESP_MORE, at least. */
int64_t resp_reply_ahead(const struct resp_reply *r);

/* ---- looking into a complete reply ------------------------------------------------------- */

/* An element of a well-formed reply that is complete in memory. */
struct resp_item {
    char type;       /* its first byte */
    bool null;       /* $-1, *-1 or _ */
    const char *str; /* a scalar's text ('=': with its "txt:"); borrowed, never NULL */
    size_t len;      /* of str; 0 for nulls and aggregates */
    int64_t num;     /* integer and boolean: the value. Aggregates: how many elements follow (a map of n pairs: 2n). An
                        attribute's elements come before the reply itself */
};

/* Reads the element at *p and moves *p to the next one (for an aggregate: to its first element). False: *p is at `end`,
 * or the bytes do not match their type. */
bool resp_item_read(const char **p, const char *end, struct resp_item *item) __attribute__((warn_unused_result));

/* The end of the whole element that begins at p, with nested elements and attributes in front of it. NULL if the
 * element is malformed or goes beyond `end`. */
const char *resp_item_end(const char *p, const char *end);

/* ---- writing ----------------------------------------------------------------------------- */

/* Writes the digits of n so that they end before `end` (at most 20); returns where they begin. */
char *resp_digits_write(char *end, uint64_t n);
/* Writes TYPE, the number and CR LF; returns the length. */
size_t resp_header_write(char *out, char type, int64_t n);
/* Bytes that a bulk string of `len` bytes takes. resp_bulk_write writes one and returns the end. */
size_t resp_bulk_size(size_t len);
char *resp_bulk_write(char *out, const void *data, size_t len);

/* Redis's string2ll: a canonical decimal integer (no sign but '-', no spaces, no leading zeros). */
bool resp_integer(const char *s, size_t len, int64_t *value) __attribute__((warn_unused_result));
