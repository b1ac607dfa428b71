//! Devices over HTTP: ThingsBoard's HTTP API of devices, which a node also offers for its own devices.
//!
//! The topics are those of ThingsBoard's MQTT API. A message is one request, which its response acknowledges. A subscription to
//! commands or attributes is a long poll with a connection of its own.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use hyper::Method;
use mqtt::ReasonCode;
use outbound::url_encoding::url_encode;
use serde_json::Value;
use tokio::task::JoinSet;

use super::http_connection::{HttpConnection, HttpResponse};
use super::local_port::{DeviceMessage, DevicePacket, LocalReader, LocalWriter};
use super::server_target::ServerTarget;
use super::translated_session::TranslatedSession;

const COMMANDS: &str = "v1/devices/me/rpc/request/+";
const ATTRIBUTES: &str = "v1/devices/me/attributes";
const READ_ATTRIBUTES: &str = "v1/devices/me/attributes/response/+";
/// How long the server lets a poll wait.
const POLL_TIMEOUT: Duration = Duration::from_secs(20);
/// Pause after a poll that was rejected without a time, and after one without a response.
const POLL_PAUSE: Duration = Duration::from_secs(1);
const MAX_POLL_PAUSE_S: u64 = 60;

/// Logs a device in by reading its attributes, and translates until it ends.
pub(super) async fn translate(
    session: TranslatedSession,
    reader: &mut LocalReader,
    target: Arc<ServerTarget>,
) -> Result<(), String> {
    let TranslatedSession {
        login,
        route,
        login_timeout,
        writer,
    } = session;
    let Some(token) = login.username else {
        return Err("devices over HTTP need an access token as `username`".to_owned());
    };
    let path = format!("/api/v1/{}", url_encode(&token));
    let mut device = HttpDevice {
        connection: HttpConnection::new(target.clone(), route.source),
        path,
        timeout: login_timeout,
        writer,
        images: AssignedImages::default(),
    };
    let attributes = device.get("/attributes").await?;
    if !attributes.is_success() {
        return Err(rejection(&attributes));
    }
    device.images.learn(&attributes.body);
    device.writer.accept_login().await;
    let mut polls = JoinSet::new();
    loop {
        let packet = tokio::select! {
            packet = reader.next() => packet,
            Some(ended) = polls.join_next() => {
                ended.map_err(|error| error.to_string()).flatten()?;
                continue;
            }
        };
        match packet {
            DevicePacket::Connect(_) | DevicePacket::End => return Ok(()),
            DevicePacket::Subscribe { packet_id, filters } => {
                let reads_attributes = filters.iter().any(|filter| filter == READ_ATTRIBUTES);
                for filter in &filters {
                    let resource = match filter.as_str() {
                        COMMANDS => "/rpc",
                        ATTRIBUTES => "/attributes/updates",
                        // What follows a request of the device needs no poll.
                        _ => continue,
                    };
                    let poll = LongPoll {
                        connection: HttpConnection::new(target.clone(), None),
                        device: device.path.clone(),
                        resource,
                        request_timeout: login_timeout,
                        reads_attributes: reads_attributes && resource != "/rpc",
                        images: device.images.clone(),
                        writer: device.writer.clone(),
                    };
                    polls.spawn(poll.run());
                }
                device
                    .writer
                    .accept_subscriptions(packet_id, filters.len())
                    .await;
            }
            DevicePacket::Publish(message) => device.send(message).await?,
        }
    }
}

/// Why the server does not serve the device, as failures are counted.
fn rejection(response: &HttpResponse) -> String {
    let problem: Value = serde_json::from_slice(&response.body).unwrap_or_default();
    match problem["detail"].as_str() {
        Some(detail) => format!("HTTP {}: {detail}", response.status),
        None => format!("HTTP {}", response.status),
    }
}

/// The acknowledgement that a response means.
fn reason(status: u16) -> ReasonCode {
    match status {
        200..300 => ReasonCode::SUCCESS,
        400 => ReasonCode::PAYLOAD_FORMAT_INVALID,
        401 | 403 => ReasonCode::NOT_AUTHORIZED,
        413 => ReasonCode::PACKET_TOO_LARGE,
        429 | 507 => ReasonCode::QUOTA_EXCEEDED,
        503 => ReasonCode::SERVER_BUSY,
        _ => ReasonCode::UNSPECIFIED_ERROR,
    }
}

