"""What a channel is: one value that every other part of the system asks. Pure.

    Channel      name, address form, where an answer goes, how a conversation hangs together, credentials
    Inbound      what comes in by it: providers, what makes two events one, how a payload is read, the connector
    Outbound     what leaves by it: capabilities, default limits, retries and certainty, the adapter
    Simulator    its provider, imitated on this machine: how it is served, and how a system is told to use it

A channel's folder holds its `CHANNEL` value beside the code that needs a network or a library. The value names that
code as "module:attribute", so that asking for a fact imports no client, no driver and no server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from importlib import import_module
from typing import Any, Literal

CertaintyPolicy = Literal["never_duplicate", "never_lose", "ask"]


class Dedupe(StrEnum):
    """What makes two events one request."""

    EVENT = "event"  # the provider's own event id at one endpoint
    CONTENT = "content"  # the caller's key, else event id, content and source within a sliding window


class AnswersGo(StrEnum):
    """Where the answer to a message goes."""

    TO_CONVERSATION = "conversation"  # the thread identity; an answer needs one
    TO_SENDER = "sender"  # the person who wrote, whatever the thread is
    TO_OWNER = "owner"  # the caller gets its answer another way; messages about it go to the owner


class Threads(StrEnum):
    """What a thread identity names."""

    CHAT = "chat"  # one continuing conversation: order is kept in all of it, and short words refer to what came before
    CHAIN = "chain"  # one subject among several with the same person: order is kept within it
    NONE = "none"  # nothing: every message stands alone


class Feedback(StrEnum):
    """How the author of a message sees what becomes of it."""

    REACTIONS = "reactions"  # an emoji on the message for each state, and words when it failed
    TEXT = "text"  # words when it failed
    NONE = "none"


def _is_printable(address: str) -> str | None:
    return None if address.isprintable() else "must be printable"


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressForm:
    """How addresses of a channel look. Rules, budgets, order and keys use the canonical spelling."""

    canonical: Callable[[str], str] = str.strip
    problem: Callable[[str], str | None] = _is_printable  # why nobody can have this address; never quotes it
    person: Callable[[str], str] = str.strip  # the identity that a person's messages carry; raises ValueError


@dataclass(frozen=True, slots=True, kw_only=True)
class Inbound:
    """What comes in by a channel. The functions read a raw payload, of which nothing can be trusted."""

    providers: tuple[str, ...]  # who may run it, as `source.provider` names them
    dedupe: Dedupe = Dedupe.EVENT
    feedback: Feedback = Feedback.TEXT
    written_by_people: bool = True  # strangers can write: the policy who_may_write applies
    pairs_owner: bool = False  # the chat that sends the owner's code becomes the owner's
    read_by: str | None = None  # the butler that brings its messages in itself; None: a connector does
    connector: str | None = None  # module:attribute of a ConnectorFactory
    # What an answer needs to know of the message that it answers; None: the payload does not tell.
    source_event: Callable[[Any], Mapping[str, Any] | None] = lambda _raw: None
    # The text of our own message that this one replies to: (raw payload, endpoint) -> text.
    replied_to: Callable[[Any, str], str | None] = lambda _raw, _endpoint: None
    # Whether a machine wrote it, so that an answer could start a loop.
    is_automatic: Callable[[Any], bool] = lambda _raw: False
    # Whether the named receiving server confirms the sender: (sender, raw payload, server); None: the channel does.
    confirms_sender: Callable[[str, Any, str | None], bool] | None = None
    # The lines in which a command to the system may stand: (text, raw payload) -> lines.
    command_lines: Callable[[str, Any], Sequence[str]] = lambda text, _raw: (text,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    reply: bool = True
    react: bool = False  # an emoji on a message
    edit: bool = False
    receipts: bool = False  # the provider reports later what became of a message
    idempotency_key: bool = False  # the provider recognises a repeat by our key
    subject: bool = False  # a message has a subject line
    html: bool = False  # a message may have HTML beside its text
    unsubscribe: bool = False  # a message may carry a link by which its reader unsubscribes with one click
    max_characters: int | None = None  # of one part of a message; None: the provider decides


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    max_attempts: int = 3  # the first one included
    base_delay_s: float = 1.0  # before the second attempt; doubles after that
    max_delay_s: float = 60.0
    jitter: float = 0.3  # share of the pause that chance may add or take


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """When a channel's circuit opens, and how it closes again; None: as for every channel."""

    failure_threshold: int | None = None  # failures in a row that open it
    recovery_timeout_s: float | None = None  # from the trip to the first probe
    probe_limit: int | None = None  # probes under way at one time while half-open
    success_threshold: int | None = None  # successful probes that close it


