"""JSON as it arrives."""

from __future__ import annotations

import json
from typing import Any


def decoded(source: str | bytes) -> Any:
    """JSON whose every string can be written as UTF-8 again (a lone surrogate cannot)."""
    value = json.loads(source)
    json.dumps(value, ensure_ascii=False).encode()
    return value
