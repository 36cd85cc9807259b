"""Every metric, span and log field.

`catalogue` and `spans` are the contract as data, `telemetry` records, `prometheus` and OTLP export, `logs` writes
structured lines, `redaction` scrubs what other programs wrote.
"""

from butlers.telemetry.logs import Logger, configure_logging, get_logger
from butlers.telemetry.redaction import Redaction
from butlers.telemetry.telemetry import Telemetry

__all__ = ["Logger", "Redaction", "Telemetry", "configure_logging", "get_logger"]
