"""What being told to end does while something must not be cut short, and what Spark makes of it."""

from __future__ import annotations

import logging
import os
import signal

import pytest

from butlers.errors import InternalError
from butlers.pipeline.lake.stream import reported
from butlers.pipeline.process import ends_on_signal
from butlers.pipeline.session import counting_first, noted


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_told_once_it_goes_on_and_told_again_it_ends(number: signal.Signals):
    before = signal.getsignal(number)
    with ends_on_signal():
        with noted() as stop_requested:
            assert not stop_requested()
            os.kill(os.getpid(), number)
            assert stop_requested()
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), number)
        with pytest.raises(KeyboardInterrupt):  # and afterwards it ends at once
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


def test_a_terminal_that_closes_says_so_twice_and_is_heard_once():
    with ends_on_signal():
        with noted() as stop_requested:
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop_requested()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGHUP)


def test_nohup_is_respected():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ends_on_signal(), noted() as stop_requested:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop_requested()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_handler_that_came_later_stays():
    before = signal.getsignal(signal.SIGINT)
    try:
        with noted():
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_stop_counts_and_not_what_tidying_up_failed_with(caplog: pytest.LogCaptureFixture):
    with pytest.raises(KeyboardInterrupt), counting_first():
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            logging.getLogger().exception("while sending a command")
            raise ConnectionError("the bridge is gone") from None
    assert caplog.records == []
    with pytest.raises(ConnectionError), counting_first():
        raise ConnectionError


@pytest.mark.parametrize(
    ("condition", "remedy"),
    [
        ("FAILED_READ_FILE.NO_HINT", "the file cannot be read; restore it from a backup"),
        ("FAILED_READ_FILE.FILE_NOT_EXIST", "the file was removed while the job ran"),
    ],
)
def test_a_file_that_is_gone_is_not_called_damaged(condition: str, remedy: str):
    told = reported(f"[{condition}] Encountered error while reading file file:///lake/a.parquet. SQLSTATE: KD001")
    assert isinstance(told, InternalError)
    assert str(told).startswith(f"/lake/a.parquet: {remedy}")
