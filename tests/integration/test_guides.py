"""docs/guides and conf/presets: what a guide says of a library's keys, rule and owner is so, and under the preset its locks are
acquired, refused to a second client, protected from clients that do not hold them, and released; on one Redis and on a cluster.
The same with the real libraries, where they are installed."""

import os
import re
import subprocess
import sys

import pytest

import servers
from crowd import Crowd
from guide_locks import COMPARED, GUIDES
from library_locks import LIBRARIES
from test_locks import fields

ROOT = servers.ROOT
PRESETS = os.path.join(ROOT, "conf", "presets")
PAGES = os.path.join(ROOT, "docs", "guides")
CLIENTS = os.path.join(ROOT, "tests", "clients")
LEASE = 5000  # ms
NAMES = sorted(name[:-len(".conf")] for name in os.listdir(PRESETS))


def lines_of(preset):
    """Its directives, in words."""
    with open(os.path.join(PRESETS, preset + ".conf"), encoding="utf-8") as f:
        return [line.split() for line in f if line.strip() and not line.startswith("#")]


def page(name):
    with open(os.path.join(PAGES, name), encoding="utf-8") as f:
        return f.read()


def rows(text):
    """The rows of the first table: (library, key, rule, owner)."""
    found = re.search(r"^\| library .*\n\| ---.*\n((?:\|.*\n)+)", text, re.M)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in found.group(1).splitlines()] if found else []


PAGE_OF = {preset: name for name in sorted(os.listdir(PAGES)) if name != "README.md"
           for preset in re.findall(r"presets/(\w+)\.conf", page(name))}


def run(*command, **options):
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=100, **options)


