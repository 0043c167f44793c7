#!/usr/bin/env python3
"""Who may include whom: every #include is held against the table below, and every header compiles alone.

The table is the project's layering. A folder that needs something of a folder it may not include takes a callback
with an argument instead. Run from anywhere; prints each offence with its file and line, and exits 1 if there is one.
"""
import os
import re
import shlex
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# Folder: (folders whose headers it may include besides its own, libraries besides libc).
LIBRARIES = {"libev": "ev.h", "hiredis": "hiredis/", "libuuid": "uuid/",
             "libmicrohttpd": "microhttpd.h", "openssl": "openssl/", "cmocka": "cmocka.h",
             "lua": "lua.h", "lauxlib": "lauxlib.h", "lualib": "lualib.h"}
EVERYTHING = ("parser", "proxy/base", "proxy/net", "proxy/lock", "proxy/upstream", "proxy/session", "proxy/admin", "proxy")
LAYERS = {
    "parser": ((), ()),
    "proxy/base": ((), ()),
    "proxy/net": (("proxy/base",), ("libev", "openssl")),
    "proxy/lock": (("parser", "proxy/base"), ()),
    "proxy/upstream": (("parser", "proxy/base", "proxy/net"), ("libev", "hiredis")),
    "proxy/session": (("parser", "proxy/base", "proxy/net", "proxy/lock", "proxy/upstream"),
                      ("libev", "hiredis", "libuuid")),
    "proxy/admin": (("proxy/base",), ("libmicrohttpd",)),
    "proxy": (EVERYTHING, ("libev", "hiredis", "libuuid")),
    # The simulator drives the engine, which has no input or output, and the scripts as the proxy sends them.
    "tests/sim": (("parser", "proxy/base", "proxy/lock", "proxy/upstream"), ("lua", "lauxlib", "lualib")),
    "tests/fuzz": (EVERYTHING, ("libev",)),
    "tests/unit": (EVERYTHING, tuple(LIBRARIES)),
    "tests/bench": (EVERYTHING, tuple(LIBRARIES)),
    # A Redis module, which knows nothing of the proxy.
    "tests/integration": ((), ()),
    # Programs of applications: they know nothing of the proxy.
    "tests/clients": ((), ("hiredis",)),
}
# Files that may include less than their folder.
FILES = {
    # The configuration knows nothing of what its values do.
    r"proxy/config\w*\.[ch]": (("proxy/base", "proxy/lock", "proxy"), ()),
    r"tests/unit/test_(resp|command|slot)\w*\.c": (("parser",), ("cmocka",)),
    r"tests/unit/test_(base|glob|log|text)\.c": (("proxy/base",), ("cmocka",)),
    r"tests/unit/test_(rule|engine|attribution|audit|advise)\w*\.c": (("parser", "proxy/base", "proxy/lock"), ("cmocka",)),
}
# Tables of macro calls (rows without the macro), made to be included in the middle of a file.
MACRO_TABLE = re.compile(r"_table\.h$")

LIBC = set("""
assert complex ctype errno fenv float inttypes iso646 limits locale math setjmp signal stdalign stdarg stdatomic stdbool
stddef stdint stdio stdlib stdnoreturn string tgmath time uchar wchar wctype
dirent dlfcn endian err execinfo fcntl fnmatch ftw getopt glob grp ifaddrs langinfo libgen malloc netdb poll pthread pwd
regex sched search semaphore spawn strings syslog termios threads ucontext unistd wordexp
""".split())
LIBC_FOLDERS = ("sys/", "netinet/", "arpa/", "net/", "linux/", "sanitizer/")

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]')


def layer_of(path):
    """The folder a file belongs to, as a row of LAYERS; None if it has no row."""
    folder = os.path.dirname(path)
    while folder and folder not in LAYERS:
        folder = os.path.dirname(folder)
    # proxy/x.c is the program itself; proxy/new/x.c has to be given a row.
    if folder == "proxy" and os.path.dirname(path) != "proxy":
        return None
    return folder or None


def may(path):
    for pattern, rights in FILES.items():
        if re.fullmatch(pattern, path):
            return rights
    return LAYERS[layer_of(path)]


def wrong_include(path, kind, name, exists):
    """What is wrong with an include in the file at `path`, or None. `exists` tells whether a path is in the tree."""
    if layer_of(path) is None:
        return "its folder is not in the table of layers"
    folders, libraries = may(path)
    if kind == "<":
        for library, prefix in LIBRARIES.items():
            if name == prefix or (prefix.endswith("/") and name.startswith(prefix)):
                return None if library in libraries else "%s may not use %s" % (layer_of(path), library)
        known = name.startswith(LIBC_FOLDERS) or (name.endswith(".h") and name[:-2] in LIBC)
        return None if known else "<%s> belongs neither to libc nor to a library in the table" % name
    if not exists(name):
        return '"%s" is no file; paths start at the root of the project' % name
    target = layer_of(name)
    if target is None:
        return '"%s": its folder is not in the table of layers' % name
    own = target == layer_of(path)
    if re.search(r"(^|[/_])private\.h$", name) and not own and not path.startswith("tests/"):
        return '"%s" is private to %s' % (name, target)
    restricted = any(re.fullmatch(p, path) for p in FILES)
    if target in folders or (own and (not restricted or path.startswith("tests/"))):
        return None
    return '%s may not include "%s" of %s' % (path if restricted else layer_of(path), name, target)


