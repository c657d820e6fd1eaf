"""What is published: requirements.lock has the pins of constraints.txt, and MANIFEST.in names all files."""

import re
import subprocess
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_the_lock_has_the_pins_of_the_constraints_with_hashes() -> None:
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").split()
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    locked = {line.split()[0]: line.split()[1:] for line in lines if not line.startswith("#")}
    assert sorted(map(_normal, locked)) == sorted(_normal(pin) for pin in pins if not pin.startswith("torch=="))
    for pin, hashes in locked.items():
        assert hashes and all(re.fullmatch("--hash=sha256:[0-9a-f]{64}", each) for each in hashes), pin


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a git checkout")
def test_the_source_distribution_has_all_tracked_files() -> None:
    """`make wheel-test` looks into the archive itself, but `make test` does not build one."""
    tracked = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
    rules = [line.split() for line in (ROOT / "MANIFEST.in").read_text(encoding="utf-8").splitlines()]
    always = {"MANIFEST.in", "pyproject.toml", "setup.py"}  # setuptools adds these
    missing = [
        name
        for name in tracked
        if not name.startswith(".git") and name not in always and not any(_includes(rule, name) for rule in rules)
    ]
    assert not missing


def _includes(rule: list[str], name: str) -> bool:
    """Whether a line of MANIFEST.in includes the file."""
    match rule:
        case ["include", *patterns]:
            return "/" not in name and any(fnmatch(name, pattern) for pattern in patterns)
        case ["graft", folder]:
            return name.startswith(f"{folder}/")
        case ["recursive-include", folder, *patterns]:
            return name.startswith(f"{folder}/") and any(fnmatch(Path(name).name, pattern) for pattern in patterns)
    return False


def _normal(pin: str) -> str:
    name, _, version = pin.partition("==")
    return f"{re.sub('[-_.]+', '-', name).lower()}=={version}"
