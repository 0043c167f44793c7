/* Prints the command table, so that tests/integration/test_command_table.py can compare it with a redis-server.
 *
 *   dump_commands            a line a row: name arity flags first last step split need
 *   dump_commands keys       reads requests (multibulks) from standard input and prints a line for each:
 *                            "keys 1 3", "keys" for none, "malformed", "arity", "unknown"
 *   dump_commands told FILE  the same by what FILE, a reply to COMMAND, says instead of the table; "ask" where only the
 *                            server can tell */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parser/command.h"
#include "parser/command_info.h"

enum { TOLD_MAX = 1000 };

static struct command_info *told[TOLD_MAX];
static size_t told_count;

static void print_rows(void) {
    for (int id = 1; id < COMMAND_COUNT; id++) {
        const struct command *c = command_by_id((enum command_id)id);
        printf("%s %d %s%s%s%s%s- %d %d %d %d %d\n", c->name, c->arity, c->flags & COMMAND_WRITE ? "write," : "",
               c->flags & COMMAND_READONLY ? "readonly," : "", c->flags & COMMAND_ADMIN ? "admin," : "",
               c->flags & COMMAND_NO_AUTH ? "no_auth," : "", c->find ? "movable," : "", c->first, c->last, c->step,
               (int)c->split, (int)c->need);
    }
}

/* The row of the request's command: the table's, or the one that was told. */
static const struct command *row_of(const struct resp_request *request, const char *data) {
    size_t len;
    const char *name = request_arg(request, data, 0, &len);
    if (told_count == 0) {
        return command_lookup(name, len);
    }
    for (size_t i = 0; i < told_count; i++) {
        if (request_arg_is(request, data, 0, told[i]->command.name)) {
            return &command_info_of(told[i], data, request)->command;
        }
    }
    return NULL;
}

static void print_keys(const struct resp_request *request, const char *data) {
    const struct command *c = row_of(request, data);
    if (!c) {
        puts("unknown");
        return;
    }
    if (!command_arity_ok(c, request->argc)) {
        puts("arity");
        return;
    }
    if (told_count > 0 && ((const struct command_info *)(const void *)c)->ask_keys) {
        puts("ask");
        return;
    }
    uint32_t *keys = malloc(request->argc * sizeof *keys);
    int count = command_keys(c, data, request, keys, request->argc);
    fputs(count < 0 ? "malformed" : "keys", stdout);
    for (int i = 0; i < count; i++) {
        printf(" %u", keys[i]);
    }
    putchar('\n');
    free(keys);
}

static char *read_all(FILE *f, size_t *len) {
    char *data = NULL;
    size_t cap = 0;
    *len = 0;
    for (;;) {
        if (*len == cap) {
            cap = cap ? 2 * cap : 65536;
            data = realloc(data, cap);
        }
        size_t n = fread(data + *len, 1, cap - *len, f);
        if (n == 0) {
            return data;
        }
        *len += n;
    }
}

static bool read_told(const char *path) {
    FILE *f = fopen(path, "rb");
    size_t len;
    if (!f) {
        return false;
    }
    char *data = read_all(f, &len);
    const char *p = data, *end = data + len;
    struct resp_item array;
    bool right = resp_item_read(&p, end, &array) && array.type == '*' && array.num <= TOLD_MAX;
    for (int64_t i = 0; right && i < array.num; i++) {
        const char *next = resp_item_end(p, end);
        told[told_count] = next ? command_info_read(p, next) : NULL;
        right = told[told_count] != NULL;
        told_count += right;
        p = next;
    }
    fclose(f);
    free(data);
    return right;
}

int main(int argc, char **argv) {
    command_table_init();
    bool tell = argc > 2 && strcmp(argv[1], "told") == 0;
    if (!tell && (argc < 2 || strcmp(argv[1], "keys") != 0)) {
        print_rows();
        return 0;
    }
    if (tell && !read_told(argv[2])) {
        fprintf(stderr, "%s holds no reply to COMMAND\n", argv[2]);
        return 1;
    }
    const struct resp_limits limits = {512 * 1024 * 1024, false};
    struct resp_request request;
    size_t len;
    char *data = read_all(stdin, &len);
    resp_request_init(&request);
    for (size_t at = 0; at < len;) {
        if (resp_request_scan(&request, data + at, len - at, &limits) != RESP_OK || request.form != RESP_MULTIBULK) {
            fprintf(stderr, "standard input is not made of requests: %s\n", request.error ? request.error : "cut off");
            return 1;
        }
        print_keys(&request, data + at);
        at += request.len;
        resp_request_reset(&request);
    }
    resp_request_clear(&request);
    while (told_count > 0) {
        command_info_free(told[--told_count]);
    }
    free(data);
    return 0;
}
