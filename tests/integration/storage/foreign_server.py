"""A PostgreSQL that is not ours, as `DATABASE_URL` may name one: on a TCP port, with passwords, and behind TLS.

The embedded programs speak no TLS, so a relay in front of the server does: it answers the client's question for
encryption, shows a certificate, and passes everything on.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import asyncpg

from butlers.storage.server_programs import HERE, choose_account, run_program, write_as
from tests.ports import free_port

HOST = "127.0.0.1"
_RULES = f"local all all trust\nhost all shut_out {HOST}/32 reject\nhost all all {HOST}/32 scram-sha-256\n"
_MAY_I_ENCRYPT = b"\x00\x00\x00\x08\x04\xd2\x16\x2f"


class ForeignServer:
    """Its superuser logs in over the socket; everybody else with a password over TCP."""

    def __init__(self, folder: Path) -> None:
        self._pgdata = folder / "foreign"
        self._pgdata.mkdir(mode=0o700)
        self._account = choose_account(self._pgdata, source="test")
        self._account.own(self._pgdata)
        self.port = free_port()
        self._run("initdb", f"--pgdata={HERE}", "--username=postgres", "--no-sync", "--no-locale", "--encoding=UTF8")
        write_as(self._account, self._pgdata, "pg_hba.conf", _RULES)

    def start(self) -> None:
        values = f"-c listen_addresses={HOST} -c port={self.port} -c unix_socket_directories={HERE} -c fsync=off"
        self._run("pg_ctl", "start", "--wait", f"--pgdata={HERE}", "--log=start.log", f"--options={values}")

    def stop(self) -> None:
        self._run("pg_ctl", "stop", "--wait", f"--pgdata={HERE}", "--mode=fast")

    def uri(self, role: str, database: str, *, port: int | None = None, password: str = "s3cret", **more: str) -> str:
        query = "&".join(f"{name}={value}" for name, value in more.items())
        return f"postgresql://{role}:{password}@{HOST}:{port or self.port}/{database}?{query}"

    async def administer(self, statements: str, database: str = "postgres") -> None:
        connection = await asyncpg.connect(
            user="postgres", database=database, host=str(self._pgdata), port=self.port, ssl=False
        )
        try:
            for statement in statements.split(";"):
                await connection.execute(statement)
        finally:
            await connection.close()

    def _run(self, program: str, *arguments: str) -> None:
        complaint, _ = run_program(self._account, program, *arguments, folder=self._pgdata)
        assert complaint is None, complaint


@asynccontextmanager
async def behind_tls(server: ForeignServer, identity: ssl.SSLContext) -> AsyncIterator[int]:
    """The port of a relay that encrypts, and refuses whoever does not ask for that."""
    under_way: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        under_way.add(task)
        with suppress(OSError, asyncio.IncompleteReadError):
            if await reader.readexactly(8) == _MAY_I_ENCRYPT:
                writer.write(b"S")
                await writer.start_tls(identity)
                onward, back = await asyncio.open_connection(HOST, server.port)
                await asyncio.gather(_pass_on(reader, back), _pass_on(onward, writer))
        writer.close()
        under_way.discard(task)

    relay = await asyncio.start_server(serve, HOST, 0)
    try:
        yield relay.sockets[0].getsockname()[1]
    finally:
        relay.close()
        for task in under_way:
            task.cancel()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()
