// What mqtt.js must be able to do with a node: one function per scenario, chosen on the command line:
//   node mqtt_js_scenarios.mjs SCENARIO URL VERSION TOPIC_PREFIX CLIENT_ID_PREFIX [CA_FILE]
// Prints "done" and exits 0, or fails. Every wait has a limit.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";

const require = createRequire(path.join(process.env.TIDEGATE_TEST_NODE_MODULES, "anchor.js"));
const mqtt = require("mqtt");

const LIMIT_MS = 30_000;
const [scenario, url, version, topicPrefix, idPrefix, caFile] = process.argv.slice(2);
const v5 = version === "5";

/** A connected client whose messages and disconnects wait in queues. */
class Peer {
  static async connect(id, options = {}) {
    const client = mqtt.connect(url, {
      clientId: idPrefix + id,
      protocolVersion: Number(version),
      protocolId: version === "3" ? "MQIsdp" : "MQTT",
      reconnectPeriod: 0,
      ca: caFile ? readFileSync(caFile) : undefined,
      ...options,
    });
    const peer = new Peer();
    peer.client = client;
    peer.queues = { message: [], disconnect: [], close: [] };
    peer.waiting = { message: [], disconnect: [], close: [] };
    client.on("message", (topic, payload, packet) => peer.arrived("message", { topic, payload, packet }));
    client.on("disconnect", (packet) => peer.arrived("disconnect", packet));
    client.on("close", () => peer.arrived("close", true));
    peer.connack = await limited("connect", (resolve, reject) => {
      client.once("connect", resolve);
      client.once("error", reject);
    });
    client.on("error", (error) => fail(error));
    return peer;
  }

  arrived(kind, what) {
    const next = this.waiting[kind].shift();
    if (next) next(what);
    else this.queues[kind].push(what);
  }

  next(kind) {
    if (this.queues[kind].length > 0) return Promise.resolve(this.queues[kind].shift());
    return limited(kind, (resolve) => this.waiting[kind].push(resolve));
  }

  message() {
    return this.next("message");
  }

  async subscribe(topic, options) {
    const granted = await this.client.subscribeAsync(topic, options);
    assert.equal(granted.length, 1);
    assert.ok(granted[0].qos < 128, `refused: ${granted[0].qos}`);
  }

  publish(topic, payload, options) {
    return this.client.publishAsync(topic, payload, options);
  }

  async close() {
    await this.client.endAsync();
  }

  /** Breaks the connection without a DISCONNECT. */
  cut() {
    this.client.stream.destroy();
  }
}

function limited(what, executor) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`no ${what} within ${LIMIT_MS} ms`)), LIMIT_MS);
    const clear = (settle) => (value) => {
      clearTimeout(timer);
      settle(value);
    };
    executor(clear(resolve), clear(reject));
  });
}

function fail(error) {
  console.error(error);
  process.exit(1);
}

