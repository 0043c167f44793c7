#!/usr/bin/env python3
"""Which folder may include which: every #include is checked against the table below, every header compiles alone, and no header
declares another folder's functions. No two source files have one name.

The table is the project's layering. A folder that needs something of a folder it may not include takes a callback with an
argument instead. Run from anywhere; prints each offence with its file and line, and exits 1 if there is one.
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
GROUND = ("parser", "proxy/base", "proxy/net")
UPSTREAM = tuple("proxy/upstream" + room for room in ("", "/connection", "/routing", "/topology", "/life"))
SESSION = tuple("proxy/session/" + room for room in
                ("core", "locks", "waits", "fences", "semaphores", "transaction", "push", "blocking", "cluster", "commands"))
EVERYTHING = (*GROUND, "proxy/witness", "proxy/lock", "proxy/observe", "proxy/advise", *UPSTREAM, *SESSION, "proxy/worker", "proxy/monitor_tap", "proxy/admin",
              "proxy/config", "proxy")
# What a room of the session may include, besides the rooms of the session that it names.
BELOW_SESSION = (*GROUND, "proxy/lock", "proxy/config", "proxy/upstream")
LAYERS = {
    "parser": ((), ()),
    "proxy/base": ((), ()),
    "proxy/net": (("proxy/base",), ("libev", "openssl")),
    "proxy/lock": (("parser", "proxy/base"), ()),
    # What was seen of locks, from any source; ADVISE has the words for it.
    "proxy/observe": (("parser", "proxy/base", "proxy/lock"), ()),
    "proxy/advise": (("proxy/base", "proxy/lock", "proxy/observe"), ()),
    # The upstream's face, and its rooms from the ground.
    "proxy/upstream": (("parser", "proxy/base"), ()),
    "proxy/upstream/connection": ((*GROUND, "proxy/upstream"), ("libev", "hiredis")),
    "proxy/upstream/routing": ((*GROUND, "proxy/upstream", "proxy/upstream/connection"), ("libev",)),
    "proxy/upstream/topology": ((*GROUND, "proxy/upstream", "proxy/upstream/connection", "proxy/upstream/routing"),
                                ("libev", "hiredis")),
    "proxy/upstream/life": ((*GROUND, *UPSTREAM), ("libev",)),
    # Servers that remember leases: they have connections of their own.
    "proxy/witness": ((*GROUND, "proxy/upstream"), ("libev",)),
    # The rooms of the session. Core knows none of the others: they hand it tables of functions.
    "proxy/session/core": (BELOW_SESSION, ("libev",)),
    "proxy/session/locks": ((*BELOW_SESSION, "proxy/observe", "proxy/witness", "proxy/session/core"), ("libev",)),
    # Lock calls come to the attempts that wait through worker->waits, a table of functions.
    "proxy/session/waits": ((*BELOW_SESSION, "proxy/session/core", "proxy/session/locks"), ("libev",)),
    "proxy/session/fences": ((*BELOW_SESSION, "proxy/session/core", "proxy/session/locks"), ("libev",)),
    # The ledger of permits is fed by replies, wherever they come.
    "proxy/session/semaphores": ((*BELOW_SESSION, "proxy/session/core"), ("libev",)),
    "proxy/session/transaction": ((*BELOW_SESSION, "proxy/session/core", "proxy/session/locks", "proxy/session/fences",
                                   "proxy/session/semaphores"), ("libev",)),
    "proxy/session/push": ((*BELOW_SESSION, "proxy/session/core"), ("libev",)),
    "proxy/session/blocking": ((*BELOW_SESSION, "proxy/session/core", "proxy/session/locks", "proxy/session/semaphores"), ("libev",)),
    "proxy/session/cluster": ((*BELOW_SESSION, "proxy/session/core", "proxy/session/locks", "proxy/session/fences"), ("libev",)),
    # Dispatch sees all rooms.
    "proxy/session/commands": ((*BELOW_SESSION, *SESSION), ("libev",)),
    "proxy/worker": ((*BELOW_SESSION, "proxy/witness", "proxy/observe", "proxy/advise", "proxy/session/core", "proxy/session/commands"), ("libev",)),
    "proxy/monitor_tap": ((*GROUND, "proxy/lock", "proxy/observe", "proxy/session/locks"), ()),
    "proxy/admin": (("proxy/base",), ("libmicrohttpd",)),
    # The configuration knows nothing of what its values do.
    "proxy/config": (("proxy/base", "proxy/lock"), ()),
    "proxy": (EVERYTHING, ("libev", "hiredis", "libuuid")),
    # The simulator drives the engine, which has no input or output, and the scripts as the proxy sends them.
    "tests/sim": (("parser", "proxy/base", "proxy/lock", "proxy/upstream"), ("lua", "lauxlib", "lualib")),
    # The part for waiting attempts uses the proxy's own lock_wait.c.
    "tests/sim/waits": (("parser", "proxy/base", "proxy/lock", "proxy/upstream", "proxy/session/core",
                         "proxy/session/locks", "proxy/session/waits", "tests/sim"), ()),
    # The part for quorum has the proxy's own code from the session to the witnesses, in place of libev and the upstream.
    "tests/sim/quorum": (("parser", "proxy/base", "proxy/lock", "proxy/observe", "proxy/upstream", "proxy/session/core",
                          "proxy/session/locks", "tests/sim"), ("libev",)),
    # The part for data under locks uses the proxy's own fence.c; the time is passed in the same way.
    "tests/sim/fences": (("parser", "proxy/base", "proxy/lock", "proxy/upstream", "proxy/session/core",
                          "proxy/session/locks", "proxy/session/waits", "proxy/session/fences", "tests/sim", "tests/sim/waits"), ()),
    "tests/fuzz": (EVERYTHING, ("libev",)),
    "tests/unit": (EVERYTHING, tuple(LIBRARIES)),
    "tests/bench": (EVERYTHING, tuple(LIBRARIES)),
    # Parts of a Redis, which know nothing of the proxy.
    "tests/integration": ((), ()),
    "tests/history": ((), ()),
    # Programs of applications: they know nothing of the proxy.
    "tests/clients": ((), ("hiredis",)),
}
# Headers below all folders, for every file of the program and its tests.
FOR_ALL = ("parser/invariant.h",)
# Files that may include less than their folder.
FILES = {
    r"tests/unit/test_(resp|command|slot)\w*\.c": (("parser",), ("cmocka",)),
    r"tests/unit/test_(base|glob|log|text)\.c": (("proxy/base",), ("cmocka",)),
    r"tests/unit/test_(rule|engine|attribution|audit)\w*\.c": (("parser", "proxy/base", "proxy/lock"), ("cmocka",)),
    r"tests/unit/test_advise\w*\.c": (("parser", "proxy/base", "proxy/lock", "proxy/observe", "proxy/advise"), ("cmocka",)),
}
# Layers inside a room, from the ground: its files, and the headers that declare them. A file includes no header of a layer
# above its own, and names no function of a file there.
ROOM_LAYERS = {
    # proxy/lock/ledger.h says what each layer is for.
    "proxy/lock": [
        ("script_constants.h", "thresholds.h", "hash.h", "rule.h", "hash", "rule", "doubt", "fence"),
        ("engine.h", "lock_event.h"),  # the engine's face: the session layer's view, and the types that all layers have in common
        ("ledger.h", "ledger", "client", "incident"),
        ("evidence.h", "workload", "claim", "aftermath", "contention"),
        ("lease.h", "lease", "succession"),
        ("choose.h", "attribute", "list_party", "recognise"),
        ("outcome.h", "outcome", "learn", "apply", "list_lock"),
        ("member.h", "engine", "member", "audit", "look"),
        ("waiting.h", "waiting"),
        ("permits.h", "permits"),
    ],
    # Its headers are for the whole session. A closed session ends its requests, and a request may close its session.
    "proxy/session/core": [
        ("room.h", "session_worker.h", "request.h", "session.h", "class.h", "pin.h", "private.h",
         "broadcast", "class", "session_worker"),
        ("session", "request", "input", "unauthenticated"),
    ],
    # docs/architecture.md says what each layer is for.
    "proxy/session/locks": [
        ("lock_commands.h", "lock_command", "command_event"),
        ("locks.h", "private.h", "lock_events"),  # the room's face, and a worker's part in locks
        ("lock_call.h", "lock_args", "lock_call"),
        ("call_finish", "handover"),
        ("lease_work", "own_records"),
        ("sending.h", "sending", "short_form", "confirm"),
        ("flow", "application_script", "observed_command", "locks_room"),
    ],
}
LAYER_IN_ROOM = {room + "/" + (name if name.endswith(".h") else name + ".c"): layer
                 for room, layers in ROOM_LAYERS.items() for layer, names in enumerate(layers) for name in names}
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
    # proxy/x.c is the program itself, and each room has a row: proxy/new/x.c has to be given one.
    if path.startswith("proxy/") and folder != os.path.dirname(path):
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
    if name in FOR_ALL:
        return None
    own = target == layer_of(path)
    if re.search(r"(^|[/_])private\.h$", name) and not own and not path.startswith("tests/"):
        return '"%s" is private to %s' % (name, target)
    restricted = any(re.fullmatch(p, path) for p in FILES)
    if own and target in ROOM_LAYERS:
        if path not in LAYER_IN_ROOM or name not in LAYER_IN_ROOM:
            return "%s is in no layer of %s" % (name if path in LAYER_IN_ROOM else path, target)
        if LAYER_IN_ROOM[name] > LAYER_IN_ROOM[path]:
            return '%s is in a lower layer of %s than "%s"' % (path, target, name)
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


COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
STATIC_FUNCTION = re.compile(r"^static [^;{}=(]*?(\w+)\(", re.MULTILINE)
STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
INLINE_BODY = re.compile(r"^static [^;{}]*\{.*?^\}", re.DOTALL | re.MULTILINE)
# A function at the beginning of a line, up to what ends its head: ";" declares it, "{" defines it.
FUNCTION = re.compile(r"^(?:inline )?(?!static\b|typedef\b|extern\b|return\b|else\b)[a-z][\w \t*]*?[ *](\w+)\((?!\*)[^;{}]*([;{])",
                      re.MULTILINE)


def functions(path, end):
    """The functions that a file declares (end ";") or defines (end "{"), but for static ones."""
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        code = INLINE_BODY.sub("", COMMENT.sub("", f.read()))
    return [m.group(1) for m in FUNCTION.finditer(code) if m.group(2) == end]


def check_headers_own(files, results):
    """No header declares what another room defines; a face (proxy/upstream/) may declare what the rooms behind it do."""
    homes = {name: layer_of(path) for path in files if path.endswith(".c") and path.startswith(("parser/", "proxy/"))
             for name in functions(path, "{")}
    for path in files:
        if path.endswith(".h") and path.startswith(("parser/", "proxy/")):
            own = layer_of(path)
            results.append(["%s: declares %s() of %s" % (path, name, homes[name]) for name in functions(path, ";")
                            if name in homes and homes[name] != own and not homes[name].startswith(own + "/")])


def calls_above(path, homes, code):
    """The functions of a higher layer of its room that the file at `path` names in its code. `homes`: the file of each
    function."""
    code = STRING.sub("", COMMENT.sub("", code))
    names = set(re.findall(r"\b\w+\b", code)) - set(STATIC_FUNCTION.findall(code))
    return sorted(name for name in names if name in homes and os.path.dirname(homes[name]) == os.path.dirname(path) and
                  LAYER_IN_ROOM[homes[name]] > LAYER_IN_ROOM[path])


def check_layers(files, results):
    """No file of a room with layers calls what a file of a higher layer defines."""
    layered = [path for path in files if path in LAYER_IN_ROOM and path.endswith(".c")]
    homes = {name: path for path in layered for name in functions(path, "{")}
    for path in layered:
        with open(os.path.join(ROOT, path), encoding="utf-8") as f:
            code = f.read()
        results.append(["%s: names %s() of %s, a layer above its own" % (path, name, homes[name])
                        for name in calls_above(path, homes, code)])
    homes = {"lock_submit": "proxy/session/locks/sending.c"}
    for path, code, good in (("proxy/session/locks/flow.c", "lock_submit(call);", True),
                             ("proxy/session/locks/lock_call.c", "lock_submit(call);", False),
                             ("proxy/session/locks/lock_call.c", "/* lock_submit */", True)):
        results.append([] if (not calls_above(path, homes, code)) == good else ["the check of layers is wrong on " + code])


def check_names(files, results):
    """A file is known by its name: no two source files have the same one."""
    found = {}
    for path in files:
        name = os.path.basename(path)
        if name != "private.h" and not path.startswith("tests/clients/"):
            found.setdefault(name, []).append(path)
    results += [[] if len(paths) == 1 else ["one name: " + ", ".join(paths)] for paths in found.values()]


def check_check(results):
    """The check itself: what it has to let pass, and what not."""
    cases = [
        ("parser/resp.c", "<", "string.h", True),
        ("parser/resp.c", "<", "sys/uio.h", True),
        ("parser/resp.c", "<", "ev.h", False),
        ("parser/resp.c", "<", "zlib.h", False),
        ("parser/resp.c", '"', "parser/resp.h", True),
        ("parser/resp.c", '"', "resp.h", False),
        ("proxy/base/list.h", '"', "parser/invariant.h", True),
        ("parser/resp.c", '"', "proxy/base/list.h", False),
        ("proxy/base/log.c", '"', "parser/resp.h", False),
        ("proxy/base/log.c", "<", "pthread.h", True),
        ("proxy/lock/engine.c", '"', "parser/slot.h", True),
        ("proxy/lock/engine.c", '"', "proxy/upstream/upstream.h", False),
        ("proxy/lock/engine.c", '"', "proxy/lock/outcome.h", True),
        ("proxy/lock/attribute.c", '"', "proxy/lock/choose.h", True),
        ("proxy/lock/attribute.c", '"', "proxy/lock/outcome.h", False),
        ("proxy/lock/ledger.c", '"', "proxy/lock/evidence.h", False),
        ("proxy/lock/evidence.h", '"', "proxy/lock/ledger.h", True),
        ("proxy/lock/evidence.h", '"', "proxy/lock/lease.h", False),
        ("proxy/session/locks/call_finish.c", '"', "proxy/session/locks/lock_call.h", True),
        ("proxy/session/locks/call_finish.c", '"', "proxy/session/locks/sending.h", False),
        ("proxy/session/locks/new.c", '"', "proxy/session/locks/locks.h", False),
        ("proxy/lock/new.c", '"', "proxy/lock/ledger.h", False),
        ("proxy/lock/engine.c", "<", "ev.h", False),
        ("proxy/lock/engine.c", "<", "hiredis/hiredis.h", False),
        ("proxy/lock/engine.c", "<", "uuid/uuid.h", False),
        ("proxy/upstream/connection/conn.c", "<", "hiredis/adapters/libev.h", True),
        ("proxy/upstream/connection/conn.c", "<", "uuid/uuid.h", False),
        ("proxy/upstream/connection/conn.c", "<", "openssl/ssl.h", False),
        ("proxy/upstream/connection/conn.c", '"', "proxy/net/tls.h", True),
        ("proxy/upstream/connection/conn.c", '"', "proxy/net/private.h", False),
        ("proxy/net/tls.c", '"', "proxy/upstream/upstream.h", False),
        ("proxy/net/tls.c", "<", "openssl/ssl.h", True),
        ("proxy/upstream/connection/conn.c", '"', "proxy/lock/rule.h", False),
        ("proxy/upstream/routing/router.c", '"', "proxy/upstream/connection/connection.h", True),
        ("proxy/upstream/connection/conn.c", '"', "proxy/upstream/routing/routing.h", False),
        ("proxy/session/core/session.c", '"', "proxy/upstream/connection/connection.h", False),
        ("proxy/session/core/session.c", '"', "proxy/lock/engine.h", True),
        ("proxy/session/core/session.c", '"', "proxy/session/locks/locks.h", False),
        ("proxy/session/locks/flow.c", '"', "proxy/session/waits/wait.h", False),
        ("proxy/session/waits/lock_wait.c", '"', "proxy/session/locks/lock_call.h", True),
        ("proxy/session/waits/lock_wait.c", '"', "proxy/session/locks/private.h", False),
        ("proxy/session/push/pubsub.c", '"', "proxy/session/core/session.h", True),
        ("proxy/session/push/pubsub.c", '"', "proxy/session/blocking/blocking.h", False),
        ("proxy/session/commands/dispatch.c", '"', "proxy/session/blocking/blocking.h", True),
        ("proxy/session/commands/dispatch.c", '"', "proxy/session/waits/private.h", False),
        ("proxy/session/new/x.c", "<", "stdio.h", False),
        ("proxy/session/core/session.c", '"', "proxy/admin/metrics.h", False),
        ("proxy/admin/proxy_report.c", '"', "proxy/base/text.h", True),
        ("proxy/admin/proxy_report.c", '"', "proxy/lock/engine.h", False),
        ("proxy/admin/pages.c", "<", "ev.h", False),
        ("proxy/main.c", '"', "proxy/worker/worker.h", True),
        ("proxy/main.c", "<", "ev.h", True),
        ("proxy/config/config.c", '"', "proxy/lock/rule.h", True),
        ("proxy/config/config.c", '"', "proxy/config/private.h", True),
        ("proxy/config/config.c", '"', "proxy/worker/worker.h", False),
        ("proxy/config/config.c", "<", "ev.h", False),
        ("proxy/new/x.c", "<", "stdio.h", False),
        ("tests/unit/test_engine.c", '"', "proxy/upstream/upstream.h", False),
        ("tests/unit/test_engine.c", '"', "proxy/lock/engine.h", True),
        ("tests/sim/sim.c", '"', "proxy/session/core/session.h", False),
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
    check_headers_own(files, results)
    check_layers(files, results)
    check_names(files, results)
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
