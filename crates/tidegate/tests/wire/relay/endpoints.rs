//! Who may connect to an endpoint, what ends its connections, and what of it outlives the node.

use serde_json::json;

use super::{CLOSE, RelayClient, ask, change_endpoint, new_endpoint, statistics};
use crate::api::own_node;
use crate::support::{Node, WsStream, eventually, temporary_directory, upgrade};

fn refusal(node: &Node, target: &str) -> (String, u16, String) {
    RelayClient::connect(node, target).expect_refusal()
}

fn refused(code: &str, reason: &str) -> (String, u16, String) {
    (code.to_owned(), 1008, reason.to_owned())
}

#[test]
fn refusals_have_the_documented_codes_and_reasons() {
    if !own_node() {
        return;
    }
    let node = Node::shared();
    for target in ["a%20b", "a.b", ""] {
        let expected = refused("INVALID_URL", "Invalid URL format");
        assert_eq!(refusal(node, target), expected, "{target}");
    }
    let id = new_endpoint(node, json!({}));
    let expected = refused("INVALID_URL", "Invalid URL format");
    assert_eq!(
        refusal(node, &format!("{id}/{id}")),
        expected,
        "a longer path"
    );
    let (socket, _) = upgrade(node.address("ws"), "/ws", Some("tidegate-relay"));
    let mut client = RelayClient(WsStream::over(socket));
    assert_eq!(client.expect_refusal(), expected, "only the prefix");
    let expected = refused("INVALID_ENDPOINT", "Invalid endpoint");
    assert_eq!(refusal(node, "nobody"), expected);
    let key = "an-access-key-of-mine";
    let id = new_endpoint(node, json!({"access_key": key, "max_connections": 1}));
    let expected = refused("INVALID_ACCESS_KEY", "Invalid access key");
    assert_eq!(refusal(node, &id), expected);
    assert_eq!(refusal(node, &format!("{id}?key=another")), expected);
    let _first = RelayClient::connect(node, &format!("{id}?key={key}"));
    let expected = refused("TOO_MANY_CONNECTIONS", "Too many connections");
    assert_eq!(refusal(node, &format!("{id}?key={key}")), expected);
    let (status, shown) = ask(node, "GET", &format!("endpoints/{id}"), json!(null));
    assert_eq!((status, &shown["has_access_key"]), (200, &json!(true)));
    assert!(!shown.to_string().contains("access_key_sha256"));
    assert!(!node.log().contains(key));
}

#[test]
fn a_key_may_be_a_sub_protocol_and_a_page_must_be_of_a_permitted_origin() {
    if !own_node() {
        return;
    }
    let node = Node::shared();
    let key = "0123456789abcdef.key";
    let id = new_endpoint(
        node,
        json!({"mode": "direct", "access_key": key, "allowed_origins": ["https://a.example"]}),
    );
    let path = format!("/ws/{id}");
    let offer = format!("tidegate-relay, key.{key}");
    let (socket, head) = upgrade(node.address("ws"), &path, Some(&offer));
    assert!(
        head.contains("Sec-WebSocket-Protocol: tidegate-relay\r\n"),
        "{head}"
    );
    let mut client = RelayClient(WsStream::over(socket));
    let origin = |origin: &str| {
        let offer = format!("{offer}\r\nOrigin: {origin}");
        let (socket, _) = upgrade(node.address("ws"), &path, Some(&offer));
        RelayClient(WsStream::over(socket))
    };
    origin("https://a.example").send_text("allowed");
    assert_eq!(client.expect_text(), "allowed");
    let refusal = origin("https://b.example").expect_refusal();
    assert_eq!(refusal, refused("ORIGIN_NOT_ALLOWED", "Origin not allowed"));
}

