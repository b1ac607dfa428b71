//! Link listeners: logins, messages, files and firmware of devices, interruptions, and kills of the node.

use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use content::{ContentHasher, DigestAlgorithm, RangeSet};
use link::config::AckPolicy;
use link::core::{NewStream, SendError};
use link::error_code::ErrorCode;
use link::net::{ConnectOptions, Link, LinkError, OutgoingStream, connect as connect_link};
use link::priority::Priority;
use link::wire::control::TransferId;
use link::wire::handshake::{Credentials, LinkId};
use link_gateway::exchange::{FileMetadata, Publication, PublicationRejection};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

use super::{api, ask, get, product, state, with_token};
use crate::certificates::Authority;
use crate::mqtt5::scram::credential;
use crate::support::{
    Connect, Node, Random, Raw, SmallDisk, eventually, kind, temporary_directory,
};

const WAIT: Duration = Duration::from_secs(30);
const NOT_AUTHORIZED: u8 = 0x87;

const LISTENER: &str = r#"
[[listener]]
name = "link"
bind = "127.0.0.1:0"
allow_anonymous = false
"#;

/// Devices may publish to `up/` and send files whose ids do not begin with `secret`.
const RULES: &str = r##"
[[auth.rule]]
permission = "deny"
topics = ["$file/secret/#", "down/#"]

[[auth.rule]]
permission = "allow"
topics = ["#", "$file/#"]
"##;

/// A node with a link listener, the product `pump`, and devices with tokens.
pub(super) fn node(devices: &[&str], config: &str) -> Node {
    let node = Node::start_with_config(&["--shards", "2"], &format!("{config}{LISTENER}{RULES}"));
    product(&node, "pump", json!({}));
    for id in devices {
        with_token(&node, id, "pump", json!({}));
    }
    node
}

fn content(len: usize) -> Vec<u8> {
    let mixed = (0..len as u32).map(|n| n.wrapping_mul(2_654_435_761) >> 13);
    mixed.map(|number| number as u8).collect()
}

/// Runs `tidegate link`.
pub(super) fn command(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.arg("link").args(arguments);
    command.output().unwrap()
}

