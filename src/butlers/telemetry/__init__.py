"""Every metric, span and log field.

`catalogue` and `spans` are the contract as data, `telemetry` records, `prometheus` and OTLP export, `logs` writes
structured lines, `redaction` scrubs what other programs wrote. `telemetry` is imported by its full name: it brings
OpenTelemetry along, which a short command does not need.
"""

from butlers.telemetry.logs import Logger, configure_logging, get_logger
from butlers.telemetry.redaction import Redaction

__all__ = ["Logger", "Redaction", "configure_logging", "get_logger"]
