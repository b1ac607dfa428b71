//! The verification of a run, checked.

use mqtt::Version;

use crate::definition::{DefinitionError, VerifyDefinition};
use crate::metrics::Assertion;

const MAX_TOPICS: usize = 100;
const MAX_SUBSCRIBERS: u16 = 64;

#[derive(Clone, Debug)]
pub(crate) struct VerificationPlan {
    /// Filters of the topics that are verified.
    pub(crate) topics: Vec<String>,
    pub(crate) subscribers: u16,
    pub(crate) qos: u8,
    pub(crate) username: Option<String>,
    pub(crate) password: Option<String>,
    /// Whether the time to storage is measured.
    pub(crate) storage: bool,
    pub(crate) assertions: Vec<Assertion>,
    /// Whether messages whose payload has no stamp carry it as a user property.
    pub(crate) uses_properties: bool,
}

impl VerificationPlan {
    /// Whether messages on this topic are verified.
    #[inline]
    pub(crate) fn includes(&self, topic: &str) -> bool {
        self.topics
            .iter()
            .any(|filter| mqtt::filter_matches(filter, topic))
    }
}

/// What the sends of all fleets have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendProperties {
    /// `{stamp}` in a payload.
    pub(crate) have_stamp: bool,
    pub(crate) have_telemetry: bool,
}

/// Checks the table `verify`.
pub(crate) fn compile(
    definition: &VerifyDefinition,
    version: Version,
    sends: SendProperties,
    errors: &mut Vec<DefinitionError>,
) -> VerificationPlan {
    let mut error = |field: &str, message: String| {
        errors.push(DefinitionError::new(format!("verify.{field}"), message));
    };
    if definition.topics.is_empty() || definition.topics.len() > MAX_TOPICS {
        let count = definition.topics.len();
        error(
            "topics",
            format!("expected 1 to {MAX_TOPICS} topic filters, found {count}"),
        );
    }
    for (at, filter) in definition.topics.iter().enumerate() {
        if let Err(reason) = mqtt::validate_topic_filter(filter, &mqtt::TopicLimits::NONE) {
            error(&format!("topics[{at}]"), reason.to_string());
        } else if filter.starts_with("$share/") {
            error(
                &format!("topics[{at}]"),
                "expected a filter without $share/; set `subscribers` to share the messages"
                    .to_owned(),
            );
        }
    }
    if !(1..=MAX_SUBSCRIBERS).contains(&definition.subscribers) {
        error(
            "subscribers",
            format!(
                "expected 1 to {MAX_SUBSCRIBERS}, found {}",
                definition.subscribers
            ),
        );
    }
    if definition.qos > 2 {
        error(
            "qos",
            format!("expected 0, 1 or 2, found {}", definition.qos),
        );
    }
    if version != Version::V5 && !sends.have_stamp {
        error(
            "topics",
            "no payload contains {stamp}, by which messages are recognised; add it, or set target.version = \"5\" to send it as a \
             user property"
                .to_owned(),
        );
    }
    if definition.storage && !sends.have_telemetry {
        error(
            "storage",
            "no send has kind = \"telemetry\" without a `payload` of its own".to_owned(),
        );
    }
    let mut assertions = Vec::new();
    for (at, text) in definition.assertions.iter().enumerate() {
        match text.parse() {
            Ok(assertion) => assertions.push(assertion),
            Err(message) => error(&format!("assert[{at}]"), message),
        }
    }
    VerificationPlan {
        topics: definition.topics.clone(),
        subscribers: definition.subscribers,
        qos: definition.qos,
        username: definition.username.clone(),
        password: definition.password.clone(),
        storage: definition.storage,
        assertions,
        uses_properties: version == Version::V5,
    }
}
