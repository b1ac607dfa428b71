"""Sends a file as the description of EMQX's file transfer says, with paho-mqtt.

Prints the reason codes of the responses, one per line. Every wait has a limit.
"""

import argparse
import hashlib
import json
import queue

import paho.mqtt.client as mqtt

LIMIT_S = 30

parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int)
parser.add_argument("--version", type=int)
parser.add_argument("--id")
parser.add_argument("--mode", choices=["$file", "$file-async"])
parser.add_argument("file")
options = parser.parse_args()

responses = queue.Queue()
client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id=options.id, protocol=options.version)
client.on_message = lambda c, u, message: responses.put(json.loads(message.payload))
subscribed = queue.Queue()
client.on_subscribe = lambda *arguments: subscribed.put(1)
client.connect("127.0.0.1", options.port)
client.loop_start()
client.subscribe(f"$file-response/{options.id}", 1)
subscribed.get(timeout=LIMIT_S)


def step(topic, payload):
    """Publishes one step and waits for its response."""
    topic = f"{options.mode}/f-1/{topic}"
    client.publish(topic, payload, qos=1).wait_for_publish(LIMIT_S)
    response = responses.get(timeout=LIMIT_S)
    assert response["topic"] == topic, response
    print(response["reason_code"])


with open(options.file, "rb") as file:
    content = file.read()
digest = hashlib.sha256(content).hexdigest()
segment = len(content) // 3 + 1
step("init", json.dumps({"name": "paho.bin", "size": len(content), "checksum": digest, "user_data": {"by": "paho"}}))
for offset in range(0, len(content), segment):
    piece = content[offset : offset + segment]
    step(f"{offset}/{hashlib.sha256(piece).hexdigest()}", piece)
step(f"fin/{len(content)}/{digest}", "")
client.disconnect()
client.loop_stop()
