/*
 * Configuration files: whatever they say they are read, or refused with one line that says where and why, and a file
 * that is read is read the same way again.
 *
 * Input: the file; behind a form feed what any file that it includes says.
 */
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proxy/config/config.h"
#include "tests/fuzz/fuzz.h"

enum { ERROR_SIZE = 512, FILES_MAX = 50 };

static struct {
    const uint8_t *main, *other;
    size_t main_len, other_len;
    unsigned opened;
} files;

/* There are no other files than the input's. */
int __wrap_open(const char *path, int flags, ...);

int __wrap_open(const char *path, int flags, ...) {
    bool first = strcmp(path, "/lockkeeper.conf") == 0;
    if (files.opened++ > FILES_MAX) {
        errno = EMFILE;
        return -1;
    }
    int fd = memfd_create("config", MFD_CLOEXEC);
    CHECK(fd >= 0);
    const uint8_t *bytes = first ? files.main : files.other;
    size_t len = first ? files.main_len : files.other_len;
    CHECK(len == 0 || (write(fd, bytes, len) == (ssize_t)len && lseek(fd, 0, SEEK_SET) == 0));
    return fd;
}

int __wrap_glob(const char *pattern, int flags, int (*failed)(const char *, int), glob_t *found);

int __wrap_glob(const char *pattern, int flags, int (*failed)(const char *, int), glob_t *found) {
    return GLOB_NOMATCH;
}

static struct config *load(char *error) {
    char program[] = "lockkeeper", file[] = "/lockkeeper.conf";
    char *argv[] = {program, file, NULL};
    files.opened = 0;
    memset(error, 0x7f, ERROR_SIZE);
    return config_load(2, argv, error, ERROR_SIZE);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const uint8_t *cut = size ? memchr(data, '\f', size) : NULL;
    files.main = data;
    files.main_len = cut ? (size_t)(cut - data) : size;
    files.other = cut ? cut + 1 : data;
    files.other_len = cut ? size - files.main_len - 1 : 0;
    char error[ERROR_SIZE], again[ERROR_SIZE];
    struct config *c = load(error);
    struct config *d = load(again);
    CHECK(!c == !d);
    if (!c) {
        size_t len = strnlen(error, sizeof error);
        CHECK(len > 0 && len < sizeof error && !memchr(error, '\n', len));
        CHECK(strcmp(error, again) == 0);
    } else {
        char text[1024];
        CHECK(lock_rules_count(c->rules) == lock_rules_count(d->rules));
        for (size_t i = 0; i < lock_rules_count(c->rules); i++)
            CHECK(lock_rule_text(lock_rules_get(c->rules, i), text, sizeof text) < sizeof text ||
                  lock_rules_get(c->rules, i)->pattern_len > 200);
        CHECK(c->port == d->port && c->threads == d->threads && c->upstream == d->upstream);
    }
    config_free(c);
    config_free(d);
    return 0;
}
