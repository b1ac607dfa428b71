//! Devices over links: a message is a publication of the link, which the node acknowledges when it is stored. Subscriptions are
//! requests, which the node answers.

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use bytes::Bytes;
use link::error_code::ErrorCode;
use link::message::MessageId;
use link::net::{ConnectOptions, Link, LinkError, connect};
use link::priority::Priority;
use link::wire::handshake::{Credentials, LinkId};
use link_carriers::{CarrierAddress, CarrierConnector};
use load_client::endpoint::SourceAddresses;
use mqtt::ReasonCode;
use serde_json::{Value, json};

use super::local_port::{DeviceMessage, DevicePacket, LocalReader, LocalWriter};
use super::server_target::{source_addresses, tls};
use super::translated_session::TranslatedSession;
use crate::definition::TargetDefinition;

/// First byte of a publication; see docs/internals/link.md.
const PUBLICATION: u8 = 1;
const PUBLICATION_HEADER_BYTES: usize = 4;

/// Opens carriers to `target.link`.
#[derive(Debug)]
pub(crate) struct LinkTarget {
    connector: CarrierConnector,
    /// Those of the file.
    sources: SourceAddresses,
}

impl LinkTarget {
    pub(super) fn new(target: &TargetDefinition, folder: &Path) -> anyhow::Result<Self> {
        let address: CarrierAddress = target.link.parse()?;
        let config = match &address {
            CarrierAddress::Network {
                transport, host, ..
            } if transport.is_encrypted() => Some(tls(host, target, folder)?.0),
            _ => None,
        };
        let connector =
            CarrierConnector::new(address, config.as_deref(), target.server_name.clone())
                .context("the address cannot be used")?;
        Ok(Self {
            connector,
            sources: source_addresses(target)?,
        })
    }

    /// Where links come from; empty: the system chooses.
    pub(super) fn sources(&self) -> &SourceAddresses {
        &self.sources
    }
}

/// Opens a link, and translates until the device or the link ends.
pub(super) async fn translate(
    session: TranslatedSession,
    reader: &mut LocalReader,
    target: Arc<LinkTarget>,
) -> Result<(), String> {
    let login = session.login;
    let credentials = match (login.username, login.password) {
        (Some(user), Some(password)) => Credentials::UserPassword { user, password },
        (Some(token), None) => Credentials::Token(token),
        (None, _) => Credentials::None,
    };
    let mut options = ConnectOptions {
        credentials,
        ..ConnectOptions::default()
    };
    options.config.client_id = login.client_id;
    // A link that is interrupted opens further carriers, for which the system chooses the port.
    let source = session.route.source.map(|source| source.ip());
    let open = move || {
        let target = target.clone();
        async move { target.connector.open_from(source).await }
    };
    let device = LinkDevice {
        link: connect(random_link_id(), options, open),
        writer: session.writer,
    };
    let ended = async {
        let connected = tokio::time::timeout(session.login_timeout, device.link.connected()).await;
        connected
            .map_err(|_| "no link within the time limit for connections".to_owned())?
            .map_err(|error| describe(&error))?;
        device.writer.accept_login().await;
        device.serve(reader).await
    };
    let ended = ended.await;
    // A device that leaves says so; one that is to be gone does not come back.
    let leaving = device.link.shut_down(ErrorCode::NONE, "");
    let _ = tokio::time::timeout(session.login_timeout, leaving).await;
    device.link.abandon();
    ended
}

/// Why a link has ended, without numbers, so that equal failures are counted together.
fn describe(error: &LinkError) -> String {
    match error {
        LinkError::Rejected { text, .. } => text.clone(),
        error => error.to_string(),
    }
}

fn random_link_id() -> LinkId {
    use std::hash::{BuildHasher as _, RandomState};
    let half = || RandomState::new().hash_one(load_client::host::now_ns());
    let id = u128::from(half()) << 64 | u128::from(half());
    LinkId(id.to_le_bytes())
}

struct LinkDevice {
    link: Link,
    writer: LocalWriter,
}

/// What the device has subscribed to.
#[derive(Default)]
struct DeviceSubscriptions {
    filters: Vec<String>,
    /// Requests without an answer, and the packet identifiers of their SUBSCRIBE packets.
    pending: HashMap<u64, u16>,
    last_request: u64,
}

impl DeviceSubscriptions {
    /// A request to subscribe to these filters.
    fn request(&mut self, filters: &[String]) -> Bytes {
        self.last_request += 1;
        let subscriptions: Vec<Value> = filters
            .iter()
            .map(|filter| json!({"filter": filter, "qos": 1}))
            .collect();
        let request = json!({"request": self.last_request, "subscribe": subscriptions});
        request.to_string().into()
    }
}

