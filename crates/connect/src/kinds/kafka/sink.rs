//! The Kafka sink: maps rows to messages, topics and partitions.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use kafka::{
    Compression, ErrorCode, KafkaMessage, MessageId, OutgoingMessage, Producer, ProducerOptions,
    WriteTicket, partition_for_key,
};
use ring::rand::{SecureRandom as _, SystemRandom};
use schemars::JsonSchema;
use serde::Deserialize;
use wall_clock::now_ms;

use super::connector::KafkaConnector;
use super::topic_name::{MAX_TOPIC_BYTES, is_topic_name};
use crate::batch::{RowId, SinkBatch};
use crate::connector::{BoxFuture, ConnectorError, SinkWriter, WriteOutcome};
use crate::row::{SinkRow, SinkValue};
use crate::settings::{SettingsError, check_range};
use crate::template::Template;

const MAX_HEADERS: usize = 64;

/// Settings of a Kafka sink.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct KafkaSinkSettings {
    /// Topic, with placeholders: `mqtt.${topic}`.
    #[schemars(length(min = 1, max = 1000))]
    topic: String,
    /// Replaces `/` of MQTT topics by `.` of Kafka topics.
    #[serde(default = "default_replace_slashes_with_dots")]
    replace_slashes_with_dots: bool,
    /// Key, with placeholders: `${clientid}`. A message without one, or with an empty one, has no key.
    key: Option<String>,
    /// Value, with placeholders. Default: the row as JSON. A single placeholder that is null makes a tombstone.
    value: Option<String>,
    /// Headers; values with placeholders.
    #[serde(default)]
    headers: BTreeMap<String, String>,
    /// Timestamp in milliseconds since 1970, with placeholders. Default: now.
    timestamp: Option<String>,
    #[serde(default)]
    partitioner: Partitioner,
    /// Partition number, with placeholders, instead of a partitioner.
    partition: Option<String>,
    #[serde(default)]
    compression: Compression,
    /// Required acknowledgements.
    #[serde(default)]
    acks: Acks,
    /// Detects duplicates, so that each row is stored once. Default: with `acks = "all"`.
    idempotence: Option<bool>,
    /// Maximum message size in bytes; larger messages become dead letters. Also the limit on batches.
    #[serde(default = "default_max_message_bytes")]
    #[schemars(range(min = 1024, max = 100_000_000))]
    max_message_bytes: usize,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Partitioner {
    /// By key, as the Java client does; messages without a key go to a random partition per batch.
    #[default]
    Murmur2,
    /// A random partition per batch, whatever the key.
    Random,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
enum Acks {
    /// None: delivery is not confirmed.
    #[serde(rename = "none")]
    None,
    /// The leader of the partition.
    #[serde(rename = "leader")]
    Leader,
    /// All in-sync replicas.
    #[default]
    #[serde(rename = "all")]
    All,
}

fn default_replace_slashes_with_dots() -> bool {
    true
}

/// Slightly below the brokers' default limit.
fn default_max_message_bytes() -> usize {
    1_000_000
}

pub(super) struct KafkaSinkWriter {
    kafka: Arc<KafkaConnector>,
    producer: Arc<Producer>,
    shape: MessageMapping,
}

/// Mapping of a row to a message.
struct MessageMapping {
    topic: Template,
    replace_slashes_with_dots: bool,
    key: Option<Template>,
    value: Option<Template>,
    headers: Vec<(String, Template)>,
    timestamp: Option<Template>,
    partitioner: Partitioner,
    partition: Option<Template>,
    max_message_bytes: usize,
}

impl KafkaSinkWriter {
    pub(super) fn new(
        kafka: Arc<KafkaConnector>,
        settings: KafkaSinkSettings,
    ) -> Result<Self, SettingsError> {
        let range = 1024..=100_000_000;
        check_range("max_message_bytes", settings.max_message_bytes, range)?;
        let is_idempotent = match (settings.idempotence, settings.acks) {
            (Some(true), Acks::None | Acks::Leader) => {
                let detail = "only with acks = \"all\"";
                return Err(SettingsError::new("idempotence", detail));
            }
            (configured, acks) => configured.unwrap_or(acks == Acks::All),
        };
        let producer_options = ProducerOptions {
            acks: match settings.acks {
                Acks::None => 0,
                Acks::Leader => 1,
                Acks::All => -1,
            },
            compression: settings.compression,
            max_message_bytes: settings.max_message_bytes,
            is_idempotent,
        };
        let shape = MessageMapping::new(settings)?;
        let producer = Producer::new(kafka.cluster.clone(), kafka.next_slot(), producer_options);
        Ok(Self {
            kafka,
            producer,
            shape,
        })
    }

    async fn publish(&self, batch: &SinkBatch) -> WriteOutcome {
        let ticket = WriteTicket::new(batch.len());
        let _waiting = WriteTicketGuard {
            sink: self,
            batch,
            ticket: &ticket,
        };
        let ids = (0..batch.len()).map(|place| message_id(batch.id(place)));
        let (new, open) = self.producer.match_sent(ids, &ticket);
        for topic in &open {
            if let Err(none) = self.kafka.cluster.leaders(topic, true).await {
                self.producer.fail_open(topic, &none.failure);
            }
        }
        self.producer.resume_topics(&open);
        let (messages, mut failures) = self.build_messages(batch, &new).await;
        ticket.skip(failures.len());
        self.producer.send(messages, &ticket);
        let rejected = ticket.failures().await.into_iter();
        failures.extend(rejected.map(|(place, error)| (place, error.into())));
        WriteOutcome::all_except(batch.len(), failures)
    }

    /// Builds the messages of the rows at these positions, with their partitions; returns also the rows that have none.
    async fn build_messages(
        &self,
        batch: &SinkBatch,
        new: &[usize],
    ) -> (Vec<OutgoingMessage>, Vec<(usize, ConnectorError)>) {
        let now_ms = now_ms() as i64;
        let mut topics = BatchTopics::default();
        let (mut messages, mut failures) = (Vec::with_capacity(new.len()), Vec::new());
        for place in new.iter().copied() {
            let row = batch.row(place);
            let named = self.shape.render_topic(row);
            let shaped = named.and_then(|name| Ok((name, self.shape.build_message(row, now_ms)?)));
            let shaped = match shaped {
                Ok((name, message)) => {
                    let topic = topics.get_or_find(&self.kafka, name).await;
                    topic.and_then(|topic| {
                        let partition = self.shape.choose_partition(row, &message, topic)?;
                        Ok((message, topic.name.clone(), partition))
                    })
                }
                Err(failure) => Err(failure),
            };
            match shaped {
                Ok((message, topic, partition)) => messages.push(OutgoingMessage {
                    id: message_id(batch.id(place)),
                    place,
                    topic,
                    partition,
                    message,
                }),
                Err(failure) => failures.push((place, failure)),
            }
        }
        (messages, failures)
    }
}

fn message_id(row: RowId) -> MessageId {
    MessageId((u128::from(row.epoch) << 64) | u128::from(row.number))
}

/// Remembers the rows already written when the caller of a batch stops waiting, so they are not written again.
struct WriteTicketGuard<'s> {
    sink: &'s KafkaSinkWriter,
    batch: &'s SinkBatch,
    ticket: &'s WriteTicket,
}

