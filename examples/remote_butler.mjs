// A butler in JavaScript: Node 22, or Node 20 with --experimental-websocket.
//
//     butlers token issue garden --role butler        # prints the token
//     COURIER=ws://127.0.0.1:8787 TOKEN=... node examples/remote_butler.mjs

import { randomUUID } from "node:crypto";

const name = process.env.NAME ?? "garden";
const address = `${process.env.COURIER}/v1/subscribe?stream=agents/${name}/inbox`;
const socket = new WebSocket(address, ["courier.v1", `bearer.${process.env.TOKEN}`]);

const send = (frame) => socket.send(JSON.stringify(frame));
const say = (type, payload, corr = undefined) => {
  const head = { id: randomUUID(), ts: new Date().toISOString(), to: `agents/${name}/outbox` };
  send({ enqueue: { ...head, type, payload, corr } });
};

socket.onopen = () => {
  say("register_butler", {
    name, transport: "courier", endpoint_url: `agents/${name}/inbox`, capabilities: ["route.execute"],
    description: "Plants, watering and the garden", triggers: ["tomatoes", "watering", "garden"],
  });
  send({ credit: 4 });
};

socket.onmessage = ({ data }) => {
  const { deliver: message, lease, error } = JSON.parse(data);
  if (error) console.error(error);
  if (!message) return; // an enqueue was accepted
  if (message.type === "route.v1") {
    const { request_context, input, subrequest } = message.payload;
    const delivery = { intent: "reply", channel: request_context.source_channel, message: `The garden has noted: ${input.prompt}` };
    const idempotency_key = `garden:${subrequest.subrequest_id}`; // a second delivery is no second answer
    say("notify.dispatch", { schema_version: "notify.v1", origin_butler: name, delivery, request_context, idempotency_key });
    const answered = { request_context: { request_id: request_context.request_id }, timing: { duration_ms: 0 } };
    say("route_response.v1", { schema_version: "route_response.v1", status: "ok", result: { noted: true }, ...answered }, message.id);
  }
  send({ ack: message.id, lease, credit: 1 });
};

socket.onclose = ({ code }) => process.exit(code === 1000 ? 0 : 1);
