//! Isolation with random endpoints, connections, modes and senders: a receiver only gets messages of its endpoint, and an
//! operator of a namespace only reads objects of its own.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::{BINARY, PING, PONG, RelayClient, TEXT, ask, change_endpoint, new_endpoint};
use crate::api::{own_node, send};
use crate::support::{Connect, Node, Random, Raw};

const ENDPOINTS: usize = 5;
const STEPS: usize = 300;
const MODES: [&str; 3] = ["direct", "json", "custom_header"];

/// A connection, and the numbers of messages that it should get and has got. It may also get messages that were sent just
/// before it was connected.
struct Member {
    /// Of all members that there were.
    number: usize,
    client: RelayClient,
    endpoint: usize,
    room: String,
    is_device: bool,
    expected: BTreeSet<usize>,
    received: BTreeSet<usize>,
    /// The last message of each sender.
    last: BTreeMap<String, usize>,
}

/// Contained in each message: the endpoint, the number of the message, whether it is sent as text or binary, and its sender.
fn content(endpoint: usize, number: usize, first_byte: u8, sender: &str) -> String {
    let kind = if first_byte == TEXT { 'T' } else { 'B' };
    format!("{} {number} {kind}{sender}", marker(endpoint))
}

/// The sender of the messages of a member.
fn member_name(number: usize) -> String {
    format!("member{number}")
}

impl Member {
    /// Reads a frame and checks that it belongs to the endpoint; false: it is a pong.
    fn read(&mut self) -> bool {
        let (first_byte, payload) = self.client.receive().expect("an open connection");
        if first_byte == PONG {
            return false;
        }
        assert!([TEXT, BINARY].contains(&first_byte), "{first_byte}");
        let own = marker(self.endpoint);
        let text = String::from_utf8_lossy(&payload);
        let message: Value = serde_json::from_slice(&payload).unwrap_or_default();
        match message["type"].as_str() {
            Some("identified") => {
                let id = message["dbDeviceId"].as_str().unwrap();
                assert!(id.starts_with(&format!("{}:", self.room)), "{own}: {text}");
            }
            Some("control") => {
                assert_eq!(message["command"], own, "{text}");
                assert!(self.is_device, "{text}");
            }
            _ => {
                let (_, rest) = text
                    .rsplit_once(&own)
                    .unwrap_or_else(|| panic!("{own}: {text}"));
                self.check_message(first_byte, rest, &text);
            }
        }
        true
    }

    /// Checks number, kind and sender of a message; `rest` is what follows the marker of the endpoint.
    fn check_message(&mut self, first_byte: u8, rest: &str, text: &str) {
        let mut words = rest
            .split(|c: char| !c.is_ascii_alphanumeric())
            .filter(|word| !word.is_empty());
        let number: Option<usize> = words.next().and_then(|word| word.parse().ok());
        let (Some(number), Some(origin)) = (number, words.next()) else {
            panic!("{text}");
        };
        let (kind, sender) = origin.split_at(1);
        let expected = if kind == "T" { TEXT } else { BINARY };
        assert_eq!(first_byte, expected, "another kind of frame: {text}");
        assert_ne!(sender, member_name(self.number), "sent back: {text}");
        // Requests to the API may be handled by different shards.
        if sender != "http" {
            let before = self.last.insert(sender.to_owned(), number);
            assert!(before < Some(number), "{number} after {before:?}: {text}");
        }
        assert!(self.received.insert(number), "received twice: {text}");
    }

    /// Returns when the node has read everything that was sent.
    fn synchronise(&mut self) {
        self.client.0.send_frame(PING, b"");
        while self.read() {}
    }
}

struct Rooms<'a> {
    node: &'a Node,
    ids: Vec<String>,
    members: Vec<Member>,
    /// Members so far, also those that have vanished.
    joined: usize,
}

/// Contained in everything that is sent to an endpoint.
fn marker(endpoint: usize) -> String {
    format!("@endpoint-{endpoint}@")
}

fn definition(endpoint: usize, mode: &str) -> Value {
    match mode {
        "custom_header" => json!({"mode": mode, "header": marker(endpoint)}),
        mode => json!({"mode": mode}),
    }
}

