"""What paho-mqtt must be able to do with a node: one function per scenario, chosen on the command line.

Prints "done" and exits 0, or raises. Every wait has a limit.
"""

import argparse
import queue
import ssl
import sys
import time

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

LIMIT_S = 30
MQTTv5 = mqtt.MQTTv5


class Peer:
    """A client with its own network thread; everything that happens to it goes into one queue."""

    def __init__(self, options, client_id, clean=True, expiry_s=0, will=None, connect_properties=None):
        self.options = options
        self.v5 = options.version == MQTTv5
        self.events = queue.Queue()
        arguments = {} if self.v5 else {"clean_session": clean}
        self.client = mqtt.Client(
            mqtt.CallbackAPIVersion.VERSION2,
            client_id=client_id,
            protocol=options.version,
            transport="websockets" if options.websocket else "tcp",
            reconnect_on_failure=False,
            **arguments,
        )
        if options.websocket:
            self.client.ws_set_options(path=options.websocket)
        if options.ca:
            self.client.tls_set(ca_certs=options.ca, tls_version=ssl.PROTOCOL_TLS_CLIENT)
        if will:
            self.client.will_set(**will)
        put = self.events.put
        self.client.on_connect = lambda c, u, flags, code, properties: put(("connect", flags, code, properties))
        self.client.on_disconnect = lambda c, u, flags, code, properties: put(("disconnect", code, properties))
        self.client.on_message = lambda c, u, message: put(("message", message))
        self.client.on_publish = lambda c, u, mid, code, properties: put(("published", mid, code))
        self.client.on_subscribe = lambda c, u, mid, codes, properties: put(("subscribed", mid, codes))
        self.client.on_unsubscribe = lambda c, u, mid, codes, properties: put(("unsubscribed", mid, codes))
        arguments = {}
        if self.v5:
            properties = connect_properties or Properties(PacketTypes.CONNECT)
            if expiry_s:
                properties.SessionExpiryInterval = expiry_s
            arguments = {"clean_start": clean, "properties": properties}
        self.client.connect(options.host, options.port, keepalive=60, **arguments)
        self.client.loop_start()
        _, self.flags, code, self.properties = self.wait("connect")
        assert not code.is_failure, f"refused: {code}"

    def wait(self, kind):
        """The next event of this kind; what comes in between must be harmless."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            try:
                event = self.events.get(timeout=max(0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no {kind} within {LIMIT_S} s") from None
            if event[0] == kind:
                return event
            assert event[0] != "disconnect", f"disconnected while waiting for {kind}: {event}"
            assert event[0] in ("published", "subscribed", "unsubscribed"), f"{event} while waiting for {kind}"

    def subscribe(self, topic, qos=0, options=None, properties=None):
        if self.v5:
            result, mid = self.client.subscribe(
                topic, options=options or SubscribeOptions(qos=qos), properties=properties
            )
        else:
            result, mid = self.client.subscribe(topic, qos)
        assert result == mqtt.MQTT_ERR_SUCCESS
        _, answered, codes = self.wait("subscribed")
        assert answered == mid and len(codes) == 1 and not codes[0].is_failure, codes
        return codes[0]

    def publish(self, topic, payload, qos=0, retain=False, properties=None):
        info = self.client.publish(topic, payload, qos=qos, retain=retain, properties=properties)
        info.wait_for_publish(LIMIT_S)
        assert info.is_published(), f"{topic} at QoS {qos} was not acknowledged"

    def message(self):
        return self.wait("message")[1]

    def close(self):
        """Says goodbye; what has arrived and was not looked at does not matter."""
        self.client.disconnect()
        while self.events.get(timeout=LIMIT_S)[0] != "disconnect":
            pass
        self.client.loop_stop()

    def cut(self):
        """Breaks the connection without a DISCONNECT."""
        self.client.loop_stop()
        self.client._sock_close()


def exchange(options):
    """Every QoS, in order, with empty, binary and large payloads."""
    for qos in (0, 1, 2):
        topic = f"{options.topic}/exchange/{qos}"
        receiver = Peer(options, f"{options.id}r{qos}")
        receiver.subscribe(f"{options.topic}/exchange/+", qos)
        sender = Peer(options, f"{options.id}s{qos}")
        payloads = [str(i).encode() for i in range(50)]
        payloads += [b"", bytes(range(256)) * 4, b"x" * 200_000]
        for payload in payloads:
            sender.client.publish(topic, payload, qos=qos)
        for payload in payloads:
            message = receiver.message()
            assert message.topic == topic and message.qos == qos and not message.retain
            assert message.payload == payload, (message.payload[:40], payload[:40])
        sender.close()
        receiver.client.unsubscribe(f"{options.topic}/exchange/+")
        receiver.wait("unsubscribed")
        receiver.close()


def flood(options):
    """More messages at QoS 2 than either side may have in flight."""
    topic = f"{options.topic}/flood"
    receiver = Peer(options, f"{options.id}r")
    receiver.subscribe(topic, 2)
    sender = Peer(options, f"{options.id}s")
    count = 2_000
    for i in range(count):
        sender.client.publish(topic, str(i), qos=2)
    for i in range(count):
        got = int(receiver.message().payload)
        assert got == i, f"{got} instead of {i}"
    sender.close()
    receiver.close()


def retained(options):
    topic = f"{options.topic}/retained"
    sender = Peer(options, f"{options.id}s")
    sender.publish(topic, "kept", qos=1, retain=True)
    receiver = Peer(options, f"{options.id}r")
    receiver.subscribe(f"{options.topic}/#", 1)
    message = receiver.message()
    assert (message.topic, message.payload, message.retain) == (topic, b"kept", True)
    sender.publish(topic, "live", qos=1, retain=True)
    message = receiver.message()
    assert (message.payload, message.retain) == (b"live", False)
    sender.publish(topic, "", qos=1, retain=True)
    assert receiver.message().payload == b""
    late = Peer(options, f"{options.id}l")
    late.subscribe(f"{options.topic}/#", 1)
    sender.publish(topic, "after", qos=1)
    message = late.message()
    assert (message.payload, message.retain) == (b"after", False)
    for peer in (sender, receiver, late):
        peer.close()


def will(options):
    topic = f"{options.topic}/will"
    watcher = Peer(options, f"{options.id}w")
    watcher.subscribe(topic, 2)
    doomed = Peer(options, f"{options.id}d", will={"topic": topic, "payload": b"gone", "qos": 2})
    doomed.cut()
    message = watcher.message()
    assert (message.payload, message.qos) == (b"gone", 2)
    polite = Peer(options, f"{options.id}p", will={"topic": topic, "payload": b"never", "qos": 2})
    polite.close()
    watcher.publish(topic, "next", qos=1)
    assert watcher.message().payload == b"next"
    watcher.close()


def session(options):
    """What arrives while a session is away waits for it, in order."""
    topic = f"{options.topic}/session"
    first = Peer(options, f"{options.id}r", clean=False, expiry_s=600)
    assert not first.flags.session_present
    first.subscribe(topic, 2)
    first.close()
    sender = Peer(options, f"{options.id}s")
    for i in range(20):
        sender.publish(topic, str(i), qos=1 + i % 2)
    again = Peer(options, f"{options.id}r", clean=False, expiry_s=600)
    # MQTT 3.1 has no such flag.
    assert again.flags.session_present or options.version == 3
    # paho hands a message of QoS 2 over when its PUBREL comes, hence behind later ones of QoS 1.
    got = [again.message() for _ in range(20)]
    for qos in (1, 2):
        numbers = [int(message.payload) for message in got if message.qos == qos]
        assert numbers == list(range(qos - 1, 20, 2)), numbers
    again.close()
    fresh = Peer(options, f"{options.id}r", clean=True)
    assert not fresh.flags.session_present
    fresh.close()
    sender.close()


def shared(options):
    """Two members of a group and one subscriber beside it."""
    topic = f"{options.topic}/shared"
    members = [Peer(options, f"{options.id}m{i}") for i in range(2)]
    for member in members:
        member.subscribe(f"$share/group/{topic}", 1)
    beside = Peer(options, f"{options.id}b")
    beside.subscribe(topic, 1)
    sender = Peer(options, f"{options.id}s")
    count = 40
    for i in range(count):
        sender.publish(topic, str(i), qos=1)
    for i in range(count):
        assert int(beside.message().payload) == i
    got = sorted(int(member.message().payload) for member in members for _ in range(count // 2))
    assert got == list(range(count)), got
    for peer in [*members, beside, sender]:
        peer.close()


def takeover(options):
    """A second connection with the same client id ends the first."""
    first = Peer(options, f"{options.id}t")
    second = Peer(options, f"{options.id}t")
    _, code, _ = first.wait("disconnect")
    if second.v5:
        assert code.value == 0x8E, code
    first.client.loop_stop()
    second.publish(f"{options.topic}/takeover", "still here", qos=1)
    second.close()


def properties(options):
    """MQTT 5: what a publisher says about a message reaches the subscriber."""
    topic = f"{options.topic}/properties"
    receiver = Peer(options, f"{options.id}r")
    identifier = Properties(PacketTypes.SUBSCRIBE)
    identifier.SubscriptionIdentifier = 268_435_455
    receiver.subscribe(topic, options=SubscribeOptions(qos=1), properties=identifier)
    sender = Peer(options, "")
    assert sender.properties.AssignedClientIdentifier
    said = Properties(PacketTypes.PUBLISH)
    said.PayloadFormatIndicator = 1
    said.MessageExpiryInterval = 1000
    said.ContentType = "application/json"
    said.ResponseTopic = f"{options.topic}/answers"
    said.CorrelationData = b"\x00\x01\xff"
    said.UserProperty = [("a", "1"), ("a", "2"), ("", "")]
    said.TopicAlias = 1
    sender.publish(topic, "{}", qos=1, properties=said)
    alias = Properties(PacketTypes.PUBLISH)
    alias.TopicAlias = 1
    sender.publish("", "by alias", qos=1, properties=alias)

    message = receiver.message()
    got = message.properties
    assert got.PayloadFormatIndicator == 1
    assert 990 <= got.MessageExpiryInterval <= 1000
    assert got.ContentType == "application/json"
    assert got.ResponseTopic == f"{options.topic}/answers"
    assert got.CorrelationData == b"\x00\x01\xff"
    assert got.UserProperty == [("a", "1"), ("a", "2"), ("", "")]
    assert got.SubscriptionIdentifier == [268_435_455]
    message = receiver.message()
    assert (message.topic, message.payload) == (topic, b"by alias")
    sender.close()
    receiver.close()


def options5(options):
    """MQTT 5: no local, retain as published, retain handling."""
    topic = f"{options.topic}/options"
    alone = Peer(options, f"{options.id}a")
    alone.subscribe(topic, options=SubscribeOptions(qos=1, noLocal=True))
    kept = Peer(options, f"{options.id}k")
    kept.subscribe(topic, options=SubscribeOptions(qos=1, retainAsPublished=True))
    alone.publish(topic, "own", qos=1, retain=True)
    message = kept.message()
    assert (message.payload, message.retain) == (b"own", True)
    late = Peer(options, f"{options.id}l")
    late.subscribe(topic, options=SubscribeOptions(qos=1, retainHandling=SubscribeOptions.RETAIN_DO_NOT_SEND))
    kept.publish(topic, "", qos=1, retain=True)
    assert alone.message().payload == b""
    assert late.message().payload == b""
    for peer in (alone, kept, late):
        peer.close()


def aliases(options):
    """MQTT 5: the node may use aliases towards a client that allows them."""
    allow = Properties(PacketTypes.CONNECT)
    allow.TopicAliasMaximum = 10
    allow.ReceiveMaximum = 3
    allow.MaximumPacketSize = 1_000
    receiver = Peer(options, f"{options.id}r", connect_properties=allow)
    receiver.subscribe(f"{options.topic}/aliases/#", 1)
    sender = Peer(options, f"{options.id}s")
    sender.publish(f"{options.topic}/aliases/large", b"x" * 2_000, qos=1)
    for i in range(60):
        sender.publish(f"{options.topic}/aliases/{i % 20}", str(i), qos=1)
    for i in range(60):
        # paho leaves aliases of the server to the application: the topic is empty when one stands for it.
        message = receiver.message()
        assert message.topic in ("", f"{options.topic}/aliases/{i % 20}"), message.topic
        assert int(message.payload) == i
    sender.close()
    receiver.close()


SCENARIOS = {
    function.__name__: function
    for function in (
        exchange, flood, retained, will, session, shared, takeover, properties, options5, aliases,
    )
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("scenario", choices=SCENARIOS)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--version", type=int, choices=(3, 4, 5), required=True)
    parser.add_argument("--topic", required=True, help="prefix for topics")
    parser.add_argument("--id", required=True, help="prefix for client ids")
    parser.add_argument("--ca")
    parser.add_argument("--websocket", help="path")
    options = parser.parse_args()
    SCENARIOS[options.scenario](options)
    print("done")


if __name__ == "__main__":
    sys.exit(main())
