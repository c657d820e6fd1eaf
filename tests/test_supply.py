"""requirements.lock: the same versions as constraints.txt, each with the hashes of its files."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_lock_has_the_pins_of_the_constraints_with_hashes() -> None:
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").split()
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    locked = {line.split()[0]: line.split()[1:] for line in lines if not line.startswith("#")}
    assert sorted(map(_normal, locked)) == sorted(_normal(pin) for pin in pins if not pin.startswith("torch=="))
    for pin, hashes in locked.items():
        assert hashes and all(re.fullmatch("--hash=sha256:[0-9a-f]{64}", each) for each in hashes), pin


def _normal(pin: str) -> str:
    name, _, version = pin.partition("==")
    return f"{re.sub('[-_.]+', '-', name).lower()}=={version}"
