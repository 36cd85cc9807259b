"""A simulated mail world: SMTP in, IMAP out, one store between them, and faults on request."""

from butlers.channels.email.simulator.control import control_routes
from butlers.channels.email.simulator.faults import Fault, FaultKind, PendingFaults, Server
from butlers.channels.email.simulator.server import MailSimulator, serve_mail
from butlers.channels.email.simulator.store import AcceptedMail, MailStore, RecipientResult, StoredMessage

__all__ = [
    "AcceptedMail",
    "Fault",
    "FaultKind",
    "MailSimulator",
    "MailStore",
    "PendingFaults",
    "RecipientResult",
    "Server",
    "StoredMessage",
    "control_routes",
    "serve_mail",
]
