//! One connection to a broker: the handshake with the requested authentication, then events. It
//! transfers bytes and keeps the connection alive in between.

use std::time::Duration;

use mqtt::{Auth, Connect, Packet, PropertiesBuf, Property, ReasonCode, Will};
use mqtt_client::{ClientSession, ConnackInfo, SessionEvent};
use scram::{ClientScram, ScramHash};
use tokio::time::{Instant, sleep_until, timeout};

use super::error::ClientError;
use super::options::ConnectOptions;
use super::tls;
use super::transport::{Transport, TransportProgress};

/// Time-out for PINGRESP.
const PONG_TIMEOUT: Duration = Duration::from_secs(10);
/// Time-out for sending the last packets.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) struct ClientConnection<'a> {
    transport: Transport,
    pub(crate) session: &'a mut ClientSession,
    /// Zero: no keep-alive.
    keep_alive: Duration,
    last_sent: Instant,
    pinged: Option<Instant>,
}

impl<'a> ClientConnection<'a> {
    /// Connects and authenticates, within the options' time limit.
    pub(crate) async fn open(
        options: &ConnectOptions,
        session: &'a mut ClientSession,
    ) -> Result<(Self, ConnackInfo), ClientError> {
        let limit = options.connect_timeout;
        timeout(limit, Self::connect_and_authenticate(options, session))
            .await
            .unwrap_or_else(|_| {
                Err(ClientError::Unreachable {
                    endpoint: options.route.endpoint.to_string(),
                    reason: format!("no answer within {} s", limit.as_secs()),
                    hint: "; raise it with --connect-timeout",
                })
            })
    }

    async fn connect_and_authenticate(
        options: &ConnectOptions,
        session: &'a mut ClientSession,
    ) -> Result<(Self, ConnackInfo), ClientError> {
        session.start_connection();
        let transport = Transport::connect(&options.route).await?;
        let mut scram = match (&options.username, &options.password) {
            (Some(name), Some(password)) if options.scram => {
                let exchange = ClientScram::new(ScramHash::Sha256, name, password);
                Some(exchange.map_err(|error| ClientError::Usage(error.to_string()))?)
            }
            _ => None,
        };
        send_connect(options, scram.as_ref(), session);
        let mut connection = Self {
            transport,
            session,
            keep_alive: Duration::from_secs(options.keep_alive_s.into()),
            last_sent: Instant::now(),
            pinged: None,
        };
        loop {
            let event = connection.next_event().await;
            let is_http = connection
                .session
                .output_and_input()
                .1
                .starts_with(b"HTTP/");
            let event = event.map_err(|error| match error {
                // The peer may not be an MQTT broker at all.
                ClientError::Protocol(_) if is_http => ClientError::Unreachable {
                    endpoint: options.route.endpoint.to_string(),
                    reason: "this is an HTTP server".to_owned(),
                    hint: "; give the port of MQTT, which is usually 1883, or --ws for MQTT over WebSocket",
                },
                ClientError::Protocol(reason) => ClientError::Unreachable {
                    endpoint: options.route.endpoint.to_string(),
                    reason,
                    hint: match options.route.endpoint.tls {
                        true => "; check that the port serves MQTT",
                        false => "; check that the port serves MQTT without TLS. If it serves TLS, give --tls or --cafile FILE",
                    },
                },
                ClientError::Lost(reason) if options.route.endpoint.websocket_path.is_none() => {
                    ClientError::Lost(format!(
                        "{reason} before it answered; if that port serves WebSocket, give --ws"
                    ))
                }
                error => error,
            })?;
            match event {
                SessionEvent::Auth { reason, data }
                    if reason == ReasonCode::CONTINUE_AUTHENTICATION =>
                {
                    let exchange = scram.as_mut().ok_or_else(|| {
                        ClientError::Protocol("AUTH without a requested exchange".into())
                    })?;
                    connection.answer_challenge(exchange, &data)?;
                }
                SessionEvent::Connected(connected) if !connected.answer.reason.is_error() => {
                    if let Some(exchange) = &mut scram {
                        let proof = exchange.finish(&connected.authentication_data);
                        proof.map_err(|error| ClientError::Protocol(error.to_string()))?;
                    }
                    if let Some(seconds) = connected.server_keep_alive_s {
                        connection.keep_alive = Duration::from_secs(seconds.into());
                    }
                    if options.debug {
                        print_connack(options, &connected);
                    }
                    return Ok((connection, connected));
                }
                SessionEvent::Connected(connected) => {
                    let elsewhere = connected.server_reference;
                    let elsewhere = elsewhere
                        .map_or_else(String::new, |other| format!("; it names {other} instead"));
                    return Err(ClientError::Rejected {
                        what: "the connection".into(),
                        reason: format!("{}{elsewhere}", connected.answer),
                        is_passing: is_transient(connected.answer.reason),
                    });
                }
                SessionEvent::Disconnected { answer, .. } => {
                    return Err(ClientError::Rejected {
                        what: "the connection".into(),
                        reason: answer.to_string(),
                        is_passing: is_transient(answer.reason),
                    });
                }
                other => {
                    let message = format!("{other:?} before CONNACK");
                    return Err(ClientError::Protocol(message));
                }
            }
        }
    }

    fn answer_challenge(
        &mut self,
        exchange: &mut ClientScram,
        challenge: &[u8],
    ) -> Result<(), ClientError> {
        let answer = exchange.last(challenge);
        let answer = answer.map_err(|error| ClientError::Protocol(error.to_string()))?;
        let mut properties = PropertiesBuf::new();
        properties.push(Property::AuthenticationMethod(scram::METHOD));
        properties.push(Property::AuthenticationData(&answer));
        self.session.send(&Packet::Auth(Auth {
            reason: ReasonCode::CONTINUE_AUTHENTICATION,
            properties: properties.as_properties(),
        }));
        Ok(())
    }

