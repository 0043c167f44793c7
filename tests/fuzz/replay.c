/*
 * Runs a fuzz target over a folder of inputs, without the fuzzer: so the kept corpus is a test under every compiler.
 */
#include <dirent.h>
#include <stdbool.h>

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
    bool whole = argc == 3 && strcmp(argv[1], "--whole") == 0;
    const char *path_of_folder = argv[argc - 1];
    DIR *folder = argc == 2 || whole ? opendir(path_of_folder) : NULL;
    if (!folder) {
        fprintf(stderr, "usage: %s [--whole] FOLDER\n", argv[0]);
        return 2;
    }
    size_t count = 0;
    for (struct dirent *entry = readdir(folder); entry; entry = readdir(folder)) {
        if (entry->d_name[0] == '.') {
            continue;
        }
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", path_of_folder, entry->d_name);
        size_t size = read_file(path, buf, sizeof buf);
        /* Every input whole, and without --whole cut short at each byte: what is left is an input too. */
        for (size_t len = whole ? size : 0; len <= size; len++) {
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
