//! The NATS source: receives subjects directly, or a stream with a durable consumer that stores the position.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::connection::NatsConnection;
use super::connector::NatsConnector;
use super::protocol::{self, NatsMessage};
use crate::connector::{BoxFuture, ConnectorError, SourceMessage, SourcePort, SourceReader};
use crate::settings::{SettingsError, check_range};

const MAX_SUBJECTS: usize = 256;
const API_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the server keeps a pull request open.
const PULL_TIMEOUT: Duration = Duration::from_secs(10);

/// Settings of a NATS source.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NatsSourceSettings {
    /// Subjects, with the wildcards of NATS. With a stream: at most one of its subjects, none for all.
    #[serde(default)]
    subjects: Vec<String>,
    /// Queue group: nodes with the same group share the messages. Not with a stream.
    queue_group: Option<String>,
    /// Name of the stream.
    stream: Option<String>,
    /// Name of the stream's durable consumer, which is created if needed.
    consumer: Option<String>,
    /// Start position of a new consumer.
    #[serde(default)]
    deliver_policy: DeliverPolicy,
    /// Maximum number of unacknowledged messages of a stream.
    #[serde(default = "default_batch")]
    #[schemars(range(min = 1, max = 10_000))]
    batch: u32,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum DeliverPolicy {
    /// The first message of the stream.
    #[default]
    All,
    /// The next new message.
    New,
}

fn default_batch() -> u32 {
    200
}

pub(super) struct NatsSource {
    nats: Arc<NatsConnector>,
    settings: NatsSourceSettings,
}

impl NatsSource {
    pub(super) fn new(
        nats: Arc<NatsConnector>,
        settings: NatsSourceSettings,
    ) -> Result<Self, SettingsError> {
        if settings.subjects.len() > MAX_SUBJECTS {
            let detail = format!("expected at most {MAX_SUBJECTS}");
            return Err(SettingsError::new("subjects", detail));
        }
        for (at, subject) in settings.subjects.iter().enumerate() {
            if !protocol::is_filter(subject) {
                let detail = format!("{subject:?} is not a valid NATS subject");
                return Err(SettingsError::new(&format!("subjects[{at}]"), detail));
            }
        }
        check_range("batch", settings.batch, 1..=10_000)?;
        let is_name = |name: &str| {
            let is_allowed = |c: char| c.is_alphanumeric() || c == '-' || c == '_';
            !name.is_empty() && name.chars().all(is_allowed)
        };
        let names = [
            ("queue_group", &settings.queue_group),
            ("stream", &settings.stream),
            ("consumer", &settings.consumer),
        ];
        for (field, name) in names {
            if name.as_deref().is_some_and(|name| !is_name(name)) {
                let detail = "expected letters, digits, - and _";
                return Err(SettingsError::new(field, detail));
            }
        }
        match (&settings.stream, &settings.consumer) {
            (None, None) if settings.subjects.is_empty() => {
                Err(SettingsError::new("subjects", "missing; or name a stream"))
            }
            (None, Some(_)) => Err(SettingsError::new(
                "stream",
                "missing; required with a consumer",
            )),
            (Some(_), None) => Err(SettingsError::new(
                "consumer",
                "missing; required with a stream",
            )),
            (Some(_), Some(_)) if settings.queue_group.is_some() => {
                let detail = "nodes with the same consumer share a stream; leave this out";
                Err(SettingsError::new("queue_group", detail))
            }
            (Some(_), Some(_)) if settings.subjects.len() > 1 => Err(SettingsError::new(
                "subjects",
                "expected at most one of a stream",
            )),
            _ => Ok(Self { nats, settings }),
        }
    }

    async fn receive(&self, port: &dyn SourcePort) -> Result<(), ConnectorError> {
        // A separate connection, so that received messages do not delay sinks.
        let session = self.nats.connect().await?;
        match (&self.settings.stream, &self.settings.consumer) {
            (Some(stream), Some(consumer)) => {
                self.create_consumer(&session, stream, consumer).await?;
                self.receive_stream(&session, stream, consumer, port).await
            }
            _ => self.receive_subjects(&session, port).await,
        }
    }

    async fn receive_subjects(
        &self,
        session: &NatsConnection,
        port: &dyn SourcePort,
    ) -> Result<(), ConnectorError> {
        let group = self.settings.queue_group.as_deref();
        let mut all = Vec::new();
        for subject in &self.settings.subjects {
            all.push(session.subscribe(subject, group).await?);
        }
        loop {
            let next = std::future::poll_fn(|context| {
                let mut open = 0;
                for messages in &mut all {
                    match messages.poll_recv(context) {
                        std::task::Poll::Ready(Some(message)) => {
                            return std::task::Poll::Ready(Some(message));
                        }
                        std::task::Poll::Ready(None) => {}
                        std::task::Poll::Pending => open += 1,
                    }
                }
                match open {
                    0 => std::task::Poll::Ready(None),
                    _ => std::task::Poll::Pending,
                }
            });
            match next.await {
                Some(message) => port.accept(source_message(message)).await,
                None => return Err(session.subscription_error()),
            }
        }
    }

