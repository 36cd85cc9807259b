"""Asks `/healthz` of every door in turn until standard input ends; one JSON line at the end: `python -m ... URL...`.

A process of its own: what else this benchmark does must not make an answer look late.
"""

from __future__ import annotations

import http.client
import json
import select
import sys
import time
from urllib.parse import urlsplit

PAUSE_S = 0.01  # between two questions


def main(urls: list[str]) -> None:
    took_ms: list[float] = []
    failed = 0
    while not select.select([sys.stdin], [], [], PAUSE_S)[0]:
        host = urlsplit(urls[len(took_ms) % len(urls)]).netloc
        connection = http.client.HTTPConnection(host, timeout=60)
        started = time.perf_counter()
        try:
            connection.request("GET", "/healthz")
            failed += connection.getresponse().status != 200
        except OSError:
            failed += 1
        finally:
            connection.close()
        took_ms.append((time.perf_counter() - started) * 1000)
    print(json.dumps({"took_ms": took_ms, "failed": failed}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
