import contextlib
import signal
import threading

import pytest

from fdcnet.training.stop import Terminated, deferred_signals, terminating_like_ctrl_c


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_waits_and_the_second_ends_at_once(
    number: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    with contextlib.suppress(KeyboardInterrupt), deferred_signals() as stop:
        stop.obey()
        signal.raise_signal(number)
        assert stop.signal == number
        signal.raise_signal(number)
        raise AssertionError("the second signal was ignored")
    assert "Press Ctrl-C again to stop at once" in capfd.readouterr().err


def test_a_signal_after_the_last_step_is_not_lost() -> None:
    with pytest.raises(Terminated), deferred_signals():
        signal.raise_signal(signal.SIGTERM)


def test_the_handlers_are_restored() -> None:
    with terminating_like_ctrl_c():
        with deferred_signals():
            pass
        with pytest.raises(Terminated):
            signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("theirs", [signal.SIG_IGN, lambda number, frame: None])
def test_handlers_of_others_stay(theirs: signal.Handlers) -> None:
    before = signal.signal(signal.SIGTERM, theirs)
    try:
        with deferred_signals() as stop:
            signal.raise_signal(signal.SIGTERM)
            assert stop.signal is None
        assert signal.getsignal(signal.SIGTERM) is theirs
    finally:
        signal.signal(signal.SIGTERM, before)


def test_threads_leave_signals_alone() -> None:
    seen = []

    def lesson() -> None:
        with deferred_signals():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=lesson)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
