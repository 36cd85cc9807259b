"""A simulated mail world: SMTP in, IMAP out, one store between them, and faults on request."""

from butlers.simulators.mail.control import control_routes
from butlers.simulators.mail.faults import Fault, FaultBook, FaultKind, Server
from butlers.simulators.mail.mailbox import AcceptedMail, RecipientResult, StoredMessage
from butlers.simulators.mail.server import MailSimulator, serve_mail
from butlers.simulators.mail.store import MailStore

__all__ = [
    "AcceptedMail",
    "Fault",
    "FaultBook",
    "FaultKind",
    "MailSimulator",
    "MailStore",
    "RecipientResult",
    "Server",
    "StoredMessage",
    "control_routes",
    "serve_mail",
]
