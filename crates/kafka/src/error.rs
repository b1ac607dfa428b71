//! Errors of requests and messages.

use std::fmt;

use outbound::stream::StreamError;

/// Why a request failed or a message was not stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KafkaError {
    /// A later attempt may succeed: a broker is down, overloaded, or rejects the password.
    #[error("{0}")]
    Transient(String),
    /// The content of the message is the cause; it was not stored.
    #[error("{0}")]
    BadMessage(String),
}

impl KafkaError {
    pub(crate) fn transient(message: impl fmt::Display) -> Self {
        Self::Transient(message.to_string())
    }

    pub(crate) fn bad_message(message: impl fmt::Display) -> Self {
        Self::BadMessage(message.to_string())
    }
}

impl From<StreamError> for KafkaError {
    fn from(error: StreamError) -> Self {
        Self::transient(error)
    }
}
