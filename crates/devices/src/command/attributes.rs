//! Shared attributes are for devices to know: whatever changes of them is told to those that are here.

use std::sync::Arc;

use serde_json::Value;

use super::reach::{Address, Handed, Handover, Reach, address};
use crate::device::Device;
use crate::dialect::Tell;
use crate::registry::{AttributeChange, Registry, Scope};

/// Tells devices from now on when their shared attributes change. One that is not here, or does not listen, asks when it comes.
pub fn follow_shared(registry: &Registry, reach: Arc<dyn Reach>) {
    let known = registry.clone();
    registry.on_attributes(Box::new(move |change: &AttributeChange<'_>| {
        if change.scope != Scope::Shared {
            return;
        }
        if !change.changed.is_empty() {
            let values = change.changed.iter().cloned().collect();
            let json = Value::Object(values).to_string();
            tell(
                &known,
                &reach,
                change.device,
                &Tell::Attributes { json: &json },
            );
        }
        if !change.removed.is_empty() {
            let keys: Vec<_> = change.removed.iter().map(String::as_str).collect();
            let keys = &keys;
            tell(
                &known,
                &reach,
                change.device,
                &Tell::AttributesDeleted { keys },
            );
        }
    }));
}

fn tell(registry: &Registry, reach: &Arc<dyn Reach>, device: &Device, tell: &Tell<'_>) {
    match address(registry, &**reach, device, tell, crate::now_ms()) {
        Ok(Some(address)) => send(reach, address),
        Ok(None) => {}
        Err(error) => {
            let device = device.id.as_str();
            tracing::warn!(device, %error, "a device cannot be told that its attributes have changed");
        }
    }
}

/// In the first dialect that it listens to.
fn send(reach: &Arc<dyn Reach>, mut address: Address) {
    let Some(letter) = address.letters.pop_front() else {
        return;
    };
    let (again, client_id) = (Arc::clone(reach), address.client_id.clone());
    let done = Handover::new(move |handed| match handed {
        Handed::NotHeard => send(&again, address),
        Handed::Sent { .. } => {}
        Handed::Later(why) | Handed::Never(why) => {
            let client_id = &*address.client_id;
            tracing::debug!(client_id, why, "a change of attributes was not told");
        }
    });
    reach.tell(&client_id, letter, done, Box::new(|| {}));
}