    /// The next event. Sends pending output and pings meanwhile. Cancel safe.
    pub(crate) async fn next_event(&mut self) -> Result<SessionEvent, ClientError> {
        loop {
            if let Some(event) = self.poll_progress().await? {
                return Ok(event);
            }
        }
    }

    /// An event if one is available, otherwise `None` after some bytes were sent or received.
    pub(crate) async fn poll_progress(&mut self) -> Result<Option<SessionEvent>, ClientError> {
        match self.next_buffered_event()? {
            Some(event) => Ok(Some(event)),
            None => self.transfer().await.map(|()| None),
        }
    }

    /// An event that has already arrived, without waiting.
    pub(crate) fn next_buffered_event(&mut self) -> Result<Option<SessionEvent>, ClientError> {
        loop {
            match self.session.next_event() {
                Ok(Some(SessionEvent::Pong)) => self.pinged = None,
                outcome => return outcome.map_err(ClientError::Protocol),
            }
        }
    }

    /// Number of bytes the system has not accepted yet.
    pub(crate) fn unsent_bytes(&self) -> usize {
        self.session.out.len() + self.transport.unsent_bytes()
    }

    /// Transfers bytes once, or sends a ping if it is due.
    async fn transfer(&mut self) -> Result<(), ClientError> {
        let wake_at = match self.pinged {
            Some(pinged) => Some(pinged + PONG_TIMEOUT),
            None if self.keep_alive.is_zero() => None,
            None => Some(self.last_sent + self.keep_alive),
        };
        let (outgoing, incoming) = self.session.output_and_input();
        if !outgoing.is_empty() {
            self.last_sent = Instant::now();
        }
        let clock = async {
            match wake_at {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            turn = self.transport.transfer(outgoing, incoming) => match turn {
                Ok(TransportProgress::Read) => {
                    // Any received byte shows that the broker is alive; the PINGRESP may be queued after
                    // much other data.
                    self.pinged = self.pinged.map(|_| Instant::now());
                    Ok(())
                }
                Ok(TransportProgress::Written) => Ok(()),
                Ok(TransportProgress::Closed) => Err(ClientError::Lost("the broker closed it".into())),
                Err(error) => Err(ClientError::Lost(format!(
                    "{}{}",
                    tls::describe(&error),
                    tls::handshake_hint(&error),
                ))),
            },
            () = clock => {
                if self.pinged.is_some() {
                    return Err(ClientError::Lost("the broker does not answer pings".into()));
                }
                self.session.send(&Packet::PingReq);
                self.pinged = Some(Instant::now());
                Ok(())
            }
        }
    }

    /// Sends DISCONNECT and all pending output, then closes.
    pub(crate) async fn close(
        self,
        reason: ReasonCode,
        properties: &PropertiesBuf,
    ) -> Result<(), ClientError> {
        self.session.disconnect(reason, properties);
        let last_words = std::mem::take(&mut self.session.out);
        match timeout(CLOSE_TIMEOUT, self.transport.close(last_words)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(ClientError::Lost(error.to_string())),
            Err(_) => Err(ClientError::Lost(
                "the broker does not read any more".into(),
            )),
        }
    }
}

fn send_connect(
    options: &ConnectOptions,
    scram: Option<&ClientScram>,
    session: &mut ClientSession,
) {
    let mut properties = options.properties.clone();
    let first = scram.map(ClientScram::first);
    if let Some(first) = &first {
        properties.push(Property::AuthenticationMethod(scram::METHOD));
        properties.push(Property::AuthenticationData(first));
    }
    // SCRAM carries the name in its own message and never sends the password.
    let plain = scram.is_none();
    let will = options.will.as_ref().map(|will| Will {
        topic: &will.topic,
        payload: &will.payload,
        qos: will.qos,
        retain: will.retain,
        properties: will.properties.as_properties(),
    });
    session.send(&Packet::Connect(Connect {
        version: options.version,
        clean_start: options.clean_start,
        keep_alive_s: options.keep_alive_s,
        client_id: &options.client_id,
        username: options.username.as_deref().filter(|_| plain),
        password: options.password.as_deref().filter(|_| plain),
        will,
        properties: properties.as_properties(),
        is_bridge: false,
    }));
}

/// Prints the CONNACK for `--debug`.
fn print_connack(options: &ConnectOptions, connected: &ConnackInfo) {
    let mut text = format!(
        "connected to {} with MQTT {} as {:?}",
        options.route.endpoint,
        options.version.as_str(),
        connected
            .assigned_client_id
            .as_ref()
            .unwrap_or(&options.client_id),
    );
    if connected.session_present {
        text.push_str(", session resumed");
    }
    if let Some(seconds) = connected.server_keep_alive_s {
        text.push_str(&format!(", keep-alive {seconds} s set by the broker"));
    }
    eprintln!("{text}");
}

/// Whether a later attempt may succeed after this reason code.
pub(super) fn is_transient(reason: ReasonCode) -> bool {
    [
        ReasonCode::UNSPECIFIED_ERROR,
        ReasonCode::SERVER_UNAVAILABLE,
        ReasonCode::SERVER_BUSY,
        ReasonCode::SERVER_SHUTTING_DOWN,
        ReasonCode::KEEP_ALIVE_TIMEOUT,
        ReasonCode::CONNECTION_RATE_EXCEEDED,
    ]
    .contains(&reason)
}
