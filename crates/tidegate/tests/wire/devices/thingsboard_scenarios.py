"""What a device, a gateway and a device that registers itself do with ThingsBoard's own client (PyPI: tb-mqtt-client)."""

import json
import queue
import sys
import time

from tb_device_mqtt import TBDeviceMqttClient
from tb_gateway_mqtt import TBGatewayMqttClient

PATIENCE_S = 30


def say(*words):
    print(*words, flush=True)


def wait_for(what, is_so):
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        if time.monotonic() > end:
            sys.exit(f"{what}: not within {PATIENCE_S} s")
        time.sleep(0.02)


def connected(client):
    client.connect()
    wait_for("connected", client.is_connected)
    return client


def first(answers, what):
    try:
        return answers.get(timeout=PATIENCE_S)
    except queue.Empty:
        sys.exit(f"{what}: no answer")


def device(host, port, token):
    client = TBDeviceMqttClient(host, port, token)
    told, answers, calls = queue.Queue(), queue.Queue(), queue.Queue()

    def called(request_id, body):
        client.send_rpc_reply(
            request_id, {"method": body["method"], "pin": body["params"]["pin"]}
        )
        calls.put(body)

    client.set_server_side_rpc_request_handler(called)
    client.subscribe_to_attribute("rate", lambda values, *_: told.put(values))
    connected(client)
    # The client asks this itself; it holds everything back until it is answered.
    wait_for("limits", lambda: client.rate_limits_received)
    sent = [
        client.send_attributes({"firmware": "1.2", "seen": 3}),
        client.send_telemetry({"temperature": 41.5, "mode": "eco"}),
        client.send_telemetry(
            {"ts": int(time.time() * 1000) - 1000, "values": {"temperature": 40.5}}
        ),
    ]
    for info in sent:
        assert info.get() == 0, "it was not sent"
    wait_for_attributes(client, answers)
    client.send_rpc_call("getCurrentTime", {}, lambda _, body, __: answers.put(body))
    now = first(answers, "getCurrentTime")
    assert abs(now - time.time() * 1000) < 60_000, now
    say("ready")
    say("told", json.dumps(first(told, "attributes")))
    first(calls, "call")
    sys.stdin.read()
    client.disconnect()


def wait_for_attributes(client, answers):
    """Attributes are taken in order, but not at once: asked for again until they are there."""
    end = time.monotonic() + PATIENCE_S
    while True:
        client.request_attributes(
            ["firmware", "missing"], ["rate"], lambda values, _: answers.put(values)
        )
        values = first(answers, "attributes")
        if values == {"client": {"firmware": "1.2"}, "shared": {"rate": 5}}:
            return
        if time.monotonic() > end:
            sys.exit(f"attributes: {values}")


def gateway(host, port, token):
    client = TBGatewayMqttClient(host, port, token)
    told, answers, calls = queue.Queue(), queue.Queue(), queue.Queue()

    def called(_, body):
        data = body["data"]
        client.gw_send_rpc_reply(
            body["device"], data["id"], {"done": data["method"]}
        )
        calls.put(body)

    client.gw_set_server_side_rpc_request_handler(called)
    connected(client)
    wait_for("limits", lambda: client.rate_limits_received)
    wait_for("subscriptions", lambda: not client.get_subscriptions_in_progress())
    client.gw_connect_device("behind", "meter")
    client.gw_subscribe_to_attribute(
        "behind", "rate", lambda content: told.put(content)
    )
    client.gw_send_attributes("behind", {"serial": "x9"})
    now = int(time.time() * 1000)
    client.gw_send_telemetry("behind", [{"ts": now - 5, "values": {"t": 1}}])
    client.gw_send_telemetry("behind", {"t": 2}).get()
    say("ready")
    content = first(told, "attributes")
    say("told", content["device"], json.dumps(content["data"]))
    first(calls, "call")
    client.gw_request_shared_attributes(
        "behind", ["rate"], lambda content, _: answers.put(content)
    )
    say("asked", first(answers, "attributes")["value"])
    client.gw_disconnect_device("behind").get()
    sys.stdin.read()
    client.disconnect()


def provision(host, port, secret):
    refused = TBDeviceMqttClient.provision(
        host, "new-meters", "wrong", port, device_name="fresh"
    )
    assert refused is None, refused
    made = TBDeviceMqttClient.provision(
        host, "new-meters", secret, port, device_name="fresh"
    )
    assert made["status"] == "SUCCESS" and made["credentialsType"] == "ACCESS_TOKEN", made
    client = connected(TBDeviceMqttClient(host, port, made["credentialsValue"]))
    assert client.send_telemetry({"t": 1}).get() == 0
    client.claim("mine", 60_000).get()
    say("ready")
    sys.stdin.read()
    client.disconnect()


if __name__ == "__main__":
    scenario, host, port, token = sys.argv[1:]
    {"device": device, "gateway": gateway, "provision": provision}[scenario](
        host, int(port), token
    )
    say("done")
