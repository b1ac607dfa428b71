"""MQTT over QUIC with aioquic, as EMQX documents it: a control stream, and data streams for messages and subscriptions.

    quic_client.py SCENARIO --port PORT --ca FILE --id CLIENT_ID --topic PREFIX --version 4|5

Writes "done" at the end.
"""

import argparse
import asyncio
import ssl
import struct
import sys

from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection

LIMIT_S = 30
CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = 1, 2, 3, 4, 5, 6, 7
SUBSCRIBE, SUBACK, PINGREQ, PINGRESP, DISCONNECT = 8, 9, 12, 13, 14


def text(value):
    value = value.encode()
    return struct.pack(">H", len(value)) + value


def packet(kind, body=b"", flags=0):
    length, size = bytearray(), len(body)
    while True:
        size, digit = size >> 7, size & 0x7F
        length.append(digit | (0x80 if size else 0))
        if not size:
            return bytes([kind << 4 | flags]) + bytes(length) + body


class Stream:
    """A bidirectional stream that carries packets of MQTT."""

    def __init__(self, reader, writer, version):
        self.reader, self.writer, self.version = reader, writer, version
        self.properties = b"\0" if version == 5 else b""

    def send(self, kind, body=b"", flags=0):
        self.writer.write(packet(kind, body, flags))

    async def receive(self):
        return await asyncio.wait_for(self._receive(), LIMIT_S)

    async def _receive(self):
        head = (await self.reader.readexactly(1))[0]
        length = shift = 0
        while True:
            digit = (await self.reader.readexactly(1))[0]
            length |= (digit & 0x7F) << shift
            shift += 7
            if digit < 0x80:
                break
        return head >> 4, head & 15, await self.reader.readexactly(length)

    async def expect(self, kind):
        found, flags, body = await self.receive()
        assert found == kind, f"expected packet type {kind}, not {found}: {body!r}"
        return flags, body

    async def connect(self, client_id):
        body = text("MQTT") + bytes([self.version, 2]) + struct.pack(">H", 60)
        self.send(CONNECT, body + self.properties + text(client_id))
        _, body = await self.expect(CONNACK)
        assert body[1] == 0, f"rejected: {body!r}"

    async def subscribe(self, topic, qos, packet_id=1):
        body = struct.pack(">H", packet_id) + self.properties
        self.send(SUBSCRIBE, body + text(topic) + bytes([qos]), flags=2)
        _, body = await self.expect(SUBACK)
        assert body[:2] == struct.pack(">H", packet_id) and body[-1] == qos, body

    def publish(self, topic, payload, qos=0, packet_id=0):
        identifier = struct.pack(">H", packet_id) if qos else b""
        body = text(topic) + identifier + self.properties + payload
        self.send(PUBLISH, body, flags=qos << 1)

    async def publish_qos1(self, topic, payload, packet_id):
        self.publish(topic, payload, 1, packet_id)
        _, body = await self.expect(PUBACK)
        assert body[:2] == struct.pack(">H", packet_id), body

    def read_message(self, flags, body):
        """Topic and payload; the message is acknowledged."""
        size = struct.unpack(">H", body[:2])[0]
        topic, rest = body[2 : 2 + size].decode(), body[2 + size :]
        qos = flags >> 1 & 3
        if qos:
            identifier, rest = rest[:2], rest[2:]
            self.send(PUBACK if qos == 1 else PUBREC, identifier)
        if self.version == 5:
            # The property "topic alias" and the like are not requested: there are none.
            rest = rest[1 + rest[0] :]
        return topic, rest

    async def message(self):
        return self.read_message(*await self.expect(PUBLISH))


