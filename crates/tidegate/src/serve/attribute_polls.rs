//! HTTP long polls of devices for changes of their shared attributes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use devices::command::{EncodedDownlink, Recipient};
use devices::{AttributeChange, AttributeScope, DeviceChange, DeviceNo, Registry};
use serde_json::{Map, Value};
use store::Objects;
use tokio::sync::oneshot;

use super::pipeline_outputs::NodePipelineOutputs;

const TOPIC: &str = "v1/devices/me/attributes";

/// The waiting polls by device. The API limits their number.
#[derive(Default)]
pub(super) struct AttributePolls {
    waiting: Mutex<HashMap<DeviceNo, Vec<oneshot::Sender<Value>>>>,
}

/// One waiting poll; dropping it removes it.
pub(super) struct AttributePoll {
    polls: Arc<AttributePolls>,
    device: DeviceNo,
    change: oneshot::Receiver<Value>,
}

impl AttributePoll {
    /// Waits for the next change: values by key, and the names of removed ones as `deleted`. `None`: the device or its
    /// product has changed, so the token must be checked again.
    pub(super) async fn change(mut self) -> Option<Value> {
        (&mut self.change).await.ok()
    }
}

impl Drop for AttributePoll {
    fn drop(&mut self) {
        self.change.close();
        self.polls.forget_closed(self.device);
    }
}

impl AttributePolls {
    pub(super) fn follow(
        registry: &Registry,
        objects: &Objects,
        others: Arc<NodePipelineOutputs>,
    ) -> Arc<Self> {
        let polls = Arc::new(Self::default());
        let notified = polls.clone();
        registry.add_attribute_observer(Box::new(move |change| notified.answer(change, &others)));
        let notified = polls.clone();
        registry.add_device_observer(Box::new(move |change| {
            if let DeviceChange::Updated(device) | DeviceChange::Removed(device) = change {
                notified.lock().remove(&device.no);
            }
        }));
        let notified = polls.clone();
        objects.observe_changes(Box::new(move |change| {
            if change.kind == devices::PRODUCT_KIND {
                notified.lock().clear();
            }
        }));
        polls
    }

    pub(super) fn wait(self: &Arc<Self>, device: DeviceNo) -> AttributePoll {
        let (sender, change) = oneshot::channel();
        self.lock().entry(device).or_default().push(sender);
        AttributePoll {
            polls: self.clone(),
            device,
            change,
        }
    }

    fn answer(&self, change: &AttributeChange<'_>, others: &Arc<NodePipelineOutputs>) {
        let is_empty = change.changed.is_empty() && change.removed.is_empty();
        if change.scope != AttributeScope::Shared || is_empty {
            return;
        }
        let Some(waiting) = self.lock().remove(&change.device.no) else {
            return;
        };
        let mut values: Map<String, Value> = change.changed.iter().cloned().collect();
        if !change.removed.is_empty() {
            values.insert("deleted".to_owned(), change.removed.into());
        }
        let values = Value::Object(values);
        let notified = waiting
            .into_iter()
            .filter_map(|sender| sender.send(values.clone()).ok());
        if notified.count() > 0 {
            // Logged under the topic that MQTT would have used.
            let downlink = EncodedDownlink {
                topic: TOPIC.to_owned(),
                payload: values.to_string(),
                needs_subscription: false,
                log_recipient: Recipient::if_logged(change.device),
            };
            others.pending_log_entry(&downlink).write();
        }
    }

    fn forget_closed(&self, device: DeviceNo) {
        let mut waiting = self.lock();
        if let Some(of_device) = waiting.get_mut(&device) {
            of_device.retain(|sender| !sender.is_closed());
            if of_device.is_empty() {
                waiting.remove(&device);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<DeviceNo, Vec<oneshot::Sender<Value>>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
