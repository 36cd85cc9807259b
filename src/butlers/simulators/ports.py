"""The simulators' listening sockets."""

from __future__ import annotations

import socket

from butlers.serving.server import listen


def listen_as(simulator: str, host: str, port: int) -> socket.socket:
    return listen(host, port, source=simulator, remedy="choose another port, 0 takes a free one")
