/*
 * Configuration files: any content is either read, or refused with a line for each error that has the place and the
 * reason; and a file that is read gives the same result when it is read again.
 *
 * Input: the file; after a form feed, the content of any file that it includes.
 */
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proxy/config/config.h"
#include "tests/fuzz/fuzz.h"

enum { LINE_SIZE = 1024, FILES_MAX = 50 };

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

static struct config *load(struct config_errors *errors) {
    char program[] = "lockkeeper", file[] = "/lockkeeper.conf";
    char *argv[] = {program, file, NULL};
    files.opened = 0;
    return config_load(2, argv, errors);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const uint8_t *cut = size ? memchr(data, '\f', size) : NULL;
    files.main = data;
    files.main_len = cut ? (size_t)(cut - data) : size;
    files.other = cut ? cut + 1 : data;
    files.other_len = cut ? size - files.main_len - 1 : 0;
    struct config_errors errors = {0}, again = {0};
    struct config *c = load(&errors);
    struct config *d = load(&again);
    CHECK(errors.count == again.count && (errors.count > 0) == (errors.lines.len > 0));
    if (errors.count > 0) {
        CHECK(strcmp(errors.lines.data, again.lines.data) == 0);
        size_t lines = 0;
        for (const char *line = errors.lines.data, *end; line; line = end ? end + 1 : NULL, lines++) {
            end = strchr(line, '\n');
            CHECK(*line && (end ? (size_t)(end - line) : strlen(line)) < LINE_SIZE);
        }
        CHECK(lines == (errors.count < CONFIG_ERRORS_MAX ? errors.count : CONFIG_ERRORS_MAX));
    } else {
        char text[1024];
        CHECK(lock_rules_count(c->rules) == lock_rules_count(d->rules));
        for (size_t i = 0; i < lock_rules_count(c->rules); i++)
            CHECK(lock_rule_text(lock_rules_get(c->rules, i), text, sizeof text) < sizeof text ||
                  lock_rules_get(c->rules, i)->pattern_len > 200);
        CHECK(c->port == d->port && c->threads == d->threads && c->upstream == d->upstream);
    }
    config_unref(c);
    config_unref(d);
    config_errors_clear(&errors);
    config_errors_clear(&again);
    return 0;
}
