/*
 * Runs a fuzz target over a folder of inputs, without the fuzzer: so the kept corpus is a test under every compiler.
 */
#include <dirent.h>

#include "tests/fuzz/fuzz.h"

static size_t read_file(const char *path, uint8_t *buf, size_t size) {
    FILE *f = fopen(path, "rb");
    if (!f) {
        perror(path);
        exit(1);
    }
    size_t n = fread(buf, 1, size, f);
    CHECK(feof(f));
    fclose(f);
    return n;
}

int main(int argc, char **argv) {
    static uint8_t buf[1 << 20];
    DIR *folder = argc == 2 ? opendir(argv[1]) : NULL;
    if (!folder) {
        fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
        return 2;
    }
    size_t count = 0;
    for (struct dirent *entry = readdir(folder); entry; entry = readdir(folder)) {
        if (entry->d_name[0] == '.') {
            continue;
        }
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", argv[1], entry->d_name);
        size_t size = read_file(path, buf, sizeof buf);
        /* Every input whole, and cut short at each byte: what is left is an input too. */
        for (size_t len = 0; len <= size; len++) {
            uint8_t *input = (uint8_t *)exact_copy(buf, len);
            LLVMFuzzerTestOneInput(input, len);
            free(input);
        }
        count++;
    }
    closedir(folder);
    printf("%zu inputs\n", count);
    return count ? 0 : 1;
}