impl Rooms<'_> {
    /// Connects a client; returns when the node answers, so that it gets everything that is sent from then on.
    fn connect(&mut self, endpoint: usize) {
        let room = self.ids[endpoint].clone();
        self.joined += 1;
        let mut member = Member {
            number: self.joined,
            client: RelayClient::connect(self.node, &room),
            endpoint,
            room,
            is_device: false,
            expected: BTreeSet::new(),
            received: BTreeSet::new(),
            last: BTreeMap::new(),
        };
        member.synchronise();
        self.members.push(member);
    }

    /// A message has been sent to an endpoint, by a member or by something else.
    fn expect_at_others(&mut self, endpoint: usize, sender: Option<usize>, number: usize) {
        for (at, member) in self.members.iter_mut().enumerate() {
            if member.endpoint == endpoint && Some(at) != sender {
                member.expected.insert(number);
            }
        }
    }

    fn send_as_member(&mut self, random: &mut Random, number: usize) {
        let at = random.below(self.members.len());
        let endpoint = self.members[at].endpoint;
        let sender = member_name(self.members[at].number);
        let text = content(endpoint, number, TEXT, &sender);
        let bytes = content(endpoint, number, BINARY, &sender).into_bytes();
        let client = &mut self.members[at].client;
        match random.below(5) {
            0 => client.send_text(&text),
            1 => client.send_text(&json!({"type": "t", "data": text}).to_string()),
            2 => client.send_text(&json!({"n": number, "text": text}).to_string()),
            // Binary, although it could be a text.
            3 => client.0.send_frame(BINARY, &bytes),
            _ => client.0.send_frame(BINARY, &[&bytes[..], &[0xff]].concat()),
        }
        self.expect_at_others(endpoint, Some(at), number);
    }

    fn publish(&mut self, random: &mut Random, mqtt: &mut Raw, number: usize) {
        let endpoint = random.below(ENDPOINTS);
        let topic = format!("$relay/{}", self.ids[endpoint]);
        match random.below(2) {
            0 => {
                let text = content(endpoint, number, TEXT, "mqtt");
                mqtt.publish_qos1(&topic, &text, 1);
            }
            _ => {
                let text = content(endpoint, number, TEXT, "http");
                let body = json!({"topic": topic, "payload": text});
                let (status, answer) = ask(self.node, "POST", "publish", body);
                assert!(status < 300, "{answer}");
            }
        }
        self.expect_at_others(endpoint, None, number);
    }

    /// Makes a member a device, and calls it.
    fn command(&mut self, random: &mut Random) {
        let at = random.below(self.members.len());
        let member = &mut self.members[at];
        let device = format!("d{}", random.below(2));
        let identify = json!({"type": "identify", "deviceId": device});
        member.client.send_text(&identify.to_string());
        let id = format!("{}:{device}", member.room);
        member.is_device = true;
        let body = json!({"method": marker(member.endpoint), "timeout_ms": 20});
        // It ends with a time-out, or there is no such device yet.
        ask(self.node, "POST", &format!("devices/{id}/commands"), body);
    }

    /// A client vanishes. What it has sent has been read by then.
    fn disconnect(&mut self, at: usize) {
        let mut member = self.members.swap_remove(at);
        member.synchronise();
    }

    /// Reads what each member got: only messages of its endpoint, and all of those.
    fn check(&mut self) {
        for member in &mut self.members {
            while !member.expected.is_subset(&member.received) {
                assert!(member.read(), "no ping was sent");
            }
        }
        self.members.iter_mut().for_each(Member::synchronise);
    }
}

