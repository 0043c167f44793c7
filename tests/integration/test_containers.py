"""conf/Dockerfile, conf/compose and conf/kubernetes, as far as they can be tried without containers: their syntax, the image's
entry point and health check with the program under test, and that directives, ports, paths and times fit together."""

import json
import os
import re
import shutil
import signal
import subprocess
import threading
import urllib.error
import urllib.request

import pytest

import servers
from servers import until

yaml = pytest.importorskip("yaml")

CONF = os.path.join(servers.ROOT, "conf")
COMPOSE = ["standalone.yml", "cluster.yml", "quorum.yml"]
KUBERNETES = ["lockkeeper.yaml", "servicemonitor.yaml", "sidecar.yaml"]


def read(*path):
    with open(os.path.join(CONF, *path), encoding="utf-8") as f:
        return f.read()


def documents(name):
    return list(yaml.safe_load_all(read("kubernetes", name)))


def of_kind(name, kind):
    return [d for d in documents(name) if d["kind"] == kind]


def directives():
    text = subprocess.run([servers.binary(), "--help"], capture_output=True, text=True, check=True, timeout=20).stdout
    return set(re.findall(r"^  ([a-z][\w-]+) ", text, re.M))


def instruction(word):
    """The Dockerfile's last one of that name, without it."""
    return re.findall(r"^%s (.*)$" % word, read("Dockerfile").replace("\\\n", " "), re.M)[-1]


@pytest.fixture
def image(tmp_path):
    """The environment of the image's entry point, in which `lockkeeper` is the program under test."""
    (tmp_path / "lockkeeper").symlink_to(servers.binary())
    shutil.copy(os.path.join(CONF, "docker-entrypoint.sh"), tmp_path / "lockkeeper-entrypoint")
    environment = servers.proxy_environment()
    environment["PATH"] = "%s:%s" % (tmp_path, environment["PATH"])
    environment["LOCKKEEPER_CONF"] = os.path.join(CONF, "lockkeeper.conf")
    return environment


def start(image, *args):
    """The entry point as the Dockerfile names it."""
    (program,) = json.loads(instruction("ENTRYPOINT"))
    return subprocess.Popen([os.path.basename(program), *args], env=image, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True)


def says(image, *args):
    """Exit status and output, without the warnings of names that only the containers' network knows."""
    child = start(image, *args)
    text, _ = child.communicate(timeout=60)
    return child.returncode, re.sub(r"^Warning: .*: the name does not resolve on this machine: .*\n", "", text, flags=re.M)


# ---- the image -----------------------------------------------------------------------------------------------


def test_the_image_is_not_root_s():
    user = instruction("USER")
    assert re.fullmatch(r"(\d+):\1", user) and not user.startswith("0"), "a number: who asks for it cannot look into the image"
    assert "--uid %s --gid %s" % tuple(user.split(":")) in instruction("RUN")
    assert "redis-server" in instruction("RUN"), "the default upstream"
    assert instruction("EXPOSE") == "6380"
    for source in re.findall(r"^COPY (?!--)(\S+) ", read("Dockerfile"), re.M):
        assert os.path.exists(os.path.join(servers.ROOT, source))


def test_test_conf_through_the_entry_point(image, tmp_path):
    port = str(servers.free_port())
    assert says(image, "--test-conf", "--port", port) == (0, "Configuration OK\n")
    good, bad = tmp_path / "good.conf", tmp_path / "bad.conf"
    good.write_text("port %s\n" % port)
    bad.write_text("prot %s\n" % port)
    assert says(image, "--test-conf", str(good)) == (0, "Configuration OK\n")
    status, text = says(image, "--test-conf", str(bad))
    assert status == 1 and "did you mean" in text, text
    status, text = says(image, "--version")
    assert status == 0 and text.startswith("lockkeeper ")
    assert says(image, "--help")[0] == 0
    image["LOCKKEEPER_ARGS"] = "--lock * mode audit --port " + port
    assert says(image, "--test-conf") == (0, "Configuration OK\n")
    image["LOCKKEEPER_ARGS"] = "--lock * mode nonsense"
    status, text = says(image, "--test-conf", str(good))
    assert status == 1 and "nonsense" in text


def test_advise_through_the_entry_point(image, start_redis):
    server = start_redis()
    status, text = says(image, "--advise", "1s", "--upstream", *server.upstream().split())
    assert status == 0 and "nothing was seen that looks like a lock" in text
    status, text = says(image, "--advise")
    assert status == 1 and "expected a time" in text


