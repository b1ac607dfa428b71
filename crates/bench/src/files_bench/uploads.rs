//! One upload by each method into a node.

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use link::core::NewStream;
use link::net::{ConnectOptions, connect};
use link::priority::Priority;
use link::wire::control::TransferId;
use link::wire::handshake::LinkId;
use link_carriers::configure_tcp;
use mqtt::{Connect, Direction, Packet, Properties, Publish, QoS, ReasonCode, Version};
use serde_json::json;

use super::file_content::{FileContent, hex};
use content::{ContentDigest, DigestAlgorithm};

pub(super) const TIMEOUT: Duration = Duration::from_secs(120);
/// Segments over MQTT that are not acknowledged.
const MQTT_WINDOW: usize = 16;
/// Bytes of one PATCH of tus.
const PATCH_BYTES: u64 = 16 << 20;

/// Where the node is.
pub(crate) struct NodeAddresses {
    pub(crate) mqtt: String,
    pub(crate) http: String,
    pub(crate) link: String,
    /// For the HTTP API.
    pub(crate) token: String,
}

/// The method that a file takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum UploadMethod {
    /// MQTT with `$file/`
    Mqtt,
    /// HTTP with one PUT
    Http,
    /// HTTP with tus 1.0
    Tus,
    /// A link
    Link,
    /// HTTP with one PUT of curl
    Curl,
}

impl UploadMethod {
    /// Those that need no other program.
    pub(crate) const OWN: [Self; 4] = [Self::Mqtt, Self::Http, Self::Tus, Self::Link];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Mqtt => "MQTT $file/",
            Self::Http => "HTTP PUT",
            Self::Tus => "tus",
            Self::Link => "link",
            Self::Curl => "curl",
        }
    }

    /// Sends a file with this name; returns when the node has verified it.
    pub(crate) fn send(
        self,
        node: &NodeAddresses,
        name: &str,
        content: &FileContent,
        digest: &ContentDigest,
    ) -> anyhow::Result<()> {
        match self {
            Self::Mqtt => send_over_mqtt(&node.mqtt, name, content, digest),
            Self::Http => put(node, name, content, digest),
            Self::Tus => {
                let server = TusServer {
                    host: &node.http,
                    path: "/api/v1/tus",
                    token: Some(&node.token),
                };
                send_with_tus(&server, name, content, digest).map(drop)
            }
            Self::Link => send_over_link(&node.link, name, content, digest),
            Self::Curl => send_with_curl(node, name, content, digest),
        }
    }
}

fn open(address: &str) -> anyhow::Result<TcpStream> {
    let stream =
        TcpStream::connect(address).with_context(|| format!("cannot connect to {address}"))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    Ok(stream)
}

/// The time that plain TCP takes for the same content, until the receiver has confirmed its end.
pub(crate) fn send_over_plain_tcp(content: &FileContent) -> anyhow::Result<Duration> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?.to_string();
    let size = content.size;
    let receiver = std::thread::spawn(move || -> std::io::Result<u64> {
        let (mut stream, _) = listener.accept()?;
        let mut buffer = vec![0; 256 * 1024];
        let mut received = 0;
        while received < size {
            match stream.read(&mut buffer)? {
                0 => break,
                len => received += len as u64,
            }
        }
        stream.write_all(&[1])?;
        Ok(received)
    });
    let mut stream = open(&address)?;
    let start = Instant::now();
    for (_, piece) in content.pieces() {
        stream.write_all(&piece)?;
    }
    stream.read_exact(&mut [0])?;
    let elapsed = start.elapsed();
    let received = receiver.join().ok().context("the receiver panicked")??;
    ensure!(received == size, "plain TCP lost content");
    Ok(elapsed)
}

/// A client of MQTT that sends one file.
struct MqttSender {
    stream: TcpStream,
    input: Vec<u8>,
    next_id: u16,
    waiting: VecDeque<u16>,
}

impl MqttSender {
    fn connect(address: &str) -> anyhow::Result<Self> {
        let mut sender = Self {
            stream: open(address)?,
            input: Vec::new(),
            next_id: 0,
            waiting: VecDeque::new(),
        };
        let mut out = Vec::new();
        let connect = Packet::Connect(Connect {
            version: Version::V5,
            clean_start: true,
            keep_alive_s: 0,
            client_id: "bench-files",
            username: None,
            password: None,
            will: None,
            properties: Properties::EMPTY,
            is_bridge: false,
        });
        connect.encode(Version::V5, &mut out);
        sender.stream.write_all(&out)?;
        let code = sender.receive(|packet| match packet {
            Packet::ConnAck(connack) => Some(connack.code),
            _ => None,
        })?;
        ensure!(!code.is_error(), "the node refuses the client: {code}");
        Ok(sender)
    }

