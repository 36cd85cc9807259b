"""HTTP clients that read no more of an answer than they were told to, counted after unpacking.

A few hundred kilobytes of gzip can unfold to more than the memory holds. Both clients here are httpx2's own with one
change: what they read goes through `_Unpacking`, which unpacks piece by piece and stops at the limit. The failure is a
`ReadError`, as for every answer that breaks off: whoever sent a message knows that it left and not what became of it.
"""

from __future__ import annotations

import functools
import ssl
import zlib
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, cast

import httpx2

MEBIBYTE = 2**20
PROVIDER_LIMIT = 16 * MEBIBYTE  # bytes; a hundred of the longest updates of Telegram are a third of it
OWN_LIMIT = 64 * MEBIBYTE  # answers of our own doors, pages of records among them
LONGEST_WAIT_S = 86_400.0  # of a Retry-After that is believed
_PIECE = 65_536
_PACKED = {"gzip": zlib.MAX_WBITS | 16, "x-gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}
_HEADERS = {"Accept-Encoding": "gzip"}


class UnreadableAnswer(httpx2.ReadError):
    """An answer came, and it is too large or packed in a way that we did not ask for."""


def reason(error: Exception) -> str:
    """Why a call failed, in a word or a clause."""
    return str(error) if isinstance(error, UnreadableAnswer) else type(error).__name__


def retry_after(header: str | None, *, now: datetime) -> float | None:
    """Seconds to wait: the header holds seconds or a date. What cannot be read counts as not said."""
    text = (header or "").strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), LONGEST_WAIT_S)
    try:
        moment = parsedate_to_datetime(text)
        wait = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - now
    except (ValueError, TypeError, OverflowError):
        return None
    return min(max(0.0, wait.total_seconds()), LONGEST_WAIT_S)


class BoundedAsyncClient(httpx2.AsyncClient):
    def __init__(self, *, limit: int = PROVIDER_LIMIT, headers: dict[str, str] | None = None, **options: Any) -> None:
        super().__init__(headers=_HEADERS | (headers or {}), **options)
        self._limit = limit

    async def send(self, request: httpx2.Request, *, stream: bool = False, **options: Any) -> httpx2.Response:
        response = await super().send(request, stream=True, **options)
        try:
            response.stream = _AsyncBounded(response, self._limit)
            if not stream:
                await response.aread()
        except BaseException:
            await response.aclose()
            raise
        return response


class BoundedClient(httpx2.Client):
    def __init__(self, *, limit: int = PROVIDER_LIMIT, headers: dict[str, str] | None = None, **options: Any) -> None:
        super().__init__(headers=_HEADERS | (headers or {}), **options)
        self._limit = limit

    def send(self, request: httpx2.Request, *, stream: bool = False, **options: Any) -> httpx2.Response:
        response = super().send(request, stream=True, **options)
        try:
            response.stream = _Bounded(response, self._limit)
            if not stream:
                response.read()
        except BaseException:
            response.close()
            raise
        return response


class _Unpacking:
    """A response's bytes as they come in, unpacked and counted. Takes the encoding off the response: nobody unpacks it
    again.
    """

    def __init__(self, response: httpx2.Response, limit: int) -> None:
        encoding = response.headers.pop("content-encoding", "identity").strip().lower()
        if encoding not in ("", "identity", *_PACKED):
            raise UnreadableAnswer("the answer is packed in a way that was not asked for", request=response.request)
        self._packed = zlib.decompressobj(_PACKED[encoding]) if encoding in _PACKED else None
        self._stream: Any = response.stream
        self._request = response.request
        self._limit = limit
        self._count = 0

    def pieces(self, chunk: bytes) -> Iterator[bytes]:
        for piece in self._unpacked(chunk) if self._packed is not None else (chunk,):
            self._count += len(piece)
            if self._count > self._limit:
                raise UnreadableAnswer(f"the answer is larger than {self._limit} bytes", request=self._request)
            yield piece

    def _unpacked(self, chunk: bytes) -> Iterator[bytes]:
        packed = cast("Any", self._packed)
        try:
            while chunk and not packed.eof:
                yield packed.decompress(chunk, _PIECE)
                chunk = packed.unconsumed_tail
        except zlib.error as error:
            raise UnreadableAnswer("the answer is packed wrongly", request=self._request) from error


class _AsyncBounded(_Unpacking, httpx2.AsyncByteStream):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            for piece in self.pieces(chunk):
                yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


class _Bounded(_Unpacking, httpx2.SyncByteStream):
    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._stream:
            yield from self.pieces(chunk)

    def close(self) -> None:
        self._stream.close()


@functools.cache
def authorities(*, trust_env: bool) -> ssl.SSLContext:
    """Those of the machine; with `trust_env` those that SSL_CERT_FILE or SSL_CERT_DIR name."""
    return httpx2.create_ssl_context(trust_env=trust_env)


@functools.lru_cache(maxsize=8)
def authorities_and(pem: str) -> ssl.SSLContext:
    """Those of the machine, and further ones."""
    context = ssl.create_default_context()
    if pem:
        context.load_verify_locations(cadata=pem)
    return context