def test_the_image_serves_and_is_healthy(image):
    """On an embedded Redis, with directives behind its name; the check says so, and no more when it has ended."""
    port = servers.free_port()
    check = instruction("HEALTHCHECK").split(" CMD ", 1)[1]
    image["LOCKKEEPER_PORT"] = str(port)

    def healthy():
        return subprocess.run(["sh", "-c", check], env=image, capture_output=True, timeout=30, check=False).returncode == 0

    assert not healthy()
    child = start(image, "--port", str(port))
    reader = threading.Thread(target=child.stdout.read, daemon=True)
    reader.start()
    try:
        until(healthy, 30, "the image's health")
        with servers.Client((servers.HOST, port)) as client:
            assert client("SET", "lock:image", "1", "NX", "EX", "5") == "OK"
        os.kill(child.pid, getattr(signal, instruction("STOPSIGNAL")))
        assert child.wait(30) == 0, "its first process is the proxy itself"
        assert not healthy()
    finally:
        child.kill()
        child.wait(20)


# ---- compose -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMPOSE)
def test_compose(name, image):
    services = yaml.safe_load(read("compose", name))["services"]
    proxy = services["lockkeeper"]
    folder = os.path.join(CONF, "compose", proxy["build"]["context"])
    assert os.path.exists(os.path.join(folder, proxy["build"]["dockerfile"]))
    for service in services.values():
        waits = service.get("depends_on", [])
        assert set(waits) <= set(services)
        for other, how in (waits.items() if isinstance(waits, dict) else ()):
            if how["condition"] == "service_healthy":
                assert "healthcheck" in services[other] or services[other].get("image") == "lockkeeper"
    words = [str(word) for word in proxy["command"]]
    assert {word[2:] for word in words if word.startswith("--")} <= directives()
    status, text = says(image, "--test-conf", *words, "--port", str(servers.free_port()), "--admin-port", str(servers.free_port()))
    assert (status, text) == (0, "Configuration OK\n")
    nodes = [word.split(":")[0] for word in words if word.endswith(":6379")]
    assert nodes and set(nodes) <= set(services)
    assert all(port.startswith("127.0.0.1:") for port in proxy["ports"]), "nobody else gets in"
    assert {port.split(":")[-1] for port in proxy["ports"]} == {"6380", words[words.index("--admin-port") + 1]}


def test_compose_has_a_cluster_of_six():
    services = yaml.safe_load(read("compose", "cluster.yml"))["services"]
    nodes = {name: service for name, service in services.items() if name.startswith("node")}
    assert len(nodes) == 6 and all("--cluster-enabled" in node["command"] for node in nodes.values())
    assert set(services["cluster"]["depends_on"]) == set(nodes)
    script = services["cluster"]["command"][-1].replace("$$", "$")
    assert subprocess.run(["sh", "-n"], input=script, text=True, timeout=10, check=False).returncode == 0


# ---- Kubernetes ----------------------------------------------------------------------------------------------


def pods():
    """(file, pod's spec, container of the proxy)."""
    for name in KUBERNETES:
        for deployment in of_kind(name, "Deployment"):
            spec = deployment["spec"]["template"]["spec"]
            assert deployment["spec"]["selector"]["matchLabels"].items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
            for container in [*spec["containers"], *spec.get("initContainers", ())]:
                if container["name"] == "lockkeeper":
                    yield name, spec, container


def proxy_s_conf(container, tmp_path):
    """(what the container's proxy reads, as a file; its other words; its directives)."""
    words = [word.replace("$(POD_IP)", servers.HOST) for word in container["args"]]
    text = ""
    if not words[0].startswith("--"):
        (config,) = of_kind("lockkeeper.yaml", "ConfigMap")
        text = config["data"][os.path.basename(words.pop(0))]
    file = tmp_path / "lockkeeper.conf"
    file.write_text(text)
    said = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line and not line.startswith("#")}
    for at, word in enumerate(words):
        if word.startswith("--"):
            said[word[2:]] = [words[at + 1]]
    return file, words, said


def test_pods(tmp_path, image):
    found = 0
    for name, _, container in pods():
        found += 1
        file, words, said = proxy_s_conf(container, tmp_path)
        assert set(said) <= directives() | {"include"}, name
        free = ["--port", str(servers.free_port()), "--admin-port", str(servers.free_port())]
        assert says(image, "--test-conf", str(file), *words, *free) == (0, "Configuration OK\n")
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert ports["admin"] == int(said["admin-port"][0]) and ports["redis"] == int(said.get("port", ["6380"])[0])
        assert said["admin-bind"] == ["0.0.0.0"], "kubelet asks from elsewhere"
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert container[probe]["httpGet"]["port"] == "admin"
        assert container["livenessProbe"]["httpGet"]["path"] == "/healthz", "a Redis that is down is no reason to restart"
        assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        mounted = {mount["name"] for mount in container.get("volumeMounts", ())}
        assert mounted <= {volume["name"] for _, spec, c in pods() if c == container for volume in spec.get("volumes", ())}
    assert found == 2


