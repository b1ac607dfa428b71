//! The NATS sink. Without JetStream a batch counts as written when the server has read it; with it, when the stream has stored it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use super::connection::NatsConnection;
use super::connector::NatsConnector;
use super::protocol::{self, NatsMessage};
use crate::batch::SinkBatch;
use crate::connector::{BoxFuture, ConnectorError, SinkWriter, WriteOutcome};
use crate::row::SinkRow;
use crate::settings::SettingsError;
use crate::template::Template;

/// Time-out for acknowledgements of a stream.
const ACK_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_HEADERS: usize = 64;

/// Settings of a NATS sink.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NatsSinkSettings {
    /// Subject, with placeholders: `mqtt.${topic}`.
    #[schemars(length(min = 1, max = 1000))]
    subject: String,
    /// Payload, with placeholders. Default: the row as JSON.
    payload: Option<String>,
    /// Headers; values with placeholders.
    #[serde(default)]
    headers: BTreeMap<String, String>,
    /// Waits until a stream has stored the message; retries are recognised as duplicates.
    #[serde(default)]
    jetstream: bool,
    /// Replaces `/` of MQTT topics by `.` of subjects.
    #[serde(default = "default_replace_slashes_with_dots")]
    replace_slashes_with_dots: bool,
}

fn default_replace_slashes_with_dots() -> bool {
    true
}

pub(super) struct NatsSinkWriter {
    nats: Arc<NatsConnector>,
    subject: Template,
    payload: Option<Template>,
    headers: Vec<(String, Template)>,
    jetstream: bool,
    replace_slashes_with_dots: bool,
}

/// A row as a message.
struct OutgoingMessage {
    place: usize,
    subject: String,
    payload: Vec<u8>,
    headers: Vec<(String, String)>,
}

impl NatsSinkWriter {
    pub(super) fn new(
        nats: Arc<NatsConnector>,
        settings: NatsSinkSettings,
    ) -> Result<Self, SettingsError> {
        let subject = Template::parse("subject", &settings.subject)?;
        if subject
            .constant()
            .is_some_and(|text| !protocol::is_subject(text))
        {
            let detail = "expected words between dots, without white space and wildcards";
            return Err(SettingsError::new("subject", detail));
        }
        if settings.headers.len() > MAX_HEADERS {
            let detail = format!("expected at most {MAX_HEADERS}");
            return Err(SettingsError::new("headers", detail));
        }
        let headers = settings.headers.iter().map(|(name, value)| {
            let field = format!("headers.{name}");
            let is_name = |c: char| c.is_ascii_graphic() && c != ':';
            if name.is_empty() || !name.chars().all(is_name) {
                return Err(SettingsError::new(&field, "not a valid header name"));
            }
            Ok((name.clone(), Template::parse(&field, value)?))
        });
        let payload = settings.payload.as_deref();
        Ok(Self {
            nats,
            subject,
            payload: payload
                .map(|text| Template::parse("payload", text))
                .transpose()?,
            headers: headers.collect::<Result<_, _>>()?,
            jetstream: settings.jetstream,
            replace_slashes_with_dots: settings.replace_slashes_with_dots,
        })
    }

    fn build_message(
        &self,
        row: SinkRow<'_>,
        place: usize,
        max: usize,
    ) -> Result<OutgoingMessage, ConnectorError> {
        let mut subject = self.subject.render_name("subject", row)?;
        if self.replace_slashes_with_dots {
            subject = subject.replace('/', ".");
        }
        if !protocol::is_subject(&subject) {
            let what = format!("{subject:?} is not a valid subject for publishing");
            return Err(ConnectorError::bad_rows(what));
        }
        let mut payload = Vec::new();
        match &self.payload {
            Some(template) => template.render(row, &mut payload),
            None => row.write_json(&mut payload),
        }
        let headers = self.headers.iter();
        let headers: Vec<_> = headers
            .map(|(name, value)| (name.clone(), value.render_string(row)))
            .collect();
        let header_bytes = headers
            .iter()
            .map(|(name, value)| name.len() + value.len() + 4);
        let size = payload.len() + header_bytes.sum::<usize>();
        if max > 0 && size > max {
            let what = format!("{size} bytes are more than the server's max_payload, {max}");
            return Err(ConnectorError::bad_rows(what));
        }
        Ok(OutgoingMessage {
            place,
            subject,
            payload,
            headers,
        })
    }

