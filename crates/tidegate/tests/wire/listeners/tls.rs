//! TLS: certificates of the server and of clients, and new ones while the node runs.

use std::fs;
use std::time::{Duration, Instant};

use rustls::ProtocolVersion;
use serde_json::json;

use super::{client_info, folder, get, greet, listener, open, own_node};
use crate::certificates::{self, Authority, TlsIdentity, TlsStream};
use crate::relay::new_endpoint;
use crate::support::{Connect, DEADLINE, Node, Raw, WsStream, kind, unique, upgrade_over};

/// A listener `mqtts` with this certificate; `more` goes into its table `tls`.
fn config(server: &TlsIdentity, more: &str) -> String {
    let (certificate, key) = (server.certificate.display(), server.key.display());
    let tls = format!("tls = {{ certificate = \"{certificate}\", private_key = \"{key}\"{more} }}");
    listener("mqtts", "mqtts", "127.0.0.1:0", &tls)
}

fn start(server: &TlsIdentity, more: &str) -> Node {
    Node::start_with_config(&[], &config(server, more))
}

/// `client_ca` and what else goes with it.
fn clients_of(authority: &Authority, more: &str) -> String {
    format!(
        ", client_ca = \"{}\"{more}",
        authority.certificate_path().display()
    )
}

/// Connects, sends CONNECT, and says whether the node let this client in. A rejection may come in the handshake, or
/// (TLS 1.3) after it, as an alert instead of the CONNACK.
fn is_let_in(node: &Node, authority: &Authority, identity: Option<&TlsIdentity>) -> bool {
    use std::io::{Read, Write};
    let Ok(mut stream) = authority.connect(node.address("mqtts"), identity) else {
        return false;
    };
    let connect = Connect::new(5, unique("tls")).bytes();
    let mut first = [0; 4];
    match stream
        .write_all(&connect)
        .and_then(|()| stream.read_exact(&mut first))
    {
        Ok(()) => {
            assert_eq!(first[0], kind::CONNACK << 4);
            first[3] == 0
        }
        Err(error) => {
            let timed_out = [std::io::ErrorKind::WouldBlock, std::io::ErrorKind::TimedOut];
            assert!(
                !timed_out.contains(&error.kind()),
                "neither let in nor rejected: {error}"
            );
            false
        }
    }
}

fn shown(node: &Node, authority: &Authority) -> Vec<u8> {
    let stream = authority.connect(node.address("mqtts"), None).unwrap();
    certificates::server_certificate(&stream).to_vec()
}

#[test]
fn tls_1_2_and_1_3_are_served() {
    if !own_node() {
        return;
    }
    let authority = Authority::new(folder());
    let node = start(&authority.issue_server("server"), "");
    for (version, expected) in [
        (&rustls::version::TLS12, ProtocolVersion::TLSv1_2),
        (&rustls::version::TLS13, ProtocolVersion::TLSv1_3),
    ] {
        let config = authority.client_config_for(&[version]);
        let stream = certificates::connect(node.address("mqtts"), config).unwrap();
        assert_eq!(stream.conn.protocol_version(), Some(expected));
        let mut raw = Raw::over(stream, 5);
        greet(&mut raw);
        raw.ping();
    }
}

#[test]
fn a_large_message_passes_through_tls() {
    if !own_node() {
        return;
    }
    let authority = Authority::new(folder());
    let node = start(&authority.issue_server("server"), "");
    let mut raw = Raw::over(authority.connect(node.address("mqtts"), None).unwrap(), 5);
    greet(&mut raw);
    raw.subscribe("tls/large", 0);
    let payload: Vec<u8> = (0..400_000u32).map(|number| number as u8).collect();
    raw.publish("tls/large", &payload);
    raw.recv_message("tls/large", &payload);
}