impl Drop for WriteTicketGuard<'_> {
    fn drop(&mut self) {
        let written = self.ticket.give_up();
        let ids = written.into_iter();
        let ids = ids.map(|place| message_id(self.batch.id(place)));
        self.sink.producer.remember_written(ids);
    }
}

/// The topics of one batch.
#[derive(Default)]
struct BatchTopics {
    known: HashMap<String, Result<BatchTopic, ConnectorError>>,
}

struct BatchTopic {
    name: Arc<str>,
    leaders: Arc<[i32]>,
    /// Present partition for messages without a key.
    any: usize,
}

impl BatchTopics {
    async fn get_or_find(
        &mut self,
        kafka: &KafkaConnector,
        name: String,
    ) -> Result<&BatchTopic, ConnectorError> {
        if !self.known.contains_key(&name) {
            let found = find_topic(kafka, &name).await;
            self.known.insert(name.clone(), found);
        }
        let found = self.known.get(&name);
        let found = found.expect("inserted above");
        found.as_ref().map_err(Clone::clone)
    }
}

async fn find_topic(kafka: &KafkaConnector, name: &str) -> Result<BatchTopic, ConnectorError> {
    if !is_topic_name(name) {
        let what = format!(
            "{name:?} is not a valid topic name: expected 1 to {MAX_TOPIC_BYTES} letters, digits, ., _ and -"
        );
        return Err(ConnectorError::bad_rows(what));
    }
    let leaders = kafka.cluster.leaders(name, true).await;
    let leaders = leaders.map_err(|none| match none.code {
        ErrorCode::INVALID_TOPIC => ConnectorError::bad_rows(none.failure),
        _ => none.failure.into(),
    })?;
    // Among partitions with a leader, if there are any.
    let led = leaders.iter().filter(|leader| **leader >= 0).count();
    let mut seed = [0; 8];
    // Without randomness it is always the first one; neither order nor balance is guaranteed.
    let _ = SystemRandom::new().fill(&mut seed);
    let chosen = usize::from_le_bytes(seed) % led.max(1);
    let numbers = leaders.iter().enumerate();
    let mut candidates = numbers.filter(|(_, leader)| **leader >= 0);
    let any = candidates.nth(chosen).map_or(0, |(number, _)| number);
    Ok(BatchTopic {
        name: name.into(),
        leaders,
        any,
    })
}