struct HttpDevice {
    connection: HttpConnection,
    /// `/api/v1/TOKEN`.
    path: String,
    timeout: Duration,
    writer: LocalWriter,
    images: AssignedImages,
}

/// Title and version of the images that the device is to install, by `fw` and `sw`; its long poll learns of others.
#[derive(Clone, Default)]
struct AssignedImages(Arc<Mutex<HashMap<&'static str, (String, String)>>>);

impl AssignedImages {
    fn lock(&self) -> MutexGuard<'_, HashMap<&'static str, (String, String)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers which images attributes name: shared ones of a response, or those of a change.
    fn learn(&self, attributes: &[u8]) {
        let attributes: Value = serde_json::from_slice(attributes).unwrap_or_default();
        let shared = match &attributes["shared"] {
            Value::Object(_) => &attributes["shared"],
            _ => &attributes,
        };
        for prefix in ["fw", "sw"] {
            let field = |name: &str| shared[format!("{prefix}_{name}")].as_str();
            if let (Some(title), Some(version)) = (field("title"), field("version")) {
                let image = (title.to_owned(), version.to_owned());
                self.lock().insert(prefix, image);
            }
        }
    }
}

impl HttpDevice {
    async fn request(
        &mut self,
        method: Method,
        resource: &str,
        body: Bytes,
    ) -> Result<HttpResponse, String> {
        let path = format!("{}{resource}", self.path);
        let request = self
            .connection
            .request(&method, &path, &body, self.timeout)
            .await;
        let response = request?;
        match response.status {
            // The device has been removed or its token replaced.
            401 => Err(rejection(&response)),
            _ => Ok(response),
        }
    }

    async fn get(&mut self, resource: &str) -> Result<HttpResponse, String> {
        self.request(Method::GET, resource, Bytes::new()).await
    }

    async fn send(&mut self, message: DeviceMessage) -> Result<(), String> {
        let DeviceMessage {
            topic,
            payload,
            packet_id,
            ..
        } = message;
        if let Some(resource) = posted_resource(&topic) {
            let response = self
                .request(Method::POST, &resource, payload.into())
                .await?;
            self.writer
                .acknowledge(packet_id, reason(response.status))
                .await;
            if let Some(id) = topic.strip_prefix("v1/devices/me/rpc/request/")
                && response.is_success()
            {
                let topic = format!("v1/devices/me/rpc/response/{id}");
                self.writer.publish(&topic, &response.body).await;
            }
            return Ok(());
        }
        let (response, reply) =
            if let Some(id) = topic.strip_prefix("v1/devices/me/attributes/request/") {
                let response = self.get(&attribute_query(&payload)).await?;
                self.images.learn(&response.body);
                (response, format!("v1/devices/me/attributes/response/{id}"))
            } else if let Some((prefix, request, chunk)) = chunk_request(&topic) {
                let resource = self.chunk_query(prefix, chunk, &payload);
                let reply = format!("v2/{prefix}/response/{request}/chunk/{chunk}");
                let response = self.get(&resource).await?;
                if !response.is_success() {
                    let topic = format!("v2/{prefix}/error");
                    self.writer
                        .publish(&topic, rejection(&response).as_bytes())
                        .await;
                }
                (response, reply)
            } else {
                return Err(format!("there is no HTTP request for the topic `{topic}`"));
            };
        self.writer
            .acknowledge(packet_id, reason(response.status))
            .await;
        if response.is_success() {
            self.writer.publish(&reply, &response.body).await;
        }
        Ok(())
    }

    fn chunk_query(&self, prefix: &str, chunk: &str, size: &[u8]) -> String {
        let resource = if prefix == "fw" {
            "firmware"
        } else {
            "software"
        };
        let size = String::from_utf8_lossy(size);
        let mut query = format!("/{resource}?size={}&chunk={chunk}", url_encode(&size));
        if let Some((title, version)) = self.images.lock().get(prefix) {
            query += &format!(
                "&title={}&version={}",
                url_encode(title),
                url_encode(version)
            );
        }
        query
    }
}

/// The resource that a message is posted to.
fn posted_resource(topic: &str) -> Option<String> {
    let rest = topic.strip_prefix("v1/devices/me/")?;
    match rest {
        "telemetry" | "attributes" | "claim" => Some(format!("/{rest}")),
        _ if rest.starts_with("rpc/request/") => Some("/rpc".to_owned()),
        _ => {
            let id = rest.strip_prefix("rpc/response/")?;
            Some(format!("/rpc/{}", url_encode(id)))
        }
    }
}

/// `{"clientKeys": "a,b", "sharedKeys": "c"}` as a request.
fn attribute_query(request: &[u8]) -> String {
    let request: Value = serde_json::from_slice(request).unwrap_or_default();
    let keys = ["clientKeys", "sharedKeys"].into_iter().filter_map(|name| {
        let keys = request[name].as_str()?;
        Some(format!("{name}={}", url_encode(keys)))
    });
    let keys: Vec<String> = keys.collect();
    format!("/attributes?{}", keys.join("&"))
}

/// Prefix, request id and index in `v2/fw/request/{id}/chunk/{index}`.
fn chunk_request(topic: &str) -> Option<(&'static str, &str, &str)> {
    let mut levels = topic.split('/');
    let mut next = || levels.next();
    next().filter(|level| *level == "v2")?;
    let prefix = match next()? {
        "fw" => "fw",
        "sw" => "sw",
        _ => return None,
    };
    next().filter(|level| *level == "request")?;
    let id = next()?;
    next().filter(|level| *level == "chunk")?;
    Some((prefix, id, next()?))
}

/// Waits for commands or for changes of shared attributes, one request after the other.
struct LongPoll {
    connection: HttpConnection,
    /// `/api/v1/TOKEN`.
    device: String,
    /// `/rpc` or `/attributes/updates`.
    resource: &'static str,
    request_timeout: Duration,
    /// Whether the attributes are read after each request, because changes between two requests are not answered.
    reads_attributes: bool,
    images: AssignedImages,
    writer: LocalWriter,
}

impl LongPoll {
    /// Runs until the device ends, or until the server does not know it any more.
    async fn run(mut self) -> Result<(), String> {
        let query = format!("{}?timeout={}", self.resource, POLL_TIMEOUT.as_millis());
        loop {
            // Requests of the device report what is wrong; a poll is repeated like by a device.
            let Ok(response) = self.get(&query, POLL_TIMEOUT).await else {
                tokio::time::sleep(POLL_PAUSE).await;
                continue;
            };
            match response.status {
                200..300 => self.pass(&response.body).await,
                // Nothing happened meanwhile.
                408 => {}
                401 => return Err(rejection(&response)),
                _ => {
                    let pause_s = response.retry_after_s.unwrap_or(1).min(MAX_POLL_PAUSE_S);
                    tokio::time::sleep(Duration::from_secs(pause_s).max(POLL_PAUSE)).await;
                }
            }
            if self.reads_attributes
                && let Ok(attributes) = self.get("/attributes", Duration::ZERO).await
                && attributes.is_success()
            {
                self.images.learn(&attributes.body);
                let topic = READ_ATTRIBUTES.replace('+', "0");
                self.writer.publish(&topic, &attributes.body).await;
            }
        }
    }

    async fn get(&mut self, resource: &str, wait: Duration) -> Result<HttpResponse, String> {
        let path = format!("{}{resource}", self.device);
        let timeout = self.request_timeout + wait;
        self.connection
            .request(&Method::GET, &path, &Bytes::new(), timeout)
            .await
    }

    async fn pass(&self, body: &[u8]) {
        if self.resource != "/rpc" {
            self.images.learn(body);
            self.writer.publish(ATTRIBUTES, body).await;
            return;
        }
        let command: Value = serde_json::from_slice(body).unwrap_or_default();
        let id = match &command["id"] {
            Value::String(id) => id.clone(),
            id => id.to_string(),
        };
        let topic = format!("v1/devices/me/rpc/request/{id}");
        self.writer.publish(&topic, body).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_are_translated_to_requests() {
        let posted = |topic: &str| posted_resource(&format!("v1/devices/me/{topic}"));
        assert_eq!(posted("telemetry").as_deref(), Some("/telemetry"));
        assert_eq!(posted("rpc/request/7").as_deref(), Some("/rpc"));
        assert_eq!(posted("rpc/response/a b").as_deref(), Some("/rpc/a%20b"));
        assert_eq!(posted("attributes/request/1"), None);
        assert_eq!(
            chunk_request("v2/sw/request/3/chunk/12"),
            Some(("sw", "3", "12"))
        );
        assert_eq!(chunk_request("v2/fw/response/3/chunk/12"), None);
        assert_eq!(
            attribute_query(br#"{"sharedKeys": "a,b"}"#),
            "/attributes?sharedKeys=a%2Cb"
        );
        assert_eq!(attribute_query(b"{}"), "/attributes?");
    }
}
