"""The clients of run.py: how each is found, prepared and started.

A client is a program in this folder. It gets the addresses in its environment, runs its features one after the other,
and says on standard output, one line each:

    version  the library's version
    FEATURE  ok | fail | none | kept  why   (fields between tabs)
    restart                                 asks for a restart of the proxy; a line on standard input: it is done

What the proxy doesn't serve shows as a failure with the proxy's words in it; run.py tells that apart. 'none' is for
what the library itself hasn't got, 'kept' for a lock that was safe, but stayed held until its lease ended.
"""

import os
import shutil
import subprocess

HERE = os.path.dirname(os.path.abspath(__file__))

# Exact versions: what runs today runs next year.
NPM = {
    "ioredis": "ioredis@5.11.1",
    "ioredis6": "npm:ioredis@6.0.0",
    "generic-pool": "generic-pool@3.9.0",
    "redis3": "npm:redis@3.1.2",
    "redis4": "npm:redis@4.7.1",
    "redis5": "npm:redis@5.12.1",
    "redis6": "npm:redis@6.3.1",
    "redlock4": "npm:redlock@4.2.0",
    "redlock5": "npm:redlock@5.0.0-beta.2",
    "redis-semaphore": "redis-semaphore@5.8.0",
    "redis-lock": "redis-lock@0.1.4",
    "redis-lock-setnx": "npm:redis-lock@0.0.7",
    "node-redis-warlock": "node-redis-warlock@1.0.2",
    "simple-redis-mutex": "simple-redis-mutex@3.0.0",
    "bullmq": "bullmq@5.58.0",
}

FEATURES = ["connect", "auth", "strings", "binary", "large", "hashes", "lists", "sets", "zsets", "streams", "expiry",
            "multikey", "pipeline", "scripts", "scan", "errors", "pool", "multi", "watch", "blocking", "pubsub",
            "reconnect"]
CLUSTER_CHECKS = ["alone", "commands", "multikey", "pipeline", "scripts", "scan", "multi", "pubsub"]
LOCK_CHECKS = ["exclusion", "extend", "late", "killed"]
DIRECTLY = "late, directly"  # the same check on Redis alone


class Missing(Exception):
    """A client can't be run here; the text says what is not there."""


class Workshop:
    """Where programs are compiled and npm's packages are kept: outside the repository, and kept between runs."""

    def __init__(self, fetch=True):
        self.fetch = fetch  # what npm has
        self.folder = os.environ.get("LOCKKEEPER_CLIENTS") or os.path.join(
            os.environ.get("TMPDIR", "/tmp"), "lockkeeper-clients-%d" % os.getuid())
        os.makedirs(self.folder, 0o700, exist_ok=True)
        if os.stat(self.folder).st_uid != os.getuid():
            raise SystemExit("run.py: %s is somebody else's; name another folder with LOCKKEEPER_CLIENTS" % self.folder)
        self.npm_error = None
        self.npm_done = False

    def path(self, name):
        return os.path.join(self.folder, name)

    def command(self, *words):
        if not shutil.which(words[0]):
            raise Missing("no %s here" % words[0])
        return list(words)

    def run(self, what, words, seconds, **options):
        try:
            done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  timeout=seconds, **options)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Missing("%s: %s" % (what, error)) from None
        if done.returncode:
            lines = done.stdout.decode("utf-8", "replace").strip().splitlines() or ["status %d" % done.returncode]
            raise Missing("%s: %s" % (what, lines[-1]))

    def npm(self):
        """npm's packages, installed once and again when the list changes, where this workshop may fetch them."""
        if self.npm_done:
            return
        if self.npm_error:
            raise Missing(self.npm_error)
        folder = self.path("npm")
        mark = os.path.join(folder, "installed")
        wanted = "\n".join("%s=%s" % item for item in sorted(NPM.items()))
        try:
            self.command("node")
            if not os.path.exists(mark) or open(mark).read() != wanted:
                if not self.fetch:
                    raise Missing("npm's packages are not installed")
                self.command("npm")
                shutil.rmtree(folder, ignore_errors=True)
                os.makedirs(folder)
                with open(os.path.join(folder, "package.json"), "w") as f:
                    f.write('{"private": true}\n')
                specs = [spec if spec.startswith(name + "@") else name + "@" + spec for name, spec in NPM.items()]
                self.run("npm install", ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", *specs],
                         180, cwd=folder)
                with open(mark, "w") as f:
                    f.write(wanted)
            self.npm_done = True
        except Missing as missing:
            self.npm_error = str(missing)
            raise

    def build(self, what, name, words, after, seconds, **options):
        """Runs words, -o and a file, after: what is made gets its name as a whole, since others may be running it."""
        out = self.path(name.replace(".", "-").replace("/", "-"))
        fresh = "%s.%d" % (out, os.getpid())
        try:
            self.run(what, [*words, "-o", fresh, *after], seconds, **options)
            os.rename(fresh, out)
        finally:
            if os.path.exists(fresh):
                os.remove(fresh)
        return out

    def cc(self, source):
        self.command("gcc")
        return self.build("gcc", source, ["gcc", "-O1", "-g", "-Wall", "-Wextra", "-Werror"],
                          [os.path.join(HERE, source), "-lhiredis", "-lm", "-pthread"], 60)

    def go(self, folder, package):
        """With Debian's sources of the libraries, nothing fetched."""
        self.command("go")
        if not os.path.isdir(os.path.join("/usr/share/gocode/src", package)):
            raise Missing("no %s here" % package)
        env = dict(os.environ, GO111MODULE="off", GOPATH="/usr/share/gocode", GOCACHE=self.path("go-cache"),
                   GOFLAGS="", GOPROXY="off")
        return self.build("go build", "go-" + folder, ["go", "build"], ["."], 180, env=env,
                          cwd=os.path.join(HERE, folder))


