//! Records registrations of devices in the audit log.

use std::sync::{Arc, OnceLock};

use api::{HttpConfig, NodeAction, SharedHttpConfig};
use devices::platform::{Registration, RegistrationLog};
use serde_json::json;
use store::Objects;

/// Writes registrations to the audit log.
pub(super) struct RegistrationAudit {
    objects: Objects,
    /// Contains the maximum length of the log; until the API runs, the default applies.
    http: OnceLock<SharedHttpConfig>,
}

impl RegistrationAudit {
    pub(super) fn new(objects: Objects) -> Arc<Self> {
        Arc::new(Self {
            objects,
            http: OnceLock::new(),
        })
    }

    /// Sets the configuration of the running API.
    pub(super) fn set_http(&self, http: SharedHttpConfig) {
        // `set_http` is called once.
        let _ = self.http.set(http);
    }
}

impl RegistrationLog for RegistrationAudit {
    fn record(&self, registration: &Registration<'_>) {
        let default = || HttpConfig::new(([127, 0, 0, 1], 0).into()).max_audit_entries;
        let http = self.http.get();
        let max_entries = http.map_or_else(default, |http| http.get().max_audit_entries);
        let device = registration.device;
        let product = device.product.id().as_str();
        let what = match registration.was_created {
            true => "create",
            false => "replace_credentials",
        };
        let action = NodeAction {
            actor: &format!("provisioning:{product}"),
            address: registration.peer_address,
            action: "device.provision",
            subject: device.id.as_str(),
            after: json!({"product": product, "result": what}),
        };
        api::append_node_action(&self.objects, max_entries, action);
    }
}