#[test]
fn a_listener_refuses_pages_of_other_origins() {
    if !own_node() {
        return;
    }
    let config = "[[listener]]\nname = \"ws\"\nbind = \"127.0.0.1:0\"\nallowed_origins = \"https://a.example, http://b.example:8080\"\nrelay_path = \"/rooms/\"\n";
    let node = Node::start_with_config(&[], config);
    for (path, offer) in [("/mqtt", "mqtt"), ("/rooms/x", "tidegate-relay")] {
        let head = |origin: &str| {
            let offer = format!("{offer}\r\nOrigin: {origin}");
            upgrade(node.address("ws"), path, Some(&offer)).1
        };
        assert!(head("http://b.example:8080").starts_with("HTTP/1.1 101 "));
        let refused = head("https://c.example");
        assert!(refused.starts_with("HTTP/1.1 403 "), "{refused}");
    }
    let (_, head) = upgrade(node.address("ws"), "/ws/x", None);
    assert!(head.starts_with("HTTP/1.1 404 "), "{head}");
}

#[test]
fn disabling_deleting_and_an_operator_close_open_connections_with_the_reason() {
    if !own_node() {
        return;
    }
    let node = Node::shared();
    let id = new_endpoint(node, json!({}));
    let mut client = RelayClient::connect(node, &id);
    change_endpoint(node, &id, json!({"disabled_reason": "spam"}));
    let message = client.expect_json();
    assert_eq!(message["code"], "ENDPOINT_DISABLED");
    assert!(message["message"].as_str().unwrap().contains("spam"));
    assert_eq!(client.expect_close(), (1008, "Endpoint is disabled".into()));
    let expected = refused("ENDPOINT_DISABLED", "Endpoint is disabled");
    assert_eq!(refusal(node, &id), expected);
    change_endpoint(node, &id, json!({}));

    let mut client = RelayClient::connect(node, &id);
    let path = format!("endpoints/{id}/connections");
    let (_, connections) = ask(node, "GET", &path, json!(null));
    let connection = connections["data"][0]["connection_id"].as_str().unwrap();
    let (status, _) = ask(node, "DELETE", &format!("{path}/{connection}"), json!(null));
    assert_eq!(status, 204);
    let expected = refused("DISCONNECTED", "Disconnected by an operator");
    assert_eq!(client.expect_refusal(), expected);

    let mut client = RelayClient::connect(node, &id);
    let (status, _) = ask(node, "DELETE", &format!("endpoints/{id}"), json!(null));
    assert_eq!(status, 204);
    let expected = refused("ENDPOINT_DELETED", "Endpoint was deleted");
    assert_eq!(client.expect_refusal(), expected);
    let (status, _) = ask(node, "GET", &format!("endpoints/{id}/status"), json!(null));
    assert_eq!(status, 404);
}

#[test]
fn disabling_a_namespace_closes_the_connections_of_its_endpoints() {
    if !own_node() {
        return;
    }
    let node = Node::start(&[]);
    let namespace = |state: serde_json::Value| {
        let (status, answer) = ask(&node, "PUT", "namespaces/acme", state);
        assert!(matches!(status, 200 | 201), "{answer}");
    };
    namespace(json!({}));
    let of_acme = new_endpoint(&node, json!({"namespace": "acme"}));
    let of_others = new_endpoint(&node, json!({}));
    let mut client = RelayClient::connect(&node, &of_acme);
    let mut others = [0; 2].map(|_| RelayClient::connect(&node, &of_others));
    // Both are connected once a message has passed.
    others[0].send_text("before");
    assert_eq!(others[1].expect_json()["data"], "before");
    namespace(json!({"state": "disabled", "reason": "unpaid"}));
    let message = client.expect_json();
    assert_eq!(message["code"], "NAMESPACE_DISABLED");
    assert!(message["message"].as_str().unwrap().contains("unpaid"));
    assert_eq!(client.expect_close().1, "Namespace is disabled");
    let expected = refused("NAMESPACE_DISABLED", "Namespace is disabled");
    assert_eq!(refusal(&node, &of_acme), expected);
    others[0].send_text("after");
    assert_eq!(others[1].expect_json()["data"], "after");
    namespace(json!({}));
    drop(RelayClient::connect(&node, &of_acme));
    eventually("clients of the namespace are counted again", || {
        statistics(&node, &of_acme)["total_connections"] == 2
    });
}

