//! Takes the messages of file transfers out of the broker.

use bytes::Bytes;
use hooks::{
    BackpressureCheck, Hooks, HooksFactory, Interest, MessageOrigin, MessageView, PublishVerdict,
};
use wall_clock::now_ms;

use crate::mqtt_topic::is_file_topic;
use crate::mqtt_workers::{FileWorkers, StepSender, TransferStep};
use crate::record::{FileOwner, OwnerKind};

/// Hooks that pass messages on `$file/` and `$file-async/` to worker threads. Their publishers are acknowledged when the
/// step is done; they are paused while too much waits.
pub struct FileHooks(pub FileWorkers);

impl HooksFactory for FileHooks {
    fn hooks_for(&self, _shard: u16) -> Box<dyn Hooks> {
        Box::new(FileShardHooks {
            workers: self.0.clone(),
            paused_until_ms: None,
        })
    }
}

struct FileShardHooks {
    workers: FileWorkers,
    /// The publisher of the last message has to pause until then, and until the workers have room.
    paused_until_ms: Option<u64>,
}

impl FileShardHooks {
    /// Charges a segment to the rate of its sender.
    fn charge_rate(&self, message: &MessageView<'_>, origin: &MessageOrigin<'_>) -> u64 {
        let settings = self.workers.service().settings();
        if settings.max_bytes_per_s == 0 && settings.max_bytes_per_s_per_owner == 0 {
            return 0;
        }
        let owner = match origin.device {
            Some(device) => FileOwner {
                kind: OwnerKind::Device,
                ..FileOwner::client(device.id)
            },
            None => FileOwner::client(message.from_client_id),
        };
        let bytes = message.payload.len() as u64;
        self.workers.service().charge_rate(&owner, bytes)
    }
}

impl Hooks for FileShardHooks {
    fn interest(&self) -> Interest {
        match self.workers.service().settings().enabled {
            true => Interest::publish_on_dollar(b'f'),
            false => Interest::NONE,
        }
    }

    #[inline]
    fn wants_topic(&mut self, topic: &str) -> bool {
        is_file_topic(topic)
    }

    fn rejects_publish(&mut self, message: &MessageView<'_>, _: &MessageOrigin<'_>) -> bool {
        is_file_topic(message.topic) && self.workers.is_full()
    }

    fn publish(&mut self, message: &MessageView<'_>, origin: &MessageOrigin<'_>) -> PublishVerdict {
        if !is_file_topic(message.topic) {
            return PublishVerdict::Continue;
        }
        // A file needs an owner.
        let Some(client) = origin.client else {
            return PublishVerdict::Deny;
        };
        if self.workers.is_full() {
            return PublishVerdict::Reject;
        }
        let payload = match message.shared_payload {
            Some(shared) => shared.clone(),
            None => Bytes::copy_from_slice(message.payload),
        };
        let device = origin.device;
        self.workers.push(TransferStep {
            sender: StepSender {
                client_id: client.client_id.into(),
                device: device.map(|device| (device.id.into(), device.product.into())),
            },
            topic: message.topic.into(),
            payload,
            ticket: origin.ticket,
            response_topic: message.properties.response_topic().map(Into::into),
            correlation_data: message.properties.correlation_data().map(Into::into),
        });
        let until_ms = self.charge_rate(message, origin);
        if until_ms > 0 || self.workers.is_saturated() {
            self.paused_until_ms = Some(until_ms);
        }
        PublishVerdict::Defer
    }

    fn take_backpressure(&mut self) -> Option<BackpressureCheck> {
        let until_ms = self.paused_until_ms.take()?;
        let workers = self.workers.clone();
        Some(Box::new(move || {
            workers.is_saturated() || now_ms() < until_ms
        }))
    }
}
