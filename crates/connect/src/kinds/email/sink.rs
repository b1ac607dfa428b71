//! The e-mail sink: a mail per row, those of a batch on one connection.

use std::sync::Arc;

use lettre::Message;
use lettre::message::header::ContentType;
use lettre::message::{Mailbox, MessageBuilder};
use lettre::transport::smtp::client::AsyncSmtpConnection;
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::time::timeout;

use super::connector::{EmailConnector, error_text};
use crate::batch::{RowId, SinkBatch};
use crate::connector::{BoxFuture, ConnectorError, Retryable, SinkWriter, WriteOutcome};
use crate::row::SinkRow;
use crate::settings::SettingsError;
use crate::template::Template;

const MAX_RECIPIENTS: usize = 100;
/// Longer subjects are truncated: many readers show no more, and mail lines are limited.
const MAX_SUBJECT_CHARS: usize = 250;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct EmailSinkSettings {
    /// Sender, `ops@example.org` or `Tidegate <ops@example.org>`.
    #[schemars(length(min = 1, max = 512))]
    from: String,
    /// Recipient addresses.
    #[schemars(length(min = 1, max = 100))]
    to: Vec<String>,
    #[serde(default)]
    #[schemars(length(max = 100))]
    cc: Vec<String>,
    reply_to: Option<String>,
    /// Subject, one line; with placeholders.
    subject: String,
    /// Text of the mail; with placeholders.
    text: String,
}

pub(super) struct EmailWriter {
    email: Arc<EmailConnector>,
    envelope: MessageBuilder,
    /// Domain of message ids.
    domain: String,
    subject: Template,
    text: Template,
}

fn mailbox(field: &str, text: &str) -> Result<Mailbox, SettingsError> {
    text.parse().map_err(|error| {
        let detail =
            format!("expected an address such as ops@example.org, found {text:?}: {error}");
        SettingsError::new(field, detail)
    })
}

impl EmailWriter {
    pub(super) fn new(
        email: Arc<EmailConnector>,
        settings: &EmailSinkSettings,
    ) -> Result<Self, SettingsError> {
        if settings.to.is_empty() || settings.to.len() + settings.cc.len() > MAX_RECIPIENTS {
            let detail = format!("expected 1 to {MAX_RECIPIENTS} addresses, those of cc counted");
            return Err(SettingsError::new("to", detail));
        }
        let from = mailbox("from", &settings.from)?;
        let domain = from.email.domain().to_owned();
        let mut envelope = Message::builder().from(from);
        for (at, address) in settings.to.iter().enumerate() {
            envelope = envelope.to(mailbox(&format!("to[{at}]"), address)?);
        }
        for (at, address) in settings.cc.iter().enumerate() {
            envelope = envelope.cc(mailbox(&format!("cc[{at}]"), address)?);
        }
        if let Some(address) = &settings.reply_to {
            envelope = envelope.reply_to(mailbox("reply_to", address)?);
        }
        Ok(Self {
            email,
            envelope,
            domain,
            subject: Template::parse("subject", &settings.subject)?,
            text: Template::parse("text", &settings.text)?,
        })
    }

    /// Builds the mail of a row; its message id is the same for each attempt, so duplicates are recognisable.
    fn build_mail(&self, row: SinkRow<'_>, id: RowId) -> Result<Message, ConnectorError> {
        let subject = self.subject.render_string(row);
        let is_kept = |sign: &char| !sign.is_control();
        let subject: String = subject
            .chars()
            .filter(is_kept)
            .take(MAX_SUBJECT_CHARS)
            .collect();
        let mail = self
            .envelope
            .clone()
            .date_now()
            .message_id(Some(format!("<{id}@{}>", self.domain)))
            .subject(subject)
            .header(ContentType::TEXT_PLAIN)
            .body(self.text.render_string(row));
        mail.map_err(|error| ConnectorError::bad_rows(format!("the mail cannot be built: {error}")))
    }

    async fn send(
        &self,
        connection: &mut AsyncSmtpConnection,
        mail: &Message,
    ) -> Result<(), ConnectorError> {
        let bytes = mail.formatted();
        let sending = connection.send(mail.envelope(), &bytes);
        match timeout(self.email.within, sending).await {
            Ok(Ok(_)) => Ok(()),
            // Permanent rejections of this mail, and features that the server lacks.
            Ok(Err(error)) if error.is_permanent() || error.is_client() => {
                Err(ConnectorError::bad_rows(error_text(&error)))
            }
            Ok(Err(error)) => Err(ConnectorError::transient(error_text(&error))),
            Err(_) => {
                let ms = self.email.within.as_millis();
                let what = format!("the server did not accept the mail within {ms} ms");
                Err(ConnectorError::transient(what))
            }
        }
    }

    async fn send_all(&self, batch: &SinkBatch) -> WriteOutcome {
        let mut failures = Vec::new();
        let mut connection = None;
        for (at, row) in batch.rows().enumerate() {
            let sent = match self.build_mail(row, batch.id(at)) {
                Err(failure) => Err(failure),
                Ok(mail) => match self.connection(&mut connection).await {
                    Ok(connection) => self.send(connection, &mail).await,
                    Err(failure) => Err(failure),
                },
            };
            let Err(failure) = sent else { continue };
            if failure.retryable == Retryable::Transient {
                // The following rows wait for it.
                failures.extend((at..batch.len()).map(|at| (at, failure.clone())));
                break;
            }
            failures.push((at, failure));
        }
        if let Some(mut connection) = connection.filter(|connection| !connection.has_broken()) {
            // The server has all mails; errors of QUIT are irrelevant.
            let _ = timeout(self.email.within, connection.quit()).await;
        }
        WriteOutcome::all_except(batch.len(), failures)
    }

    /// The connection of this batch. A server that rejects a mail may close it.
    async fn connection<'c>(
        &self,
        connection: &'c mut Option<AsyncSmtpConnection>,
    ) -> Result<&'c mut AsyncSmtpConnection, ConnectorError> {
        let is_usable = connection.as_ref().is_some_and(|known| !known.has_broken());
        if !is_usable {
            *connection = Some(self.email.connect().await?);
        }
        // Opened above if needed.
        connection
            .as_mut()
            .ok_or_else(|| ConnectorError::transient("there is no connection"))
    }
}

impl SinkWriter for EmailWriter {
    fn write<'a>(&'a self, batch: &'a SinkBatch) -> BoxFuture<'a, WriteOutcome> {
        Box::pin(self.send_all(batch))
    }
}