    async fn create_consumer(
        &self,
        session: &NatsConnection,
        stream: &str,
        consumer: &str,
    ) -> Result<(), ConnectorError> {
        let api = |verb: &str| format!("$JS.API.CONSUMER.{verb}.{stream}.{consumer}");
        let known = session.request(&api("INFO"), b"", API_TIMEOUT).await?;
        if api_error(&known).is_none() {
            return Ok(());
        }
        let mut config = json!({
            "durable_name": consumer, "ack_policy": "explicit", "max_ack_pending": 10_000,
            "deliver_policy": match self.settings.deliver_policy { DeliverPolicy::All => "all", DeliverPolicy::New => "new" },
        });
        if let Some(subject) = self.settings.subjects.first() {
            config["filter_subject"] = subject.as_str().into();
        }
        let body = json!({"stream_name": stream, "config": config}).to_string();
        let create = api("DURABLE.CREATE");
        let made = session
            .request(&create, body.as_bytes(), API_TIMEOUT)
            .await?;
        match api_error(&made) {
            None => Ok(()),
            Some(why) => {
                let what = format!("consumer {consumer} of stream {stream}: {why}");
                Err(ConnectorError::transient(what))
            }
        }
    }

    async fn receive_stream(
        &self,
        session: &NatsConnection,
        stream: &str,
        consumer: &str,
        port: &dyn SourcePort,
    ) -> Result<(), ConnectorError> {
        let own = session.new_inbox_subject();
        let mut messages = session.subscribe(&own, None).await?;
        let ask = format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}");
        let batch = self.settings.batch;
        let body = json!({"batch": batch, "expires": PULL_TIMEOUT.as_nanos() as u64}).to_string();
        loop {
            let mut request = Vec::new();
            protocol::put_publish(&mut request, &ask, Some(&own), &[], body.as_bytes());
            session.send(request).await?;
            let mut taken = 0;
            while taken < batch {
                // The server reports the end of the time; if not, the request is repeated.
                let next = tokio::time::timeout(PULL_TIMEOUT * 2, messages.recv()).await;
                let message = match next {
                    Ok(Some(message)) => message,
                    Ok(None) => return Err(session.subscription_error()),
                    Err(_) => break,
                };
                match message.status() {
                    None => {
                        let reply = message.reply.clone();
                        port.accept(source_message(message)).await;
                        if let Some(reply) = reply {
                            session.publish(&reply, b"+ACK").await?;
                        }
                        taken += 1;
                    }
                    // No more messages, or the request expired.
                    Some(404 | 408) => break,
                    // A heartbeat.
                    Some(100) => {}
                    Some(503) => {
                        let what = format!("stream {stream} no longer has the consumer {consumer}");
                        return Err(ConnectorError::transient(what));
                    }
                    Some(_) => {
                        let what = format!("stream {stream}: {}", message.status_text());
                        return Err(ConnectorError::transient(what));
                    }
                }
            }
        }
    }
}

/// The error in a reply of the JetStream API.
fn api_error(answer: &NatsMessage) -> Option<String> {
    if answer.status() == Some(503) {
        return Some("the server has no JetStream".into());
    }
    let read: Value = serde_json::from_slice(&answer.payload).ok()?;
    let error = read.get("error")?;
    let text = error.get("description").and_then(Value::as_str);
    Some(text.unwrap_or("unknown error").to_owned())
}

/// Converts a message, including the metadata in its acknowledgement subject.
fn source_message(message: NatsMessage) -> SourceMessage {
    let properties = message
        .header_fields()
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let mut fields = Map::new();
    // `$JS.ACK.STREAM.CONSUMER.DELIVERIES.STREAM SEQUENCE.CONSUMER SEQUENCE.TIME IN NS.WAITING`, or with a domain and an
    // account before the stream's name.
    if let Some(rest) = message
        .reply
        .as_deref()
        .and_then(|r| r.strip_prefix("$JS.ACK."))
    {
        let words: Vec<&str> = rest.split('.').collect();
        let words = match words.len() {
            0..=7 => &words[..],
            _ => &words[2..],
        };
        if let [stream, _, deliveries, sequence, _, time_ns, ..] = words {
            let number = |text: &str| text.parse::<u64>().unwrap_or_default();
            fields.insert("stream".into(), (*stream).into());
            fields.insert("sequence".into(), number(sequence).into());
            fields.insert("deliveries".into(), number(deliveries).into());
            fields.insert("timestamp".into(), (number(time_ns) / 1_000_000).into());
        }
    }
    SourceMessage {
        topic: message.subject,
        payload: message.payload,
        properties,
        fields,
        ..SourceMessage::default()
    }
}

impl SourceReader for NatsSource {
    fn read<'a>(&'a self, port: &'a dyn SourcePort) -> BoxFuture<'a, ConnectorError> {
        Box::pin(async move {
            match self.receive(port).await {
                Ok(()) => ConnectorError::transient("it ended"),
                Err(failure) => failure,
            }
        })
    }
}
