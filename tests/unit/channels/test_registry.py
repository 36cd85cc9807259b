"""Which channels are installed, and what happens to those that cannot be used."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from butlers.channels import registry as registry_module
from butlers.channels.channel import load
from butlers.channels.registry import (
    GROUP,
    channel_of,
    channels,
    inbound_names,
    listed,
    outbound_names,
    own_names,
    registry,
    written_names,
)
from butlers.contracts.envelope import Channel, IngestChannel, source_names
from butlers.simulators import simulator_ports, simulators

SOURCE = Path(__file__).parents[3] / "src" / "butlers"
GOOD = """
from butlers.channels.channel import Channel, Inbound, Outbound
CHANNEL = Channel(name="{name}", title="A", inbound=Inbound(providers=("far",)), outbound=Outbound())
"""


def forget_channels() -> None:
    """A process looks once for what is installed; this one looks again."""
    for function in (*vars(registry_module).values(), source_names, simulators, simulator_ports):
        if hasattr(function, "cache_clear"):
            function.cache_clear()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    forget_channels()
    yield tmp_path
    forget_channels()
    for module in [name for name in sys.modules if name.startswith("brought_")]:
        del sys.modules[module]


def install(site: Path, name: str, code: str, *, entry: str | None = None) -> None:
    metadata = site / f"brought_{name}-1.0.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: brought-{name}\nVersion: 1.0.0\n")
    (metadata / "entry_points.txt").write_text(f"[{GROUP}]\n{entry or name} = brought_{name}:CHANNEL\n")
    (site / f"brought_{name}.py").write_text(code)


def test_the_built_in_channels_are_there() -> None:
    assert outbound_names() == ("telegram", "email", "sms", "chat")
    assert inbound_names() == ("telegram", "email", "api", "mcp")
    assert written_names() == ("telegram", "email")
    assert own_names() == ("api", "mcp")
    assert registry().problems == ()
    assert listed(outbound_names()) == "telegram, email, sms or chat"


@pytest.mark.parametrize("name", outbound_names())
def test_what_a_value_names_can_be_loaded(name: str) -> None:
    channel = channel_of(name)
    adapter = channel.outbound.adapter if channel.outbound is not None else None
    connector = channel.inbound.connector if channel.inbound is not None else None
    simulator = channel.simulator.serve if channel.simulator is not None else None
    assert all(callable(load(reference)) for reference in (adapter, connector, simulator) if reference)


def test_a_channel_of_another_package_is_known_to_the_contracts(site: Path) -> None:
    install(site, "owl", GOOD.format(name="owl"))
    assert "owl" in channels()
    assert TypeAdapter(Channel).validate_python("owl") == TypeAdapter(IngestChannel).validate_python("owl") == "owl"
    assert "owl" in TypeAdapter(Channel).json_schema()["enum"]
    assert registry().packages["owl"] == "brought-owl"


def test_a_channel_of_another_package_brings_its_simulator(site: Path) -> None:
    simulator = 'Simulator(name="wood", serve="a:b", doors=(Door(name="wood", port="wood_simulator", usual=40190),))'
    code = GOOD.format(name="owl").replace("import Channel", "import Channel, Door, Simulator")
    install(site, "owl", code.replace("outbound=", f"simulator={simulator}, outbound="))
    assert list(simulators()) == ["telegram", "mail", "wood", "calendar", "webhook"]
    assert simulator_ports()["wood_simulator"] == 40190


@pytest.mark.parametrize(
    ("name", "code", "problem"),
    [
        ("broken", "raise RuntimeError('the password is swordfish')", "cannot be imported (RuntimeError)"),
        ("wrong", "CHANNEL = 1", "is not a butlers.channels.channel.Channel"),
        ("other", GOOD.format(name="another"), "must have the name of its entry point"),
        ("telegram", GOOD.format(name="telegram"), "has the name of one of butlers"),
    ],
)
def test_a_channel_that_cannot_be_used_is_left_out_and_named(site: Path, name: str, code: str, problem: str) -> None:
    install(site, name, code)
    [told] = registry().problems
    assert problem in told
    assert f"brought-{name}" in told
    assert "swordfish" not in told
    assert outbound_names() == ("telegram", "email", "sms", "chat")


def test_a_name_that_is_not_installed_is_refused_in_the_usual_words() -> None:
    with pytest.raises(ValidationError) as refused:
        TypeAdapter(Channel).validate_python("pigeon")
    [error] = refused.value.errors()
    assert (error["type"], error["msg"]) == ("literal_error", "Input should be 'telegram', 'email', 'sms' or 'chat'")
    assert channel_of("pigeon").outbound is None
    assert channel_of("pigeon").address.canonical(" x ") == "x"


def test_systems_have_no_literal_list_of_channels() -> None:
    """A set, tuple or list of two channels' names is knowledge that belongs to the channels' folders."""
    two = re.compile(r"\"(telegram|email|mail|sms|chat)\",\s*\"(telegram|email|mail|sms|chat)\"")
    files = (path for path in SOURCE.rglob("*.py") if (SOURCE / "channels") not in path.parents)
    found = [str(path) for path in files if two.search(path.read_text(encoding="utf-8"))]
    assert found == []