def sources():
    """Every C file of the tree, by its path from the root."""
    found = []
    for top in ("parser", "proxy", "tests"):
        for folder, _, files in os.walk(os.path.join(ROOT, top)):
            found += [os.path.relpath(os.path.join(folder, f), ROOT) for f in files if f.endswith((".c", ".h"))]
    return sorted(found)


def check_includes(path, results):
    offences = []
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        for number, line in enumerate(f, 1):
            m = INCLUDE.match(line)
            if not m:
                continue
            why = wrong_include(path, m.group(1), m.group(2), lambda p: os.path.isfile(os.path.join(ROOT, p)))
            if why:
                offences.append("%s:%d: %s" % (path, number, why))
    results.append(offences)


def compile_flags():
    flags = []
    for package in ("hiredis", "uuid", "lua5.1"):
        try:
            out = subprocess.run(["pkg-config", "--cflags", package], stdout=subprocess.PIPE, text=True, check=True)
            flags += shlex.split(out.stdout)
        except (OSError, subprocess.CalledProcessError):
            pass  # the compiler will say which header is missing
    return flags


def check_header(path, flags, results):
    """A header needs nothing before it."""
    compiler = os.environ.get("CC", "cc")
    run = subprocess.run([compiler, "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror",
                          "-fsyntax-only", "-I.", *flags, "-include", path, "-x", "c", "/dev/null"],
                         cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    results.append([] if run.returncode == 0 else ["%s:1: does not compile alone:\n%s" % (path, run.stdout.rstrip())])


def check_check(results):
    """The check itself: what it has to let pass, and what not."""
    cases = [
        ("parser/resp.c", "<", "string.h", True),
        ("parser/resp.c", "<", "sys/uio.h", True),
        ("parser/resp.c", "<", "ev.h", False),
        ("parser/resp.c", "<", "zlib.h", False),
        ("parser/resp.c", '"', "parser/resp.h", True),
        ("parser/resp.c", '"', "resp.h", False),
        ("parser/resp.c", '"', "proxy/base/list.h", False),
        ("proxy/base/log.c", '"', "parser/resp.h", False),
        ("proxy/base/log.c", "<", "pthread.h", True),
        ("proxy/lock/engine.c", '"', "parser/slot.h", True),
        ("proxy/lock/engine.c", '"', "proxy/upstream/upstream.h", False),
        ("proxy/lock/engine.c", "<", "ev.h", False),
        ("proxy/lock/engine.c", "<", "hiredis/hiredis.h", False),
        ("proxy/lock/engine.c", "<", "uuid/uuid.h", False),
        ("proxy/upstream/conn.c", "<", "hiredis/adapters/libev.h", True),
        ("proxy/upstream/conn.c", "<", "uuid/uuid.h", False),
        ("proxy/upstream/conn.c", "<", "openssl/ssl.h", False),
        ("proxy/upstream/conn.c", '"', "proxy/net/tls.h", True),
        ("proxy/upstream/conn.c", '"', "proxy/net/tls_private.h", False),
        ("proxy/net/tls.c", '"', "proxy/upstream/upstream.h", False),
        ("proxy/net/tls.c", "<", "openssl/ssl.h", True),
        ("proxy/upstream/conn.c", '"', "proxy/lock/rule.h", False),
        ("proxy/upstream/conn.c", '"', "proxy/upstream/private.h", True),
        ("proxy/session/session.c", '"', "proxy/upstream/private.h", False),
        ("proxy/session/session.c", '"', "proxy/lock/engine.h", True),
        ("proxy/session/session.c", '"', "proxy/config.h", False),
        ("proxy/admin/proxy_command.c", '"', "proxy/base/text.h", True),
        ("proxy/admin/proxy_command.c", '"', "proxy/lock/engine.h", False),
        ("proxy/admin/http.c", "<", "ev.h", False),
        ("proxy/main.c", '"', "proxy/session/worker.h", True),
        ("proxy/main.c", "<", "ev.h", True),
        ("proxy/config.c", '"', "proxy/lock/rule.h", True),
        ("proxy/config.c", '"', "proxy/config_private.h", True),
        ("proxy/config.c", '"', "proxy/session/worker.h", False),
        ("proxy/config.c", "<", "ev.h", False),
        ("proxy/new/x.c", "<", "stdio.h", False),
        ("tests/unit/test_engine.c", '"', "proxy/upstream/upstream.h", False),
        ("tests/unit/test_engine.c", '"', "proxy/lock/engine.h", True),
        ("tests/sim/sim.c", '"', "proxy/session/session.h", False),
    ]
    missing = {"resp.h"}
    for path, kind, name, good in cases:
        why = wrong_include(path, kind, name, lambda p: p not in missing)
        ok = (why is None) == good
        results.append([] if ok else ["%s: the check %s %s%s" %
                                      (path, "refuses" if good else "lets pass", kind, name)])


def main():
    results = []
    check_check(results)
    files = sources()
    for path in files:
        check_includes(path, results)
    flags = compile_flags()
    for path in files:
        if path.endswith(".h") and not MACRO_TABLE.search(path):
            check_header(path, flags, results)
    failed = [r for r in results if r]
    for offences in failed:
        print("\n".join(offences))
    print("%d passed, %d failed" % (len(results) - len(failed), len(failed)))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