#[test]
fn relay_endpoints_are_served_over_tls() {
    if !own_node() {
        return;
    }
    let authority = Authority::new(folder());
    let server = authority.issue_server("server");
    let node = Node::start_with_config(&[], &config(&server, "").replace("mqtts", "wss"));
    let path = format!("/ws/{}", new_endpoint(&node, json!({"mode": "direct"})));
    let open = || {
        let mut stream = authority.connect(node.address("wss"), None).unwrap();
        let head = upgrade_over(&mut stream, &path, None);
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        WsStream::over(stream)
    };
    let (mut a, mut b) = (open(), open());
    a.send_frame(0x82, &[7; 100_000]);
    assert_eq!(b.recv_frame().unwrap(), Some((0x82, vec![7; 100_000])));
    b.send_frame(0x81, b"text");
    assert_eq!(a.recv_frame().unwrap(), Some((0x81, b"text".to_vec())));
}

#[test]
fn plain_mqtt_on_a_tls_listener_is_closed() {
    if !own_node() {
        return;
    }
    let authority = Authority::new(folder());
    let node = start(&authority.issue_server("server"), "");
    let mut raw = open(&node, "mqtts", 4);
    raw.send(&Connect::new(4, unique("plain")).bytes());
    // An alert may come before the end; it is no MQTT.
    while !raw.recv_bytes().is_empty() {}
    assert!(
        is_let_in(&node, &authority, None),
        "others are served as before"
    );
}

#[test]
fn client_certificates_can_be_required() {
    if !own_node() {
        return;
    }
    let authority = Authority::new(folder());
    let strangers = Authority::new(folder());
    let more = clients_of(&authority, ", require_client_certificate = true");
    let node = start(&authority.issue_server("server"), &more);
    assert!(is_let_in(
        &node,
        &authority,
        Some(&authority.issue_client("known"))
    ));
    assert!(!is_let_in(&node, &authority, None), "without a certificate");
    let stranger = strangers.issue_client("stranger");
    assert!(
        !is_let_in(&node, &authority, Some(&stranger)),
        "of another authority"
    );
}

#[test]
fn client_certificates_can_be_optional() {
    if !own_node() {
        return;
    }
    let authority = Authority::new(folder());
    let strangers = Authority::new(folder());
    let node = start(
        &authority.issue_server("server"),
        &clients_of(&authority, ""),
    );
    assert!(is_let_in(
        &node,
        &authority,
        Some(&authority.issue_client("known"))
    ));
    assert!(is_let_in(&node, &authority, None), "without a certificate");
    let stranger = strangers.issue_client("stranger");
    assert!(
        !is_let_in(&node, &authority, Some(&stranger)),
        "of another authority"
    );
}

#[test]
fn the_common_name_becomes_the_user_name() {
    if !own_node() {
        return;
    }
    let authority = Authority::new(folder());
    let more = ", require_client_certificate = true, common_name_as_username = true";
    let more = clients_of(&authority, more);
    // A client with a certificate is not anonymous.
    let config = config(&authority.issue_server("server"), &more) + "allow_anonymous = false\n";
    let node = Node::start_with_config(&[], &config);
    let identity = authority.issue_client("sensor-17");
    let connect = || {
        authority
            .connect(node.address("mqtts"), Some(&identity))
            .unwrap()
    };
    let mut raw = Raw::over(connect(), 5);
    let client_id = greet(&mut raw);
    assert_eq!(client_info(&node, &client_id)["username"], "sensor-17");

    // What the client claims does not replace what it has proved.
    let mut liar = Raw::over(connect(), 5);
    let client_id = unique("liar");
    let connack = liar.hand_shake(&Connect::new(5, &client_id).username("admin"));
    if connack.reason == 0 {
        assert_eq!(client_info(&node, &client_id)["username"], "sensor-17");
    }
}

