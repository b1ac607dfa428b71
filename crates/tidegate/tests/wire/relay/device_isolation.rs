//! Isolation of devices with random endpoints of several namespaces and equal device ids everywhere: data, attributes, commands and
//! alerts concern the device of one endpoint, and operators see the devices of their namespace only.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use wall_clock::now_ms;

use super::{RelayClient, ask};
use crate::api::{own_node, send};
use crate::support::{Node, Random, eventually};

const NAMESPACES: usize = 2;
/// Endpoints of each namespace. All use the product of their namespace, but the last one.
const ENDPOINTS: usize = 3;
const DEVICES: usize = 2;
const STEPS: usize = 250;
/// Values above this raise the alarm.
const ALARM_FROM: u64 = 1000;

fn namespace(number: usize) -> String {
    format!("ns-{number}")
}

/// A connection of a device, with what its device should have.
struct Member {
    client: RelayClient,
    namespace: usize,
    endpoint: usize,
    device: String,
    /// The id in the API.
    id: String,
    /// Alarms that it should be told of, and those that it was.
    expected_alerts: BTreeSet<String>,
    alerts: BTreeSet<String>,
}

/// What a device has, by its id in the API.
#[derive(Default)]
struct DeviceState {
    values: Vec<u64>,
    attribute: Option<u64>,
}

fn create(node: &Node, path: &str, object: Value) {
    let (status, answer) = ask(node, "PUT", path, object);
    assert_eq!(status, 201, "{path}: {answer}");
}

fn endpoint_id(namespace: usize, endpoint: usize) -> String {
    format!("room-{namespace}-{endpoint}")
}

/// Each namespace has a product with an alarm, whose alerts go to the first endpoint of the namespace.
fn set_up(node: &Node) {
    for number in 0..NAMESPACES {
        let owner = namespace(number);
        create(node, &format!("namespaces/{owner}"), json!({}));
        let when = json!({"key": "v", "is": ">=", "value": ALARM_FROM});
        let rule = json!({"id": "high", "raise": [{"severity": "MAJOR", "when": when}]});
        let product = json!({"namespace": owner, "alarms": [rule]});
        create(node, &format!("products/pump-{number}"), product);
        for endpoint in 0..ENDPOINTS {
            let mut definition = json!({"namespace": owner, "mode": "direct"});
            if endpoint + 1 < ENDPOINTS {
                definition["product"] = format!("pump-{number}").into();
            }
            let path = format!("endpoints/{}", endpoint_id(number, endpoint));
            create(node, &path, definition);
        }
        let to = json!({"endpoint": endpoint_id(number, 0)});
        let notification = json!({"namespace": owner, "to": to});
        create(
            node,
            &format!("notifications/alerts-{number}"),
            notification,
        );
    }
}

impl Member {
    fn join(node: &Node, namespace: usize, endpoint: usize, device: usize) -> Self {
        let room = endpoint_id(namespace, endpoint);
        let mut client = RelayClient::join(node, &room);
        let device = format!("d{device}");
        client.send_text(&json!({"type": "identify", "deviceId": device}).to_string());
        let id = loop {
            // Others may send at the same time.
            let message = client.expect_json();
            if message["type"] == "identified" {
                break message["dbDeviceId"].as_str().unwrap().to_owned();
            }
        };
        assert_eq!(id, format!("{room}:{device}"));
        Self {
            client,
            namespace,
            endpoint,
            device,
            id,
            expected_alerts: BTreeSet::new(),
            alerts: BTreeSet::new(),
        }
    }

    /// The next message of the server of this kind; those of other clients and alerts are checked and passed over.
    fn expect(&mut self, kind: &str) -> Value {
        loop {
            let message = self.client.expect_json();
            match message["type"].as_str() {
                Some("alert") => self.check_alert(&message),
                Some("data") => {
                    let room = endpoint_id(self.namespace, self.endpoint);
                    assert_eq!(message["room"], room, "{message}");
                }
                Some(found) if found == kind => return message,
                _ => panic!("{}: {message}", self.id),
            }
        }
    }

