"""The frames of the gateway's WebSockets as an AsyncAPI document, made of the models that check them."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import models_json_schema

from butlers import __version__
from butlers.courier.access import SUBPROTOCOL
from butlers.courier.frames import ClientFrame, Deliver, Deliveries, EnqueuedFrame, ErrorFrame

_REF = "#/components/schemas/{model}"
CLOSE_CODES = {
    1003: "a binary frame on a socket that speaks JSON",
    1007: "a frame that is not valid MessagePack",
    1008: "a wrong token or scope, or too many wrong frames",
    1009: "a frame over gateway.maxMessageBytes",
    1011: "the gateway failed",
}


def document() -> dict[str, Any]:
    frames = (ClientFrame, Deliver, Deliveries, EnqueuedFrame, ErrorFrame)
    _, schemas = models_json_schema([(frame, "validation") for frame in frames], ref_template=_REF)
    codes = "; ".join(f"{code}: {meaning}" for code, meaning in CLOSE_CODES.items())
    return {
        "asyncapi": "3.0.0",
        "info": {"title": "butlers courier", "version": __version__, "description": f"Close codes. {codes}."},
        "channels": {
            "subscribe": {
                "address": "/v1/subscribe",
                "description": f"Query: stream, group, format (json, msgpack), batch (0, 1). Protocol: {SUBPROTOCOL}.",
                "messages": {frame.__name__: {"$ref": f"#/components/messages/{frame.__name__}"} for frame in frames},
            }
        },
        "operations": {
            "clientSays": _operation("receive", ClientFrame),
            "gatewaySays": _operation("send", Deliver, Deliveries, EnqueuedFrame, ErrorFrame),
        },
        "components": {
            "messages": {
                frame.__name__: {
                    "summary": (frame.__doc__ or "").strip().partition("\n")[0],
                    "payload": {"$ref": _REF.format(model=frame.__name__)},
                }
                for frame in frames
            },
            "schemas": schemas["$defs"],
        },
    }


def _operation(action: str, *frames: type) -> dict[str, Any]:
    channel = "#/channels/subscribe"
    messages = [{"$ref": f"{channel}/messages/{frame.__name__}"} for frame in frames]
    return {"action": action, "channel": {"$ref": channel}, "messages": messages}
