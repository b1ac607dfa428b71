//! The connection of a peer to the broker: login, published messages, messages for the peer.

use std::io;
use std::time::Duration;

use broker::{FIRST_NUMBERS_PROPERTY, NUMBER_PROPERTY, PUBLISHER_PROPERTY};
use bytes::BytesMut;
use link::error_code::ErrorCode;
use link::message::MessageId;
use link::priority::Priority;
use link::wire::handshake::{Credentials, Hello};
use mqtt::{Connect, Packet, PropertiesBuf, QoS, ReasonCode, Version};
use mqtt_client::{AckMode, AckResult, ClientSession, OutgoingMessage, PendingAck, SessionEvent};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep_until};

use crate::exchange::Publication;
use crate::settings::LinkSettings;
use crate::subscriptions::SubscriptionChange;

/// Largest packet from the broker; larger messages are not sent to peers.
const MAX_RECEIVED_BYTES: u32 = 1 << 20;
const READ_BYTES: usize = 16 << 10;

/// Why a peer cannot log in.
#[derive(Debug)]
pub(crate) struct LoginError {
    pub(crate) code: ErrorCode,
    pub(crate) text: String,
}

/// Why the broker has ended a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClientEnd {
    /// The peer may connect again.
    Lost,
    /// Another connection of the peer would not help.
    Rejected(&'static str),
}

/// A client of the broker.
pub(crate) struct BrokerClient {
    stream: UnixStream,
    session: ClientSession,
    buffer: BytesMut,
    client_id: String,
    /// The broker has kept the session of a former connection.
    is_resumed: bool,
    /// The session outlives the connection, so that the broker knows which messages of the link it has published.
    keeps_session: bool,
    /// Interval at which the broker expects a packet, if the listener has a longest keep-alive.
    ping: Option<Duration>,
    next_ping: Instant,
}

impl BrokerClient {
    /// Logs in with the credentials of HELLO. The broker limits the time.
    pub(crate) async fn log_in(
        stream: UnixStream,
        hello: &Hello,
        settings: &LinkSettings,
    ) -> Result<Self, LoginError> {
        // A generated client id is of no use to the next link.
        let session_expiry_s = match hello.client_id.as_str() {
            "" => 0,
            _ => settings.session_expiry_s,
        };
        let client_id = match hello.client_id.as_str() {
            "" => format!("link-{}", hello.link_id),
            own => own.to_owned(),
        };
        let (username, password) = match &hello.credentials {
            Credentials::None => (None, None),
            // As devices send their access token over MQTT.
            Credentials::Token(token) => (Some(token.as_str()), None),
            Credentials::UserPassword { user, password } => {
                (Some(user.as_str()), Some(password.as_bytes()))
            }
        };
        for (what, text) in [
            ("client id", client_id.as_str()),
            ("user name", username.unwrap_or("")),
        ] {
            if text.len() > usize::from(u16::MAX) || text.contains('\0') {
                return Err(LoginError {
                    code: ErrorCode::NOT_AUTHENTICATED,
                    text: format!("{what}: expected at most 65,535 bytes without U+0000"),
                });
            }
        }
        if password.is_some_and(|password| password.len() > usize::from(u16::MAX)) {
            return Err(LoginError {
                code: ErrorCode::NOT_AUTHENTICATED,
                text: "password: expected at most 65,535 bytes".to_owned(),
            });
        }
        let mut client = Self {
            stream,
            session: ClientSession::new(Version::V5, AckMode::Manual, MAX_RECEIVED_BYTES, 0),
            buffer: BytesMut::new(),
            client_id: client_id.clone(),
            is_resumed: false,
            keeps_session: session_expiry_s > 0,
            ping: None,
            next_ping: Instant::now(),
        };
        let mut properties = PropertiesBuf::new();
        properties.push(mqtt::Property::MaximumPacketSize(MAX_RECEIVED_BYTES));
        properties.push(mqtt::Property::ReceiveMaximum(settings.max_deliveries));
        properties.push(mqtt::Property::SessionExpiryInterval(session_expiry_s));
        if client.keeps_session {
            let (link_id, first) = (hello.link_id.to_string(), first_numbers(hello));
            for (name, value) in [
                (PUBLISHER_PROPERTY, &link_id),
                (FIRST_NUMBERS_PROPERTY, &first),
            ] {
                properties.push(mqtt::Property::UserProperty(name, value));
            }
        }
        client.session.start_connection();
        client.session.send(&Packet::Connect(Connect {
            version: Version::V5,
            clean_start: session_expiry_s == 0,
            keep_alive_s: 0,
            client_id: &client_id,
            username,
            password,
            will: None,
            properties: properties.as_properties(),
            is_bridge: false,
        }));
        let lost = |error: io::Error| LoginError {
            code: ErrorCode::TIMEOUT,
            text: format!("the broker has closed the connection: {error}"),
        };
        loop {
            match client.next_event().await.map_err(lost)? {
                SessionEvent::Connected(info) if info.answer.reason.is_error() => {
                    return Err(login_error(&info.answer));
                }
                SessionEvent::Connected(info) => {
                    if let Some(assigned) = info.assigned_client_id {
                        client.client_id = assigned;
                    }
                    client.is_resumed = info.session_present;
                    let keep_alive_s = info.server_keep_alive_s.unwrap_or(0);
                    client.ping =
                        (keep_alive_s > 0).then(|| Duration::from_secs(keep_alive_s.into()) / 2);
                    client.schedule_ping();
                    return Ok(client);
                }
                _ => {}
            }
        }
    }