pub(super) fn succeeded(output: &Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The complete files of a device.
fn files(node: &Node, device: &str) -> Vec<Value> {
    let all = get(node, "files");
    let all = all["data"].as_array().unwrap().iter();
    let own = all.filter(|file| file["owner"]["id"] == device && file["state"] == "complete");
    own.cloned().collect()
}

fn metric(node: &Node, name: &str) -> u64 {
    let (_, _, text) = super::ask_at(node.address("http"), ("GET", "/metrics"), "", "");
    let name = format!("tidegate_{name} ");
    let text = text.as_str().unwrap().to_owned();
    let mut lines = text.lines();
    let value = lines.find_map(|line| line.strip_prefix(&name));
    value.map_or(0, |value| value.parse::<f64>().unwrap() as u64)
}

/// A peer whose address may change, since a node that is started again has another one.
pub(super) struct Peer {
    runtime: Runtime,
    pub(super) link: Link,
    pub(super) address: Arc<Mutex<String>>,
}

impl Peer {
    pub(super) fn new(node: &Node, token: &str, client_id: &str) -> Self {
        Self::with_policy(node, token, client_id, AckPolicy::OnReceipt)
    }

    /// A peer that acknowledges messages by this policy.
    pub(super) fn with_policy(
        node: &Node,
        token: &str,
        client_id: &str,
        ack_policy: AckPolicy,
    ) -> Self {
        Self::at(node.address("link"), token, client_id, ack_policy)
    }

    /// A peer that connects to this address.
    fn at(address: &str, token: &str, client_id: &str, ack_policy: AckPolicy) -> Self {
        let runtime = Runtime::new().unwrap();
        let address = Arc::new(Mutex::new(address.to_owned()));
        let mut options = ConnectOptions {
            credentials: Credentials::Token(token.to_owned()),
            ..ConnectOptions::default()
        };
        options.config.client_id = client_id.to_owned();
        options.config.ack_policy = ack_policy;
        let id = LinkId(
            ring::rand::generate(&ring::rand::SystemRandom::new())
                .unwrap()
                .expose(),
        );
        let target = address.clone();
        let link = runtime.block_on(async {
            connect_link(id, options, move || {
                let address = target.lock().unwrap().clone();
                async move { TcpStream::connect(address).await }
            })
        });
        Self {
            runtime,
            link,
            address,
        }
    }

    pub(super) fn moved_to(&self, node: &Node) {
        *self.address.lock().unwrap() = node.address("link").to_owned();
    }

    pub(super) fn wait<T>(&self, work: impl Future<Output = T>) -> T {
        let limited = async { tokio::time::timeout(WAIT, work).await };
        self.runtime.block_on(limited).expect("in time")
    }

    pub(super) fn publish(&self, topic: &str, payload: &[u8]) {
        let mut message = Vec::new();
        let publication = Publication {
            topic,
            payload,
            retain: false,
        };
        publication.encode(&mut message);
        self.wait(self.link.send(Priority::Normal, message.into()))
            .unwrap();
    }

    fn rejection(&self) -> PublicationRejection {
        let message = self.wait(self.link.receive()).unwrap();
        serde_json::from_slice(&message.payload.into_bytes()).unwrap()
    }

    fn open(&self, file_id: Option<&str>, size: usize, digest: DigestAlgorithm) -> OutgoingStream {
        let metadata = FileMetadata {
            name: "dir/image.bin".to_owned(),
            file_id: file_id.map(str::to_owned),
            ..FileMetadata::default()
        };
        let new = NewStream {
            priority: Priority::Bulk,
            transfer_id: TransferId([7; 16]),
            size: Some(size as u64),
            digest: Some(digest),
            metadata: serde_json::to_vec(&metadata).unwrap(),
            is_resume: true,
        };
        self.wait(self.link.send_stream(new)).unwrap()
    }

    /// Sends a file that is expected to be rejected; returns the code and the text.
    fn rejected(&self, file_id: &str, size: usize) -> (ErrorCode, String) {
        let stream = self.open(Some(file_id), size, DigestAlgorithm::Sha256);
        match self.wait(stream.accepted()) {
            Err(LinkError::Stream { code, text }) => (code, text),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn devices_send_and_receive_files_and_firmware() {
    let node = node(&["p1", "p2"], "");
    let folder = temporary_directory();
    let photos = folder.join("photos");
    std::fs::create_dir_all(&photos).unwrap();
    let bytes = content(3_000_017);
    std::fs::write(photos.join("a.raw"), &bytes).unwrap();
    std::fs::write(photos.join("empty"), "").unwrap();
    let address = node.address("link");
    let token = ["--token", "token-p1"];
    for checksum in ["sha256", "blake3"] {
        let send = [
            "send",
            address,
            photos.to_str().unwrap(),
            "--checksum",
            checksum,
            "--resume",
        ];
        let output = succeeded(&command(&[&send[..], &token].concat()));
        assert!(output.contains("3000017 bytes  photos/a.raw"), "{output}");
    }
    // The second command finds what the first one has sent, unless its checksum is part of the identity.
    let sent = files(&node, "p1");
    assert_eq!(sent.len(), 4);
    let photo = sent.iter().find(|file| file["name"] == "a.raw").unwrap();
    assert_eq!(photo["owner"]["kind"], "device");
    assert_eq!(photo["user_data"]["path"], "photos/a.raw");

    let (status, _, image) = ask(&node, ("PUT", "uploads/app.bin"), "", &"image".repeat(9000));
    assert_eq!(status, 201, "{image}");
    let package = json!({"id": "pump-1", "title": "pump", "firmware_version": "1", "product": "pump", "file": image["id"]});
    assert_eq!(api(&node, "POST", "firmware", &package).0, 201);
    let assignment = json!({"package": "pump-1", "product": "pump"});
    assert!(api(&node, "PUT", "firmware-assignments/a", &assignment).0 < 300);
    let back = folder.join("back");
    let receive = [
        "receive",
        address,
        "files",
        "firmware",
        "--to",
        back.to_str().unwrap(),
    ];
    succeeded(&command(&[&receive[..], &token].concat()));
    assert!(std::fs::read(back.join("files/a.raw")).unwrap() == bytes);
    assert_eq!(std::fs::read(back.join("files/empty")).unwrap(), b"");
    let received = std::fs::read_to_string(back.join("firmware/app.bin")).unwrap();
    assert!(received == "image".repeat(9000));
    assert_eq!(metric(&node, "link_files_received_total"), 4);
    assert_eq!(metric(&node, "link_files_sent_total"), 3);

    // Files of others do not exist for a device.
    let receive = ["receive", address, "files/a.raw", "--token", "token-p2"];
    let output = command(&receive);
    assert_eq!(output.status.code(), Some(4));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        error.contains("files/a.raw: there is no such file"),
        "{error}"
    );
}

#[test]
fn wrong_credentials_are_rejected() {
    let node = node(&["p1"], "");
    let address = node.address("link");
    for credentials in [&["--token", "wrong"][..], &["--username", "token-p1x"], &[]] {
        let output = command(&[&["publish", address, "up/a", "-m", "x"][..], credentials].concat());
        assert_eq!(output.status.code(), Some(4), "{credentials:?}");
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains("login rejected"), "{error}");
    }
    assert_eq!(metric(&node, "link_connections_rejected_total"), 3);
    assert_eq!(metric(&node, "links"), 0);
}

#[test]
fn passwords_and_client_certificates_are_accepted() {
    let authority = Authority::new(temporary_directory());
    let server = authority.issue_server("server");
    let config = format!(
        "[[user]]\nusername = \"alice\"\ncredential = \"{}\"\n\
         [[listener]]\nname = \"links\"\nbind = \"127.0.0.1:0\"\nallow_anonymous = false\n\
         tls = {{ certificate = {:?}, private_key = {:?}, client_ca = {:?}, require_client_certificate = true, common_name_as_username = true }}\n",
        credential(b"wonderland", b"salt of alice", 4096),
        server.certificate,
        server.key,
        authority.certificate_path(),
    );
    let node = node(&[], &config);
    let mut watcher = Raw::client(&node, 5);
    watcher.subscribe("up/#", 0);
    let folder = temporary_directory();
    let password = |text: &str| {
        let file = folder.join(text);
        std::fs::write(&file, text).unwrap();
        file.to_str().unwrap().to_owned()
    };
    let publish = ["publish", node.address("link"), "up/a", "-m", "by password"];
    let login = |file: &str| {
        let login = ["--username", "alice", "--password-file", file];
        command(&[&publish[..], &login].concat())
    };
    let rejected = login(&password("looking-glass"));
    assert_eq!(rejected.status.code(), Some(4), "{rejected:?}");
    succeeded(&login(&password("wonderland")));
    watcher.recv_message("up/a", "by password");

    let (_, port) = node.address("links").rsplit_once(':').unwrap();
    let (secure, ca) = (
        format!("tls://localhost:{port}"),
        authority.certificate_path(),
    );
    let publish = ["publish", &secure, "up/b", "-m", "by certificate"];
    let publish = [&publish[..], &["--cafile", ca.to_str().unwrap()]].concat();
    let identity = authority.issue_client("sensor-17");
    let certificate = [
        "--cert",
        identity.certificate.to_str().unwrap(),
        "--key",
        identity.key.to_str().unwrap(),
    ];
    succeeded(&command(&[&publish[..], &certificate].concat()));
    watcher.recv_message("up/b", "by certificate");
    let without = command(&[&publish[..], &["--connect-timeout", "2"]].concat());
    assert!(!without.status.success(), "{without:?}");
}

#[test]
fn messages_are_published_as_permitted() {
    let node = node(&["p1"], "");
    let mut watcher = Raw::client(&node, 5);
    watcher.subscribe("up/#", 1);
    let address = node.address("link");
    let publish = ["publish", address, "--token", "token-p1", "-m", "text"];
    succeeded(&command(&[&publish[..], &["up/a"]].concat()));
    let message = watcher.recv_message("up/a", "text");
    assert_eq!(message.qos(), 1);
    let output = command(&[&publish[..], &["down/a"]].concat());
    assert_eq!(output.status.code(), Some(4));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.to_lowercase().contains("not authorized"), "{error}");

    let peer = Peer::new(&node, "token-p1", "peer-1");
    peer.publish("down/b", b"");
    peer.publish("up/b", &content(200_000));
    let rejected = peer.rejection().rejected;
    assert_eq!(
        (rejected.topic.as_str(), rejected.reason_code),
        ("down/b", NOT_AUTHORIZED)
    );
    assert_eq!((rejected.priority.as_str(), rejected.number), ("normal", 1));
    watcher.recv_message("up/b", content(200_000));
    eventually("the device is online", || state(&node, "p1") == "online");
    let (code, text) = peer.rejected("secret", 10);
    assert_eq!(code, ErrorCode::NOT_PERMITTED, "{text}");
    assert!(text.contains("$file/secret/init"), "{text}");
    drop(peer);
    eventually("the device is offline", || state(&node, "p1") == "offline");
}

#[test]
fn a_peer_that_shuts_down_is_told_of_all_publications() {
    let node = node(&["p1"], "");
    let mut watcher = Raw::client(&node, 5);
    watcher.subscribe("up", 1);
    // Nobody listens there: the messages and the shutdown arrive together, before the first answer.
    let peer = Peer::at("127.0.0.1:1", "token-p1", "peer-1", AckPolicy::OnReceipt);
    peer.publish("down/forbidden", b"");
    for number in 1..100u32 {
        peer.publish("up", &number.to_le_bytes());
    }
    let shutdown = peer.link.shut_down(ErrorCode::NONE, "");
    // The shutdown has begun when the address changes.
    let connected = async { peer.moved_to(&node) };
    peer.wait(async { tokio::join!(biased; shutdown, connected) });
    for number in 1..100u32 {
        let message = watcher.recv(kind::PUBLISH);
        watcher.acknowledge(&message);
        assert_eq!(message.payload, number.to_le_bytes());
    }
    eventually("the link has ended", || metric(&node, "links") == 0);
    assert_eq!(metric(&node, "link_messages_rejected_total"), 1);
    assert_eq!(metric(&node, "link_connections_total"), 1);
}

#[test]
fn every_message_is_published_once_over_interruptions() {
    let node = node(&["p1"], "[store]\nfsync = \"always\"\n");
    let proxy = testkit::Proxy::start(node.address("link").parse().unwrap());
    let persistent = Connect::new(5, "watcher").persistent();
    let mut watcher = Raw::connect(&node, &persistent);
    watcher.subscribe("up", 1);
    let address = proxy.address().to_string();
    let peer = Peer::at(&address, "token-p1", "peer-1", AckPolicy::OnReceipt);
    for number in 0..5000u32 {
        peer.publish("up", &number.to_le_bytes());
    }
    // Connections break while messages wait for the acknowledgement of the broker.
    let mut numbers = Vec::new();
    while numbers.len() < 5000 {
        let message = watcher.recv(kind::PUBLISH);
        watcher.acknowledge(&message);
        numbers.push(u32::from_le_bytes(message.payload[..].try_into().unwrap()));
        if numbers.len() % 250 == 100 {
            let accepted = proxy.accepted_count();
            proxy.close_connections();
            eventually("the peer reconnects", || proxy.accepted_count() > accepted);
        }
    }
    assert!(numbers.iter().copied().eq(0..5000), "{numbers:?}");
    peer.wait(peer.link.flush()).unwrap();
    assert!(watcher.ping_for_packets().is_empty());
    assert!(proxy.accepted_count() > 20);
}

#[test]
fn a_file_continues_after_kills_of_the_node() {
    for algorithm in [DigestAlgorithm::Sha256, DigestAlgorithm::Blake3] {
        let mut node = node(&["p1"], "");
        let peer = Peer::new(&node, "token-p1", "");
        let bytes = content(6_000_011);
        let digest = ContentHasher::digest(algorithm, &bytes);
        let send = |stream: &OutgoingStream, from: usize, to: usize| {
            let piece = Bytes::copy_from_slice(&bytes[from..to]);
            peer.wait(stream.write(from as u64, piece)).unwrap();
        };
        let stream = peer.open(None, bytes.len(), algorithm);
        assert!(peer.wait(stream.accepted()).unwrap().is_empty());
        send(&stream, 0, 4_000_000);
        eventually("most is durable", || {
            stream.acknowledged_bytes() >= 4_000_000
        });
        node.crash();
        peer.moved_to(&node);
        for from in (4_000_000..bytes.len()).step_by(500_000) {
            send(&stream, from, bytes.len().min(from + 500_000));
        }
        peer.wait(stream.finish(bytes.len() as u64, Some(digest)))
            .unwrap();
        let received = metric(&node, "file_received_bytes_total");
        assert!(received <= 2_000_011, "{received} bytes after the kill");
        let stored = files(&node, "p1");
        assert_eq!(stored.len(), 1);
        assert_eq!(
            (&stored[0]["name"], &stored[0]["size"]),
            (&json!("image.bin"), &json!(6_000_011))
        );
        let path = node.data_dir().join("files");
        assert!(has_content(&path, &bytes));
        // The same again, as if the answer had been lost: nothing is sent, and there is one file.
        let stream = peer.open(None, bytes.len(), algorithm);
        assert!(
            peer.wait(stream.accepted())
                .unwrap()
                .covers(0..bytes.len() as u64)
        );
        peer.wait(stream.finish(bytes.len() as u64, Some(digest)))
            .unwrap();
        assert_eq!(files(&node, "p1").len(), 1);
    }
}

#[test]
fn a_file_continues_when_a_full_disk_has_space_again() {
    let Some(disk) = SmallDisk::mount() else {
        testkit::report_skipped("a file system cannot be mounted here");
        return;
    };
    let config = "[store]\nsegment_bytes = \"1MiB\"\nmin_free_bytes = 1048576\n[telemetry]\nmin_free_bytes = 0\n\
                  [files]\nmin_free_bytes = 8388608\n";
    let data_dir = disk.path().join("data");
    std::fs::create_dir(&data_dir).unwrap();
    let config = format!("{config}{LISTENER}{RULES}");
    let mut node = Node::spawn(data_dir, &["--shards", "1"], &config);
    node.wait_until_it_listens()
        .unwrap_or_else(|why| panic!("{why}"));
    product(&node, "pump", json!({}));
    with_token(&node, "p1", "pump", json!({}));
    let peer = Peer::new(&node, "token-p1", "");
    let (code, text) = peer.rejected("big", 100 << 20);
    assert_eq!(code, ErrorCode::STORAGE_FAILED, "{text}");
    let bytes = content(20 << 20);
    let digest = ContentHasher::digest(DigestAlgorithm::Sha256, &bytes);
    let send = |stream: &OutgoingStream, known: &RangeSet| {
        for from in (0..bytes.len()).step_by(1 << 18) {
            let range = from..bytes.len().min(from + (1 << 18));
            if !known.covers(range.start as u64..range.end as u64) {
                let piece = Bytes::copy_from_slice(&bytes[range.clone()]);
                peer.wait(stream.write(range.start as u64, piece))?;
            }
        }
        Ok::<_, LinkError>(())
    };
    let stream = peer.open(None, bytes.len(), DigestAlgorithm::Sha256);
    let mut known = peer.wait(stream.accepted()).unwrap();
    let first = Bytes::copy_from_slice(&bytes[..1 << 18]);
    peer.wait(stream.write(0, first)).unwrap();
    eventually("the begin is durable", || {
        stream.acknowledged_bytes() >= 1 << 18
    });
    let filler = disk.fill_but(4 << 20);
    known.insert(0..1 << 18);
    let sent = send(&stream, &known);
    let failed = sent.and_then(|()| peer.wait(stream.finish(bytes.len() as u64, Some(digest))));
    assert!(
        matches!(&failed, Err(LinkError::Stream { code, .. }) if *code == ErrorCode::STORAGE_FAILED),
        "{failed:?}"
    );
    std::fs::remove_file(filler).unwrap();
    let mut is_resumed = false;
    eventually("there is space again", || {
        let stream = peer.open(None, bytes.len(), DigestAlgorithm::Sha256);
        let Ok(known) = peer.wait(stream.accepted()) else {
            return false;
        };
        is_resumed |= known.contains(0);
        send(&stream, &known).is_ok()
            && peer
                .wait(stream.finish(bytes.len() as u64, Some(digest)))
                .is_ok()
    });
    assert!(is_resumed, "what was acknowledged is not sent again");
    assert!(has_content(&node.data_dir().join("files"), &bytes));
}

fn has_content(directory: &Path, bytes: &[u8]) -> bool {
    let mut entries = std::fs::read_dir(directory).unwrap();
    entries.any(|entry| {
        std::fs::read(entry.unwrap().path().join("data")).is_ok_and(|stored| stored == bytes)
    })
}

/// Reads `count` messages, which must be there, and checks that there are no others. The watcher has missed all of them, so
/// that the node has sent it none before.
fn expect_each_once(node: &Node, watcher: &Connect, count: u32) {
    let mut received = vec![0; count as usize];
    let mut watcher = Raw::connect(node, watcher);
    while received.contains(&0) {
        let message = watcher.recv(kind::PUBLISH);
        watcher.acknowledge(&message);
        received[u32::from_le_bytes(message.payload[..].try_into().unwrap()) as usize] += 1;
    }
    let further = watcher.ping_for_packets().len();
    let total: u32 = received.iter().sum();
    assert_eq!((total, further), (count, 0), "some were published twice");
}

/// A client that is away, subscribed to `up`.
fn absent_watcher(node: &Node) -> Connect {
    let watcher = Connect::new(4, "watcher").persistent();
    let mut raw = Raw::connect(node, &watcher);
    raw.subscribe("up", 1);
    raw.disconnect();
    watcher
}

#[test]
fn every_message_is_published_once_when_the_node_is_killed() {
    let mut random = Random::new(Random::seed());
    let mut node = node(&["p1"], "[store]\nfsync = \"always\"\n");
    let watcher = absent_watcher(&node);
    let peer = Peer::new(&node, "token-p1", "peer-1");
    for number in 0..3000u32 {
        peer.publish("up", &number.to_le_bytes());
        if number % 500 == 250 {
            // Some messages are published and not acknowledged.
            std::thread::sleep(Duration::from_micros(random.below(3000) as u64));
            node.crash();
            peer.moved_to(&node);
        }
    }
    peer.wait(peer.link.flush()).unwrap();
    expect_each_once(&node, &watcher, 3000);
}

/// `TIDEGATE_TEST_KILLS` sets the number of kills.
#[test]
fn files_and_messages_survive_kills_at_random_moments() {
    let kills = std::env::var("TIDEGATE_TEST_KILLS").map_or(4, |text| text.parse().unwrap());
    let mut random = Random::new(Random::seed());
    let mut node = node(&["p1"], "");
    let watcher = absent_watcher(&node);
    let peer = Peer::new(&node, "token-p1", "peer-1");
    let bytes = content(8_000_003);
    let digest = ContentHasher::digest(DigestAlgorithm::Blake3, &bytes);
    let stream = peer.open(None, bytes.len(), DigestAlgorithm::Blake3);
    let (mut offset, mut number) = (0, 0u32);
    for kill in 0..=kills {
        let end = bytes.len() * (kill + 1) / (kills + 1);
        while offset < end {
            let next = end.min(offset + 100_000);
            let piece = Bytes::copy_from_slice(&bytes[offset..next]);
            peer.wait(stream.write(offset as u64, piece)).unwrap();
            peer.publish("up", &number.to_le_bytes());
            (offset, number) = (next, number + 1);
        }
        if kill < kills {
            std::thread::sleep(Duration::from_millis(random.below(100) as u64));
            node.crash();
            peer.moved_to(&node);
        }
    }
    peer.wait(stream.finish(bytes.len() as u64, Some(digest)))
        .unwrap();
    peer.wait(peer.link.flush()).unwrap();
    assert!(has_content(&node.data_dir().join("files"), &bytes));
    assert_eq!(files(&node, "p1").len(), 1);
    expect_each_once(&node, &watcher, number);
}

#[test]
fn quotas_and_wrong_digests_are_rejected() {
    let quotas = "[files]\nmax_file_bytes = 1000000\nmax_bytes_per_owner = 1500000\nmax_transfers_per_owner = 1\n";
    let node = node(&["p1"], quotas);
    let peer = Peer::new(&node, "token-p1", "");
    let (code, text) = peer.rejected("a", 1_000_001);
    assert_eq!(code, ErrorCode::TOO_LARGE, "{text}");
    assert!(text.contains("files.max_file_bytes"), "{text}");
    let stream = peer.open(Some("a"), 900_000, DigestAlgorithm::Sha256);
    peer.wait(stream.accepted()).unwrap();
    let (code, text) = peer.rejected("b", 10);
    assert_eq!(code, ErrorCode::LIMIT_EXCEEDED, "{text}");
    peer.wait(stream.write(0, vec![0; 900_000].into())).unwrap();
    let wrong = ContentHasher::digest(DigestAlgorithm::Sha256, b"other");
    let finished = peer.wait(stream.finish(900_000, Some(wrong)));
    let is_mismatch = |error: &LinkError| matches!(error, LinkError::Stream { code, .. } if *code == ErrorCode::DIGEST_MISMATCH);
    assert!(finished.as_ref().is_err_and(is_mismatch), "{finished:?}");
    assert!(files(&node, "p1").is_empty());
    // The wrong content is gone, so the transfer begins anew.
    let stream = peer.open(Some("a"), 900_000, DigestAlgorithm::Sha256);
    assert!(peer.wait(stream.accepted()).unwrap().is_empty());
    drop(stream);
}

#[test]
fn a_paused_file_is_rejected_until_it_is_resumed() {
    let node = node(&["p1"], "");
    let peer = Peer::new(&node, "token-p1", "");
    let open = || peer.open(Some("f"), 3, DigestAlgorithm::Sha256);
    let stream = open();
    peer.wait(stream.accepted()).unwrap();
    let listed = get(&node, "files?file_id=f");
    let id = listed["data"][0]["id"].as_str().unwrap();
    let act = |action: &str| {
        let (status, _) = api(&node, "POST", &format!("files/{id}/{action}"), &Value::Null);
        assert_eq!(status, 200);
    };
    act("pause");
    let is_rejected = |error: &LinkError| {
        matches!(error, LinkError::Stream { code, text }
            if *code == ErrorCode::LIMIT_EXCEEDED && text.starts_with("paused"))
    };
    // The content of a stream that is open already is rejected too.
    let _ = peer.wait(stream.write(0, vec![1; 3].into()));
    let digest = ContentHasher::digest(DigestAlgorithm::Sha256, &[1; 3]);
    let finished = peer.wait(stream.finish(3, Some(digest)));
    // The rejection may have come before.
    let is_ended = |error: &LinkError| {
        is_rejected(error) || matches!(error, LinkError::Send(SendError::StreamEnded))
    };
    assert!(finished.as_ref().is_err_and(is_ended), "{finished:?}");
    let again = open();
    let accepted = peer.wait(again.accepted());
    assert!(accepted.as_ref().is_err_and(is_rejected), "{accepted:?}");
    act("resume");
    let stream = open();
    peer.wait(stream.accepted()).unwrap();
    peer.wait(stream.write(0, vec![1; 3].into())).unwrap();
    peer.wait(stream.finish(3, Some(digest))).unwrap();
    assert_eq!(files(&node, "p1").len(), 1);
}

#[test]
fn listeners_have_tls_limits_and_can_be_stopped() {
    let authority = Authority::new(temporary_directory());
    let server = authority.issue_server("server");
    let config = format!(
        "[[listener]]\nname = \"links\"\nbind = \"127.0.0.1:0\"\nmax_connections = 1\ntls = {{ certificate = {:?}, private_key = {:?} }}\n",
        server.certificate, server.key
    );
    let node = node(&["p1", "p2"], &config);
    let secure = format!(
        "tls://localhost:{}",
        node.address("links").rsplit_once(':').unwrap().1
    );
    let ca = authority.certificate_path();
    let publish = [
        "publish",
        &secure,
        "up",
        "-m",
        "x",
        "--cafile",
        ca.to_str().unwrap(),
        "--token",
    ];
    succeeded(&command(&[&publish[..], &["token-p1"]].concat()));
    let listed = get(&node, "listeners/links");
    assert_eq!(listed["protocol"], "links");
    eventually("the connection is counted down", || {
        get(&node, "listeners/links")["connections"] == 0
    });

    let peer = Peer::new(&node, "token-p1", "");
    peer.wait(peer.link.connected()).unwrap();
    assert_eq!(get(&node, "listeners/link")["connections"], 1);
    let stop = json!({"disconnect_clients": true});
    let (status, answer) = api(&node, "POST", "listeners/link/stop", &stop);
    assert!(status < 300, "{answer}");
    eventually("the peer is disconnected", || !peer.link.is_connected());
    assert!(std::net::TcpStream::connect(node.address("link")).is_err());
    let (status, answer) = api(&node, "POST", "listeners/link/start", &Value::Null);
    assert!(status < 300, "{answer}");
    peer.wait(peer.link.connected()).unwrap();
    peer.publish("up", b"again");
    peer.wait(peer.link.flush()).unwrap();
}