#[test]
fn connections_are_notified_that_the_node_stops() {
    if !own_node() {
        return;
    }
    let node = Node::start(&[]);
    let id = new_endpoint(&node, json!({}));
    let mut client = RelayClient::connect(&node, &id);
    node.signal(libc::SIGTERM);
    let (first_byte, payload) = client.receive().expect("a close frame");
    assert_eq!(
        (first_byte, &payload[..2]),
        (CLOSE, &1001_u16.to_be_bytes()[..])
    );
}

#[test]
fn statistics_are_right_after_lost_connections_and_survive_a_kill() {
    if !own_node() {
        return;
    }
    let mut node = Node::spawn(temporary_directory(), &[], "");
    node.wait_until_it_listens().unwrap();
    let id = new_endpoint(&node, json!({"mode": "direct"}));
    let mut clients: Vec<_> = (0..100).map(|_| RelayClient::connect(&node, &id)).collect();
    clients[0].send_text("hello");
    assert_eq!(clients[99].expect_text(), "hello");
    // Half of them vanish without a close frame.
    clients.truncate(50);
    eventually("lost connections are not counted", || {
        statistics(&node, &id)["current_connections"] == 50
    });
    // Statistics are stored every five seconds; the rest is for a busy machine.
    std::thread::sleep(std::time::Duration::from_secs(8));
    let data = node.kill();
    let mut node = Node::spawn(data, &[], "");
    node.wait_until_it_listens().unwrap();
    let counted = statistics(&node, &id);
    assert_eq!(counted["current_connections"], 0, "{counted}");
    assert_eq!(counted["total_connections"], 100, "{counted}");
    assert_eq!(counted["total_messages"], 1, "{counted}");
}

#[test]
fn endpoints_of_the_configuration_are_listed_and_cannot_be_changed() {
    if !own_node() {
        return;
    }
    let directory = temporary_directory();
    std::fs::write(directory.join("room.key"), "a-key-from-a-file\n").unwrap();
    let config = "[[endpoint]]\nid = \"room\"\nmode = \"custom_header\"\nheader = \"> \"\naccess_key_file = \"room.key\"\n";
    let mut node = Node::spawn(directory, &[], config);
    node.wait_until_it_listens().unwrap();
    let (status, room) = ask(&node, "GET", "endpoints/room", json!(null));
    assert_eq!((status, &room["header"]), (200, &json!("> ")));
    assert!(
        room["declared_at"]
            .as_str()
            .unwrap()
            .contains("tidegate.toml:1")
    );
    let (status, _) = ask(&node, "DELETE", "endpoints/room", json!(null));
    assert_eq!(status, 409);
    let target = "room?key=a-key-from-a-file";
    let (mut a, mut b) = (
        RelayClient::connect(&node, target),
        RelayClient::connect(&node, target),
    );
    a.send_text("x");
    assert_eq!(b.expect_text(), "> x");
    node.kill();
}

#[test]
fn invalid_definitions_name_the_field_and_what_is_expected() {
    if !own_node() {
        return;
    }
    let node = Node::shared();
    for (definition, field, expected) in [
        (json!({"mode": "jason"}), "mode", "unknown value"),
        (json!({"header": "x"}), "header", "only for mode"),
        (json!({"access_key": "short"}), "access_key", "16 to 128"),
        (
            json!({"namespace": "nowhere"}),
            "namespace",
            "there is no namespace",
        ),
    ] {
        let (status, answer) = ask(node, "POST", "endpoints", definition);
        assert_eq!(status, 422, "{answer}");
        let text = answer.to_string();
        assert!(text.contains(field) && text.contains(expected), "{text}");
    }
    let (status, answer) = ask(node, "PUT", "endpoints/a%2Fb", json!({}));
    assert_eq!(status, 422, "{answer}");
}