@dataclass(frozen=True, slots=True, kw_only=True)
class Outbound:
    """What leaves by a channel. `[delivery]` in butler.toml overrides the defaults."""

    capabilities: Capabilities = Capabilities()
    retry: Retry | None = None  # None: the system's default, as in the next four
    breaker: Breaker | None = None
    timeout_s: float | None = None  # of one attempt
    certainty: CertaintyPolicy | None = None  # what follows an attempt that may have arrived
    per_minute: Mapping[str, float] = field(default_factory=dict)  # identity scope -> deliveries a minute
    adapter: str | None = None  # module:attribute of an AdapterFactory; None: butler.toml names an adapter
    # Why a machine must not answer a message: (source event, our own address) -> reason.
    refuses_answer: Callable[[Mapping[str, Any] | None, str], str | None] = lambda _event, _own: None
    # Whom an answer counts against where two machines could answer each other for ever; None: they cannot.
    correspondent: Callable[[str], str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    name: str  # as a running system announces it
    port: str  # as --port and BUTLERS_PORT_... name it
    usual: int  # its number, unless told otherwise
    scheme: str = ""  # what stands before host:port

    def at(self, host: str, port: int) -> str:
        return f"{self.scheme}{host}:{port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulator:
    """A simulated provider, and what a system is given that uses it instead of the real one."""

    name: str  # as `butlers simulate` takes it
    # module:attribute of an async context manager: (host, *ports of the doors, clock, journal_path, **options)
    serve: str
    doors: tuple[Door, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    remembers: bool = True  # it takes a journal_path, and finds there what it accepted before a restart
    shows_others: bool = False  # it takes extra_routes: the control APIs of the other simulators
    on_request: bool = False  # only `butlers simulate` runs it: which channel it stands for is the roster's business
    credentials: Mapping[str, str] = field(default_factory=dict)  # name of the bot's secret -> what opens the simulator
    # The process settings that lead to it: (host, port by its name) -> settings.
    settings: Callable[[str, Mapping[str, int]], Mapping[str, object]] = lambda _host, _ports: {}
    defaults: Mapping[str, object] = field(default_factory=dict)  # settings that the operator has left open
    defaults_alone: Mapping[str, object] = field(default_factory=dict)  # the same, as long as no channel is real


@dataclass(frozen=True, kw_only=True)
class Channel:
    name: str  # lower case, as envelopes, settings, tools and tables write it
    title: str  # as people write it
    address: AddressForm = AddressForm()
    answers_go: AnswersGo = AnswersGo.TO_CONVERSATION
    threads: Threads = Threads.CHAT
    inbound: Inbound | None = None  # None: nothing comes in by it
    outbound: Outbound | None = None  # None: nothing leaves by it
    credentials: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # identity scope -> names of its secrets
    settings: tuple[str, ...] = ()  # process settings that its adapter and its connector are given as options
    simulator: Simulator | None = None  # None: nobody simulates it

    @cached_property
    def reply_tool(self) -> str:
        return f"{self.name}_reply_to_{'thread' if self.threads is Threads.CHAIN else 'message'}"

    @cached_property
    def can_react(self) -> bool:
        return self.outbound is not None and self.outbound.capabilities.react

    @cached_property
    def has_subject(self) -> bool:
        return self.outbound is not None and self.outbound.capabilities.subject

    @cached_property
    def has_html(self) -> bool:
        return self.outbound is not None and self.outbound.capabilities.html

    @cached_property
    def has_unsubscribe(self) -> bool:
        return self.outbound is not None and self.outbound.capabilities.unsubscribe

    @cached_property
    def has_connector(self) -> bool:
        return self.inbound is not None and self.inbound.connector is not None

    def can_answer(self, thread: str | None) -> bool:
        """Whether an answer can leave by this channel to a message that came by it in that thread."""
        if self.outbound is None or not self.outbound.capabilities.reply:
            return False
        return self.answers_go is AnswersGo.TO_SENDER or (self.answers_go is AnswersGo.TO_CONVERSATION and bool(thread))


def load(reference: str) -> Any:
    """The object behind "module:attribute"."""
    module, _, attribute = reference.partition(":")
    return getattr(import_module(module), attribute)