class Client:
    def __init__(self, options):
        configuration = QuicConfiguration(
            is_client=True, alpn_protocols=["mqtt"], server_name="localhost"
        )
        configuration.verify_mode = ssl.CERT_REQUIRED
        configuration.load_verify_locations(options.ca)
        self.connection = QuicConnection(configuration=configuration)
        self.options, self.protocol = options, None

    async def open(self):
        self.protocol = QuicConnectionProtocol(self.connection)
        await self.bind("127.0.0.1")
        self.protocol.connect(("127.0.0.1", self.options.port))
        await asyncio.wait_for(self.protocol.wait_connected(), LIMIT_S)

    async def bind(self, ip):
        """Continues with a new socket at this address; the former one receives nothing any more."""
        former = getattr(self.protocol, "_transport", None)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(
            lambda: self.protocol, local_addr=(ip, 0)
        )
        if former is not None:
            former.abort()
            self.connection.change_connection_id()
        return transport.get_extra_info("sockname")

    async def stream(self):
        """A new stream. It must be written to before the next one is opened: aioquic assigns its number then."""
        reader, writer = await self.protocol.create_stream()
        return Stream(reader, writer, self.options.version)

    async def close(self, control):
        control.send(DISCONNECT)
        await asyncio.sleep(0)
        self.protocol.close()
        await asyncio.wait_for(self.protocol.wait_closed(), LIMIT_S)


async def single(client, topic):
    """Everything over one stream."""
    control = await client.stream()
    await control.connect(client.options.id)
    await control.subscribe(topic, 2)
    payloads = [b"small", bytes(range(256)) * 1200]
    for payload in payloads:
        control.publish(topic, payload)
        assert await control.message() == (topic, payload)
    control.publish(topic, b"one", 1, 7)
    seen = {}
    while len(seen) < 2:
        kind, flags, body = await control.receive()
        assert kind in (PUBACK, PUBLISH), kind
        seen[kind] = control.read_message(flags, body) if kind == PUBLISH else body[:2]
    assert seen == {PUBACK: b"\0\7", PUBLISH: (topic, b"one")}, seen
    control.send(PINGREQ)
    await control.expect(PINGRESP)
    return control


async def streams(client, topic):
    """Subscriptions and messages on data streams, which have packet identifiers of their own."""
    control = await client.stream()
    await control.connect(client.options.id)
    data = []
    for number in range(3):
        data.append(await client.stream())
        await data[number].subscribe(f"{topic}/{number}", 1)
    for number in range(len(data)):
        # To the stream of the next subscription, with the same identifier as its own messages.
        await control.publish_qos1(f"{topic}/{number}", b"from control", 1)
        assert await data[number].message() == (f"{topic}/{number}", b"from control")
    publisher = await client.stream()
    for number, stream in enumerate(data):
        await publisher.publish_qos1(f"{topic}/{number}", b"from data", 1)
        assert await stream.message() == (f"{topic}/{number}", b"from data")
    # The end of a data stream is not the end of the session.
    publisher.writer.write_eof()
    control.send(PINGREQ)
    await control.expect(PINGRESP)
    await control.publish_qos1(f"{topic}/0", b"later", 2)
    assert await data[0].message() == (f"{topic}/0", b"later")
    return control


async def migration(client, topic):
    """The client changes its address while messages are under way; each arrives once and in order."""
    control = await client.stream()
    await control.connect(client.options.id)
    data = await client.stream()
    await data.subscribe(topic, 1)
    sender = await client.stream()
    number = 0
    for ip in ["127.0.0.1", "127.0.0.2", "127.0.0.3"]:
        expected = []
        for half in range(2):
            if half == 1:
                address = await client.bind(ip)
            for _ in range(50):
                number += 1
                expected.append(b"%d" % number)
                sender.publish(topic, expected[-1], 1, number)
        for payload in expected:
            assert await data.message() == (topic, payload)
            _, body = await sender.expect(PUBACK)
            assert body[:2] == struct.pack(">H", int(payload)), body
        print(f"moved to {address[0]}:{address[1]}", flush=True)
    # Until the test has seen the last address.
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    control.send(PINGREQ)
    await control.expect(PINGRESP)
    return control


async def main():
    scenarios = {"single": single, "streams": streams, "migration": migration}
    parser = argparse.ArgumentParser()
    parser.add_argument("scenario", choices=scenarios)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--ca", required=True)
    parser.add_argument("--id", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--version", type=int, default=5)
    options = parser.parse_args()
    client = Client(options)
    await client.open()
    control = await scenarios[options.scenario](client, options.topic)
    await client.close(control)
    print("done", flush=True)


asyncio.run(main())
