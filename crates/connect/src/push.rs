//! HTTP requests that systems post to a source.

use std::sync::Arc;

use crate::source_port::{BoxFuture, SourcePort};

/// The headers of a request: names in lower case, text values.
#[derive(Debug, Clone, Default)]
pub struct RequestHead(Vec<(String, String)>);

impl RequestHead {
    pub fn new(fields: impl IntoIterator<Item = (String, String)>) -> Self {
        let fields = fields.into_iter();
        Self(
            fields
                .map(|(name, value)| (name.to_ascii_lowercase(), value))
                .collect(),
        )
    }

    /// The value of this header (in lower case) if it occurs exactly once; repeated headers are ambiguous.
    pub fn get(&self, name: &str) -> Option<&str> {
        let mut found = self.0.iter().filter(|(known, _)| known == name);
        let (_, value) = found.next()?;
        found.next().is_none().then_some(value)
    }
}

/// A request whose head was accepted; it occupies a slot until it is dropped.
pub trait PushRequest: Send {
    fn max_body_bytes(&self) -> usize;

    /// Resolves once every message in the body is processed.
    fn accept(
        self: Box<Self>,
        body: Vec<u8>,
        inlet: Arc<dyn SourcePort>,
    ) -> BoxFuture<'static, Result<(), PushError>>;
}

/// Why a request is rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PushError {
    /// The source does not exist or does not receive HTTP requests.
    Unknown,
    /// The source is not receiving at present, with the reason for people.
    Closed(&'static str),
    /// The request lacks the source's secret.
    Credentials(&'static str),
    /// The body is invalid, with the reason for people.
    Content(String),
    /// Too many requests are being processed.
    TooManyRequests,
    /// Its messages were not processed in time. They may still be.
    TimedOut,
}

/// An accepted request to a source.
pub struct SourcePush {
    pub(crate) admitted: Box<dyn PushRequest>,
    pub(crate) inlet: Arc<dyn SourcePort>,
}

impl SourcePush {
    pub fn max_body_bytes(&self) -> usize {
        self.admitted.max_body_bytes()
    }

    /// Resolves once every message in the body is processed.
    pub async fn accept(self, body: Vec<u8>) -> Result<(), PushError> {
        self.admitted.accept(body, self.inlet).await
    }
}
