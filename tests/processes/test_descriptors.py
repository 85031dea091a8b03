"""The limit of open files is raised as far as it goes."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys
from mll_flower.processes.descriptors import raise_descriptor_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (256, int(sys.argv[1])))
print(raise_descriptor_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))
print(raise_descriptor_limit())
"""


@pytest.mark.parametrize(("hard", "expected"), [(1000, 1000), (256, 256)])
def test_the_soft_limit_is_raised_to_the_hard_one(hard: int, expected: int) -> None:
    command = [sys.executable, "-c", SCRIPT, str(hard)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert output.split() == [str(expected), str(expected), str(hard), str(expected)]
