//! What systems post to a source by HTTP, instead of being asked for what they have.

use std::sync::Arc;

use crate::connector::{BoxFuture, SourcePort};

/// The header fields of a request: names in lower case, values that are text.
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

    /// The field of this name (in lower case), if there is exactly one: of two nobody knows which is meant.
    pub fn get(&self, name: &str) -> Option<&str> {
        let mut found = self.0.iter().filter(|(known, _)| known == name);
        let (_, value) = found.next()?;
        found.next().is_none().then_some(value)
    }
}

/// A request that may come in, as far as its head tells; it holds a place until it is dropped.
pub trait PushRequest: Send {
    fn max_body_bytes(&self) -> usize;

    /// Resolves once every message in the body has been taken.
    fn accept(
        self: Box<Self>,
        body: Vec<u8>,
        inlet: Arc<dyn SourcePort>,
    ) -> BoxFuture<'static, Result<(), PushError>>;
}

/// Why a request is not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PushError {
    /// There is no such source, or nothing can be posted to it.
    Unknown,
    /// The source does not receive at the moment; for people, why.
    Closed(&'static str),
    /// The source's secret is not in the request.
    Credentials(&'static str),
    /// What is wrong with the body.
    Content(String),
    /// Too many requests wait to be taken.
    TooManyRequests,
    /// Its messages were not taken in time. They may still be.
    TimedOut,
}

/// A request to a source that may come in.
pub struct SourcePush {
    pub(crate) admitted: Box<dyn PushRequest>,
    pub(crate) inlet: Arc<dyn SourcePort>,
}

impl SourcePush {
    pub fn max_body_bytes(&self) -> usize {
        self.admitted.max_body_bytes()
    }

    /// Resolves once every message in the body has been taken.
    pub async fn accept(self, body: Vec<u8>) -> Result<(), PushError> {
        self.admitted.accept(body, self.inlet).await
    }
}