class Client:
    """One row of the table. `unsafe`: a lock whose late release frees another worker's lock, on Redis alone."""

    def __init__(self, name, prepare, quick=False, backends=("standalone", "cluster"), why=None, unsafe=False,
                 without=()):
        self.name = name
        self.prepare = prepare  # (workshop) -> the command to run; raises Missing
        self.quick = quick
        self.backends = backends
        self.why = why  # there are no others
        self.unsafe = unsafe
        self.without = without  # features that its program does not try


def script(interpreter, name, *args, probe=None):
    def prepare(shop):
        command = shop.command(interpreter)
        if probe:
            try:
                shop.run(name, [interpreter, *probe], 20)
            except Missing:
                raise Missing("its library is not installed") from None
        return [*command, os.path.join(HERE, name), *args]

    return prepare


def node(name, *args):
    def prepare(shop):
        shop.npm()
        return shop.command("node", os.path.join(HERE, name), *args)

    return prepare


def python(name, *args):
    def prepare(shop):
        shop.run("python3-redis", ["/usr/bin/python3", "-c", "import redis"], 20)
        return ["/usr/bin/python3", "-B", os.path.join(HERE, name), *args]

    return prepare


PHP_REDIS = ["-r", "exit(class_exists('Redis') ? 0 : 1);"]
PHP_PREDIS = ["-r", "require 'Predis/Autoloader.php';"]
PHP_LOCK = ["-r", "require 'Symfony/Component/Lock/autoload.php';"]

