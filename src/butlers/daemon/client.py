"""How the command line talks to a running system: HTTP with the operator's token."""

from __future__ import annotations

import ssl
from types import TracebackType
from typing import Any, Self

import httpx2

from butlers.butler.identity import OPERATOR, TokenFile
from butlers.clock import SystemClock
from butlers.daemon.places import Places
from butlers.daemon.settings import Settings
from butlers.errors import ConfigurationError, TargetUnavailable, from_wire_document
from butlers.http_client import OWN_LIMIT, BoundedClient, reason


class SystemClient:
    def __init__(self, settings: Settings) -> None:
        self._places = Places(settings.data_dir)
        self.description = self._places.running()
        if not self.description:
            raise self._absent("no system is running here", remedy="start one with: butlers up")
        token = TokenFile(self._places.tokens, SystemClock()).secret_of(OPERATOR)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        # Not through a proxy: the system is on this machine, and the token is for it alone. Its doors speak HTTP
        # without TLS, so the machine's certificates, which take 50 ms to read, are not read.
        no_authorities = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._http = BoundedClient(limit=OWN_LIMIT, headers=headers, timeout=30, trust_env=False, verify=no_authorities)

    @property
    def switchboard(self) -> str:
        url: str | None = self.description["doors"].get("switchboard")
        if url is None:
            raise self._absent("switchboard is not running here", remedy="start it with: butlers run switchboard")
        return url

    def get(self, path: str, **parameters: Any) -> dict[str, Any]:
        given = {key: value for key, value in parameters.items() if value is not None}
        return self._answer(lambda: self._http.get(f"{self.switchboard}{path}", params=given))

    def post(self, path: str, body: bytes) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        return self._answer(lambda: self._http.post(f"{self.switchboard}{path}", content=body, headers=headers))

    def health(self, url: str) -> dict[str, Any]:
        """How the butler at this address is, part by part."""
        try:
            answer: dict[str, Any] = self._http.get(f"{url}/readyz", timeout=5).json()
        except (httpx2.HTTPError, ValueError):
            return {"status": "unreachable"}
        return answer

    def _answer(self, call: Any) -> dict[str, Any]:
        try:
            response = call()
            content: dict[str, Any] = response.json()
        except (httpx2.HTTPError, ValueError) as error:
            raise TargetUnavailable(f"{self.switchboard} did not answer ({reason(error)})") from error
        if response.status_code < 400:
            return content
        raise from_wire_document({"message": "failed"} | content.get("error", {}), status=response.status_code)

    def _absent(self, problem: str, *, remedy: str) -> ConfigurationError:
        return ConfigurationError(problem, source="--data-dir", key=str(self._places.root), remedy=remedy)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()
