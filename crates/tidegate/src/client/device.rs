//! A simulated device: a connection that publishes what it is given, answers commands, and connects again when it was lost.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use mqtt::{PropertiesBuf, QoS, ReasonCode, SubscriptionOptions};
use mqtt_client::{OutgoingMessage, ReceivedMessage, SessionEvent};
use tokio::sync::mpsc;

use super::connection::ClientConnection;
use super::error::ClientError;
use super::options::ConnectOptions;

const RECONNECT_DELAY: Duration = Duration::from_secs(2);
const COMMANDS: &str = "v1/devices/me/rpc/request/+";

/// What all simulated devices have done.
#[derive(Debug, Default)]
pub(crate) struct DeviceTotals {
    pub(crate) connected: AtomicU64,
    pub(crate) sent: AtomicU64,
    pub(crate) commands: AtomicU64,
}

/// A message of a device.
pub(crate) struct DeviceMessage {
    pub(crate) topic: &'static str,
    pub(crate) payload: Vec<u8>,
}

pub(crate) struct SimulatedDevice {
    options: ConnectOptions,
    totals: Arc<DeviceTotals>,
}

impl SimulatedDevice {
    /// A device that connects to `url` with an access token.
    pub(crate) fn new(
        url: &str,
        cafile: Option<&Path>,
        (id, token): (&str, String),
        totals: Arc<DeviceTotals>,
    ) -> Result<Self, ClientError> {
        let options = ConnectOptions::for_device(url, cafile, id, token)?;
        Ok(Self { options, totals })
    }

    /// Whether devices can use this address, without connecting.
    pub(crate) fn check_url(url: &str, cafile: Option<&Path>) -> Result<(), ClientError> {
        ConnectOptions::for_device(url, cafile, "check", String::new()).map(drop)
    }

    /// Publishes until the channel is closed.
    pub(crate) async fn run(self, mut messages: mpsc::Receiver<DeviceMessage>) {
        while self.connect_and_publish(&mut messages).await.is_err() {
            tokio::time::sleep(RECONNECT_DELAY).await;
        }
    }

    async fn connect_and_publish(
        &self,
        messages: &mut mpsc::Receiver<DeviceMessage>,
    ) -> Result<(), ClientError> {
        let mut session = self.options.new_session();
        let (mut connection, _) = ClientConnection::open(&self.options, &mut session).await?;
        let _counted = CountedConnection::new(&self.totals);
        let filters = [(
            COMMANDS.to_owned(),
            SubscriptionOptions::new(QoS::AtLeastOnce),
        )];
        let subscribed = connection
            .session
            .subscribe(&filters, &PropertiesBuf::new());
        subscribed.map_err(ClientError::Protocol)?;
        loop {
            tokio::select! {
                event = connection.poll_progress() => match event? {
                    Some(SessionEvent::Message(command)) => {
                        self.answer(&mut connection, &command)?;
                    }
                    Some(SessionEvent::Published { answer, .. }) if !answer.reason.is_error() => {
                        self.totals.sent.fetch_add(1, Relaxed);
                    }
                    Some(SessionEvent::Disconnected { answer, .. }) => {
                        return Err(ClientError::Lost(answer.to_string()));
                    }
                    _ => {}
                },
                message = messages.recv(), if connection.session.has_quota() => match message {
                    Some(message) => publish(&mut connection, message.topic, &message.payload)?,
                    None => break,
                },
            }
        }
        connection
            .close(ReasonCode::SUCCESS, &PropertiesBuf::new())
            .await
    }

    /// Every command succeeds, and its response repeats the parameters.
    fn answer(
        &self,
        connection: &mut ClientConnection<'_>,
        command: &ReceivedMessage,
    ) -> Result<(), ClientError> {
        let Some((_, id)) = command.topic.rsplit_once('/') else {
            return Ok(());
        };
        self.totals.commands.fetch_add(1, Relaxed);
        let request: serde_json::Value =
            serde_json::from_slice(&command.payload).unwrap_or_default();
        let response = serde_json::json!({"done": true, "params": request["params"]});
        let topic = format!("v1/devices/me/rpc/response/{id}");
        publish(connection, &topic, response.to_string().as_bytes())
    }
}

/// Counts a connection while it exists.
struct CountedConnection<'a>(&'a DeviceTotals);

impl<'a> CountedConnection<'a> {
    fn new(totals: &'a DeviceTotals) -> Self {
        totals.connected.fetch_add(1, Relaxed);
        Self(totals)
    }
}

impl Drop for CountedConnection<'_> {
    fn drop(&mut self) {
        self.0.connected.fetch_sub(1, Relaxed);
    }
}

fn publish(
    connection: &mut ClientConnection<'_>,
    topic: &str,
    payload: &[u8],
) -> Result<(), ClientError> {
    let message = OutgoingMessage {
        topic,
        payload,
        qos: QoS::AtLeastOnce,
        retain: false,
        properties: &PropertiesBuf::new(),
        topic_alias: None,
    };
    let published = connection.session.publish(&message);
    published.map(drop).map_err(ClientError::Protocol)
}