impl MessageMapping {
    fn new(settings: KafkaSinkSettings) -> Result<Self, SettingsError> {
        let topic = Template::parse("topic", &settings.topic)?;
        let replace_slashes_with_dots = settings.replace_slashes_with_dots;
        let fits =
            |text: &str| is_topic_name(&with_dots(text.to_owned(), replace_slashes_with_dots));
        if topic.constant().is_some_and(|text| !fits(text)) {
            let detail = format!("expected 1 to {MAX_TOPIC_BYTES} letters, digits, ., _ and -");
            return Err(SettingsError::new("topic", detail));
        }
        if settings.headers.len() > MAX_HEADERS {
            let detail = format!("expected at most {MAX_HEADERS}");
            return Err(SettingsError::new("headers", detail));
        }
        let headers = settings.headers.iter().map(|(name, value)| {
            let field = format!("headers.{name}");
            Ok((name.clone(), Template::parse(&field, value)?))
        });
        if settings.partition.is_some() && settings.partitioner != Partitioner::default() {
            let detail = "not possible together with partition";
            return Err(SettingsError::new("partitioner", detail));
        }
        let template = |field: &str, text: &Option<String>| {
            let text = text.as_deref();
            text.map(|text| Template::parse(field, text)).transpose()
        };
        Ok(Self {
            topic,
            replace_slashes_with_dots,
            key: template("key", &settings.key)?,
            value: template("value", &settings.value)?,
            headers: headers.collect::<Result<_, SettingsError>>()?,
            timestamp: template("timestamp", &settings.timestamp)?,
            partitioner: settings.partitioner,
            partition: template("partition", &settings.partition)?,
            max_message_bytes: settings.max_message_bytes,
        })
    }

    fn render_topic(&self, row: SinkRow<'_>) -> Result<String, ConnectorError> {
        let topic = self.topic.render_name("topic", row)?;
        Ok(with_dots(topic, self.replace_slashes_with_dots))
    }

    fn build_message(&self, row: SinkRow<'_>, now_ms: i64) -> Result<KafkaMessage, ConnectorError> {
        let mut scratch = Vec::new();
        let rendered = |template: &Template| {
            let mut out = Vec::new();
            template.render(row, &mut out);
            out
        };
        let value = match &self.value {
            None => {
                let mut out = Vec::new();
                row.write_json(&mut out);
                Some(out)
            }
            Some(template) => match template.value(row, &mut scratch) {
                SinkValue::Null => None,
                _ => Some(rendered(template)),
            },
        };
        let timestamp_ms = match &self.timestamp {
            None => now_ms,
            Some(template) => number(template, row).ok_or_else(|| {
                let found = template.render_string(row);
                let what = format!("timestamp: expected milliseconds since 1970, found {found:?}");
                ConnectorError::bad_rows(what)
            })?,
        };
        let headers = self.headers.iter();
        let message = KafkaMessage {
            // A null key counts as none.
            key: (self.key.as_ref())
                .filter(|key| !key.value(row, &mut Vec::new()).is_null())
                .map(rendered)
                .filter(|key| !key.is_empty()),
            value,
            headers: headers
                .map(|(name, value)| (name.clone(), rendered(value)))
                .collect(),
            timestamp_ms,
        };
        let (size, max) = (message.size(), self.max_message_bytes);
        match size <= max {
            true => Ok(message),
            false => Err(ConnectorError::bad_rows(format!(
                "{size} bytes are more than max_message_bytes, {max}"
            ))),
        }
    }

    fn choose_partition(
        &self,
        row: SinkRow<'_>,
        message: &KafkaMessage,
        topic: &BatchTopic,
    ) -> Result<i32, ConnectorError> {
        let count = topic.leaders.len();
        if let Some(template) = &self.partition {
            let chosen = number(template, row).filter(|n| (0..count as i64).contains(n));
            return chosen.map(|number| number as i32).ok_or_else(|| {
                let (found, name) = (template.render_string(row), &topic.name);
                let what = format!("{name} has partitions 0 to {}, found {found:?}", count - 1);
                ConnectorError::bad_rows(what)
            });
        }
        let number = match (&message.key, self.partitioner) {
            (Some(key), Partitioner::Murmur2) => partition_for_key(key, count),
            _ => topic.any,
        };
        Ok(number as i32)
    }
}

fn with_dots(topic: String, replace_slashes_with_dots: bool) -> String {
    match replace_slashes_with_dots {
        true => topic.replace('/', "."),
        false => topic,
    }
}

