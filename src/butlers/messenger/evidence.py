"""Evidence of what left the machine, for the case that the process does not live to say so.

Before the first byte of a part leaves, the attempt's id and the part's number are written to the worker's own file:
one write(2), which survives the death of the process (though not of the machine). After a crash

    the part is in the file      the bytes may have left       -> uncertain, unless its receipt is on record
    the part is not in the file  they certainly did not        -> not sent, safe to try again
    the file is missing or not whole, the machine was rebooted, or its worker may still live
                                 nothing is known              -> uncertain

The worker holds a lock on its file for life; only when the lock is free is the absence of an id a proof.

A file that lost its end must not look like a shorter one, so it has its full length and its last line from the
beginning, and the marks fill the gap (a hole, which takes no room on the disk):

    boot <id> <length>     the first line; <length> is the size of the whole file
    <attempt> <part>       marks, each on a line of its own
    NUL NUL NUL ...        room for further marks
    end                    the last line

A file of another length, without its last line, or with half a mark behind the whole ones proves nothing.

A file appears under its name when it is whole and locked: it is written beside it and renamed. So does a full file's
successor, which has the marks of the attempts that are not settled yet.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Self
from uuid import UUID

from butlers.channels.adapter import Certainty, NotSent
from butlers.errors import TimeoutExceeded
from butlers.messenger.attempt import Circumstances, Ended, Settlement, parked, settle
from butlers.messenger.deliveries import Deliveries
from butlers.messenger.delivery import ClaimedDelivery
from butlers.messenger.observer import Observer

LONGEST_FILE = 4_000_000  # bytes: some ninety thousand attempts
MOST_LOST = 20  # attempts; what kills its process every time must not do so for ever
_BATCH = 200
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_END = b"\nend\n"
_MARK = re.compile(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12} [0-9]+")


class WireLog:
    """The file of one worker. The name of a worker is used once: a file of that name is never written over."""

    def __init__(self, directory: Path, worker: str, *, longest: int = LONGEST_FILE) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._path = path_of(directory, worker)
        self._longest = longest
        self._open: dict[UUID, list[int]] = {}  # parts that left, of attempts that are not settled
        _refuse_second_worker(self._path)
        self._file, self._position, self._room = self._begin()

    def leaving(self, attempt_id: UUID, part: int = 1) -> None:
        if self._file.closed:
            raise OSError(errno.EBADF, "the evidence is closed", str(self._path))
        mark = f"{attempt_id} {part}\n".encode()
        if self._position + len(mark) > self._room:
            self._make_room()
        self._write(self._file, mark, self._position)
        self._position += len(mark)
        self._open.setdefault(attempt_id, []).append(part)

    def settled(self, attempt_id: UUID) -> None:
        """Its outcome is on record: its marks say nothing any more."""
        self._open.pop(attempt_id, None)

    def close(self, *, keep: bool) -> None:
        """Let go. A worker that left nothing open takes its file away."""
        if not keep:
            self._path.unlink(missing_ok=True)
        self._file.close()

    def _begin(self) -> tuple[IO[bytes], int, int]:
        """A whole and locked file under the worker's name: the file, where the next mark goes, where the room ends."""
        marks = "".join(f"{attempt} {part}\n" for attempt, parts in self._open.items() for part in parts).encode()
        length = max(self._longest, 2 * len(marks) + 200)
        head = _first_line(length) + marks
        fresh = self._path.with_suffix(".begun")
        file = os.fdopen(os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b", buffering=0)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(file.fileno(), 0)  # what a begin that failed left
            self._write(file, head, 0)
            self._write(file, _END, length - len(_END))
            fresh.replace(self._path)
        except OSError:
            file.close()
            raise
        return file, len(head), length - len(_END)

    def _make_room(self) -> None:
        """Begin anew; where that fails, the full file grows. Half-way it is not whole, and proves nothing."""
        file = self._file
        try:
            self._file, self._position, self._room = self._begin()
            file.close()
        except OSError:
            self._longest *= 2
            length = self._room + self._longest
            self._write(file, bytes(len(_END)), self._room)
            self._write(file, _END, length - len(_END))
            self._write(file, _first_line(length), 0)
            self._room = length - len(_END)

    def _write(self, file: IO[bytes], content: bytes, position: int) -> None:
        """All of it or an error: a full disk may take the beginning only, and half a mark proves nothing.

        What was taken is blanked as far as possible; the next mark is written over it.
        """
        written = os.pwrite(file.fileno(), content, position)
        if written != len(content):
            with contextlib.suppress(OSError):
                os.pwrite(file.fileno(), bytes(written), position)
            raise OSError(errno.ENOSPC, "the evidence was cut short", str(self._path))


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a worker's file says of its attempts, read once."""

    marks: Mapping[str, Sequence[int]] | None  # attempt -> parts that may have left; None: nothing is known

    @classmethod
    def read(cls, directory: Path, worker: str, *, alive: bool = False) -> Self:
        """`alive`: it is our own file, which is proof for what nobody has in hand."""
        path = path_of(directory, worker)
        try:
            with path.open("rb") as file:
                content = file.read() if alive or _is_dead(file, path) else b""
        except OSError:
            content = b""
        return cls(marks=_marks(content))

    def in_doubt(self, attempt_id: UUID, parts_sent: Collection[int]) -> int | None:
        """The part of an attempt that could have reached the provider without our knowing; None: no part."""
        if self.marks is None:
            return max(parts_sent, default=0) + 1
        return next((part for part in self.marks.get(str(attempt_id), ()) if part not in parts_sent), None)


def dead_workers(directory: Path) -> list[str]:
    """Workers whose file is there and whose lock is free."""
    found = []
    for path in directory.glob("*.wire"):
        with contextlib.suppress(OSError), path.open("rb") as file:
            if _is_dead(file, path):
                found.append(path.stem)
    return found


def living_workers(directory: Path) -> list[str]:
    """Workers whose lock is held: whatever their leases say, they are at it."""
    dead = set(dead_workers(directory))
    return [path.stem for path in directory.glob("*.wire") if path.stem not in dead]


def remove_wire_log(directory: Path, worker: str) -> None:
    """Forget a dead worker's file once all its attempts are settled."""
    path = path_of(directory, worker)
    path.with_suffix(".begun").unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def boot_id() -> str:
    """Changes with every start of the machine; without it no file of an earlier process is trusted."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return f"unknown-{os.getpid()}"


def path_of(directory: Path, worker: str) -> Path:
    return directory / f"{worker}.wire"


def _is_dead(file: IO[bytes], path: Path) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two that ask do not mislead each other
    except BlockingIOError:
        return False
    # A file that was replaced in between is free because its owner goes on in another.
    return os.path.samestat(os.fstat(file.fileno()), path.stat())


def _refuse_second_worker(path: Path) -> None:
    """`BlockingIOError` while a worker of that name lives, `FileExistsError` when its evidence is still there."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        raise FileExistsError(errno.EEXIST, "a worker of that name left its evidence", str(path))


def _first_line(length: int) -> bytes:
    return f"boot {boot_id()} {length:012}\n".encode()


def _marks(content: bytes) -> dict[str, list[int]] | None:
    """The marks of a whole file; None when it is not whole, or not of this boot."""
    first, _, rest = content.partition(b"\n")
    if first + b"\n" != _first_line(len(content)) or not content.endswith(_END):
        return None
    written = rest[: -len(_END)].rstrip(b"\0")
    lines = written.split(b"\n")
    if lines.pop() or not all(_MARK.fullmatch(line) for line in lines):
        return None
    marks: dict[str, list[int]] = defaultdict(list)
    for line in lines:
        identity, _, part = line.decode("ascii").partition(" ")
        marks[identity].append(int(part))
    return dict(marks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescuer:
    """Settles what dead workers were doing, in the name of a living one."""

    deliveries: Deliveries
    wire_directory: Path
    name: str  # of the worker that rescues
    lease_s: float
    circumstances: Callable[[ClaimedDelivery], Circumstances]
    observer: Observer
    new_id: Callable[[], UUID]

    async def rescue(self, *, in_hand: Collection[UUID]) -> int:
        """How many were left behind; what is `in_hand` is being sent."""
        dead = [worker for worker in dead_workers(self.wire_directory) if worker != self.name]
        alive = [worker for worker in living_workers(self.wire_directory) if worker != self.name]
        abandoned = await self.deliveries.claim_abandoned(
            limit=_BATCH,
            worker=self.name,
            lease_s=self.lease_s,
            in_hand=list(in_hand),
            dead=dead,
            alive=alive,
        )
        if abandoned:
            # Read after the claim: what a worker of that name could still have marked, it has. Our own file is proof
            # although we live: what is not in hand is not being sent.
            evidence = {
                worker: Evidence.read(self.wire_directory, worker or "", alive=worker == self.name)
                for _, worker in abandoned
            }
            ends = [await self._lost(delivery, evidence[worker]) for delivery, worker in abandoned]
            await self.deliveries.finish(ends)
            for end in ends:
                self.observer.rescued(end)
        for worker in dead:
            if await self.deliveries.open_attempts_of(worker) == 0:
                remove_wire_log(self.wire_directory, worker)
        return len(abandoned)

    async def _lost(self, delivery: ClaimedDelivery, evidence: Evidence) -> Ended:
        parts = await self.deliveries.parts_of(delivery.id)
        result = lost_attempt(evidence.in_doubt(delivery.attempt_id, parts))
        return Ended(
            delivery=delivery,
            result=result,
            settlement=settle_lost(result, self.circumstances(delivery)),
            latency_ms=0,
            receipt_id=self.new_id(),
            lost=True,
        )


def lost_attempt(part: int | None) -> NotSent:
    """An attempt that nobody lived to report; `part` may have left."""
    return NotSent(
        error=TimeoutExceeded("the process ended during the attempt"),
        certainty=Certainty.NOT_SENT if part is None else Certainty.UNCERTAIN,
        response={"phase": "process ended", "part": part},
    )


def settle_lost(result: NotSent, around: Circumstances) -> Settlement:
    """A crash of ours says nothing about the provider: try at once, though not without end."""
    if result.certainty is Certainty.NOT_SENT:
        if around.attempt >= MOST_LOST:
            buried = Settlement(status="dead_lettered", error=result.error)
            return parked(result, around) if around.in_doubt else buried
        return Settlement(status="awaiting_retry", next_attempt_at=around.now, error=result.error)
    settlement = settle(result, around)
    return replace(settlement, next_attempt_at=around.now) if settlement.status == "awaiting_retry" else settlement