/// Waits until new connections are shown `wanted`.
fn wait_for_certificate(node: &Node, authority: &Authority, wanted: &TlsIdentity, limit: Duration) {
    let wanted = certificates::read_certificate(&wanted.certificate).to_vec();
    let deadline = Instant::now() + limit;
    while shown(node, authority) != wanted {
        assert!(
            Instant::now() < deadline,
            "still the old certificate after {limit:?}"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn old_connection(node: &Node, authority: &Authority) -> Raw {
    let stream: TlsStream = authority.connect(node.address("mqtts"), None).unwrap();
    let mut raw = Raw::over(stream, 5);
    greet(&mut raw);
    raw
}

#[test]
fn changed_certificate_files_are_taken_up_by_themselves() {
    if !own_node() {
        return;
    }
    let authority = Authority::new(folder());
    let node = start(&authority.issue_server("server"), "");
    let mut old = old_connection(&node, &authority);
    let renewed = authority.issue_server("server");
    // The files are looked at every few seconds.
    wait_for_certificate(&node, &authority, &renewed, Duration::from_secs(60));
    old.ping();
    assert!(is_let_in(&node, &authority, None));
}

#[test]
fn a_certificate_in_use_is_shown_with_its_expiry() {
    if !own_node() {
        return;
    }
    let authority = Authority::new(folder());
    let server = authority.issue_server("server");
    let node = start(&server, "");
    let answer = get(&node, "/api/v1/listeners");
    let listeners: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
    let rows = listeners["data"].as_array().unwrap();
    let of = |name: &str| rows.iter().find(|row| row["name"] == name).unwrap();
    let certificate = &of("mqtts")["certificate"];
    assert_eq!(
        certificate["names"],
        json!(["localhost", "127.0.0.1", "::1"]),
        "{answer:?}",
        answer = answer.body
    );
    assert_eq!(certificate["file"], json!(server.certificate));
    let now_ms = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_millis() as u64;
    let not_after_ms = certificate["not_after_ms"].as_u64().unwrap();
    assert!(not_after_ms > now_ms, "{certificate}");
    assert!(certificate["not_before_ms"].as_u64() < Some(not_after_ms));
    assert!(!answer.body.contains("PRIVATE KEY"), "{}", answer.body);
}

#[test]
fn certificates_are_read_again_on_sighup() {
    if !own_node() {
        return;
    }
    let authority = Authority::new(folder());
    let node = start(&authority.issue_server("server"), "");
    let mut old = old_connection(&node, &authority);
    for _ in 0..3 {
        let renewed = authority.issue_server("server");
        node.signal(libc::SIGHUP);
        wait_for_certificate(&node, &authority, &renewed, DEADLINE);
        old.ping();
    }
    assert!(node.is_running());
}

#[test]
fn broken_certificate_files_do_not_replace_good_ones() {
    if !own_node() {
        return;
    }
    let authority = Authority::new(folder());
    let server = authority.issue_server("server");
    let node = start(&server, "");
    let before = shown(&node, &authority);
    fs::write(&server.certificate, "not a certificate").unwrap();
    node.signal(libc::SIGHUP);
    let path = server.certificate.display().to_string();
    crate::support::eventually("the log names the broken file", || {
        node.log().contains(&path)
    });
    assert_eq!(shown(&node, &authority), before);
}

#[test]
fn missing_and_mismatched_files_are_errors_at_the_start() {
    if !own_node() {
        return;
    }
    let authority = Authority::new(folder());
    let server = authority.issue_server("server");
    let nowhere = server.certificate.with_file_name("nowhere.pem");
    let missing = TlsIdentity {
        certificate: nowhere.clone(),
        key: server.key.clone(),
    };
    let why = Node::try_start(&[], &config(&missing, ""))
        .err()
        .expect("no such file");
    assert!(why.contains(nowhere.to_str().unwrap()), "{why}");

    let other = authority.issue_server("other");
    let mixed = TlsIdentity {
        certificate: server.certificate,
        key: other.key,
    };
    let why = Node::try_start(&[], &config(&mixed, ""))
        .err()
        .expect("not its key");
    assert!(why.contains(mixed.key.to_str().unwrap()), "{why}");
}
