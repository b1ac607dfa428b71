//! A message that outlives the call of a hook. Its payload may be shortened.

use bytes::Bytes;
use hooks::MessageView;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageCopy {
    pub topic: Box<str>,
    /// The beginning of the payload.
    pub payload: Bytes,
    /// Length of the whole payload.
    pub payload_bytes: usize,
    pub qos: u8,
    pub retain: bool,
    /// Milliseconds since the Unix epoch.
    pub received_ms: u64,
    /// Client id of the publisher; `None`: the node itself.
    pub publisher: Option<Box<str>>,
    pub content_type: Option<Box<str>>,
}

impl MessageCopy {
    pub(crate) fn new(view: &MessageView<'_>, max_payload_bytes: usize) -> Self {
        let kept = view.payload.len().min(max_payload_bytes);
        Self {
            topic: view.topic.into(),
            payload: Bytes::copy_from_slice(&view.payload[..kept]),
            payload_bytes: view.payload.len(),
            qos: view.qos as u8,
            retain: view.retain,
            received_ms: view.received_ms,
            publisher: (!view.from_client_id.is_empty()).then(|| view.from_client_id.into()),
            content_type: view.properties.content_type().map(Into::into),
        }
    }
}
