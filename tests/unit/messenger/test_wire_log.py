"""Evidence that survives a kill: what may have left, and what certainly did not."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import pytest

from butlers.messenger import evidence
from butlers.messenger.evidence import Evidence, WireLog, path_of

LEFT, STAYED, LAST = UUID(int=1), UUID(int=2), UUID(int=3)


def in_doubt(directory: Path, worker: str, attempt: UUID, sent: Collection[int]) -> int | None:
    return Evidence.read(directory, worker).in_doubt(attempt, sent)


def may_have_left(directory: Path, worker: str, attempt: UUID) -> bool:
    return in_doubt(directory, worker, attempt, ()) is not None


WORKER = """
import sys
from pathlib import Path
from uuid import UUID
from butlers.messenger.evidence import WireLog

log = WireLog(Path(sys.argv[1]), "worker")
print("ready", flush=True)
for line in sys.stdin:
    log.leaving(UUID(line.strip()))
    print("written", flush=True)
"""


@contextmanager
def worker(directory: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", WORKER, str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert heard(process) == "ready"
            yield process
        finally:
            process.kill()


def heard(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def send(process: subprocess.Popen[str], attempt: UUID) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{attempt}\n")
    process.stdin.flush()
    assert heard(process) == "written"


def test_after_kill_9_what_was_marked_may_have_left_and_the_rest_did_not(tmp_path: Path) -> None:
    with worker(tmp_path) as process:
        send(process, LEFT)
        send(process, LAST)
        process.send_signal(signal.SIGKILL)
        assert process.wait(timeout=20) == -signal.SIGKILL
        assert may_have_left(tmp_path, "worker", LEFT)
        assert may_have_left(tmp_path, "worker", LAST)
        assert not may_have_left(tmp_path, "worker", STAYED)


def test_while_its_worker_lives_the_absence_of_a_mark_proves_nothing(tmp_path: Path) -> None:
    with worker(tmp_path) as process:
        assert may_have_left(tmp_path, "worker", STAYED)
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=20)
        assert not may_have_left(tmp_path, "worker", STAYED)


def test_looking_does_not_lock_a_living_worker_out(tmp_path: Path) -> None:
    with worker(tmp_path) as process:
        assert may_have_left(tmp_path, "worker", LEFT)
        send(process, LEFT)


def test_a_mark_is_on_its_way_to_disk_when_leaving_returns(tmp_path: Path) -> None:
    log = WireLog(tmp_path, "here")
    log.leaving(LEFT)
    assert f"{LEFT} 1" in path_of(tmp_path, "here").read_text().splitlines()
    log.close(keep=True)


FULL_DISK = """
import resource, sys
from pathlib import Path
from uuid import UUID
from butlers.messenger.evidence import WireLog, path_of

log = WireLog(Path(sys.argv[1]), "worker")
size = path_of(Path(sys.argv[1]), "worker").read_bytes().index(b"\\0")
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, hard))
try:
    log.leaving(UUID(int=2))