#[test]
fn receivers_only_get_the_messages_of_their_endpoint() {
    if !own_node() {
        return;
    }
    let seed = Random::seed();
    for shards in ["1", "3"] {
        let mut random = Random::new(seed);
        let node = Node::start(&["--shards", shards]);
        let rule = json!({"permission": "allow", "client_id": "mqtt", "topics": ["$relay/#"]});
        assert_eq!(ask(&node, "POST", "acl-rules", rule).0, 201);
        let mut mqtt = Raw::connect(&node, &Connect::new(5, "mqtt"));
        let ids = (0..ENDPOINTS)
            .map(|at| new_endpoint(&node, definition(at, MODES[random.below(3)])))
            .collect();
        let mut rooms = Rooms {
            node: &node,
            ids,
            members: Vec::new(),
            joined: 0,
        };
        for number in 0..STEPS {
            match random.below(20) {
                _ if rooms.members.len() < 3 => rooms.connect(random.below(ENDPOINTS)),
                0..=1 if rooms.members.len() < 20 => rooms.connect(random.below(ENDPOINTS)),
                2 => {
                    let endpoint = random.below(ENDPOINTS);
                    let changed = definition(endpoint, MODES[random.below(3)]);
                    change_endpoint(&node, &rooms.ids[endpoint], changed);
                }
                3 => rooms.command(&mut random),
                4 => rooms.disconnect(random.below(rooms.members.len())),
                5..=8 => rooms.publish(&mut random, &mut mqtt, number),
                _ => rooms.send_as_member(&mut random, number),
            }
        }
        rooms.check();
    }
}

/// Kinds of objects that belong to namespaces. Devices are created with products.
const KINDS: [&str; 7] = [
    "products",
    "device-groups",
    "notifications",
    "endpoints",
    "dashboards",
    "api-keys",
    "invites",
];

/// Whether only owners of a namespace read its objects of this kind.
fn is_of_owners(kind: &str) -> bool {
    matches!(kind, "api-keys" | "invites")
}

struct OwnedObject {
    kind: String,
    path: String,
    id: String,
    namespace: usize,
    /// A change that its owner may make.
    change: Value,
}

fn create_objects(node: &Node, random: &mut Random, namespaces: usize) -> Vec<OwnedObject> {
    let mut objects = Vec::new();
    let mut create = |kind: &str, id: String, namespace: usize, body: Value| {
        let (status, answer) = ask(node, "PUT", &format!("{kind}/{id}"), body.clone());
        assert!(status < 300, "{kind}/{id}: {answer}");
        let mut change = body;
        let text = match kind {
            "notifications" | "api-keys" | "invites" => "description",
            _ => "name",
        };
        change[text] = "changed".into();
        objects.push(OwnedObject {
            kind: kind.to_owned(),
            path: format!("{kind}/{id}"),
            id,
            namespace,
            change,
        });
    };
    for number in 0..40 {
        let namespace = random.below(namespaces);
        let owner = format!("ns-{namespace}");
        let kind = KINDS[random.below(KINDS.len())];
        let id = format!("{kind}-{number}");
        let body = match kind {
            "device-groups" => json!({"namespace": owner, "tags": {"site": "a"}}),
            "notifications" => json!({"namespace": owner, "to": {"mqtt": {"topic": "alarms"}}}),
            "api-keys" => json!({"namespace": owner, "role": "viewer"}),
            _ => json!({"namespace": owner}),
        };
        create(kind, id.clone(), namespace, body);
        if kind == "products" {
            for device in 0..random.below(3) {
                let body = json!({"product": id});
                create("devices", format!("{id}-d{device}"), namespace, body);
            }
        }
    }
    objects
}

