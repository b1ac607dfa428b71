//! The MQTT source: receives subscriptions at the other broker. Its session persists while disconnected.

use std::sync::Arc;

use mqtt::{QoS, SubscriptionOptions, TopicLimits, validate_topic_filter};
use schemars::JsonSchema;
use serde::Deserialize;

use super::connection::{MqttConnection, SessionOptions};
use super::connector::MqttConnector;
use super::message::BRIDGE_PROPERTY;
use crate::connector::{BoxFuture, ConnectorError, SourceMessage, SourcePort, SourceReader};
use crate::row::{SinkRow, SinkRowWriter};
use crate::settings::{SettingsError, check_range};
use crate::template::Template;

const MAX_TOPICS: usize = 256;

/// Settings of an MQTT source.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct MqttSourceSettings {
    /// Topic filters.
    #[schemars(length(min = 1, max = 256))]
    topics: Vec<String>,
    /// Maximum QoS, 0 or 1.
    #[serde(default = "default_qos")]
    #[schemars(range(max = 1))]
    qos: u8,
    /// How long the broker keeps messages while disconnected, in seconds (MQTT 5.0; with 3.1.1 the broker decides). 0: not at all.
    #[serde(default = "default_session_expiry_s")]
    session_expiry_s: u32,
    /// Topic under which messages are also published on this node: `remote/${topic}`.
    local_topic: Option<String>,
}

fn default_qos() -> u8 {
    1
}

fn default_session_expiry_s() -> u32 {
    86_400
}

pub(super) struct MqttSource {
    remote: Arc<MqttConnector>,
    client_id: String,
    expiry_s: u32,
    filters: Vec<(String, SubscriptionOptions)>,
    local_topic: Option<Template>,
}

impl MqttSource {
    pub(super) fn new(
        remote: Arc<MqttConnector>,
        settings: MqttSourceSettings,
    ) -> Result<Self, SettingsError> {
        check_range("qos", settings.qos, 0..=1)?;
        if settings.topics.is_empty() || settings.topics.len() > MAX_TOPICS {
            let detail = format!("expected 1 to {MAX_TOPICS}");
            return Err(SettingsError::new("topics", detail));
        }
        for (at, filter) in settings.topics.iter().enumerate() {
            validate_topic_filter(filter, &TopicLimits::NONE)
                .map_err(|error| SettingsError::new(&format!("topics[{at}]"), error.to_string()))?;
        }
        let options = SubscriptionOptions {
            qos: match settings.qos {
                0 => QoS::AtMostOnce,
                _ => QoS::AtLeastOnce,
            },
            no_local: true,
            retain_as_published: true,
            // Retained messages are sent for a new subscription only, not after each reconnect.
            retain_handling: 1,
        };
        // No Local is a protocol error on a shared subscription.
        let options = |filter: &str| match filter.starts_with("$share/") {
            true => SubscriptionOptions {
                no_local: false,
                ..options
            },
            false => options,
        };
        // Other filters need another session: the broker would continue to send matches of the old ones.
        let sum = crc32c::crc32c(settings.topics.join("\0").as_bytes());
        let filters = settings.topics.into_iter();
        let filters = filters.map(|filter| {
            let options = options(&filter);
            (filter, options)
        });
        let local_topic = settings.local_topic.as_deref();
        Ok(Self {
            client_id: format!("{}-in-{sum:08x}", remote.session_prefix),
            expiry_s: settings.session_expiry_s,
            filters: filters.collect(),
            local_topic: local_topic
                .map(|text| Template::parse("local_topic", text))
                .transpose()?,
            remote,
        })
    }

    async fn receive(&self, port: &dyn SourcePort) -> Result<(), ConnectorError> {
        let session_options = SessionOptions {
            client_id: &self.client_id,
            expiry_s: self.expiry_s,
        };
        let link = MqttConnection::open(&self.remote.server, &session_options).await?;
        let Some(mut incoming) = link.take_incoming() else {
            return Ok(());
        };
        link.subscribe(&self.filters).await?;
        while let Some((message, pending_ack)) = incoming.recv().await {
            if !self.is_own_message(&message) {
                port.accept(self.with_local_topic(message)).await;
            }
            if let Some(pending_ack) = pending_ack {
                link.acknowledge(pending_ack).await?;
            }
        }
        Err(link.close_reason())
    }

    /// Whether one of this node's sinks sent it: it would circulate forever.
    fn is_own_message(&self, message: &SourceMessage) -> bool {
        let marks = message
            .properties
            .iter()
            .filter(|(name, _)| name == BRIDGE_PROPERTY);
        marks
            .into_iter()
            .any(|(_, id)| *id == self.remote.client_id)
    }

    fn with_local_topic(&self, mut message: SourceMessage) -> SourceMessage {
        if let Some(template) = &self.local_topic {
            let mut bytes = Vec::new();
            let mut row = SinkRowWriter::new(&mut bytes);
            row.text("topic", &message.topic);
            row.int("qos", message.qos.into());
            let topic = template.render_name("local_topic", SinkRow::from_bytes(&bytes));
            message.local_topic = topic
                .inspect_err(|error| {
                    tracing::warn!(%error, "received message could not be published locally");
                })
                .ok();
        }
        message
    }
}

impl SourceReader for MqttSource {
    fn read<'a>(&'a self, port: &'a dyn SourcePort) -> BoxFuture<'a, ConnectorError> {
        Box::pin(async move {
            match self.receive(port).await {
                Ok(()) => ConnectorError::transient("it ended"),
                Err(failure) => failure,
            }
        })
    }
}