    pub(crate) fn client_id(&self) -> &str {
        &self.client_id
    }

    /// Whether the broker has kept the session of a former connection.
    pub(crate) fn is_resumed(&self) -> bool {
        self.is_resumed
    }

    /// Whether the broker keeps the session without a connection.
    pub(crate) fn keeps_session(&self) -> bool {
        self.keeps_session
    }

    fn schedule_ping(&mut self) {
        self.next_ping = Instant::now() + self.ping.unwrap_or(Duration::MAX / 1024);
    }

    /// Whether the broker accepts another message now.
    pub(crate) fn has_quota(&self) -> bool {
        self.session.has_quota()
    }

    /// Publishes a message of the link with QoS 1; returns its packet identifier. If the session outlives
    /// the connection, the broker acknowledges a message that it has published before, and does not publish it again.
    ///
    /// # Errors
    /// If the message is larger than the broker accepts.
    pub(crate) fn publish(
        &mut self,
        id: MessageId,
        publication: &Publication<'_>,
    ) -> Result<u16, String> {
        let mut properties = PropertiesBuf::new();
        if self.keeps_session {
            let number = number_text(id.priority, id.number);
            properties.push(mqtt::Property::UserProperty(NUMBER_PROPERTY, &number));
        }
        self.session.publish(&OutgoingMessage {
            topic: publication.topic,
            payload: publication.payload,
            qos: QoS::AtLeastOnce,
            retain: publication.retain,
            properties: &properties,
            topic_alias: None,
        })
    }

    /// Requests a change of the subscriptions. The answer is an event.
    ///
    /// # Errors
    /// If the request is larger than the broker accepts.
    pub(crate) fn change_subscriptions(
        &mut self,
        change: &SubscriptionChange,
    ) -> Result<(), String> {
        let properties = PropertiesBuf::new();
        match change {
            SubscriptionChange::Subscribe(filters) => self.session.subscribe(filters, &properties),
            SubscriptionChange::Unsubscribe(filters) => {
                self.session.unsubscribe(filters, &properties)
            }
        }
    }

    /// Tells the broker that the peer has a message.
    pub(crate) fn acknowledge(&mut self, message: PendingAck) {
        self.session.acknowledge(message);
    }

    /// The next event of the broker. It may be cancelled.
    pub(crate) async fn next_event(&mut self) -> io::Result<SessionEvent> {
        loop {
            if let Some(event) = self.session.next_event().map_err(io::Error::other)? {
                return Ok(event);
            }
            let interest = match self.session.out.is_empty() {
                true => Interest::READABLE,
                false => Interest::READABLE | Interest::WRITABLE,
            };
            let ready = tokio::select! {
                ready = self.stream.ready(interest) => ready?,
                () = sleep_until(self.next_ping), if self.ping.is_some() => {
                    self.session.send(&Packet::PingReq);
                    self.schedule_ping();
                    continue;
                }
            };
            if ready.is_writable() && !self.session.out.is_empty() {
                match self.stream.try_write(&self.session.out) {
                    Ok(written) => drop(self.session.out.drain(..written)),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
            }
            if ready.is_readable() {
                self.buffer.clear();
                self.buffer.reserve(READ_BYTES);
                match self.stream.try_read_buf(&mut self.buffer) {
                    Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                    Ok(_) => self.session.receive(&self.buffer),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
            }
        }
    }

    /// Ends the connection as a client that leaves, and its session unless that is kept.
    pub(crate) fn leave(mut self, is_session_kept: bool) {
        let mut properties = PropertiesBuf::new();
        if !is_session_kept {
            properties.push(mqtt::Property::SessionExpiryInterval(0));
        }
        self.session.disconnect(ReasonCode::SUCCESS, &properties);
        // A full socket means that the broker does not read; then the end of the connection tells it the same.
        let _ = self.stream.try_write(&self.session.out);
    }
}

/// The value of [`NUMBER_PROPERTY`].
fn number_text(priority: Priority, number: u64) -> String {
    format!("{}.{number}", priority as u8)
}

/// The value of [`FIRST_NUMBERS_PROPERTY`].
fn first_numbers(hello: &Hello) -> String {
    let lanes = Priority::ALL.iter().zip(&hello.lanes);
    let numbers = lanes.map(|(priority, lane)| number_text(*priority, lane.first));
    numbers.collect::<Vec<_>>().join(" ")
}

/// What CONNACK means for the peer.
fn login_error(answer: &AckResult) -> LoginError {
    let code = match answer.reason {
        ReasonCode::BAD_USER_NAME_OR_PASSWORD
        | ReasonCode::NOT_AUTHORIZED
        | ReasonCode::BAD_AUTHENTICATION_METHOD => ErrorCode::NOT_AUTHENTICATED,
        ReasonCode::SERVER_UNAVAILABLE
        | ReasonCode::SERVER_BUSY
        | ReasonCode::QUOTA_EXCEEDED
        | ReasonCode::CONNECTION_RATE_EXCEEDED => ErrorCode::LIMIT_EXCEEDED,
        _ => ErrorCode::NOT_PERMITTED,
    };
    LoginError {
        code,
        text: format!("login rejected: {answer}"),
    }
}
