"""The garbage collector is spared while a process serves, and afterwards it is as before."""

from __future__ import annotations

import gc

from butlers.daemon.collector import spared_collector


def test_what_a_start_made_is_set_aside_and_taken_back() -> None:
    usual, aside = gc.get_threshold(), gc.get_freeze_count()
    with spared_collector():
        assert gc.get_freeze_count() > aside
        assert gc.get_threshold()[0] > usual[0]
    assert gc.get_freeze_count() == 0
    assert gc.get_threshold() == usual
