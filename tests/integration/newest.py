"""Servers with the commands of Redis 8.4 and Valkey 9: the server's own commands where it has them, and a stand-in (newest.c) for
the rest."""

import os
import subprocess

import pytest

import servers


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory):
    """The module newest.c, built here."""
    path = str(tmp_path_factory.mktemp("newest") / "newest.so")
    source = os.path.join(servers.ROOT, "tests", "integration", "newest.c")
    subprocess.run([os.environ.get("CC", "cc"), "-std=c11", "-shared", "-fPIC", "-w", "-o", path, source], check=True)
    return path


def backends(*kinds):
    """A fixture: a module's own server, or cluster."""

    @pytest.fixture(scope="module", params=kinds)
    def backend(request, stand_in):
        make = servers.RedisServer if request.param == "standalone" else servers.RedisCluster
        backend = make("--loadmodule", stand_in)
        yield backend
        backend.stop()

    return backend