    fn check_alert(&mut self, alert: &Value) {
        assert_eq!(self.endpoint, 0, "{}: {alert}", self.id);
        let id = alert["dbDeviceId"].as_str().unwrap();
        let prefix = format!("room-{}-", self.namespace);
        assert!(id.starts_with(&prefix), "{}: {alert}", self.id);
        if alert["change"] == "raised" {
            self.alerts.insert(id.to_owned());
        }
    }

    fn request(&mut self, kind: &str) -> Value {
        let request = json!({"type": "request", "requestId": self.id, "requestType": kind});
        self.client.send_text(&request.to_string());
        let response = self.expect("response");
        assert_eq!(response["requestId"], self.id, "{response}");
        assert_eq!(response["status"], "success", "{response}");
        response["data"].clone()
    }
}

struct Fleet<'a> {
    node: &'a Node,
    members: Vec<Member>,
    devices: BTreeMap<String, DeviceState>,
    /// Time of the value 0, in the past.
    begun_ms: u64,
}

impl Fleet<'_> {
    fn report(&mut self, at: usize, number: u64) {
        let member = &mut self.members[at];
        let room = endpoint_id(member.namespace, member.endpoint);
        // Receivers see in `room` where it was sent; it is no value. Values of the same millisecond would replace each other.
        let at_ms = self.begun_ms + number;
        let data = json!({"type": "data", "room": room, "data": {"v": number}, "timestamp": at_ms});
        member.client.send_text(&data.to_string());
        let state = self.devices.get_mut(&member.id).expect("it is known");
        state.values.push(number);
        let has_alarm = member.endpoint + 1 < ENDPOINTS;
        let (id, namespace) = (member.id.clone(), member.namespace);
        if number >= ALARM_FROM && has_alarm {
            let told = |member: &&mut Member| member.namespace == namespace && member.endpoint == 0;
            for member in self.members.iter_mut().filter(told) {
                member.expected_alerts.insert(id.clone());
            }
        }
    }

    fn set_attribute(&mut self, at: usize, number: u64) {
        let id = &self.members[at].id;
        let path = format!("devices/{id}/attributes/shared");
        let (status, answer) = ask(self.node, "PUT", &path, json!({"limit": number}));
        assert!(status < 300, "{answer}");
        self.devices.get_mut(id).expect("it is known").attribute = Some(number);
    }

    /// What a device is told of itself is its own.
    fn check_requests(&mut self, at: usize) {
        let member = &mut self.members[at];
        let state = &self.devices[&member.id];
        let config = member.request("config_query");
        let expected = match state.attribute {
            Some(number) => json!({"limit": number}),
            None => json!({}),
        };
        assert_eq!(config, expected, "{}", member.id);
        let status = member.request("status_sync");
        // Data may not be stored yet, but those of others never are.
        if let Some(value) = status["values"]["v"]["value"].as_u64() {
            assert!(state.values.contains(&value), "{}: {status}", member.id);
        }
    }

    fn command(&mut self, at: usize, number: u64) {
        let member = &self.members[at];
        let path = format!("devices/{}/commands", member.id);
        let body =
            json!({"method": "set", "params": {"n": number}, "wait": false, "timeout_ms": 20_000});
        let (status, command) = ask(self.node, "POST", &path, body);
        assert!(status < 300, "{command}");
        let member = &mut self.members[at];
        let control = member.expect("control");
        assert_eq!(control["params"], json!({"n": number}), "{control}");
        assert_eq!(control["deviceId"], member.device, "{control}");
        let ack =
            json!({"type": "control_ack", "status": "success", "commandId": control["commandId"]});
        member.client.send_text(&ack.to_string());
    }

    fn check_stored_values(&self) {
        for (id, state) in &self.devices {
            let expected: BTreeSet<u64> = state.values.iter().copied().collect();
            let mut found = Vec::new();
            eventually("all values are stored", || {
                let path = format!("devices/{id}/telemetry?keys=v&from_ms=0&rows=10000");
                let (status, page) = ask(self.node, "GET", &path, Value::Null);
                assert_eq!(status, 200, "{id}: {page}");
                let rows = page["rows"].as_array().expect("rows");
                found = rows
                    .iter()
                    .filter_map(|row| row["values"]["v"].as_u64())
                    .collect();
                found.len() >= expected.len()
            });
            let found: BTreeSet<u64> = found.into_iter().collect();
            assert_eq!(found, expected, "{id}");
        }
    }

    fn check_alerts(&mut self) {
        for member in &mut self.members {
            while !member.expected_alerts.is_subset(&member.alerts) {
                let message = member.client.expect_json();
                if message["type"] == "alert" {
                    member.check_alert(&message);
                }
            }
        }
    }

    fn check_operator(&self, number: usize) {
        let (name, password) = (format!("operator{number}"), "Correct-horse-1");
        let roles = json!([{"namespace": namespace(number), "role": "operator"}]);
        let operator =
            json!({"namespaces": roles, "password": password, "must_change_password": false});
        create(self.node, &format!("operators/{name}"), operator);
        let login = json!({"username": name, "password": password});
        let login = send(self.node, "", "POST", "/api/v1/login", &login).body;
        let token = login["token"].as_str().expect("a token");
        let request = |method: &str, path: &str, body: Value| {
            let answer = send(self.node, token, method, &format!("/api/v1/{path}"), &body);
            (answer.status, answer.body)
        };
        let (_, listed) = request("GET", "devices?limit=1000", Value::Null);
        let listed: BTreeSet<&str> = (listed["data"].as_array().expect("rows").iter())
            .filter_map(|device| device["id"].as_str())
            .collect();
        let prefix = format!("room-{number}-");
        for id in self.devices.keys() {
            let is_own = id.starts_with(&prefix);
            assert_eq!(listed.contains(&**id), is_own, "{name}: {id} of {listed:?}");
            let expected = |own: u16| if is_own { own } else { 404 };
            for part in ["", "/telemetry?keys=v", "/attributes/shared", "/commands"] {
                let (status, answer) = request("GET", &format!("devices/{id}{part}"), Value::Null);
                assert_eq!(status, expected(200), "{name}: {id}{part}: {answer}");
            }
            let command = json!({"method": "intrude", "timeout_ms": 1});
            let (status, answer) = request("POST", &format!("devices/{id}/commands"), command);
            assert_eq!(status == 404, !is_own, "{name}: {id}: {answer}");
        }
    }
}

