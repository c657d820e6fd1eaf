"""Seconds by phase: with a time of our own, so that the numbers are exact."""

import time

import pytest

from fdcnet.runtime.clock import Clock


def test_an_inner_phase_is_not_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([10.0, 13.0, 17.0, 22.0, 100.0, 101.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(times))
    clock = Clock()
    with clock("train"), clock("write"):  # train from 10 to 22, write from 13 to 17
        pass
    with clock("write"):  # 100 to 101
        pass
    assert clock.seconds == {"train": 8.0, "write": 5.0}


def test_a_failed_phase_is_counted() -> None:
    clock = Clock()
    with pytest.raises(ValueError, match="no"), clock("train"):
        raise ValueError("no")
    assert list(clock.seconds) == ["train"]
    with clock("write"):
        pass
    assert list(clock.seconds) == ["train", "write"]