except OSError:
    print("refused")
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
log.leaving(UUID(int=1))
"""


def test_a_mark_that_was_cut_short_is_an_error_and_spoils_no_other(tmp_path: Path) -> None:
    """As on a disk that is full for a moment: nothing may leave on half a mark."""
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["refused"]
    assert may_have_left(tmp_path, "worker", LEFT)
    assert not may_have_left(tmp_path, "worker", STAYED)


def test_without_a_file_nothing_is_known(tmp_path: Path) -> None:
    assert may_have_left(tmp_path, "nobody", LEFT)
    assert may_have_left(tmp_path / "missing", "nobody", LEFT)


def test_after_a_reboot_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = WireLog(tmp_path, "here")
    log.close(keep=True)
    assert not may_have_left(tmp_path, "here", STAYED)
    monkeypatch.setattr(evidence, "boot_id", lambda: "another boot")
    assert may_have_left(tmp_path, "here", STAYED)


@pytest.mark.parametrize("text", ["", "boot\n", "garbage", "boot \n", "\xff\xfe"])
def test_a_damaged_file_proves_nothing(tmp_path: Path, text: str) -> None:
    path_of(tmp_path, "here").write_bytes(text.encode("latin-1"))
    assert may_have_left(tmp_path, "here", STAYED)


def test_a_file_that_lost_its_end_proves_nothing_wherever_it_was_cut(tmp_path: Path) -> None:
    """A cut behind a whole mark, too: such a file must not look like that of a worker that died earlier."""
    log = WireLog(tmp_path, "here", longest=500)
    log.leaving(LEFT)
    log.leaving(LAST)
    log.close(keep=True)
    path = path_of(tmp_path, "here")
    whole = path.read_bytes()
    assert not may_have_left(tmp_path, "here", STAYED)
    for kept in range(len(whole)):
        path.write_bytes(whole[:kept])
        assert evidence.dead_workers(tmp_path) == ["here"], "its deliveries are rescued in any case"
        doubted = [may_have_left(tmp_path, "here", attempt) for attempt in (LEFT, LAST, STAYED)]
        assert doubted == [True, True, True], f"cut at byte {kept} of {len(whole)}"


def test_a_torn_last_mark_proves_nothing(tmp_path: Path) -> None:
    """The length is right, and the last mark is there in part only."""
    log = WireLog(tmp_path, "here", longest=500)
    log.leaving(LEFT)
    log.leaving(LAST)
    log.close(keep=True)
    path = path_of(tmp_path, "here")
    whole = path.read_bytes()
    begin = whole.index(str(LAST).encode())
    end = whole.index(b"\0")
    for kept in range(begin + 1, end):
        path.write_bytes(whole[:kept] + bytes(end - kept) + whole[end:])
        assert may_have_left(tmp_path, "here", LAST), f"torn at byte {kept}"


def test_a_file_that_was_cut_under_a_living_worker_proves_nothing_after_its_death(tmp_path: Path) -> None:
    log = WireLog(tmp_path, "here", longest=500)
    log.leaving(LEFT)
    path_of(tmp_path, "here").write_bytes(b"")
    log.leaving(LAST)
    log.close(keep=True)
    assert may_have_left(tmp_path, "here", LEFT)
    assert Evidence.read(tmp_path, "here", alive=True).marks is None


def test_the_evidence_of_a_dead_worker_is_never_written_over(tmp_path: Path) -> None:
    WireLog(tmp_path, "here").close(keep=True)
    with pytest.raises(FileExistsError):
        WireLog(tmp_path, "here")


def test_a_second_worker_of_the_same_name_is_refused(tmp_path: Path) -> None:
    log = WireLog(tmp_path, "here")
    with pytest.raises(BlockingIOError):
        WireLog(tmp_path, "here")
    log.close(keep=True)


def test_a_clean_end_takes_the_file_away_and_an_unclean_one_keeps_it(tmp_path: Path) -> None:
    WireLog(tmp_path, "clean").close(keep=False)
    WireLog(tmp_path, "unclean").close(keep=True)
    assert [path.name for path in tmp_path.iterdir()] == ["unclean.wire"]
    evidence.remove_wire_log(tmp_path, "unclean")
    evidence.remove_wire_log(tmp_path, "unclean")
    assert list(tmp_path.iterdir()) == []


# --- a message of several parts --------------------------------------------------------------------------------------


def with_marks(directory: Path, *marks: tuple[UUID, int]) -> None:
    """The file of a dead worker."""
    log = WireLog(directory, "here")
    for attempt, part in marks:
        log.leaving(attempt, part)
    log.close(keep=True)


@pytest.mark.parametrize(
    ("left", "sent", "doubtful"),
    [
        ([], [], None),
        ([1], [], 1),
        ([1], [1], None),
        ([1, 2], [1], 2),
        ([1, 2, 3], [1, 2, 3], None),
        ([3], [1, 2], 3),  # an attempt that went on behind the parts of an earlier one
        ([], [1, 2], None),  # and one that died before it did
        ([10], [1], 10),  # a number is read as a whole
    ],
)
def test_the_part_in_doubt_is_the_one_that_left_without_a_receipt(
    tmp_path: Path, left: list[int], sent: list[int], doubtful: int | None
) -> None:
    with_marks(tmp_path, *((LEFT, part) for part in left), (LAST, 5))
    assert in_doubt(tmp_path, "here", LEFT, sent) == doubtful


@pytest.mark.parametrize(("sent", "doubtful"), [((), 1), ((1, 2), 3), ({2}, 3)])
def test_without_evidence_the_part_behind_the_receipts_is_in_doubt(
    tmp_path: Path, sent: tuple[int, ...], doubtful: int
) -> None:
    assert in_doubt(tmp_path, "nobody", LEFT, sent) == doubtful
    log = WireLog(tmp_path, "alive")
    assert in_doubt(tmp_path, "alive", LEFT, sent) == doubtful
    log.close(keep=False)


# --- who is dead -----------------------------------------------------------------------------------------------------


def test_the_dead_are_known_by_their_locks(tmp_path: Path) -> None:
    alive = WireLog(tmp_path, "alive")
    WireLog(tmp_path, "dead").close(keep=True)
    (tmp_path / "notes.txt").write_text("not a worker's")
    assert evidence.dead_workers(tmp_path) == ["dead"]
    alive.close(keep=True)
    assert sorted(evidence.dead_workers(tmp_path)) == ["alive", "dead"]


def test_asking_who_is_dead_kills_nobody(tmp_path: Path) -> None:
    with worker(tmp_path) as process:
        assert evidence.dead_workers(tmp_path) == []
        send(process, LEFT)
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=20)
        assert evidence.dead_workers(tmp_path) == ["worker"]


# --- a file that has grown long --------------------------------------------------------------------------------------


def marks(directory: Path) -> list[str]:
    return [line for line in path_of(directory, "here").read_text().replace("\0", "").splitlines() if line]


def test_a_long_file_begins_anew_with_what_is_not_settled(tmp_path: Path) -> None:
    log = WireLog(tmp_path, "here", longest=1000)
    log.leaving(LEFT, 1)
    log.leaving(LEFT, 2)
    for number in range(100, 200):
        log.leaving(UUID(int=number))
        log.settled(UUID(int=number))
        assert path_of(tmp_path, "here").stat().st_size < 1100
        assert evidence.dead_workers(tmp_path) == []
    assert marks(tmp_path)[0].startswith("boot ")
    assert {f"{LEFT} 1", f"{LEFT} 2"} <= {*marks(tmp_path)}
    with pytest.raises(BlockingIOError):
        WireLog(tmp_path, "here")  # the lock has gone along
    log.close(keep=True)
    assert in_doubt(tmp_path, "here", LEFT, [1]) == 2
    assert not may_have_left(tmp_path, "here", STAYED)
    assert [path.name for path in tmp_path.iterdir()] == ["here.wire"]


def test_a_file_that_was_replaced_while_somebody_looked_is_not_a_dead_worker(tmp_path: Path) -> None:
    log = WireLog(tmp_path, "here", longest=1)
    with path_of(tmp_path, "here").open("rb") as seen:
        log.leaving(LEFT)  # in a new file
        assert not evidence._is_dead(seen, path_of(tmp_path, "here"))
    log.close(keep=False)


def test_a_file_that_cannot_begin_anew_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError

    log = WireLog(tmp_path, "here", longest=1)
    monkeypatch.setattr(Path, "replace", full)
    log.leaving(LEFT)
    log.leaving(LAST)
    log.close(keep=True)
    assert [may_have_left(tmp_path, "here", attempt) for attempt in (LEFT, LAST, STAYED)] == [True, True, False]


def test_nothing_leaves_on_a_closed_file(tmp_path: Path) -> None:
    log = WireLog(tmp_path, "here")
    log.close(keep=True)
    with pytest.raises(OSError, match="closed"):
        log.leaving(LEFT)