#[test]
fn operators_of_a_namespace_read_and_change_own_objects_only() {
    if !own_node() {
        return;
    }
    const NAMESPACES: usize = 4;
    const ROLES: [&str; 3] = ["viewer", "operator", "owner"];
    let seed = Random::seed();
    let mut random = Random::new(seed);
    let node = Node::start(&["--set", "http.anonymous_role=none"]);
    let unlimited = json!({
        "products": null, "groups": null, "notifications": null, "endpoints": null, "dashboards": null,
    });
    for namespace in 0..NAMESPACES {
        let body = json!({"quotas": unlimited});
        let (status, answer) = ask(&node, "PUT", &format!("namespaces/ns-{namespace}"), body);
        assert_eq!(status, 201, "{answer}");
    }
    let objects = create_objects(&node, &mut random, NAMESPACES);
    let show_all = || {
        let show = |object: &OwnedObject| {
            let (status, shown) = ask(&node, "GET", &object.path, json!(null));
            assert_eq!(status, 200, "{}: {shown}", object.path);
            shown
        };
        objects.iter().map(show).collect::<Vec<_>>()
    };
    let before = show_all();
    for number in 0..4 {
        let name = format!("operator{number}");
        // Of one or two namespaces.
        let mut roles = BTreeMap::new();
        for _ in 0..1 + random.below(2) {
            roles.insert(random.below(NAMESPACES), ROLES[random.below(3)]);
        }
        let namespaces: Vec<_> = roles
            .iter()
            .map(|(at, role)| json!({"namespace": format!("ns-{at}"), "role": role}))
            .collect();
        let password = "Correct-horse-1";
        let body =
            json!({"namespaces": namespaces, "password": password, "must_change_password": false});
        let (status, answer) = ask(&node, "PUT", &format!("operators/{name}"), body);
        assert_eq!(status, 201, "{answer}");
        let login = json!({"username": name, "password": password});
        let login = send(&node, "", "POST", "/api/v1/login", &login).body;
        let token = login["token"].as_str().expect("a token");
        let request = |method: &str, path: &str, body: Value| {
            let answer = send(&node, token, method, &format!("/api/v1/{path}"), &body);
            (answer.status, answer.body.to_string())
        };
        let may_read = |object: &OwnedObject| match roles.get(&object.namespace) {
            Some(role) => *role == "owner" || !is_of_owners(&object.kind),
            None => false,
        };
        for kind in KINDS.iter().chain(&["devices"]) {
            let (status, listed) = request("GET", &format!("{kind}?limit=1000"), json!(null));
            // Who owns no namespace has nothing to read there.
            let is_owner = roles.values().any(|role| *role == "owner");
            let expected = if is_of_owners(kind) && !is_owner {
                403
            } else {
                200
            };
            assert_eq!(status, expected, "{kind}, {roles:?}: {listed}");
            for object in &objects {
                let is_listed = listed.contains(&format!("\"{}\"", object.id));
                let is_kind = object.kind == **kind;
                let may_read = may_read(object);
                let what = format!("seed {seed}, {roles:?}: {} in {listed}", object.path);
                if is_kind {
                    assert_eq!(is_listed, may_read, "{what}");
                }
                assert!(may_read || !is_listed, "{what}");
            }
        }
        for object in &objects {
            let has_role = roles.contains_key(&object.namespace);
            let what = format!("seed {seed}, {roles:?}: {}", object.path);
            let mut paths = vec![object.path.clone()];
            if object.path.starts_with("endpoints/") {
                let parts = ["status", "messages", "connections"];
                paths.extend(parts.map(|part| format!("{}/{part}", object.path)));
            }
            for path in paths {
                let (status, answer) = request("GET", &path, json!(null));
                let expected: &[u16] = match may_read(object) {
                    true => &[200],
                    // The role is checked first where it permits nothing of this kind.
                    false if is_of_owners(&object.kind) => &[403, 404],
                    false => &[404],
                };
                assert!(
                    expected.contains(&status),
                    "{what}: {path}: {status} {answer}"
                );
            }
            if !has_role {
                let (status, answer) = request("DELETE", &object.path, json!(null));
                // Who may change nothing anywhere learns that, whatever the object.
                let may_change_some = roles.values().any(|role| match is_of_owners(&object.kind) {
                    true => *role == "owner",
                    false => *role != "viewer",
                });
                let expected = if may_change_some { 404 } else { 403 };
                assert_eq!(status, expected, "{what}: {answer}");
                for body in [json!({}), object.change.clone()] {
                    let (status, answer) = request("PUT", &object.path, body);
                    assert_eq!(status, expected, "{what}: {answer}");
                }
            }
        }
        for namespace in 0..NAMESPACES {
            let path = format!("namespaces/ns-{namespace}/usage");
            let expected = if roles.contains_key(&namespace) {
                200
            } else {
                404
            };
            assert_eq!(request("GET", &path, json!(null)).0, expected, "{path}");
        }
    }
    assert_eq!(show_all(), before, "something was changed");
    // The refused changes are such that an owner may make.
    for object in &objects {
        let (status, answer) = ask(&node, "PUT", &object.path, object.change.clone());
        assert_eq!(status, 200, "{}: {answer}", object.path);
    }
    assert!(
        show_all()
            .iter()
            .zip(&before)
            .all(|(one, other)| one != other)
    );
}
