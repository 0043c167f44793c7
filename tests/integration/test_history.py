"""A short run of tests/history: workers of real clients write down what they were answered while processes are stopped and killed,
and the checker finds nothing that must not be. scripts/prove.sh runs it for longer, and prints the table of docs/safety.md."""

import os
import subprocess
import sys

import pytest

from servers import ROOT, binary

IDIOMS = ["setnx", "constant", "compared", "queue", "token"]


@pytest.mark.parametrize("setting", ["default", "cluster", "failover", "cluster-failover", "clock"])
def test_history(rng, setting):
    words = ["--setting", setting, "--minutes", "0.1", "--seed", str(rng.randrange(10 ** 6)), "--offline"]
    for idiom in IDIOMS:
        words += ["--idiom", idiom]
    run = subprocess.run([sys.executable, "-B", os.path.join(ROOT, "tests/history/prove.py"), *words],
                         env={**os.environ, "LOCKKEEPER": binary()}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=280)
    print(run.stdout.decode("utf-8", "replace"))
    assert run.returncode == 0, "promises were broken: see above"
