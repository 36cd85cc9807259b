"""Adapters of other packages, found by the entry points of what is installed, and all the ways to be wrong."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from butlers.channels.adapter import NotSent, Outgoing, Sent
from butlers.channels.plugins import (
    SHIPPED,
    ChannelSettings,
    InstalledAdapter,
    choose,
    installed_adapters,
    load_channel,
    problem_with,
)
from butlers.channels.registry import GROUP
from butlers.channels.webhook.adapter import WebhookChannel
from butlers.clock import ManualClock
from butlers.errors import ConfigurationError, ValidationError

EXAMPLE = Path(__file__).parents[2] / "data" / "example_channel"


class Package:
    """A folder on sys.path into which packages are installed as an installer would: code and metadata."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def install(self, name: str, entry_points: dict[str, str], code: dict[str, str]) -> None:
        metadata = self._folder / f"{name.replace('-', '_')}-1.0.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0.0\n")
        lines = [f"[{GROUP}]", *(f"{key} = {value}" for key, value in entry_points.items())]
        (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
        for module, text in code.items():
            (self._folder / f"{module}.py").write_text(text)

    def install_example(self) -> None:
        project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
        code = {path.stem: path.read_text() for path in (EXAMPLE / "src").glob("*.py")}
        self.install(project["name"], project["entry-points"][GROUP], code)


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    for module in ("example_channel", "strange_channel", "rival_channel"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.syspath_prepend(str(folder))
    return Package(folder)


def settings(**fields: Any) -> ChannelSettings:
    given: dict[str, Any] = {"channel": "sms", "clock": ManualClock(), "source": "roster/messenger/butler.toml"}
    return ChannelSettings(**given | fields)


def mistake(adapter: str, **fields: Any) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        load_channel(adapter, settings(**fields))
    assert caught.value.source == "roster/messenger/butler.toml"
    assert caught.value.remedy
    return caught.value


class SilentWire:
    def __init__(self) -> None:
        self.left: list[int] = []

    def leaving(self, part: int = 1) -> None:
        self.left.append(part)

    async def part_sent(self, part: int, provider_delivery_id: str) -> None:
        raise AssertionError("one part only")


def outgoing(target: str = "+1555") -> Outgoing:
    return Outgoing(delivery_id=UUID(int=1), idempotency_key="k", intent="send", target=target, message="hello")


# --- found -----------------------------------------------------------------------------------------------------------


async def test_a_channel_of_another_package_is_found_and_sends(packages: Package, tmp_path: Path) -> None:
    packages.install_example()
    channel = load_channel("outbox", settings(options={"path": str(tmp_path / "outbox")}))
    wire = SilentWire()
    assert await channel.find(outgoing()) is None
    result = await channel.attempt(outgoing(), timeout_s=1, wire=wire)
    assert isinstance(result, Sent)
    assert wire.left == [1]
    assert await channel.find(outgoing()) == result.provider_delivery_id
    assert "hello" in (tmp_path / "outbox").read_text()


async def test_what_it_refuses_is_refused_in_our_words(packages: Package, tmp_path: Path) -> None:
    packages.install_example()
    channel = load_channel("outbox", settings(options={"path": str(tmp_path)}))
    unreadable = await channel.attempt(outgoing("nobody"), timeout_s=1, wire=SilentWire())
    assert isinstance(unreadable, NotSent)
    assert isinstance(unreadable.error, ValidationError)
    away = await channel.attempt(outgoing(), timeout_s=1, wire=SilentWire())  # a folder, not a file
    assert isinstance(away, NotSent)
    assert away.error.retryable


def test_without_the_package_there_is_no_such_channel() -> None:
    assert "outbox" not in {adapter.name for adapter in installed_adapters()}


async def test_the_shipped_channel_is_found_in_the_same_way() -> None:
    options = {"url": "http://127.0.0.1:9/messages"}
    channel = load_channel("webhook", settings(channel="chat", options=options, secrets={"signing_key": "k"}))
    assert isinstance(channel, WebhookChannel)
    await channel.close()


def test_the_shipped_channel_is_there_once_also_when_the_metadata_names_it(packages: Package) -> None:
    packages.install("butlers", dict(SHIPPED), {})
    assert [adapter.name for adapter in installed_adapters()].count("webhook") == 1


# --- wrong -----------------------------------------------------------------------------------------------------------


def test_an_unknown_adapter_stops_the_start_and_says_what_there_is() -> None:
    error = mistake("carrier_pigeon")
    assert error.key == "modules.sms.adapter"
    assert "webhook" in error.problem


def test_two_adapters_of_one_name_stop_the_start_and_name_both(packages: Package) -> None:
    packages.install_example()
    packages.install("rival-channel", {"outbox": "rival_channel:make_channel"}, {"rival_channel": ""})
    error = mistake("outbox")
    assert error.key == "modules.sms.adapter"
    assert "example-channel and rival-channel" in error.problem


def test_nobody_can_stand_in_for_the_shipped_channel(packages: Package) -> None:
    packages.install("rival-channel", {"webhook": "rival_channel:make_channel"}, {"rival_channel": ""})
    assert "rival-channel" in mistake("webhook").problem


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("import not_installed_anywhere", "ModuleNotFoundError"),
        ("def def", "SyntaxError"),
        ("", "AttributeError"),
        ("make_channel = 5", "TypeError"),
        ("def make_channel(settings): raise RuntimeError(settings.secrets['key'])", "RuntimeError"),
        ("def make_channel(settings): return None", "name must be 'sms'"),
    ],
)
def test_a_package_that_fails_stops_the_start_and_is_named(packages: Package, code: str, problem: str) -> None:
    packages.install("strange-channel", {"strange": "strange_channel:make_channel"}, {"strange_channel": code})
    error = mistake("strange", secrets={"key": "not-to-be-seen"})
    assert error.key == "modules.sms.adapter"
    assert "strange-channel" in error.problem
    assert problem in error.problem
    assert "not-to-be-seen" not in str(error)


