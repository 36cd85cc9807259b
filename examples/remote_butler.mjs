// A butler in JavaScript: Node 22, or Node 20 with --experimental-websocket.
//
//     butlers token issue garden --role butler        # prints the token
//     COURIER=ws://127.0.0.1:8787 TOKEN=... node --experimental-websocket examples/remote_butler.mjs

import { randomUUID } from "node:crypto";

const name = process.env.NAME ?? "garden";
const address = `${process.env.COURIER}/v1/subscribe?stream=agents/${name}/inbox`;
const card = {
  name, transport: "courier", endpoint_url: `agents/${name}/inbox`, capabilities: ["route.execute"],
  description: "Plants and the garden", triggers: ["tomatoes", "watering", "garden"],
};

function attach() {
  const socket = new WebSocket(address, ["courier.v1", `bearer.${process.env.TOKEN}`]);
  const send = (frame) => socket.send(JSON.stringify(frame));
  const say = (type, payload, corr = undefined) => {
    const head = { id: randomUUID(), ts: new Date().toISOString(), to: `agents/${name}/outbox` };
    send({ enqueue: { ...head, type, payload, corr } });
  };
  const work = (id, { request_context, input, subrequest }) => {
    const message = `The garden has noted: ${input.prompt}`;
    const delivery = { intent: "reply", channel: request_context.source_channel, message };
    const notify = { schema_version: "notify.v1", origin_butler: name, delivery, request_context };
    say("notify.dispatch", { ...notify, idempotency_key: subrequest.subrequest_id });
    const done = { schema_version: "route_response.v1", status: "ok", timing: { duration_ms: 0 } };
    say("route_response.v1", { ...done, request_context: { request_id: request_context.request_id } }, id);
  };
  socket.onopen = () => { say("register_butler", card); send({ credit: 4 }); };
  socket.onmessage = ({ data }) => {
    const { deliver: message, lease, error } = JSON.parse(data);
    if (error) console.error("refused:", error);
    if (!message) return;
    if (message.type === "route.v1") work(message.id, message.payload);
    else console.log(message.type, JSON.stringify(message.payload));
    send({ ack: message.id, lease, credit: 1 });
  };
  socket.onclose = () => setTimeout(attach, 1000); // the system restarts: attach again
}

attach();