#[test]
fn devices_with_equal_ids_at_other_endpoints_share_nothing() {
    if !own_node() {
        return;
    }
    let seed = Random::seed();
    for shards in ["1", "2"] {
        let mut random = Random::new(seed);
        let node = Node::start(&["--shards", shards]);
        set_up(&node);
        let mut fleet = Fleet {
            node: &node,
            members: Vec::new(),
            devices: BTreeMap::new(),
            begun_ms: now_ms() - 60_000,
        };
        for namespace in 0..NAMESPACES {
            for endpoint in 0..ENDPOINTS {
                for device in 0..DEVICES {
                    let member = Member::join(&node, namespace, endpoint, device);
                    fleet
                        .devices
                        .insert(member.id.clone(), DeviceState::default());
                    fleet.members.push(member);
                }
            }
        }
        for step in 0..STEPS {
            let at = random.below(fleet.members.len());
            let number = step as u64;
            match random.below(8) {
                0 => fleet.set_attribute(at, number),
                1 => fleet.command(at, number),
                2 => fleet.check_requests(at),
                3 => fleet.report(at, ALARM_FROM + number),
                _ => fleet.report(at, number),
            }
        }
        fleet.check_stored_values();
        fleet.check_alerts();
        // Nothing else arrives: neither commands nor alerts of others.
        for at in 0..fleet.members.len() {
            fleet.check_requests(at);
        }
        for number in 0..NAMESPACES {
            fleet.check_operator(number);
        }
    }
}