    /// The first packet that `select` takes.
    fn receive<T>(&mut self, select: impl Fn(&Packet<'_>) -> Option<T>) -> anyhow::Result<T> {
        loop {
            while let Some(frame) = mqtt::split_frame(&self.input, u32::MAX)? {
                let len = frame.len;
                let packet = Packet::decode(frame, Version::V5, Direction::FromServer)?;
                let selected = select(&packet);
                if let Packet::Disconnect(disconnect) = &packet {
                    bail!("the node disconnects the client: {}", disconnect.reason);
                }
                self.input.drain(..len);
                if let Some(selected) = selected {
                    return Ok(selected);
                }
            }
            let mut buffer = [0; 4096];
            let len = self.stream.read(&mut buffer)?;
            ensure!(len > 0, "the node closed the connection");
            self.input.extend_from_slice(&buffer[..len]);
        }
    }

    fn step(&mut self, topic: &str, payload: &[u8], window: usize) -> anyhow::Result<()> {
        self.next_id = self.next_id.checked_add(1).unwrap_or(1);
        let mut out = Vec::with_capacity(payload.len() + 128);
        let publish = Packet::Publish(Publish {
            dup: false,
            qos: QoS::AtLeastOnce,
            retain: false,
            topic,
            packet_id: self.next_id,
            properties: Properties::EMPTY,
            payload,
        });
        publish.encode(Version::V5, &mut out);
        self.stream.write_all(&out)?;
        self.waiting.push_back(self.next_id);
        while self.waiting.len() > window {
            let (id, reason) = self.receive(|packet| match packet {
                Packet::PubAck(ack) => Some((ack.packet_id, ack.reason)),
                _ => None,
            })?;
            let is_accepted = !reason.is_error() || reason == ReasonCode::NO_MATCHING_SUBSCRIBERS;
            ensure!(
                is_accepted,
                "the node refuses {topic} or a step before: {reason}"
            );
            self.waiting.retain(|waiting| *waiting != id);
        }
        Ok(())
    }
}

fn send_over_mqtt(
    address: &str,
    name: &str,
    content: &FileContent,
    digest: &ContentDigest,
) -> anyhow::Result<()> {
    let mut sender = MqttSender::connect(address)?;
    let init = json!({"name": name, "size": content.size, "checksum": hex(digest)});
    sender.step(
        &format!("$file/{name}/init"),
        init.to_string().as_bytes(),
        0,
    )?;
    for (offset, piece) in content.pieces() {
        sender.step(&format!("$file/{name}/{offset}"), &piece, MQTT_WINDOW)?;
    }
    sender.step(&format!("$file/{name}/fin/{}", content.size), b"", 0)
}

/// The status of an answer, and the value of a field of its head. The body is read.
fn read_answer(
    stream: &mut BufReader<TcpStream>,
    field: &str,
) -> anyhow::Result<(u16, Option<String>)> {
    let mut line = String::new();
    stream.read_line(&mut line)?;
    let status = line.split(' ').nth(1).and_then(|code| code.parse().ok());
    let status: u16 = status.context("the answer is not HTTP")?;
    let (mut length, mut value) = (0, None);
    loop {
        line.clear();
        stream.read_line(&mut line)?;
        let Some((name, found)) = line.trim_end().split_once(':') else {
            break;
        };
        if name.eq_ignore_ascii_case("content-length") {
            length = found
                .trim()
                .parse()
                .context("content-length of the answer")?;
        }
        if name.eq_ignore_ascii_case(field) {
            value = Some(found.trim().to_owned());
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    ensure!(
        (200..300).contains(&status),
        "the node answers {status}: {}",
        String::from_utf8_lossy(&body)
    );
    Ok((status, value))
}

/// The begin of a request; `token` is needed by nodes.
fn head(host: &str, token: Option<&str>, method: &str, path: &str, fields: &str) -> String {
    let authorization = token.map(|token| format!("Authorization: Bearer {token}\r\n"));
    let authorization = authorization.unwrap_or_default();
    format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n{authorization}{fields}\r\n")
}

fn put(
    node: &NodeAddresses,
    name: &str,
    content: &FileContent,
    digest: &ContentDigest,
) -> anyhow::Result<()> {
    let mut stream = BufReader::new(open(&node.http)?);
    let digest = data_encoding::BASE64.encode(&digest.bytes);
    let fields = format!(
        "Content-Type: application/octet-stream\r\nContent-Length: {}\r\nRepr-Digest: sha-256=:{digest}:\r\n",
        content.size
    );
    let path = format!("/api/v1/uploads/{name}");
    let head = head(&node.http, Some(&node.token), "PUT", &path, &fields);
    stream.get_mut().write_all(head.as_bytes())?;
    for (_, piece) in content.pieces() {
        stream.get_mut().write_all(&piece)?;
    }
    read_answer(&mut stream, "").map(drop)
}

/// Where uploads with tus are created.
pub(super) struct TusServer<'a> {
    pub(super) host: &'a str,
    pub(super) path: &'a str,
    pub(super) token: Option<&'a str>,
}

/// Uploads a file; returns the path of the upload.
pub(super) fn send_with_tus(
    server: &TusServer<'_>,
    name: &str,
    content: &FileContent,
    digest: &ContentDigest,
) -> anyhow::Result<String> {
    let mut stream = BufReader::new(open(server.host)?);
    let encode = |text: &str| data_encoding::BASE64.encode(text.as_bytes());
    let fields = format!(
        "Tus-Resumable: 1.0.0\r\nContent-Length: 0\r\nUpload-Length: {}\r\nUpload-Metadata: filename {},sha256 {}\r\n",
        content.size,
        encode(name),
        encode(&hex(digest))
    );
    let create = head(server.host, server.token, "POST", server.path, &fields);
    stream.get_mut().write_all(create.as_bytes())?;
    let (_, location) = read_answer(&mut stream, "location")?;
    let location = location.context("the server names no location of the upload")?;
    // It may be a whole URL.
    let path = location
        .split_once("://")
        .and_then(|(_, rest)| rest.split_once('/'));
    let location = path.map_or(location.clone(), |(_, path)| format!("/{path}"));
    let mut patch_end = 0;
    for (offset, piece) in content.pieces() {
        if offset == patch_end {
            if offset > 0 {
                read_answer(&mut stream, "")?;
            }
            let len = PATCH_BYTES.min(content.size - offset);
            patch_end = offset + len;
            let fields = format!(
                "Tus-Resumable: 1.0.0\r\nContent-Type: application/offset+octet-stream\r\nUpload-Offset: {offset}\r\nContent-Length: {len}\r\n"
            );
            let patch = head(server.host, server.token, "PATCH", &location, &fields);
            stream.get_mut().write_all(patch.as_bytes())?;
        }
        stream.get_mut().write_all(&piece)?;
    }
    if content.size > 0 {
        read_answer(&mut stream, "")?;
    }
    Ok(location)
}

fn send_with_curl(
    node: &NodeAddresses,
    name: &str,
    content: &FileContent,
    digest: &ContentDigest,
) -> anyhow::Result<()> {
    let digest = data_encoding::BASE64.encode(&digest.bytes);
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--fail", "--upload-file"]);
    command.arg(content.source()?);
    for field in [
        format!("Authorization: Bearer {}", node.token),
        "Content-Type: application/octet-stream".to_owned(),
        format!("Repr-Digest: sha-256=:{digest}:"),
    ] {
        command.arg("--header").arg(field);
    }
    command.arg(format!("http://{}/api/v1/uploads/{name}", node.http));
    let status = command.stdout(Stdio::null()).status();
    let status = status.context("cannot start curl; install it, or name other methods")?;
    ensure!(status.success(), "curl failed: {status}");
    Ok(())
}

fn send_over_link(
    address: &str,
    name: &str,
    content: &FileContent,
    digest: &ContentDigest,
) -> anyhow::Result<()> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build()?;
    let address: Arc<str> = address.into();
    let metadata = json!({"name": name, "file_id": name});
    // A name is used once, and so are the numbers that are derived from it.
    let id = content::ContentHasher::digest(DigestAlgorithm::Blake3, name.as_bytes());
    let (link_id, transfer_id) = id.bytes.split_at(16);
    let new = NewStream {
        priority: Priority::Bulk,
        transfer_id: TransferId(transfer_id.try_into()?),
        size: Some(content.size),
        digest: Some(DigestAlgorithm::Sha256),
        metadata: serde_json::to_vec(&metadata)?,
        is_resume: false,
    };
    let link_id = LinkId(link_id.try_into()?);
    runtime.block_on(async {
        let link = connect(link_id, ConnectOptions::default(), move || {
            let address = address.clone();
            async move {
                let stream = tokio::net::TcpStream::connect(&*address).await?;
                configure_tcp(&stream)?;
                Ok(stream)
            }
        });
        let sent = async {
            let stream = link.send_stream(new).await?;
            for (offset, piece) in content.pieces() {
                stream.write(offset, piece).await?;
            }
            stream.finish(content.size, Some(*digest)).await?;
            link.shut_down(link::error_code::ErrorCode::NONE, "").await;
            anyhow::Ok(())
        };
        tokio::time::timeout(TIMEOUT, sent)
            .await
            .context("the node does not store the file in time")?
    })
}
