"""A program for ThingsBoard's REST API, written with its own client (PyPI: tb-rest-client): it manages a device."""

import json
import sys
import time

from tb_rest_client.models import (
    Device,
    DeviceCredentials,
    DeviceCredentialsType,
)
from tb_rest_client.rest import ApiException
from tb_rest_client.rest_client import RestClient


def expect(what, found, wanted):
    if found != wanted:
        sys.exit(f"{what}: expected {wanted!r}, found {found!r}")


def refused(what, status, request):
    try:
        request()
    except ApiException as error:
        expect(what, error.status, status)
    else:
        sys.exit(f"{what}: expected status {status}, but it succeeded")


def manage(url, username, password):
    client = RestClient(base_url=url)
    client.login(username, password)
    expect("authority", str(client.get_user().authority), "TENANT_ADMIN")

    device = client.save_device(Device(name="Device A", type="meter"), access_token="a-token-of-device-A")
    expect("name", (device.name, device.type), ("Device A", "meter"))
    found = client.get_tenant_device("Device A")
    expect("by name", found.id.id, device.id.id)
    expect("by id", client.get_device_by_id(device.id).name, "Device A")
    refused("second", 409, lambda: client.save_device(Device(name="Device A", type="meter")))
    page = client.get_tenant_devices(page_size=10, page=0)
    expect("page", ([one.name for one in page.data], page.has_next), (["Device A"], False))
    expect("types", [one.type for one in client.get_device_types()], ["meter"])

    credentials = client.get_device_credentials_by_device_id(device.id)
    expect("credentials", str(credentials.credentials_type), "ACCESS_TOKEN")
    expect("secret", credentials.credentials_id, "")
    credentials = DeviceCredentials(
        device_id=device.id, credentials_type="ACCESS_TOKEN", credentials_id="another-token-of-A"
    )
    client.update_device_credentials(credentials)

    client.save_device_attributes(device.id, "SERVER_SCOPE", {"floor": 2, "hall": "east"})
    client.save_entity_attributes_v2(device.id, "SHARED_SCOPE", {"rate": 10})
    values = client.get_attributes_by_scope(device.id, "SERVER_SCOPE")
    expect("attributes", sorted(one.key for one in values), ["floor", "hall"])
    client.delete_entity_attributes(device.id, "SERVER_SCOPE", keys="hall")
    expect("keys", sorted(client.get_attribute_keys(device.id)), ["floor", "rate"])

    now = int(time.time() * 1000) // 1000 * 1000
    for ts, value in [(now - 2000, 20), (now - 1000, 21), (now, 22)]:
        client.save_entity_telemetry(device.id, "ANY", {"ts": ts, "values": {"t": value}})
    latest = client.get_latest_timeseries(device.id, keys="t", use_strict_data_types=True)
    expect("latest", [one["value"] for one in plain(latest)["t"]], [22])
    history = client.get_timeseries(
        device.id, keys="t", start_ts=now - 2000, end_ts=now + 1, limit=10, use_strict_data_types=True
    )
    expect("history", [one["value"] for one in plain(history)["t"]], [22, 21, 20])
    counts = client.get_timeseries(
        device.id, keys="t", start_ts=now - 2000, end_ts=now + 1000, interval=1000, agg="COUNT"
    )
    times = [one["ts"] for one in plain(counts)["t"]]
    expect("ascending", times, sorted(times))
    months = client.get_timeseries(
        device.id,
        keys="t",
        start_ts=now - 60 * 86_400_000,
        end_ts=now + 1,
        interval_type="MONTH",
        time_zone="Europe/Kyiv",
        agg="MAX",
        use_strict_data_types=True,
    )
    expect("months", plain(months)["t"][-1]["value"], 22)
    # From a Saturday of the weeks before: a WEEK begins on the Sunday, a WEEK_ISO on the Monday. Day 2 of Unix time is a Saturday.
    day = 86_400_000
    saturday = now // day * day - (7 + (now // day - 2) % 7) * day
    for days in range(4):
        client.save_entity_telemetry(device.id, "ANY", {"ts": saturday + days * day, "values": {"d": days}})
    for interval_type, wanted in [
        ("WEEK", [(saturday - 6 * day, 1), (saturday + day, 3)]),
        ("WEEK_ISO", [(saturday - 5 * day, 2), (saturday + 2 * day, 2)]),
    ]:
        weeks = client.get_timeseries(
            device.id,
            keys="d",
            start_ts=saturday,
            end_ts=saturday + 4 * day,
            interval_type=interval_type,
            agg="COUNT",
            use_strict_data_types=True,
        )
        found = [(one["ts"], one["value"]) for one in plain(weeks)["d"]]
        expect(interval_type, found, wanted)
    client.delete_entity_timeseries(device.id, keys="t,d", delete_all_data_for_keys=True)
    expect("deleted", client.get_timeseries_keys_v1(device.id), [])

    call = {"method": "restart", "params": {}, "timeout": 5000}
    refused("first API", 409, lambda: client.handle_two_way_device_rpc_request(device.id, call))
    refused("second API", 504, lambda: client.handle_two_way_device_rpc_request_v1(device.id, call))
    kept = {"method": "restart", "params": {}, "persistent": True}
    taken = plain(client.handle_two_way_device_rpc_request(device.id, kept))
    listed = plain(client.get_persisted_rpc_by_device(device.id, page_size=10, page=0, rpc_status="QUEUED"))
    expect("kept", [one["id"]["id"] for one in listed["data"]], [taken["rpcId"]])

    client.save_entity_telemetry(device.id, "ANY", {"hot": True})
    alarms = client.get_alarms(device.id, page_size=10, page=0, search_status="ACTIVE").data
    expect("alarms", [(one.type, str(one.severity)) for one in alarms], [("overheated", "MAJOR")])
    expect("acknowledged", client.ack_alarm(alarms[0].id).acknowledged, True)
    expect("cleared", client.clear_alarm(alarms[0].id).cleared, True)
    expect("active", client.get_all_alarms(page_size=10, page=0, search_status="ACTIVE").data, [])

    # A type that is not known becomes a product, once.
    for name in ["Device B", "Device C"]:
        one = client.save_device(Device(name=name, type="water meter"))
        expect("device of a new type", client.get_device_by_id(one.id).type, one.type)
    expect("types", len(client.get_device_types()), 2)
    expect("by type", client.get_tenant_devices(page_size=10, page=0, type=one.type).total_elements, 2)

    client.delete_device(device.id)
    refused("gone", 404, lambda: client.get_tenant_device("Device A"))
    client.logout()
    client.stop()
    print("done", flush=True)


def plain(answer):
    """What the client leaves as models, as JSON."""
    if hasattr(answer, "data") and isinstance(answer.data, (bytes, str)):
        return json.loads(answer.data)
    if isinstance(answer, dict):
        return {key: plain(value) for key, value in answer.items()}
    if isinstance(answer, list):
        return [plain(value) for value in answer]
    return answer.to_dict() if hasattr(answer, "to_dict") else answer


manage(*sys.argv[1:])
