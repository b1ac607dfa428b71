//! HTTP over TLS: nothing else is answered, and the certificate is renewed like those of MQTT.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::{folder, own_node};
use crate::certificates::{self, Authority, TlsIdentity};
use crate::support::{DEADLINE, Node};

fn start(identity: &TlsIdentity) -> Node {
    let config = format!(
        "[http.tls]\ncertificate = \"{}\"\nprivate_key = \"{}\"\n",
        identity.certificate.display(),
        identity.key.display()
    );
    Node::start_with_config(&[], &config)
}

fn request(mut stream: impl Read + Write, address: &str) -> io::Result<String> {
    write!(
        stream,
        "GET /api/v1/node HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn shown(node: &Node, authority: &Authority) -> Vec<u8> {
    let stream = authority.connect(node.address("http"), None).unwrap();
    certificates::server_certificate(&stream).to_vec()
}

fn wait_for(node: &Node, authority: &Authority, wanted: &TlsIdentity, limit: Duration) {
    let wanted = certificates::read_certificate(&wanted.certificate).to_vec();
    let deadline = Instant::now() + limit;
    while shown(node, authority) != wanted {
        assert!(Instant::now() < deadline, "the old one is still shown");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn http_is_served_over_tls_and_not_otherwise() {
    if !own_node() {
        return;
    }
    let authority = Authority::new(folder());
    let strangers = Authority::new(folder());
    let node = start(&authority.issue_server("server"));
    let address = node.address("http");
    let stream = authority.connect(address, None).unwrap();
    let answer = request(stream, address).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(strangers.connect(address, None).is_err());
    let plain = TcpStream::connect(address).unwrap();
    plain.set_read_timeout(Some(DEADLINE)).unwrap();
    match request(plain, address) {
        Ok(answer) => assert!(!answer.contains("HTTP/"), "{answer}"),
        Err(error) => assert_ne!(error.kind(), io::ErrorKind::WouldBlock, "not closed"),
    }
}

#[test]
fn a_new_certificate_is_taken_up_by_itself_and_on_sighup() {
    if !own_node() {
        return;
    }
    let authority = Authority::new(folder());
    let node = start(&authority.issue_server("server"));
    let renewed = authority.issue_server("server");
    // The files are looked at every few seconds.
    wait_for(&node, &authority, &renewed, Duration::from_secs(60));
    let renewed = authority.issue_server("server");
    node.signal(libc::SIGHUP);
    wait_for(&node, &authority, &renewed, DEADLINE);
    assert!(node.is_running());
}