fn number(template: &Template, row: SinkRow<'_>) -> Option<i64> {
    let mut scratch = Vec::new();
    match template.value(row, &mut scratch) {
        SinkValue::Int(number) => Some(number),
        SinkValue::Float(number) if number.fract() == 0.0 => Some(number as i64),
        SinkValue::Text(text) => text.trim().parse().ok(),
        _ => None,
    }
}

impl SinkWriter for KafkaSinkWriter {
    fn write<'a>(&'a self, batch: &'a SinkBatch) -> BoxFuture<'a, WriteOutcome> {
        Box::pin(self.publish(batch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::SinkRowWriter;
    use serde_json::{Value as Json, json};

    fn mapping(more: Json) -> Result<MessageMapping, SettingsError> {
        let mut settings = json!({"topic": "t.${topic}"});
        let fields = settings.as_object_mut().unwrap();
        fields.extend(more.as_object().unwrap().clone());
        let settings: KafkaSinkSettings = crate::settings::parse_settings(fields.clone())?;
        MessageMapping::new(settings)
    }

    fn row() -> Vec<u8> {
        let row = json!({"topic": "a/b", "n": 7, "none": null, "big": "x".repeat(2000)});
        let mut bytes = Vec::new();
        SinkRowWriter::new(&mut bytes).json_fields(row.as_object().unwrap());
        bytes
    }

    #[test]
    fn a_row_becomes_a_message() {
        let bytes = row();
        let row = SinkRow::from_bytes(&bytes);
        let shape = mapping(json!({
            "key": "k${n}", "value": "${topic}", "headers": {"h": "${n}"}, "timestamp": "${n * 2}"
        }));
        let shape = shape.unwrap();
        assert_eq!(shape.render_topic(row).unwrap(), "t.a.b");
        let message = shape.build_message(row, 1).unwrap();
        let expected = KafkaMessage {
            key: Some(b"k7".to_vec()),
            value: Some(b"a/b".to_vec()),
            headers: vec![("h".into(), b"7".to_vec())],
            timestamp_ms: 14,
        };
        assert_eq!(message, expected);
    }

    #[test]
    fn what_is_null_has_no_value_and_what_is_empty_no_key() {
        let bytes = row();
        let row = SinkRow::from_bytes(&bytes);
        let shape = mapping(json!({"key": "${none}", "value": "${none}"})).unwrap();
        let message = shape.build_message(row, 5).unwrap();
        let expected = KafkaMessage {
            timestamp_ms: 5,
            ..KafkaMessage::default()
        };
        assert_eq!(message, expected);
    }

    #[test]
    fn rows_that_do_not_fit_say_why() {
        let bytes = row();
        let row = SinkRow::from_bytes(&bytes);
        let small = mapping(json!({"max_message_bytes": 1024})).unwrap();
        let why = small.build_message(row, 0).unwrap_err();
        assert!(why.message.contains("max_message_bytes"), "{why}");
        let timed = mapping(json!({"timestamp": "${topic}"})).unwrap();
        let why = timed.build_message(row, 0).unwrap_err();
        assert!(why.message.contains("found \"a/b\""), "{why}");
    }

    #[test]
    fn partitions_are_chosen() {
        let bytes = row();
        let row = SinkRow::from_bytes(&bytes);
        let topic = BatchTopic {
            name: "t".into(),
            leaders: vec![1; 8].into(),
            any: 5,
        };
        let chosen = |more: Json| {
            let shape = mapping(more).unwrap();
            let message = shape.build_message(row, 0).unwrap();
            shape.choose_partition(row, &message, &topic)
        };
        let by_key = partition_for_key(b"7", 8) as i32;
        assert_eq!(chosen(json!({"key": "${n}"})), Ok(by_key));
        assert_eq!(chosen(json!({})), Ok(5));
        let random = json!({"key": "${n}", "partitioner": "random"});
        assert_eq!(chosen(random), Ok(5));
        assert_eq!(chosen(json!({"partition": "${n - 1}"})), Ok(6));
        let why = chosen(json!({"partition": "${n + 1}"})).unwrap_err();
        assert!(why.message.contains("0 to 7, found \"8\""), "{why}");
        assert!(chosen(json!({"partition": "${topic}"})).is_err());
    }

    #[test]
    fn settings_are_checked() {
        let field = |more: Json| mapping(more).err().unwrap().field;
        assert_eq!(field(json!({"topic": "a b"})), "topic");
        assert_eq!(
            field(json!({"topic": "a/b", "replace_slashes_with_dots": false})),
            "topic"
        );
        assert_eq!(field(json!({"key": "${"})), "key");
        assert_eq!(field(json!({"headers": {"h": "${"}})), "headers.h");
        assert_eq!(field(json!({"acks": 1})), "acks");
        let both = json!({"partition": "1", "partitioner": "random"});
        assert_eq!(field(both), "partitioner");
    }
}
