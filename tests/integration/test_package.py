"""The Debian package, made from the build under test: what is in it, and that its parts fit together."""

import configparser
import gzip
import os
import re
import shutil
import signal
import subprocess

import pytest

import servers
from servers import until

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def run(*command, **options):
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120, **options).stdout


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """The package unpacked (files in /root, control files in /control)."""
    folder = tmp_path_factory.mktemp("package")
    build = os.path.dirname(os.path.abspath(servers.binary()))
    if not os.path.exists(os.path.join(build, "CPackConfig.cmake")):
        pytest.skip("the program under test is not in a build folder")
    run("cmake", "--build", build, "--target", "man")
    run("cpack", "-G", "DEB", "-D", "CPACK_STRIP_FILES=OFF", "-B", str(folder), cwd=build)
    (deb,) = folder.glob("lockkeeper_*.deb")
    run("dpkg-deb", "-x", str(deb), str(folder / "root"))
    run("dpkg-deb", "-e", str(deb), str(folder / "control"))
    return folder


def unit(package):
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str
    parser.read(package / "root/lib/systemd/system/lockkeeper.service")
    return parser["Service"]


def test_the_unit_starts_what_the_package_has(package):
    service = unit(package)
    program, configuration, *directives = service["ExecStart"].split()
    assert os.access(package / "root" / program[1:], os.X_OK)
    assert (package / "root" / configuration[1:]).exists()
    assert configuration in (package / "control/conffiles").read_text().split()
    assert service["Type"] == "notify" and directives == ["--supervised", "systemd"]
    said = run(package / "root" / program[1:], "--test-conf", package / "root" / configuration[1:], *directives)
    assert "ok" in said.lower()


def test_log_files_are_rotated(package):
    """The file is the operator's once installed, is right for logrotate, and its script is right for the shell."""
    path = package / "root/etc/logrotate.d/lockkeeper"
    assert "/etc/logrotate.d/lockkeeper" in (package / "control/conffiles").read_text().split()
    text = path.read_text()
    service = unit(package)
    assert "/var/log/%s/*.log {" % service["LogsDirectory"] in text
    assert "su %s %s\n" % (service["User"], service["Group"]) in text
    script = re.search(r"postrotate\n(.*?)\n *endscript", text, re.S).group(1)
    assert "--signal=USR1" in script
    subprocess.run(["sh", "-n"], input=script, check=True, text=True, timeout=10)
    program = shutil.which("logrotate", path="/usr/sbin:/usr/bin:" + os.environ["PATH"])
    if program and os.getuid() == 0:
        text = re.sub(r"^ *su .*\n", "", text, flags=re.M)  # there is no such user here
        copy = package / "logrotate.conf"
        copy.write_text(text)
        copy.chmod(0o644)
        done = subprocess.run([program, "-d", str(copy)], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0 and "error:" not in done.stderr, done.stderr


# Stand-ins for the programs that the package's scripts call: the system already has the user, and the service's main
# process is $PID.
STAND_INS = {"systemctl": 'case "$*" in *MainPID*) echo "$PID";; esac', "getent": "", "chown": "", "chmod": ""}


def configure(package, folder, pid):
    """Runs postinst as an upgrade does, and returns what it says."""
    for name, text in STAND_INS.items():
        (folder / name).write_text("#!/bin/sh\n%s\n" % text)
        (folder / name).chmod(0o755)
    script = (package / "control/postinst").read_text()
    assert "/run/systemd/system" in script
    (folder / "postinst").write_text(script.replace("/run/systemd/system", str(folder)))
    env = dict(os.environ, PATH="%s:%s" % (folder, os.environ["PATH"]), PID=str(pid))
    done = subprocess.run(["sh", str(folder / "postinst"), "configure", "0.0.1"], env=env, capture_output=True, text=True,
                          timeout=60, check=True)
    return done.stdout + done.stderr


def test_an_upgrade_restarts_nobody(package, tmp_path, start_redis, start_proxy, connect):
    """The service's process lets the new program take over; one that does not know the signal is left alone."""
    proxy = start_proxy(start_redis())
    client = connect(proxy)
    assert configure(package, tmp_path, proxy.pid) == ""
    log = until(lambda: "has taken over" in proxy.log() and proxy.log(), 20, "the take-over")
    assert client("PING") == "PONG", "it is served on"
    client.close()
    proxy.expected = False
    assert proxy.process.wait(10) == 0
    with connect(proxy) as new:
        after = int(re.search(r"process_id:(\d+)", new("PROXY", "INFO", "proxy")).group(1))
    assert "Process %d has taken over" % after in log
    os.kill(after, signal.SIGTERM)
    until(lambda: proxy.log().count("Stopped") == 2, 20, "the end of the new one")
    old = subprocess.Popen(["sleep", "60"])
    assert "runs on with the version before" in configure(package, tmp_path, old.pid)
    assert old.poll() is None
    old.kill()
    old.wait()
    assert configure(package, tmp_path, 0) == "", "the service does not run"


def test_the_user_of_the_unit_is_made_at_installation(package):
    user = unit(package)["User"]
    postinst = (package / "control/postinst").read_text()
    assert re.search(rf"^\s*adduser --system --group .* {user}$", postinst, re.M)
    assert "adduser" in (package / "control/control").read_text()
    for script in ("postinst", "prerm", "postrm"):
        run("sh", "-n", package / "control" / script)
        assert os.access(package / "control" / script, os.X_OK)


def manual(package, page):
    """The source of an installed manual page, which is compressed."""
    with gzip.open(package / "root/usr/share/man" / (page + ".gz"), "rt") as f:
        return f.read()


@pytest.mark.parametrize("page", ["man1/lockkeeper.1", "man5/lockkeeper.conf.5"])
def test_manual_pages_have_no_mistakes(package, page):
    done = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-z"], input=manual(package, page),
                          capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""


def test_the_manual_shows_every_directive(package):
    page = run("groff", "-man", "-Tascii", "-P-cbou", input=manual(package, "man5/lockkeeper.conf.5"))
    shown = set(re.findall(r"^       ([a-z-]+)(?: |$)", page, re.M))
    names = set(re.findall(r"^  ([a-z-]+) \S", run(servers.binary(), "--help"), re.M))
    assert len(names) > 20 and names <= shown


def test_files_are_root_s_and_only_the_program_is_executable(package):
    for line in run("dpkg-deb", "-c", next(package.glob("*.deb"))).splitlines():
        mode, owner, path = line.split()[0], line.split()[1], line.split()[-1]
        assert owner == "root/root" and mode[5] == "-" and mode[8] == "-", line
        if mode[0] == "-":
            assert ("x" in mode) == (path == "./usr/bin/lockkeeper"), line


def test_lintian_has_nothing_to_say(package):
    """Errors and warnings, that is, but for what comes of a build with sanitizers and without stripping."""
    if not shutil.which("lintian"):
        pytest.skip("there is no lintian here")
    of_the_build = "unstripped-binary-or-object"
    done = subprocess.run(["lintian", "--allow-root", "--suppress-tags", of_the_build, str(next(package.glob("*.deb")))],
                          capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "" and done.returncode == 0, done.stdout + done.stderr