    async fn publish(&self, batch: &SinkBatch) -> Result<WriteOutcome, ConnectorError> {
        let session = self.nats.connection().await?;
        if !session.info.headers && (self.jetstream || !self.headers.is_empty()) {
            return Err(ConnectorError::transient(
                "the server is too old: it does not support headers",
            ));
        }
        let mut failures = Vec::new();
        let mut messages = Vec::with_capacity(batch.len());
        for (place, row) in batch.rows().enumerate() {
            match self.build_message(row, place, session.info.max_payload) {
                Ok(message) => messages.push(message),
                Err(failure) => failures.push((place, failure)),
            }
        }
        match self.jetstream {
            false => {
                self.publish_without_stream(&session, &messages, &mut failures)
                    .await?
            }
            true => publish_to_stream(&session, batch, &messages, &mut failures).await?,
        }
        Ok(WriteOutcome::all_except(batch.len(), failures))
    }

    async fn publish_without_stream(
        &self,
        session: &NatsConnection,
        messages: &[OutgoingMessage],
        failures: &mut Vec<(usize, ConnectorError)>,
    ) -> Result<(), ConnectorError> {
        let mut bytes = Vec::new();
        for message in messages {
            let headers = message.headers.iter();
            let headers: Vec<_> = headers.map(|(n, v)| (n.as_str(), v.as_str())).collect();
            protocol::put_publish(
                &mut bytes,
                &message.subject,
                None,
                &headers,
                &message.payload,
            );
        }
        let rejected = session.send(bytes).await?;
        for why in rejected {
            // `Permissions Violation for Publish to "SUBJECT"`
            let Some(subject) = why.split('"').nth(1) else {
                continue;
            };
            let concerned = messages.iter().filter(|message| message.subject == subject);
            for message in concerned {
                let failure = match self.subject.constant() {
                    // The content of a row cannot be the cause.
                    Some(_) => ConnectorError::transient(&why),
                    None => ConnectorError::bad_rows(&why),
                };
                if !failures.iter().any(|(place, _)| *place == message.place) {
                    failures.push((message.place, failure));
                }
            }
        }
        Ok(())
    }
}

async fn publish_to_stream(
    session: &NatsConnection,
    batch: &SinkBatch,
    messages: &[OutgoingMessage],
    failures: &mut Vec<(usize, ConnectorError)>,
) -> Result<(), ConnectorError> {
    let fill = |reply: &dyn Fn(usize) -> String, out: &mut Vec<u8>| {
        for (at, message) in messages.iter().enumerate() {
            let id = batch.id(message.place).to_string();
            let own = message.headers.iter();
            let mut headers: Vec<_> = own.map(|(n, v)| (n.as_str(), v.as_str())).collect();
            let is_id = |(name, _): &(&str, &str)| name.eq_ignore_ascii_case("Nats-Msg-Id");
            if !headers.iter().any(is_id) {
                headers.push(("Nats-Msg-Id", &id));
            }
            let reply = reply(at);
            protocol::put_publish(
                out,
                &message.subject,
                Some(&reply),
                &headers,
                &message.payload,
            );
        }
    };
    let answers = session
        .request_all(messages.len(), ACK_TIMEOUT, fill)
        .await?;
    for (message, answer) in messages.iter().zip(answers) {
        if let Err(failure) = check_stream_ack(&message.subject, answer) {
            failures.push((message.place, failure));
        }
    }
    Ok(())
}

/// Evaluates the acknowledgement of a stream.
fn check_stream_ack(subject: &str, answer: Option<NatsMessage>) -> Result<(), ConnectorError> {
    #[derive(Deserialize)]
    struct StreamAck {
        error: Option<StreamError>,
    }
    #[derive(Deserialize)]
    #[serde(default)]
    #[derive(Default)]
    struct StreamError {
        code: u16,
        err_code: u32,
        description: String,
    }
    let Some(answer) = answer else {
        let what = "the stream did not acknowledge the message in time";
        return Err(ConnectorError::transient(what));
    };
    if answer.status() == Some(503) {
        let what = format!("no stream captures the subject {subject}");
        return Err(ConnectorError::transient(what));
    }
    let read: StreamAck = serde_json::from_slice(&answer.payload).map_err(|_| {
        ConnectorError::transient(format!("the reply to {subject} is not from a stream"))
    })?;
    match read.error {
        None => Ok(()),
        Some(StreamError {
            code,
            err_code,
            description,
        }) => {
            let what = format!("{description} ({err_code})");
            // All other errors, such as a full stream, are transient.
            Err(match code {
                400 => ConnectorError::bad_rows(what),
                _ => ConnectorError::transient(what),
            })
        }
    }
}

impl SinkWriter for NatsSinkWriter {
    fn write<'a>(&'a self, batch: &'a SinkBatch) -> BoxFuture<'a, WriteOutcome> {
        Box::pin(async move {
            match self.publish(batch).await {
                Ok(written) => written,
                Err(failure) => WriteOutcome::Failed(failure),
            }
        })
    }
}
