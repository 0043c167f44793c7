"""docs/guides/compare.md and its preset, as test_guides.py tries the others: before a server whose commands compare themselves."""

import os

import pytest

from guide_locks import COMPARED
from newest import backends, proxies
from test_guides import PRESETS, try_locks, try_program

backend = backends("standalone", "cluster")
proxy = proxies("include %s" % os.path.join(PRESETS, "compare.conf"))


@pytest.mark.parametrize("case", COMPARED, ids=lambda case: case[1])
def test_under_the_preset(case, proxy, backend):
    _, _, pattern, library = case
    try_locks(proxy, backend, pattern, library)


@pytest.mark.parametrize("program", ["guide_compare.js", "guide_compare.php"])
def test_the_library(program, proxy, backend):
    backend.flush()
    try_program(backend.kind, "compare", program, proxy)