def test_a_mistake_that_the_adapter_finds_itself_keeps_its_key(packages: Package) -> None:
    packages.install_example()
    assert mistake("outbox").key == "modules.sms.options.path"


# --- the port --------------------------------------------------------------------------------------------------------


class Complete:
    name = "sms"
    identity_scope = "bot"
    resumes = False

    async def attempt(self, outgoing: Outgoing, *, timeout_s: float, wire: Any) -> Any:
        return None

    async def find(self, outgoing: Outgoing) -> str | None:
        return None

    async def close(self) -> None:
        return


async def _nothing(self: Any) -> None:
    return


def variant(**changes: Any) -> Any:
    return type("Variant", (Complete,), changes)()


def test_an_object_with_the_whole_port_is_a_channel() -> None:
    assert problem_with(Complete(), settings()) is None


@pytest.mark.parametrize(
    ("channel", "problem"),
    [
        (variant(name="chat"), "name"),
        (variant(identity_scope="user"), "identity_scope"),
        (variant(resumes=None), "resumes"),
        (variant(attempt=None), "attempt"),
        (variant(attempt=lambda self, outgoing, *, timeout_s, wire: None), "attempt"),
        (variant(attempt=_nothing), "attempt"),
        (variant(find=_nothing), "attempt"),
        (variant(find=None), "find"),
        (variant(close=lambda self: None), "close"),
        (object(), "name"),
    ],
)
def test_an_object_without_it_is_none(channel: Any, problem: str) -> None:
    assert problem in (problem_with(channel, settings()) or "")


def test_choosing_is_by_name_alone() -> None:
    adapters = [InstalledAdapter(name=name, factory=f"{name}:make", package=name) for name in ("one", "two")]
    assert choose("two", adapters, settings()) == adapters[1]


def test_secrets_are_not_in_the_repr() -> None:
    assert "not-to-be-seen" not in repr(settings(secrets={"api_key": "not-to-be-seen"}))