#[test]
fn wrong_endpoints_of_the_configuration_prevent_the_start() {
    if !own_node() {
        return;
    }
    for (lines, expected) in [
        ("id = \"a b\"", ["id", "A-Z"]),
        (
            "mode = \"direct\"",
            ["endpoint.id", "identifies the endpoint"],
        ),
        (
            "id = \"a\"\nmode = \"jason\"",
            ["mode", "unknown value `jason`"],
        ),
        (
            "id = \"a\"\nmode = \"custom_header\"",
            ["endpoint.header", "needs a header"],
        ),
        ("id = \"a\"\nheader = \"x\"", ["header", "only for mode"]),
        (
            "id = \"a\"\naccess_key = \"short\"",
            ["access_key", "16 to 128"],
        ),
        (
            "id = \"a\"\naccess_key_file = \"none.key\"",
            ["access_key", "none.key"],
        ),
        (
            "id = \"a\"\naccess_key_file = 7",
            ["access_key_file", "expected the name of a file"],
        ),
        (
            "id = \"a\"\naccess_key_file = \"a\"\naccess_key = \"0123456789abcdef\"",
            ["access_key_file", "either access_key or access_key_file"],
        ),
        (
            "id = \"a\"\nmax_connection = 5",
            ["max_connection", "unknown field"],
        ),
        (
            "id = \"a\"\n[[endpoint]]\nid = \"a\"",
            ["endpoint.id", "already"],
        ),
    ] {
        let config = format!("[[endpoint]]\n{lines}\n");
        let Err(error) = Node::try_start(&[], &config) else {
            panic!("{lines}: the node has started");
        };
        for part in expected {
            assert!(error.contains(part), "{lines}: {part} in {error}");
        }
        assert!(error.contains("tidegate.toml:"), "{lines}: {error}");
    }
    // What the endpoint refers to may be created later.
    let config = "[[endpoint]]\nid = \"a\"\nnamespace = \"none\"\n";
    let node = Node::try_start(&[], config).unwrap();
    let log = node.log();
    assert!(
        log.contains("refers in namespace to the namespace \"none\""),
        "{log}"
    );
}

#[test]
fn a_declared_endpoint_belongs_to_its_namespace() {
    if !own_node() {
        return;
    }
    let config = "[[namespace]]\nid = \"acme\"\nquotas = { connections = 1 }\n\
                  [[endpoint]]\nid = \"room\"\nnamespace = \"acme\"\nmode = \"direct\"\n";
    let node = Node::start_with_config(&[], config);
    let shown = statistics(&node, "room");
    assert_eq!(shown["namespace"], "acme", "{shown}");
    let _first = RelayClient::join(&node, "room");
    let expected = refused("TOO_MANY_CONNECTIONS", "Too many connections");
    assert_eq!(refusal(&node, "room"), expected);
}

#[test]
fn a_listener_without_a_relay_path_has_no_endpoints() {
    if !own_node() {
        return;
    }
    let node = Node::start(&["--set", "listener.ws.relay_path=off"]);
    let id = new_endpoint(&node, json!({}));
    let (_, head) = upgrade(node.address("ws"), &format!("/ws/{id}"), None);
    assert!(head.starts_with("HTTP/1.1 404 "), "{head}");
    let (_, head) = upgrade(node.address("ws"), "/mqtt", Some("mqtt"));
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    for path in ["ws/", "/", "/a b/", "/mqtt"] {
        let setting = format!("listener.ws.relay_path={path}");
        let Err(error) = Node::try_start(&["--set", &setting], "") else {
            panic!("{path}: the node has started");
        };
        assert!(error.contains("relay_path"), "{path}: {error}");
    }
}
