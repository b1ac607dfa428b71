//! The MQTT sink: publishes rows to the other broker.

use std::collections::BTreeMap;
use std::sync::Arc;

use mqtt::{PropertiesBuf, Property, QoS, ReasonCode, TopicLimits, Version, validate_topic_name};
use mqtt_client::OutgoingMessage;
use schemars::JsonSchema;
use serde::Deserialize;

use super::connector::MqttConnector;
use super::message::BRIDGE_PROPERTY;
use crate::batch::SinkBatch;
use crate::connector::{BoxFuture, ConnectorError, SinkWriter, WriteOutcome};
use crate::row::SinkRow;
use crate::settings::{SettingsError, check_range};
use crate::template::Template;

const MAX_PROPERTIES: usize = 64;

/// Settings of an MQTT sink.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct MqttSinkSettings {
    /// Topic, with placeholders: `site-1/${topic}`.
    #[schemars(length(min = 1, max = 65_535))]
    topic: String,
    /// Payload, with placeholders. Default: the row as JSON.
    payload: Option<String>,
    /// QoS, 0 or 1.
    #[serde(default = "default_qos")]
    #[schemars(range(max = 1))]
    qos: u8,
    #[serde(default)]
    retain: bool,
    /// User properties (MQTT 5.0); values with placeholders.
    #[serde(default)]
    user_properties: BTreeMap<String, String>,
}

fn default_qos() -> u8 {
    1
}

pub(super) struct MqttSinkWriter {
    remote: Arc<MqttConnector>,
    topic: Template,
    payload: Option<Template>,
    qos: QoS,
    retain: bool,
    user_properties: Vec<(String, Template)>,
}

/// A message, and the place of its row in the batch.
struct RowMessage {
    place: usize,
    topic: String,
    payload: Vec<u8>,
    properties: PropertiesBuf,
}

impl MqttSinkWriter {
    pub(super) fn new(
        remote: Arc<MqttConnector>,
        settings: MqttSinkSettings,
    ) -> Result<Self, SettingsError> {
        check_range("qos", settings.qos, 0..=1)?;
        let topic = Template::parse("topic", &settings.topic)?;
        if let Some(text) = topic.constant() {
            validate_topic_name(text, &TopicLimits::NONE)
                .map_err(|error| SettingsError::new("topic", error.to_string()))?;
        }
        let properties = &settings.user_properties;
        if !properties.is_empty() && remote.server.version != Version::V5 {
            let detail = "user properties require version 5";
            return Err(SettingsError::new("user_properties", detail));
        }
        if properties.len() > MAX_PROPERTIES {
            let detail = format!("expected at most {MAX_PROPERTIES}");
            return Err(SettingsError::new("user_properties", detail));
        }
        let user_properties = properties.iter().map(|(name, value)| {
            let field = format!("user_properties.{name}");
            Ok((name.clone(), Template::parse(&field, value)?))
        });
        let payload = settings.payload.as_deref();
        Ok(Self {
            user_properties: user_properties.collect::<Result<_, SettingsError>>()?,
            remote,
            topic,
            payload: payload
                .map(|text| Template::parse("payload", text))
                .transpose()?,
            qos: match settings.qos {
                0 => QoS::AtMostOnce,
                _ => QoS::AtLeastOnce,
            },
            retain: settings.retain,
        })
    }

    fn build_message(&self, row: SinkRow<'_>, place: usize) -> Result<RowMessage, ConnectorError> {
        let topic = self.topic.render_name("topic", row)?;
        if let Err(error) = validate_topic_name(&topic, &TopicLimits::NONE) {
            return Err(ConnectorError::bad_rows(format!(
                "topic {topic:?}: {error}"
            )));
        }
        let mut payload = Vec::new();
        match &self.payload {
            Some(template) => template.render(row, &mut payload),
            None => row.write_json(&mut payload),
        }
        let mut properties = PropertiesBuf::new();
        if self.remote.server.version == Version::V5 {
            for (name, template) in &self.user_properties {
                // MQTT strings cannot contain NUL.
                let value = template.render_string(row).replace('\0', "");
                if value.len() > usize::from(u16::MAX) {
                    let what = format!("user property {name}: more than 65535 bytes");
                    return Err(ConnectorError::bad_rows(what));
                }
                properties.push(Property::UserProperty(name, &value));
            }
            properties.push(Property::UserProperty(
                BRIDGE_PROPERTY,
                &self.remote.client_id,
            ));
        }
        Ok(RowMessage {
            place,
            topic,
            payload,
            properties,
        })
    }

    fn outgoing<'m>(&self, message: &'m RowMessage, qos: QoS) -> OutgoingMessage<'m> {
        OutgoingMessage {
            topic: &message.topic,
            payload: &message.payload,
            qos,
            retain: self.retain,
            properties: &message.properties,
            topic_alias: None,
        }
    }

    async fn publish(&self, batch: &SinkBatch) -> Result<WriteOutcome, ConnectorError> {
        let link = self.remote.connection().await?;
        if self.retain && !link.supports_retain {
            let what = "the broker keeps no retained messages; set retain = false";
            return Err(ConnectorError::transient(what));
        }
        let qos = match link.max_qos {
            QoS::AtMostOnce => QoS::AtMostOnce,
            _ => self.qos,
        };
        let mut failures = Vec::new();
        let mut messages = Vec::with_capacity(batch.len());
        for (place, row) in batch.rows().enumerate() {
            match self.build_message(row, place) {
                Ok(message) => messages.push(message),
                Err(failure) => failures.push((place, failure)),
            }
        }
        let codes = match qos {
            QoS::AtMostOnce => {
                let outgoing = messages.iter().map(|message| self.outgoing(message, qos));
                link.publish_unacknowledged(outgoing).await?
            }
            _ => {
                let outgoing = |at: usize| self.outgoing(&messages[at], qos);
                link.publish(messages.len(), outgoing).await?
            }
        };
        self.add_rejections(&messages, &codes, &mut failures);
        Ok(WriteOutcome::all_except(batch.len(), failures))
    }

    /// Adds the messages that the broker rejected, or that exceed its limits.
    fn add_rejections(
        &self,
        messages: &[RowMessage],
        codes: &[ReasonCode],
        failures: &mut Vec<(usize, ConnectorError)>,
    ) {
        for (message, code) in messages.iter().zip(codes) {
            if !code.is_error() {
                continue;
            }
            let what = format!("topic {:?}: {code}", message.topic);
            let is_of_row = match *code {
                ReasonCode::TOPIC_NAME_INVALID
                | ReasonCode::PAYLOAD_FORMAT_INVALID
                | ReasonCode::PACKET_TOO_LARGE => true,
                // With a constant topic the row content cannot be the cause.
                ReasonCode::NOT_AUTHORIZED => self.topic.constant().is_none(),
                _ => false,
            };
            let failure = match is_of_row {
                true => ConnectorError::bad_rows(what),
                false => ConnectorError::transient(what),
            };
            failures.push((message.place, failure));
        }
    }
}

impl SinkWriter for MqttSinkWriter {
    fn write<'a>(&'a self, batch: &'a SinkBatch) -> BoxFuture<'a, WriteOutcome> {
        Box::pin(async move {
            let published = self.publish(batch).await;
            published.unwrap_or_else(WriteOutcome::Failed)
        })
    }
}