# ---- presets -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", NAMES)
def test_preset_is_right(preset, tmp_path):
    """lockkeeper takes it, included by one line with a path from where it was started; it has lock lines alone, all of which
    are tested below; and there is a page about it."""
    (tmp_path / "presets").symlink_to(PRESETS)
    (tmp_path / "lockkeeper.conf").write_text("port 0\nunixsocket %s/s\ninclude presets/%s.conf\n" % (tmp_path, preset))
    done = run(servers.binary(), "--test-conf", "lockkeeper.conf", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {words[0] for words in lines_of(preset)} == {"lock"}
    assert preset in PAGE_OF, "no page tells of it"


@pytest.mark.parametrize("preset", NAMES)
def test_preset_that_watches(preset, tmp_path):
    """The copy that the guides' table tells to make."""
    (command,) = re.findall(r"^sed .*$", page("README.md"), re.M)
    done = run("sh", "-c", command.replace("laravel", preset), cwd=ROOT)
    assert done.returncode == 0 and done.stdout.count(" mode audit\n") == len(lines_of(preset))
    if any("mode" in words for words in lines_of(preset)):
        return
    (tmp_path / "audit.conf").write_text("port 0\nunixsocket %s/s\n%s" % (tmp_path, done.stdout))
    done = run(servers.binary(), "--test-conf", tmp_path / "audit.conf")
    assert done.returncode == 0, done.stdout + done.stderr


def test_all_presets_together(tmp_path):
    (tmp_path / "lockkeeper.conf").write_text("port 0\nunixsocket %s/s\ninclude %s/*.conf\n" % (tmp_path, PRESETS))
    done = run(servers.binary(), "--test-conf", "lockkeeper.conf", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_rule_is_tried():
    tried = {(preset, pattern) for preset, _, pattern, _ in GUIDES + COMPARED}
    exempt = {("bullmq", "bull:*:lock"), ("bullmq", "{bull}:*:lock"),  # test_bullmq_is_left_alone
              ("semaphores", "semaphore:*"), ("semaphores", "SEMAPHORE:*")}  # test_semaphores_are_left_alone
    same = {("spring", "*-lock:*"), ("redisson", "lock:*"), ("redisson", "*:lock"), ("java", "lock:*"), ("node", "lock:*"),
            ("dotnet", "lock:*"), ("go", "lock:*"), ("wordpress", "locks:*")}  # of other names alone
    assert {(preset, words[1]) for preset in NAMES for words in lines_of(preset)} <= tried | exempt | same


# ---- by the commands -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def proxies(farm):
    """proxies(kind, preset): a proxy under the preset alone; those of a kind share its backend."""
    made = {}

    def proxy(kind, preset):
        if (kind, preset) not in made:
            made[kind, preset] = servers.Proxy(farm.backend(kind), "include %s/%s.conf" % (PRESETS, preset))
        return made[kind, preset]

    yield proxy
    for proxy in made.values():
        proxy.stop()
        proxy.remove()


NOT_SEEN = [guide[3] for guide in GUIDES if guide[1] == "LockFactory"]  # a sorted set is data to the proxy
# Their losers are refused by a script; a release over the same client's connection would be believed.
LOST_BY_SCRIPT = [LIBRARIES["Laravel add"]]
CASES = [(kind, *guide) for kind in ("standalone", "cluster") for guide in GUIDES if kind != "cluster" or guide[3].cluster]


def try_extension(crowd, direct, library, key, holder, stranger, held):
    """The holder moves the lock's end, and another client does not."""
    try:
        assert not crowd.do(stranger, library.extend(stranger, key, stranger.value(), 60 * LEASE))
    except NotImplementedError:
        return
    assert direct("PTTL", library.shows(key)) <= LEASE
    assert crowd.do(holder, library.extend(holder, key, held, 2 * LEASE))
    assert LEASE < direct("PTTL", library.shows(key)) <= 2 * LEASE


def try_locks(proxy, backend, pattern, library):
    """The library's locks under the rule of this pattern: acquired, refused, extended, not released by others, released."""
    crowd, direct = Crowd(), backend.direct()
    backend.flush()
    try:
        places = [proxy.address] * (2 if library.second_place else 1)
        holder, other = [crowd.process("own", *places, names=library.names).worker() for _ in range(2)]
        elsewhere = crowd.process("own", *places, names=["elsewhere"] * len(places)).worker()
        key = library.key(7)
        with proxy.client() as client:
            said = fields(client("PROXY", "EXPLAIN", "SETNX", library.shows(key), "1"))
        assert said["rule"].startswith(pattern + " mode enforce"), said["rule"]
        held = crowd.do(holder, library.acquire(holder, key, LEASE))
        assert held is not None and not library.is_free(direct, key)
        assert direct("PTTL", library.shows(key)) > 0
        with proxy.client(commands=[("CLIENT", "SETNAME", "operator")]) as client:
            pattern = re.sub(r"([\\\[])", r"\\\1", library.shows(key))
            assert bool(client("PROXY", "LOCKS", pattern)) == (library not in NOT_SEEN)
            if library not in NOT_SEEN and not library.handed_over:
                assert client("DEL", key) == 0 and client("PEXPIRE", key, 1) == 0
        assert crowd.do(other, library.acquire(other, key, LEASE)) is None
        if not library.handed_over or library.careful:
            alone = "owner connection" in said["rule"] and not library.local and library not in LOST_BY_SCRIPT
            for stranger in [other, elsewhere] if alone else [elsewhere]:  # a late loser of one client may be believed (C4)
                assert not crowd.do(stranger, library.release(stranger, key, stranger.value()))
                assert not library.is_free(direct, key)
        try_extension(crowd, direct, library, key, holder, elsewhere, held)
        assert crowd.do(holder, library.release(holder, key, held)) and library.is_free(direct, key)
        held = crowd.do(other, library.acquire(other, key, LEASE))
        assert held is not None and crowd.do(other, library.release(other, key, held)) and library.is_free(direct, key)
        assert library in NOT_SEEN or crowd.do(holder, library.acquire(holder, key, LEASE)) is not None
        with proxy.client(commands=[("CLIENT", "SETNAME", "operator")]) as client:
            assert client("PROXY", "RELEASE", library.shows(key)) == (library not in NOT_SEEN) and library.is_free(direct, key)
    finally:
        crowd.close()
        direct.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: "%s-%s-%s" % case[:3])
def test_under_the_preset(case, proxies, farm):
    kind, preset, _, pattern, library = case
    try_locks(proxies(kind, preset), farm.backend(kind), pattern, library)


@pytest.mark.parametrize("key", ["bull:mail:17:lock", "{bull}:mail:17:lock"])
def test_bullmq_is_left_alone(key, farm):
    """Also before rules that would take its locks."""
    proxy = servers.Proxy(farm.backend("standalone"), "include %s/bullmq.conf" % PRESETS, "include %s/java.conf" % PRESETS)
    with proxy.client() as client:
        assert " mode off" in fields(client("PROXY", "EXPLAIN", "SETNX", key, "1"))["rule"]
        assert "mode enforce" in fields(client("PROXY", "EXPLAIN", "SETNX", "mail:17:lock", "1"))["rule"]
    proxy.stop()
    proxy.remove()


@pytest.mark.parametrize("kind", ["standalone", "cluster"])
def test_semaphores_are_left_alone(kind, proxies, farm):
    """Their commands answer as at Redis, for each worker, and no incident tells of them."""
    farm.backend(kind).flush()
    proxy = proxies(kind, "semaphores")
    one, two = [proxy.client(commands=[("CLIENT", "SETNAME", name)]) for name in ("one", "two")]
    tokens, held = "SEMAPHORE:{mail}:AVAILABLE", "SEMAPHORE:{mail}:GRABBED"
    assert one("GETSET", "SEMAPHORE:{mail}:EXISTS", "1") is None and two("GETSET", "SEMAPHORE:{mail}:EXISTS", "1") == "1"
    assert one("RPUSH", tokens, "0", "1") == 2
    for client, token in ((one, "0"), (two, "1")):
        assert client("LPOP", tokens) == token and client("HSET", held, token, "1.5") == 1
    assert one("LPOP", tokens) is None
    assert [two("MULTI"), two("HDEL", held, "1"), two("LPUSH", tokens, "1"), two("EXEC")] == ["OK", "QUEUED", "QUEUED", [1, 1]]
    assert one("BLPOP", tokens, "1") == [tokens, "1"]
    for client, name in ((one, "a"), (two, "b")):
        assert client("ZADD", "semaphore:mail", "1", name) == 1
    assert two("ZREM", "semaphore:mail", "a") == 1 and one("ZCARD", "semaphore:mail") == 1
    assert one("PROXY", "LOCKS", "*") == []
    told = str(one("PROXY", "INCIDENTS", "100"))
    assert not any(name in told for name in ("AVAILABLE", "GRABBED", "EXISTS", "semaphore:mail"))
    one.close()
    two.close()


# ---- the pages -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(os.listdir(PAGES)))
def test_page(name, proxies):
    """Its table names rules of its preset, with their owners, and keys that they match; it says what remains risky, and how to
    see that it works."""
    text = page(name)
    if name in ("README.md", "ci.md"):
        return
    presets = sorted({preset for preset, where in PAGE_OF.items() if where == name})
    assert presets and rows(text), "a preset, and a table of what is in it"
    for heading in ("## What remains", "## See that it works"):
        assert "\n" + heading + "\n" in text
    for command in ("PROXY EXPLAIN", "PROXY INCIDENTS", "PROXY ADVISE"):
        assert "\nredis-cli -p 6380 " + command in text
    rules = {words[1]: (preset, words[2:]) for preset in presets for words in lines_of(preset)}
    told = set()
    for library, key, rule, owner in rows(text):
        rule, key = rule.strip("`"), key.strip("`")
        preset, options = rules[rule]
        told.add(rule)
        wanted = options[options.index("owner") + 1] if "owner" in options else "off" if "off" in options else "auto"
        assert owner.strip("`") == wanted, (library, owner)
        with proxies("standalone", preset).client() as client:
            assert fields(client("PROXY", "EXPLAIN", "SETNX", key, "1"))["rule"].startswith(rule + " mode"), (library, key)
    assert told == set(rules), "the table has each rule of %s" % presets


def test_every_page_is_in_the_table():
    links = set(re.findall(r"\]\((\w[\w-]*\.md)\)", page("README.md")))
    assert links >= set(os.listdir(PAGES)) - {"README.md"}
    assert {name + ".conf" for name in NAMES} == set(re.findall(r"`(\w+\.conf)`", page("README.md"))) - {"lockkeeper.conf"}


def test_commands_of_the_pages_run(proxies):
    """Each redis-cli line of each page is answered, and with no error."""
    for name in sorted(os.listdir(PAGES)):
        lines = re.findall(r"^redis-cli -p 6380 (.*)$", page(name), re.M)
        presets = [preset for preset, where in PAGE_OF.items() if where == name] or ["hiredis"]
        for line in lines:
            proxy = proxies("standalone", presets[0])
            done = run("sh", "-c", "exec redis-cli -p %d %s" % (proxy.port, line))
            assert done.returncode == 0 and not re.match(r"\(?(ERR|error)", done.stdout), (name, line, done.stdout)


@pytest.mark.parametrize("unsafe", [False, True])
def test_ci(unsafe, start_proxy, start_redis):
    """The script of ci.md fails after a foreign release alone; the services get directives that lockkeeper takes."""
    yaml = pytest.importorskip("yaml")
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", page("ci.md"), re.M | re.S)
    github, gitlab = [yaml.safe_load(text) for kind, text in blocks if kind == "yaml"]
    npm, script = [text for kind, text in blocks if kind == "sh"]
    (service,) = github["jobs"]["test"]["services"].values()
    words = service["env"]["LOCKKEEPER_ARGS"].split()
    assert words == gitlab["test"]["services"][0]["command"]
    assert gitlab["test"]["services"][0]["alias"] == gitlab["test"]["variables"]["REDIS_HOST"]
    install, start = npm.splitlines()
    assert install == "npm install --save-dev ./lockkeeper-*.tgz"
    assert run("sh", "-c", start.replace("npx lockkeeper", servers.binary() + " --test-conf").rstrip("& ") +
               " --port 0 --tls-port 0 --unixsocket /tmp/lockkeeper-guide.sock").returncode == 0
    assert service["ports"] == ["6380:6380"] and github["jobs"]["test"]["env"]["REDIS_PORT"] == "6380"

    proxy = start_proxy(start_redis(), args=words)
    holder, other = proxy.client(), proxy.client(commands=[("CLIENT", "SETNAME", "other")])
    assert holder("SET", "report:lock", "1", "NX", "EX", "5") == "OK"
    if unsafe:
        assert other("DEL", "report:lock") == 0
    assert holder("DEL", "report:lock") == 1
    env = dict(os.environ, REDIS_HOST=servers.HOST, REDIS_PORT=str(proxy.port))
    done = run("sh", "-e", "-c", script, env=env)
    assert done.returncode == (1 if unsafe else 0), done.stdout + done.stderr
    assert "\n%d times" % unsafe in "\n" + done.stdout
    holder.close()
    other.close()


# ---- the lines of the page for shells ------------------------------------------------------------------------


class Job:
    """Runs a script whose lines are from the page; its job lasts until the test ends it."""

    def __init__(self, proxy, lines, tmp_path, name):
        self.started, self.end = tmp_path / (name + ".started"), tmp_path / (name + ".end")
        job = "touch %s; while [ ! -e %s ]; do sleep 0.05; done" % (self.started, self.end)
        lines = lines.replace("-p 6380", "-h %s -p %d" % (servers.HOST, proxy.port))
        old = re.sub(r"\bjob\b", "{ %s; }" % job, lines, count=1) if "{ job;" in lines else lines + job
        self.process = subprocess.Popen(["sh", "-c", old], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def starts(self):
        servers.until(lambda: self.started.exists() or self.process.poll() is not None, 20, "the job")
        return self.started.exists()

    def ends(self):
        self.end.touch()
        self.process.communicate(timeout=20)
        return self.process.returncode


def shell_lines(number):
    return re.findall(r"^```sh\n(.*?)^```$", page("shell.md"), re.M | re.S)[number]


@pytest.mark.parametrize("kind", ["standalone", "cluster"])
@pytest.mark.parametrize("block", [0, 1])
def test_shell_lines(kind, block, proxies, farm, tmp_path):
    """One job at a time; the lock is free when the job has ended."""
    farm.backend(kind).flush()
    proxy, direct = proxies(kind, "shell"), farm.backend(kind).direct()
    first = Job(proxy, shell_lines(block), tmp_path, "first")
    assert first.starts()
    second = Job(proxy, shell_lines(block), tmp_path, "second")
    assert not second.starts() and second.ends() == 1
    assert direct("EXISTS", "lock:backup") == 1  # no trap has freed it
    first.ends()
    assert direct("EXISTS", "lock:backup") == 0
    third = Job(proxy, shell_lines(block), tmp_path, "third")
    assert third.starts()
    third.ends()
    direct.close()


def test_shell_lines_when_the_job_is_killed_or_late(proxies, farm, tmp_path):
    """A trapped signal frees the lock; an untrapped one leaves it until its expiry; and a late run frees no other worker's
    lock."""
    farm.backend("standalone").flush()
    proxy, direct = proxies("standalone", "shell"), farm.backend("standalone").direct()
    lines = shell_lines(0)
    stopped = Job(proxy, lines, tmp_path, "stopped")
    assert stopped.starts()
    stopped.process.terminate()
    assert stopped.ends() == 1 and direct("EXISTS", "lock:backup") == 0
    killed = Job(proxy, lines, tmp_path, "killed")
    assert killed.starts()
    killed.process.kill()
    killed.ends()
    assert 0 < direct("PTTL", "lock:backup") <= 3600000
    assert direct("DEL", "lock:backup") == 1
    late = Job(proxy, lines.replace("3600", "1"), tmp_path, "late")
    assert late.starts()
    servers.until(lambda: direct("EXISTS", "lock:backup") == 0, 10, "the end of its lock")
    next_one = Job(proxy, lines, tmp_path, "next")
    assert next_one.starts()
    late.ends()
    assert direct("EXISTS", "lock:backup") == 1
    next_one.ends()
    assert direct("EXISTS", "lock:backup") == 0
    direct.close()


# ---- with the libraries themselves ---------------------------------------------------------------------------

REAL = [("laravel", "guide_laravel.php"), ("symfony", "guide_symfony.php"), ("python", "guide_redis_py.py"), ("python", "guide_rq.py"),
        ("django", "guide_django.py"), ("node", "guide_node.js"), ("bullmq", "guide_bullmq.js"),
        ("django", "guide_celery.py"), ("ruby", "guide_sidekiq.rb"), ("python_redis_lock", "guide_python_redis_lock.py"),
        ("semaphores", "guide_semaphores.js"), ("semaphores", "guide_semaphores.rb"), ("php", "guide_php.php")]


def try_program(kind, preset, program, proxy):
    """The program prints what it saw, a line each; 'missing' where its library is not installed."""
    sys.path.insert(0, CLIENTS)
    from clients import Workshop

    interpreter = {"php": "php", "py": "/usr/bin/python3", "js": "node", "rb": "ruby"}[program.rsplit(".", 1)[1]]
    env = dict(os.environ, LK_HOST=servers.HOST, LK_PORT=str(proxy.port), LK_BACKEND=kind, PYTHONDONTWRITEBYTECODE="1",
               NODE_PATH=os.path.join(Workshop(fetch=False).folder, "npm", "node_modules"))
    try:
        done = run(interpreter, os.path.join(CLIENTS, program), env=env)
    except FileNotFoundError:
        pytest.skip("no %s here" % interpreter)
    if done.stdout.startswith("missing"):
        pytest.skip(done.stdout.strip())
    keys = re.findall(r"^held (.*)$", done.stdout, re.M)
    assert done.returncode == 0 and done.stdout.endswith("done\n") and keys, done.stdout + done.stderr
    with proxy.client() as client:
        for key in keys:
            said = fields(client("PROXY", "EXPLAIN", "SETNX", key, "1"))["rule"]
            assert ("mode off" if preset == "bullmq" else "mode enforce") in said, (key, said)
            assert client("EXISTS", key) == 0, key


@pytest.mark.parametrize("kind", ["standalone", "cluster"])
@pytest.mark.parametrize("preset,program", REAL, ids=[program for _, program in REAL])
def test_the_library(kind, preset, program, proxies, farm):
    farm.backend(kind).flush()
    try_program(kind, preset, program, proxies(kind, preset))