CLIENTS = [
    Client("redis-py", python("redis_py.py"), quick=True),
    Client("hiredis", lambda shop: [shop.cc("hiredis.c")], quick=True),
    Client("redis-cli", python("redis_cli.py"), quick=True),
    Client("redis-benchmark", python("redis_benchmark.py"), quick=True),
    Client("ioredis-5", node("ioredis.js", "ioredis")),
    Client("ioredis-6-resp3", node("ioredis.js", "ioredis6")),
    Client("node-redis-3", node("node_redis3.js")),
    Client("node-redis-4", node("node_redis.js", "redis4", "2")),
    Client("node-redis-5", node("node_redis.js", "redis5", "2")),
    Client("node-redis-5-resp3", node("node_redis.js", "redis5", "3")),
    Client("node-redis-6-resp3", node("node_redis.js", "redis6", "3")),
    Client("phpredis", script("php", "phpredis.php", probe=PHP_REDIS)),
    Client("predis", script("php", "predis.php", probe=PHP_PREDIS)),
    Client("redis-rb", script("ruby", "redis_rb.rb", probe=["-e", "require 'redis'"])),
    Client("perl-redis", script("perl", "perl_redis.pl", "Redis", probe=["-MRedis", "-e1"])),
    Client("perl-redis-fast", script("perl", "perl_redis.pl", "Redis::Fast", probe=["-MRedis::Fast", "-e1"])),
    Client("go-redigo", lambda shop: [shop.go("redigo", "github.com/gomodule/redigo/redis")]),
    Client("go-redis-5", lambda shop: [shop.go("goredis", "gopkg.in/redis.v5")]),
    Client("redis-lua", script("lua5.1", "redis_lua.lua", probe=["-e", "require 'redis'"])),
]

ON_CLUSTER = {"backends": ("cluster",), "why": "it speaks to clusters, and takes the proxy for one of one node"}
CLUSTERS = [
    Client("RedisCluster (redis-py)", python("cluster_redis_py.py"), quick=True, without=("multi",), **ON_CLUSTER),
    Client("redis-cli -c", python("cluster_redis_cli.py"), quick=True, without=("pipeline", "pubsub"), **ON_CLUSTER),
    Client("Cluster (ioredis-5)", node("cluster_node.js", "ioredis", "ioredis"), **ON_CLUSTER),
    Client("Cluster (ioredis-6)", node("cluster_node.js", "ioredis", "ioredis6"), **ON_CLUSTER),
    Client("createCluster (node-redis-4)", node("cluster_node.js", "redis", "redis4"), **ON_CLUSTER),
    Client("createCluster (node-redis-5)", node("cluster_node.js", "redis", "redis5"), **ON_CLUSTER),
    Client("RedisCluster (phpredis)", script("php", "cluster_phpredis.php", probe=PHP_REDIS),
           without=("pipeline", "pubsub"), **ON_CLUSTER),
]

LOCKS = [
    Client("redis-py Lock", python("locks_redis_py.py", "library"), quick=True),
    Client("redis-py SETNX, connections", python("locks_redis_py.py", "setnx", "connection"), quick=True,
           unsafe=True),
    Client("redis-py SETNX, pool", python("locks_redis_py.py", "setnx", "pool"), quick=True, unsafe=True),
    Client("redlock 4 (ioredis)", node("locks_node.js", "redlock4")),
    Client("redlock 5 (ioredis)", node("locks_node.js", "redlock5")),
    Client("redis-semaphore (ioredis)", node("locks_node.js", "redis-semaphore")),
    Client("redis-lock 0.0.7 (redis 3)", node("locks_node.js", "redis-lock-setnx")),
    Client("redis-lock 0.1.4 (redis 3)", node("locks_node.js", "redis-lock")),
    Client("warlock (redis 3)", node("locks_node.js", "warlock")),
    Client("simple-redis-mutex (redis 5)", node("locks_node.js", "simple-redis-mutex"), backends=("standalone",),
           why="its release script names keys of two slots, so no cluster runs it"),
    Client("phpredis SET NX", script("php", "locks_hand.php", probe=PHP_REDIS), unsafe=True),
    Client("redis-rb SET NX", script("ruby", "locks_hand.rb", probe=["-e", "require 'redis'"]), unsafe=True),
    Client("Perl Redis SET NX", script("perl", "locks_hand.pl", "Redis", probe=["-MRedis", "-e1"]), unsafe=True),
    Client("Perl Redis::Fast SET NX", script("perl", "locks_hand.pl", "Redis::Fast", probe=["-MRedis::Fast", "-e1"]),
           unsafe=True),
    Client("Symfony Lock (phpredis)", script("php", "locks_symfony.php", "phpredis", probe=PHP_LOCK)),
    Client("Symfony Lock (Predis)", script("php", "locks_symfony.php", "predis", probe=PHP_LOCK)),
]
