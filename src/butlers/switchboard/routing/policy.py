"""Hard rules: what must, or must never, go where. They stand above everything that guesses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

from butlers.butler.routing_config import RuleSection
from butlers.errors import RoutingError
from butlers.switchboard.registry import NOT_ROUTABLE, RegisteredButler
from butlers.switchboard.routing.decision import Decision, whole
from butlers.switchboard.routing.question import RoutingQuestion
from butlers.switchboard.routing.words import says_one_of


def forced(
    question: RoutingQuestion, rules: Iterable[RuleSection], butlers: Sequence[RegisteredButler]
) -> Decision | None:
    """The target that the source pinned, or that the first rule names; it takes the whole message, or nobody does."""
    if question.pinned_target is not None:
        target, why = question.pinned_target, "the source pinned the target"
    elif (rule := next(_naming(question, rules), None)) is not None:
        target, why = str(rule.target), f"rule {rule.name!r}"
    else:
        return None
    if all(butler.name != target or not butler.takes_routes for butler in butlers):
        raise _takes_nothing(target, butlers, pinned=question.pinned_target is not None)
    if target in forbidden(question, rules):
        raise RoutingError(f"a rule forbids {target!r} for this message, and {why} names it")
    return whole(question.text, target, router="policy", confidence=1.0, why=why)


def forbidden(question: RoutingQuestion, rules: Iterable[RuleSection]) -> frozenset[str]:
    """Butlers that must not get the message, whoever suggests them."""
    return frozenset(name for rule in rules if rule.never and applies(rule, question) for name in rule.never)


def applies(rule: RuleSection, question: RoutingQuestion) -> bool:
    """Whether every condition of the rule holds."""
    if rule.channel is not None and rule.channel != question.channel:
        return False
    if rule.sender is not None and not _like(question.sender, rule.sender):
        return False
    if rule.endpoint is not None and not _like(question.endpoint, rule.endpoint):
        return False
    return not rule.words or says_one_of(question.text, rule.words)


def _naming(question: RoutingQuestion, rules: Iterable[RuleSection]) -> Iterator[RuleSection]:
    return (rule for rule in rules if rule.target is not None and applies(rule, question))


def _like(value: str, pattern: str) -> bool:
    return fnmatchcase(value.casefold(), pattern.casefold().replace("[", "[[]"))


def _takes_nothing(name: str, butlers: Sequence[RegisteredButler], *, pinned: bool) -> RoutingError:
    if all(butler.name != name for butler in butlers):
        return RoutingError(f"no butler is called {name!r}")
    what = "the pinned target" if pinned else "the rule's target"
    # A door never takes requests; whoever is away may come back.
    away = name not in NOT_ROUTABLE
    return RoutingError(f"{what} {name!r} takes no requests" + (" now" if away else ""), retryable=away and not pinned)
