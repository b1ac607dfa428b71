"""A device that installs firmware with ThingsBoard's own client (PyPI: tb-mqtt-client)."""

import queue
import sys

from tb_device_mqtt import TBDeviceMqttClient, TBFirmwareState

PATIENCE_S = 90


def say(*words):
    print(*words, flush=True)


def main(host, port, token, chunk):
    received = queue.Queue()
    client = TBDeviceMqttClient(host, port, token, chunk_size=chunk)

    def installed(client, data, version):
        client.update_firmware_info(state=TBFirmwareState.UPDATING)
        client.update_firmware_info(
            title=client.firmware_info["fw_title"],
            version=version,
            state=TBFirmwareState.UPDATED,
        )
        received.put((version, len(data)))

    client.set_on_firmware_received_callback(installed)
    client.connect()
    client.get_firmware_update()
    try:
        version, size = received.get(timeout=PATIENCE_S)
    except queue.Empty:
        sys.exit("no firmware")
    say("received", version, size)
    sys.stdin.read()
    client.disconnect()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
    say("done")