const scenarios = {
  /** Every QoS, in order, with empty, binary and large payloads. */
  async exchange() {
    for (const qos of [0, 1, 2]) {
      const topic = `${topicPrefix}/exchange/${qos}`;
      const receiver = await Peer.connect(`r${qos}`);
      await receiver.subscribe(`${topicPrefix}/exchange/+`, { qos });
      const sender = await Peer.connect(`s${qos}`);
      const payloads = Array.from({ length: 50 }, (_, i) => Buffer.from(String(i)));
      payloads.push(Buffer.alloc(0), Buffer.from(Uint8Array.from({ length: 256 }, (_, i) => i)));
      payloads.push(Buffer.alloc(200_000, "x"));
      for (const payload of payloads) sender.client.publish(topic, payload, { qos });
      for (const payload of payloads) {
        const message = await receiver.message();
        assert.equal(message.topic, topic);
        assert.equal(message.packet.qos, qos);
        assert.ok(message.payload.equals(payload), `QoS ${qos}: "${message.payload.subarray(0, 40)}" instead of "${payload.subarray(0, 40)}"`);
      }
      await receiver.client.unsubscribeAsync(`${topicPrefix}/exchange/+`);
      await sender.close();
      await receiver.close();
    }
  },

  async retained() {
    const topic = `${topicPrefix}/retained`;
    const sender = await Peer.connect("s");
    await sender.publish(topic, "kept", { qos: 1, retain: true });
    const receiver = await Peer.connect("r");
    await receiver.subscribe(`${topicPrefix}/+`, { qos: 1 });
    const message = await receiver.message();
    assert.equal(message.payload.toString(), "kept");
    assert.equal(message.packet.retain, true);
    await sender.publish(topic, "", { qos: 1, retain: true });
    await sender.close();
    await receiver.close();
  },

  async will() {
    const topic = `${topicPrefix}/will`;
    const watcher = await Peer.connect("w");
    await watcher.subscribe(topic, { qos: 1 });
    const doomed = await Peer.connect("d", { will: { topic, payload: Buffer.from("gone"), qos: 1 } });
    doomed.cut();
    const message = await watcher.message();
    assert.equal(message.payload.toString(), "gone");
    await watcher.close();
  },

  /** What arrives while a session is away waits for it, in order. */
  async session() {
    const topic = `${topicPrefix}/session`;
    const lasting = { clean: false, ...(v5 && { properties: { sessionExpiryInterval: 600 } }) };
    const first = await Peer.connect("r", lasting);
    assert.equal(first.connack.sessionPresent, false);
    await first.subscribe(topic, { qos: 2 });
    await first.close();
    const sender = await Peer.connect("s");
    for (let i = 0; i < 20; i++) await sender.publish(topic, String(i), { qos: 1 + (i % 2) });
    const again = await Peer.connect("r", lasting);
    // MQTT 3.1 has no such flag.
    if (version !== "3") assert.equal(again.connack.sessionPresent, true);
    // A message of QoS 2 is handed over when its PUBREL comes, hence behind later ones of QoS 1.
    const got = { 1: [], 2: [] };
    for (let i = 0; i < 20; i++) {
      const { payload, packet } = await again.message();
      got[packet.qos].push(Number(payload.toString()));
    }
    assert.deepEqual(got[1], Array.from({ length: 10 }, (_, i) => 2 * i));
    assert.deepEqual(got[2], Array.from({ length: 10 }, (_, i) => 2 * i + 1));
    await again.close();
    await sender.close();
  },

  /** MQTT 5: properties, aliases, identifiers, the reason of a takeover. */
  async properties() {
    const topic = `${topicPrefix}/properties`;
    const receiver = await Peer.connect("r", {
      properties: { topicAliasMaximum: 5, receiveMaximum: 10, requestResponseInformation: true },
    });
    // At QoS 2 mqtt.js hands a message over with the topic as it came, empty if an alias stands for it.
    await receiver.subscribe(topic, { qos: 1, properties: { subscriptionIdentifier: 7 } });
    const sender = await Peer.connect("s", { autoUseTopicAlias: true, autoAssignTopicAlias: true });
    const said = {
      payloadFormatIndicator: true,
      messageExpiryInterval: 1000,
      contentType: "text/plain",
      responseTopic: `${topicPrefix}/answers`,
      correlationData: Buffer.from([0, 1, 255]),
      userProperties: { a: ["1", "2"], b: "3" },
    };
    for (let i = 0; i < 10; i++) {
      await sender.publish(topic, String(i), { qos: 2, properties: { ...said } });
      const { topic: got, payload, packet } = await receiver.message();
      assert.equal(got, topic);
      assert.equal(payload.toString(), String(i));
      const { properties } = packet;
      assert.equal(properties.payloadFormatIndicator, true);
      assert.ok(properties.messageExpiryInterval <= 1000 && properties.messageExpiryInterval >= 990);
      assert.equal(properties.contentType, said.contentType);
      assert.equal(properties.responseTopic, said.responseTopic);
      assert.ok(properties.correlationData.equals(said.correlationData));
      assert.deepEqual({ ...properties.userProperties }, said.userProperties);
      assert.equal(properties.subscriptionIdentifier, 7);
    }
    const usurper = await Peer.connect("r");
    const goodbye = await receiver.next("disconnect");
    assert.equal(goodbye.reasonCode, 0x8e);
    await usurper.close();
    await sender.close();
  },
};

process.on("unhandledRejection", fail);
try {
  await scenarios[scenario]();
} catch (error) {
  fail(error);
}
console.log("done");
process.exit(0);
