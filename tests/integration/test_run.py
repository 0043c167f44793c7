"""scripts/run.sh: its output before the proxy runs. Packages and compilers are stand-ins in a copy of the scripts, so that
nothing is installed or built."""

import os
import shutil
import socket
import subprocess

import pytest

import servers
from servers import until

SCRIPTS = os.path.join(servers.ROOT, "scripts")

# What the scripts call; $LACKS are the packages that are not installed, until apt-get has been there.
STAND_INS = {
    "dpkg-query": 'for package; do :; done; case " $LACKS " in *" $package "*) [ -e "$FOLDER/installed" ] || exit 1 ;; esac\n'
                  'echo "install ok installed"',
    "apt-get": 'echo "apt-get $*" >>"$FOLDER/called"\nif [ -n "$APT_SAYS" ]; then echo "$APT_SAYS" >&2; exit 100; fi\n: >"$FOLDER/installed"',
    "sudo": 'exec "$@"',
    "cmake": 'echo "cmake $*" >>"$FOLDER/called"\ncase $1 in --build)\n'
             'for n in 10 20 50 100; do echo "[ $n%] Building something"; sleep 0.7; done\n'
             'mkdir -p "$2"; ln -sf "$PROGRAM" "$2/lockkeeper" ;; esac',
    "pkg-config": ":",
}


class Checkout:
    def __init__(self, folder):
        self.folder = folder
        shutil.copytree(SCRIPTS, folder / "scripts")
        (folder / "bin").mkdir()
        for name, text in STAND_INS.items():
            (folder / "bin" / name).write_text("#!/bin/sh\n%s\n" % text)
            (folder / "bin" / name).chmod(0o755)
        (folder / "program").write_text('#!/bin/sh\necho "runs: $*"\n')
        (folder / "program").chmod(0o755)

    def run(self, *args, lacks="", apt_says="", program=None):
        env = dict(os.environ, PATH="%s:%s" % (self.folder / "bin", os.environ["PATH"]), FOLDER=str(self.folder), LACKS=lacks,
                   APT_SAYS=apt_says, PROGRAM=str(program or self.folder / "program"), LC_ALL="C")
        return subprocess.run([str(self.folder / "scripts" / "run.sh"), *map(str, args)], env=env, cwd=self.folder, text=True,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=100, check=False)

    def called(self):
        path = self.folder / "called"
        return path.read_text() if path.exists() else ""


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path)


@pytest.fixture
def taken():
    """A port of the loopback with a listener."""
    with socket.socket() as listener:
        listener.bind((servers.HOST, servers.free_port()))
        listener.listen()
        yield listener.getsockname()[1]


def test_it_says_what_it_does(checkout):
    done = checkout.run("--port", servers.free_port(), lacks="cmake libev-dev")
    assert done.returncode == 0 and done.stdout.startswith("runs: --port "), done.stderr
    lines = done.stderr.splitlines()
    assert lines[0] == "lockkeeper: installing cmake libev-dev ..."
    assert lines[1].startswith("lockkeeper: building in ")
    assert lines[2:] and all(line.startswith("lockkeeper: building ... ") for line in lines[2:]), lines


def test_quorum_is_a_set_of_directives(checkout):
    port = str(servers.free_port())
    done = checkout.run("--quorum", "--port", port)
    assert done.stdout == "runs: --witness embedded --lock lock:* quorum yes --port %s\n" % port, done.stderr


def test_the_second_time_it_is_silent(checkout):
    checkout.run("--port", servers.free_port())
    before = checkout.called()
    done = checkout.run("--port", servers.free_port())
    assert done.returncode == 0 and "installing" not in done.stderr and "building in" not in done.stderr
    assert "apt-get" not in checkout.called()[len(before):]


@pytest.mark.parametrize("how", ["argument", "file", "embedded.conf"])
def test_a_taken_port_is_seen_before_anything_is_built(checkout, taken, how):
    file = checkout.folder / "my.conf"
    file.write_text("bind 127.0.0.1\nPort %d\n" % taken)
    args = {"argument": ["--port", taken], "file": [file], "embedded.conf": [os.path.join(servers.ROOT, "conf", "embedded.conf"),
                                                                            "--port", taken]}[how]
    done = checkout.run(*args, lacks="cmake")
    assert done.returncode == 1 and checkout.called() == ""
    assert "port %d is taken" % taken in done.stderr and "--port %d\n" % (taken + 1) in done.stderr


@pytest.mark.parametrize("args", [["--reuse-port", "yes"], ["--bind", "127.0.0.2"]])
def test_a_port_that_may_be_shared_is_not_taken(checkout, taken, args):
    assert checkout.run("--port", taken, *args).returncode == 0


def test_questions_need_no_port(checkout, taken):
    assert checkout.run("--test-conf", "--port", taken).stdout == "runs: --test-conf --port %d\n" % taken


@pytest.mark.parametrize("apt_says,hint", [
    ("E: Failed to fetch http://mirror.example/x  Temporary failure resolving 'mirror.example'", "no network?"),
    ("E: Could not connect to mirror.example:80 (192.0.2.1), connection timed out", "no network?"),
    ("E: Unable to locate package libev-dev", "could not be installed")])
def test_where_packages_cannot_be_had(checkout, apt_says, hint):
    """apt's words are shown, what they mean, and a line to copy."""
    done = checkout.run("--port", servers.free_port(), lacks="libev-dev uuid-dev", apt_says=apt_says)
    assert done.returncode == 1 and done.stdout == ""
    assert apt_says in done.stderr and hint in done.stderr
    assert done.stderr.splitlines()[-1] == "    sudo apt install libev-dev uuid-dev"
    assert "cmake" not in checkout.called()


@pytest.mark.parametrize("how", ["argument", "file"])
def test_who_names_an_upstream_needs_no_redis(checkout, how):
    file = checkout.folder / "my.conf"
    file.write_text("upstream standalone 10.0.0.1:6379\nport %d\n" % servers.free_port())
    args = [file] if how == "file" else ["--port", servers.free_port(), "--upstream", "standalone", "10.0.0.1:6379"]
    done = checkout.run(*args, lacks="redis-server redis-tools")
    assert done.returncode == 0 and "apt-get" not in checkout.called(), done.stderr
    done = checkout.run("--port", servers.free_port(), lacks="redis-server redis-tools")
    assert done.returncode == 0 and "installing redis-server redis-tools" in done.stderr


def test_the_proxy_itself(checkout):
    """The program under test, which ends as a proxy does."""
    port = servers.free_port()
    env = dict(servers.proxy_environment(), PATH="%s:%s" % (checkout.folder / "bin", os.environ["PATH"]), LACKS="", APT_SAYS="",
               FOLDER=str(checkout.folder), PROGRAM=servers.binary())
    child = subprocess.Popen([str(checkout.folder / "scripts" / "run.sh"), "--port", str(port)], env=env, stdin=subprocess.DEVNULL,
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def answers():
        try:
            with servers.Client((servers.HOST, port)) as client:
                return client("PING") == "PONG"
        except OSError:
            return False

    try:
        until(answers, 40, "the proxy")
        child.terminate()
        assert child.wait(30) == 0, "it has become the proxy"
    finally:
        child.kill()
        child.wait(20)