def test_witnesses(tmp_path, image):
    """What the file tells to add to the proxies' configuration names its pods, and fits the proxies."""
    (witnesses,) = of_kind("witnesses.yaml", "StatefulSet")
    (service,) = of_kind("witnesses.yaml", "Service")
    (budget,) = of_kind("witnesses.yaml", "PodDisruptionBudget")
    labels = witnesses["spec"]["template"]["metadata"]["labels"]
    for chosen in (witnesses["spec"]["selector"]["matchLabels"], service["spec"]["selector"], budget["spec"]["selector"]["matchLabels"]):
        assert chosen.items() <= labels.items()
    assert witnesses["spec"]["serviceName"] == service["metadata"]["name"]
    lines = re.findall(r"^#   ((?:witness|lock) .*)$", read("kubernetes", "witnesses.yaml"), re.M)
    port = service["spec"]["ports"][0]["port"]
    pods_ = ["%s-%d.%s:%d" % (witnesses["metadata"]["name"], n, service["metadata"]["name"], port)
             for n in range(witnesses["spec"]["replicas"])]
    assert lines[0].split() == ["witness", *pods_]
    file = tmp_path / "lockkeeper.conf"
    file.write_text("\n".join(["port %d" % servers.free_port(), *lines]))
    status, text = says(image, "--test-conf", str(file))
    assert (status, text) == (0, "Configuration OK\n")


def test_probes_are_answered(start_proxy, start_redis):
    redis, port = start_redis(), servers.free_port()
    start_proxy(redis, "admin-port %d" % port)

    def status(path):
        try:
            return urllib.request.urlopen("http://127.0.0.1:%d%s" % (port, path), timeout=10).status
        except urllib.error.HTTPError as error:
            return error.code

    (monitor,) = of_kind("servicemonitor.yaml", "ServiceMonitor")
    paths = {c[probe]["httpGet"]["path"] for _, _, c in pods() for probe in ("startupProbe", "readinessProbe", "livenessProbe")}
    for path in paths | {endpoint["path"] for endpoint in monitor["spec"]["endpoints"]}:
        assert status(path) == 200, path


def test_services_find_the_pods():
    (deployment,) = of_kind("lockkeeper.yaml", "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    names = {port["name"]: port["containerPort"] for port in container["ports"]}
    services = of_kind("lockkeeper.yaml", "Service")
    for service in services:
        assert service["spec"]["selector"].items() <= labels.items()
        for port in service["spec"]["ports"]:
            assert port["port"] == names[port["targetPort"]]
    (budget,) = of_kind("lockkeeper.yaml", "PodDisruptionBudget")
    assert budget["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert budget["spec"]["minAvailable"] < deployment["spec"]["replicas"], "or no node could ever be drained"
    (monitor,) = of_kind("servicemonitor.yaml", "ServiceMonitor")
    chosen = [s for s in services if monitor["spec"]["selector"]["matchLabels"].items() <= s["metadata"]["labels"].items()]
    assert [s["metadata"]["name"] for s in chosen] == ["lockkeeper-admin"]
    ports = {port["name"] for port in chosen[0]["spec"]["ports"]}
    assert {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]} <= ports
    assert chosen[0]["metadata"]["labels"][monitor["spec"]["jobLabel"]] == "lockkeeper", "the job of conf/prometheus"


def test_the_drain(start_proxy, start_redis, tmp_path):
    """The hook lets connected clients finish, and accepts no new ones; the pod's grace period is longer than all of it."""
    ((spec, container),) = [(spec, c) for name, spec, c in pods() if name == "lockkeeper.yaml"]
    shell, option, script = container["lifecycle"]["preStop"]["exec"]["command"]
    before = int(re.match(r"sleep (\d+);", script).group(1))
    _, _, said = proxy_s_conf(container, tmp_path)
    assert spec["terminationGracePeriodSeconds"] > before + int(said["shutdown-timeout"][0])

    proxy = start_proxy(start_redis())
    client = proxy.client()
    assert client("SET", "lock:drain", "1", "NX", "EX", "50") == "OK"
    assert script.count("kill -QUIT 1;") == 1
    script = script.replace("kill -QUIT 1;", "kill -QUIT %d;" % proxy.pid).replace("sleep %d;" % before, "")
    hook = subprocess.Popen([shell, option, script])
    try:
        def refused():
            try:
                proxy.client().close()
                return False
            except OSError:
                return True

        until(refused, 15, "the end of accepting")
        assert client("GET", "lock:drain") == "1" and client("DEL", "lock:drain") == 1
        assert proxy.running() and hook.poll() is None
        proxy.expected = False
        client.close()
        assert proxy.process.wait(20) == 0
    finally:
        hook.kill()
        hook.wait(20)
