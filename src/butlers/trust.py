"""Whom TLS connections believe.

The list of authorities is long, and reading it takes longer than everything else that a client does at its start. So it
is read once for each way of reading it, and shared by all clients of the process.
"""

from __future__ import annotations

import functools
import ssl

import httpx2


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
