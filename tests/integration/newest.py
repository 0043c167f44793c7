"""Servers with the commands of Redis 8.4 and Valkey 9, and a proxy before them: the server's own commands where it has them, and a
stand-in (newest.c) for the rest."""

import pytest

import modules
import servers
from test_locks import Pair


def backends(*kinds):
    """A fixture: a server, or cluster, for the tests of one file."""
    return modules.backends("newest.c", *kinds)


def proxies(*lines):
    """A fixture: the proxy of one file before its `backend`, with these lines of configuration."""

    @pytest.fixture(scope="module")
    def proxy(backend):
        proxy = servers.Proxy(backend, *lines)
        yield proxy
        proxy.stop()
        proxy.remove()

    return proxy


def pairs():
    """A fixture: two clients of the proxy."""

    @pytest.fixture
    def pair(proxy, connect, direct, backend, key):
        return Pair(proxy, connect, direct, backend, key)

    return pair
