"""Servers with a Redis module of the tests' own, which is built here: module.c or newest.c."""

import os
import subprocess

import pytest

import servers


def built(tmp_path_factory, source):
    """The path of the module, built from a source in this folder."""
    path = str(tmp_path_factory.mktemp("module") / (source + ".so"))
    source = os.path.join(servers.ROOT, "tests", "integration", source)
    subprocess.run([os.environ.get("CC", "cc"), "-std=c11", "-shared", "-fPIC", "-w", "-I", servers.ROOT, "-o", path, source], check=True)
    return path


def backends(source, *kinds):
    """A fixture: a server, or cluster, with the module, for the tests of one file."""

    @pytest.fixture(scope="module", params=kinds)
    def backend(request, tmp_path_factory):
        make = servers.RedisServer if request.param == "standalone" else servers.RedisCluster
        backend = make("--loadmodule", built(tmp_path_factory, source))
        yield backend
        backend.stop()

    return backend
