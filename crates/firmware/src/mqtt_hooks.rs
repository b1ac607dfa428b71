//! Takes requests for chunks out of the broker.

use hooks::{
    BackpressureCheck, Hooks, HooksFactory, Interest, MessageOrigin, MessageView, PublishVerdict,
};

use crate::chunk_queue::ChunkRequest;
use crate::service::FirmwareService;
use crate::thingsboard::requested_type;

/// Longest payload of a request that is read.
const MAX_PAYLOAD_BYTES: usize = 32;

/// Hooks that pass requests of devices for chunks to a thread. Such requests reach no rule and no subscriber. Of other
/// clients they are ordinary messages.
pub struct FirmwareHooks(pub FirmwareService);

impl HooksFactory for FirmwareHooks {
    fn hooks_for(&self, _shard: u16) -> Box<dyn Hooks> {
        Box::new(FirmwareShardHooks {
            service: self.0.clone(),
            has_saturated: false,
        })
    }
}

struct FirmwareShardHooks {
    service: FirmwareService,
    /// The publisher of the last request has to wait until there is room.
    has_saturated: bool,
}

impl Hooks for FirmwareShardHooks {
    fn interest(&self) -> Interest {
        Interest::publish_on(b"v")
    }

    #[inline]
    fn wants_topic(&mut self, topic: &str) -> bool {
        requested_type(topic).is_some()
    }

    fn publish(&mut self, message: &MessageView<'_>, origin: &MessageOrigin<'_>) -> PublishVerdict {
        let kind = requested_type(message.topic);
        let (Some(kind), Some(client), Some(device)) = (kind, origin.client, origin.device) else {
            return PublishVerdict::Continue;
        };
        let payload = &message.payload[..message.payload.len().min(MAX_PAYLOAD_BYTES)];
        self.service.chunk_queue().push(ChunkRequest {
            client_id: client.client_id.into(),
            device: device.id.into(),
            kind,
            topic: message.topic.into(),
            payload: payload.into(),
        });
        self.has_saturated |= self.service.chunk_queue().is_saturated();
        PublishVerdict::Stop
    }

    fn take_backpressure(&mut self) -> Option<BackpressureCheck> {
        let service = std::mem::take(&mut self.has_saturated).then(|| self.service.clone())?;
        Some(Box::new(move || service.chunk_queue().is_saturated()))
    }
}