impl LinkDevice {
    async fn serve(&self, reader: &mut LocalReader) -> Result<(), String> {
        let failed = |error: LinkError| describe(&error);
        // Messages that the node has not acknowledged.
        let mut sent: VecDeque<(MessageId, u16)> = VecDeque::new();
        let mut subscriptions = DeviceSubscriptions::default();
        let mut losses = self.link.peer_state_losses();
        loop {
            let first = sent.front().copied();
            let settled = async {
                match first {
                    Some((id, _)) => self.link.settled(id).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                packet = reader.next() => match packet {
                    DevicePacket::Publish(message) => {
                        let content = encode(&message)?;
                        let id = self.link.send(Priority::Normal, content).await;
                        sent.push_back((id.map_err(failed)?, message.packet_id));
                    }
                    DevicePacket::Subscribe { packet_id, filters } => {
                        let request = subscriptions.request(&filters);
                        subscriptions.pending.insert(subscriptions.last_request, packet_id);
                        subscriptions.filters.extend(filters);
                        self.link.send(Priority::High, request).await.map_err(failed)?;
                    }
                    DevicePacket::Connect(_) | DevicePacket::End => return Ok(()),
                },
                settled = settled => {
                    settled.map_err(failed)?;
                    if let Some((_, packet_id)) = sent.pop_front() {
                        self.writer.acknowledge(packet_id, ReasonCode::SUCCESS).await;
                    }
                }
                message = self.link.receive() => {
                    let message = message.map_err(failed)?.payload.into_bytes();
                    self.pass(&message, &mut subscriptions).await?;
                }
                // A node that was restarted knows no subscriptions of the link.
                now = self.link.peer_state_lost(losses) => {
                    losses = now.map_err(failed)?;
                    let filters = subscriptions.filters.clone();
                    if !filters.is_empty() {
                        let request = subscriptions.request(&filters);
                        self.link.send(Priority::High, request).await.map_err(failed)?;
                    }
                }
            }
        }
    }

    /// Passes a message of the node to the device.
    async fn pass(
        &self,
        message: &[u8],
        subscriptions: &mut DeviceSubscriptions,
    ) -> Result<(), String> {
        if let Some((topic, payload)) = decode(message) {
            self.writer.publish(topic, payload).await;
            return Ok(());
        }
        let message: Value = serde_json::from_slice(message).unwrap_or_default();
        if let Some(reason) = message["rejected"]["reason"].as_str() {
            return Err(format!("the node rejected a message: {reason}"));
        }
        if let Some(reason) = message["error"].as_str() {
            return Err(format!("the node rejected a subscription: {reason}"));
        }
        let packet_id = message["request"]
            .as_u64()
            .and_then(|request| subscriptions.pending.remove(&request));
        if let (Some(packet_id), Some(codes)) = (packet_id, message["reason_codes"].as_array()) {
            let codes = codes.iter().filter_map(Value::as_u64);
            let codes: Vec<u8> = codes.filter_map(|code| u8::try_from(code).ok()).collect();
            self.writer.answer_subscriptions(packet_id, &codes).await;
        }
        Ok(())
    }
}

/// A message as a publication.
fn encode(message: &DeviceMessage) -> Result<Bytes, String> {
    let topic = message.topic.as_bytes();
    let len = u16::try_from(topic.len()).map_err(|_| "the topic is too long".to_owned())?;
    let mut out =
        Vec::with_capacity(PUBLICATION_HEADER_BYTES + topic.len() + message.payload.len());
    out.extend_from_slice(&[PUBLICATION, u8::from(message.retain)]);
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(topic);
    out.extend_from_slice(&message.payload);
    Ok(out.into())
}

/// Topic and payload of a publication.
fn decode(message: &[u8]) -> Option<(&str, &[u8])> {
    let (&[kind, _, low, high], rest) = message.split_first_chunk::<PUBLICATION_HEADER_BYTES>()?;
    let len = usize::from(u16::from_le_bytes([low, high]));
    let (topic, payload) = rest.split_at_checked(len).filter(|_| kind == PUBLICATION)?;
    Some((std::str::from_utf8(topic).ok()?, payload))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn publications_have_the_documented_form() {
        let message = DeviceMessage {
            topic: "a/b".to_owned(),
            payload: b"text".to_vec(),
            retain: true,
            packet_id: 1,
        };
        let encoded = encode(&message).expect("a short topic");
        assert_eq!(&encoded[..], b"\x01\x01\x03\x00a/btext");
        assert_eq!(decode(&encoded), Some(("a/b", &b"text"[..])));
        assert_eq!(decode(b"{\"rejected\":{}}"), None);
        assert_eq!(decode(b"\x01\x00\x09\x00a"), None);
    }
}
