"""docs/operating/configuration.md says what the code reads."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from butlers.daemon.settings import Settings, shipped_roster, variable_of
from butlers.daemon.settings_page import PAGE, main, page

ROOT = Path(__file__).parents[3]


def test_the_page_is_the_one_that_the_code_makes() -> None:
    assert (ROOT / PAGE).read_text() == page(), "run: python -m butlers.daemon.settings_page"


def test_every_setting_is_there_with_its_variable_and_its_meaning() -> None:
    text = page()
    for key, field in Settings.model_fields.items():
        (line,) = [line for line in text.splitlines() if line.startswith(f"| `{key}` |") and line.count("|") == 6]
        assert field.description and field.description in line
        assert key == "ports" or f"`{variable_of(key)}`" in line


def test_every_key_of_every_line_has_a_meaning() -> None:
    rows = [line for line in page().splitlines() if re.match(r"\| `", line)]
    empty = [row for row in rows if re.search(r"\|\s*\|$", row)]
    assert empty == []


def test_every_key_of_the_shipped_roster_is_on_the_page() -> None:
    text = page()
    for file in shipped_roster().glob("*/butler.toml"):
        for line in file.read_text().splitlines():
            if header := re.match(r"(\[+[^\]]+\]+)", line):
                above, _, name = header[1].strip("[]").rpartition(".")
                # A table of values is a key of the table above it; a table of tables has a header for all of them.
                known = (f"`{header[1]}`", f"| `{name}` | table |", f"`[{above}.<channel>]`")
                assert any(form in text for form in known), f"{file}: {header[1]}"


def test_only_a_name_is_taken_for_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments, code in ((["--help"], 0), (["--surprise"], 2)):
        monkeypatch.setattr(sys, "argv", ["settings_page", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert (ended.value.code, list(tmp_path.iterdir())) == (code, [])
    monkeypatch.setattr(sys, "argv", ["settings_page", "made/page.md"])
    main()
    assert (tmp_path / "made" / "page.md").read_text() == page()
