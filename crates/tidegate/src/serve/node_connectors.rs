//! Connectors, sinks and sources of the node: stored ones, which follow changes of the store, and
//! declared ones, which are fixed.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use api::{BackendObjectKind, ObjectValidationError};
use broker::BrokerHandle;
use broker::control::PublishRequest;
use connect::connector::BoxFuture;
use connect::objects::{CONNECTOR, SINK, SOURCE};
use connect::{ConnectorService, SourceMessage, SourceMessageHandler};
use engine::{BridgeMessage, Engine};
use serde_json::Value;
use store::{ObjectChange, Objects};

/// The kind of `connect` that corresponds to a kind of the API.
pub(super) fn object_kind(kind: BackendObjectKind) -> Option<&'static str> {
    match kind {
        BackendObjectKind::Connector => Some(CONNECTOR),
        BackendObjectKind::Sink => Some(SINK),
        BackendObjectKind::Source => Some(SOURCE),
        _ => None,
    }
}

#[derive(Clone)]
pub(super) struct NodeConnectors {
    service: ConnectorService,
    runtime: tokio::runtime::Handle,
    /// Kind and name of the declared objects.
    declared: Arc<HashSet<(&'static str, String)>>,
}

impl NodeConnectors {
    /// Starts with the declared objects, which were validated with the configuration. Must run
    /// within a tokio runtime.
    pub(super) fn new(
        service: ConnectorService,
        declared: &[(&'static str, String, Value)],
    ) -> Self {
        for (kind, name, value) in declared {
            if let Err(error) = apply_settings(&service, kind, name, value) {
                tracing::error!(kind, name, %error, "declared object is invalid; ignored");
            }
        }
        let names = declared.iter().map(|(kind, name, _)| (*kind, name.clone()));
        Self {
            service,
            runtime: tokio::runtime::Handle::current(),
            declared: Arc::new(names.collect()),
        }
    }

    fn is_declared(&self, kind: &'static str, name: &str) -> bool {
        self.declared.contains(&(kind, name.to_owned()))
    }

    /// Loads the stored objects and follows their changes.
    pub(super) fn watch_objects(&self, objects: &Objects) -> Result<(), store::StoreError> {
        let (this, stored) = (self.clone(), objects.clone());
        objects.observe_changes(Box::new(move |change: &ObjectChange| {
            if let Some(kind) = [CONNECTOR, SINK, SOURCE]
                .into_iter()
                .find(|kind| *kind == change.kind)
            {
                this.reload(&stored, kind, &change.id);
            }
        }));
        for kind in [CONNECTOR, SINK, SOURCE] {
            objects.for_each(kind, |object| {
                self.put_object(kind, &object.id, Some(&object.value));
            })?;
        }
        Ok(())
    }

    fn reload(&self, objects: &Objects, kind: &'static str, name: &str) {
        match objects.get(kind, name) {
            Ok(object) => self.put_object(kind, name, object.map(|object| object.value).as_ref()),
            Err(error) => {
                tracing::error!(kind, name, %error, "changed object is unreadable; the previous definition stays active");
            }
        }
    }

    fn put_object(&self, kind: &'static str, name: &str, value: Option<&Value>) {
        if self.is_declared(kind, name) {
            return;
        }
        match value {
            None if kind == CONNECTOR => self.service.remove_connector(name),
            None if kind == SOURCE => self.service.remove_source(name),
            None => self.service.remove_sink(name),
            Some(value) => {
                if let Err(error) = apply_settings(&self.service, kind, name, value) {
                    tracing::error!(kind, name, %error, "stored object is invalid; ignored");
                }
            }
        }
    }

    /// Converts the JSON of a request to the stored form.
    pub(super) fn prepare(
        &self,
        kind: &'static str,
        name: &str,
        value: Value,
    ) -> Result<Value, ObjectValidationError> {
        let checked = match kind {
            CONNECTOR => self.service.check_connector(name, &value),
            SOURCE => self.service.check_source(&value),
            _ => self.service.check_sink(&value),
        };
        checked.map_err(to_validation_error)?;
        if kind == SINK {
            // On a thread that may block.
            let probing = self.service.probe_sink(&value);
            self.runtime
                .block_on(probing)
                .map_err(to_validation_error)?;
        }
        Ok(value)
    }

    pub(super) fn service(&self) -> &ConnectorService {
        &self.service
    }

    pub(super) async fn stop(&self, within: Duration) {
        self.service.stop(within).await;
    }
}

fn apply_settings(
    service: &ConnectorService,
    kind: &str,
    name: &str,
    value: &Value,
) -> Result<(), connect::SettingsError> {
    match kind {
        CONNECTOR => service.set_connector(name, value),
        SOURCE => service.set_source(name, value),
        _ => service.set_sink(name, value).map(drop),
    }
}

fn to_validation_error(error: connect::SettingsError) -> ObjectValidationError {
    ObjectValidationError {
        field: error.field,
        detail: error.detail,
    }
}

/// Client id prefix of messages that sources publish; `TYPE:NAME` follows.
const BRIDGE_CLIENT_ID: &str = "$bridges/";

/// Passes messages of sources to rules, and publishes them if the source is configured so.
pub(super) struct BridgeMessageHandler {
    pub(super) engine: Engine,
    pub(super) handle: BrokerHandle,
}

impl SourceMessageHandler for BridgeMessageHandler {
    fn handle<'a>(
        &'a self,
        kind: &'a str,
        name: &'a str,
        message: SourceMessage,
    ) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let incoming = BridgeMessage {
                topic: &message.topic,
                payload: &message.payload,
                qos: message.qos,
                retain: message.retain,
                key: message.key.as_deref(),
                properties: &message.properties,
                fields: &message.fields,
            };
            let bridge = format!("{kind}:{name}");
            self.engine.handle_bridge_message(&bridge, incoming).await;
            let Some(topic) = message.local_topic else {
                return;
            };
            let publication = PublishRequest {
                topic,
                payload: message.payload.into(),
                qos: message.qos,
                retain: message.retain,
                user_properties: message.properties,
                is_utf8: false,
                message_expiry_s: None,
                content_type: None,
                response_topic: None,
                correlation_data: None,
            };
            let client_id = format!("{BRIDGE_CLIENT_ID}{bridge}");
            if let Err(rejection) = self.handle.publish_as(publication, &client_id, "").await {
                tracing::warn!(bridge, %rejection, "publishing a message of a source failed; discarded");
            }
        })
    }
}
