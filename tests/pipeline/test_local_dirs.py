"""What a killed process left on disk is removed by the next one; what a living one uses is not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from butlers.pipeline.session import own_folder

ANOTHER = """
import sys
from pathlib import Path
from butlers.pipeline.session import own_folder
folder = own_folder(Path(sys.argv[1]))
(folder / "blockmgr-1").mkdir()
print(folder, flush=True)
sys.stdin.read()
"""


def test_folders_of_killed_processes_are_swept_and_those_of_living_ones_are_not(tmp_path: Path) -> None:
    mine = own_folder(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", ANOTHER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as another:
        assert another.stdout is not None
        theirs = Path(another.stdout.readline().strip())
        own_folder(tmp_path)
        assert (theirs / "blockmgr-1").is_dir()
        another.kill()
        another.wait()
        own_folder(tmp_path)
    assert not theirs.exists()
    assert not theirs.with_suffix(".lock").exists()
    assert mine.is_dir()
