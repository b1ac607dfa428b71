//! The reasons why an action fails.

use rules::EvaluationError;

/// The reason why an action failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ActionError {
    #[error("{0}")]
    Fault(#[from] EvaluationError),
    #[error("{what}: {found:?} is not {expected}")]
    InvalidValue {
        what: &'static str,
        found: String,
        expected: &'static str,
    },
    #[error("{what}: ${{{placeholder}}} is null")]
    NullValue {
        what: &'static str,
        placeholder: Box<str>,
    },
    #[error("cannot publish to the topic {topic:?}: {why}")]
    InvalidTopic { topic: String, why: String },
    #[error(
        "the message would be number {0} in a chain of messages published by rules; is there a loop of rules?"
    )]
    RepublishTooDeep(u8),
    #[error("the event is about a message published by a rule; publishing again would never end")]
    AboutDerivedMessage,
    #[error("there is no sink {0:?}")]
    NoSink(Box<str>),
    #[error("the sink {0:?} is full")]
    SinkFull(Box<str>),
    #[error("the limit of console lines per second is reached")]
    LogRateExceeded,
    #[error("too many messages wait to be published")]
    OutgoingFull,
    #[error("this node has no device platform")]
    NoDevices,
    #[error("{0}")]
    Rejected(Box<str>),
}

pub(crate) fn invalid_value(
    what: &'static str,
    found: &str,
    expected: &'static str,
) -> ActionError {
    ActionError::InvalidValue {
        what,
        found: found.chars().take(100).collect(),
        expected,
    }
}
