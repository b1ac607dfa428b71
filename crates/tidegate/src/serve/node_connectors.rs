//! Connectors, sinks and sources of the node: stored ones, which follow changes of the store, and
//! declared ones, which are fixed; and the queries of the API about them.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use api::{
    BackendFuture, BackendObjectKind, ConnectionTestResult, ConnectorBackend,
    ObjectValidationError, PendingPush, SourcePushError,
};
use broker::BrokerHandle;
use broker::control::PublishRequest;
use connect::connector::BoxFuture;
use connect::objects::{self, CONNECTOR, SINK, SOURCE};
use connect::push::{PushError, RequestHead, SourcePush};
use connect::{ConnectorService, DeadLetter, SinkRow, SourceMessage, SourceMessageHandler};
use engine::{BridgeMessage, Engine};
use hyper::HeaderMap;
use hyper::body::Bytes;
use serde_json::{Map, Value, json};
use store::{ObjectChange, Objects};

const PAGE_OBJECTS: usize = 1000;

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
            let mut after: Option<String> = None;
            loop {
                let page = objects.list(kind, after.as_deref(), PAGE_OBJECTS)?;
                for object in &page {
                    self.put_object(kind, &object.id, Some(&object.value));
                }
                match page.last() {
                    Some(last) if page.len() == PAGE_OBJECTS => after = Some(last.id.clone()),
                    _ => break,
                }
            }
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
        input: Value,
        current: Option<&Value>,
    ) -> Result<Value, ObjectValidationError> {
        let value = objects::carry_over_secrets(kind, input, current);
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

    fn with_origin(&self, kind: &'static str, status: impl serde::Serialize) -> Value {
        let mut status = serde_json::to_value(status).unwrap_or_default();
        let name = status["name"].as_str().unwrap_or_default();
        let is_declared = self.is_declared(kind, name);
        status["is_declared"] = is_declared.into();
        status
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
            if let Err(refusal) = self.handle.publish_as(publication, &client_id, "").await {
                tracing::warn!(bridge, %refusal, "publishing a message of a source failed; discarded");
            }
        })
    }
}

/// An admitted push request to a source.
struct AdmittedPush(SourcePush);

impl PendingPush for AdmittedPush {
    fn max_body_bytes(&self) -> usize {
        self.0.max_body_bytes()
    }

    fn accept_body(
        self: Box<Self>,
        body: Bytes,
    ) -> BackendFuture<'static, Result<(), SourcePushError>> {
        Box::pin(async move { self.0.accept(body.into()).await.map_err(to_push_error) })
    }
}

fn to_push_error(refused: PushError) -> SourcePushError {
    match refused {
        PushError::Unknown => SourcePushError::Unknown,
        PushError::Closed(why) => SourcePushError::SourceClosed(why.to_owned()),
        PushError::Credentials(why) => SourcePushError::Credentials(why.to_owned()),
        PushError::Content(why) => SourcePushError::Content(why),
        PushError::TooManyRequests => SourcePushError::TooManyRequests,
        PushError::TimedOut => SourcePushError::TimedOut,
    }
}

fn dead_letter_json(letter: &DeadLetter) -> Value {
    json!({
        "id": letter.id,
        "at_ms": letter.at_ms,
        "error": letter.error,
        "attempts": letter.attempts,
        "row": SinkRow::from_bytes(&letter.row).to_json()
    })
}

impl ConnectorBackend for NodeConnectors {
    fn types(&self) -> Vec<Map<String, Value>> {
        objects::describe_kinds()
    }

    fn connector_statuses(&self) -> Vec<Value> {
        let connectors = self.service.connectors().into_iter();
        connectors
            .map(|status| self.with_origin(CONNECTOR, status))
            .collect()
    }

    fn test_connector<'a>(
        &'a self,
        name: &'a str,
    ) -> BackendFuture<'a, Option<ConnectionTestResult>> {
        Box::pin(async move {
            let tested = self.service.test_connector(name).await?;
            Some(tested.map_err(|failure| failure.message))
        })
    }

    fn test_sink<'a>(&'a self, name: &'a str) -> BackendFuture<'a, Option<ConnectionTestResult>> {
        Box::pin(async move {
            let tested = self.service.test_sink(name).await?;
            Some(tested.map_err(|failure| failure.message))
        })
    }

    fn test_settings<'a>(
        &'a self,
        settings: &'a Value,
    ) -> BackendFuture<'a, Result<ConnectionTestResult, ObjectValidationError>> {
        Box::pin(async move {
            let tested = self.service.test_settings(settings).await;
            let tested = tested.map_err(to_validation_error)?;
            Ok(tested.map_err(|failure| failure.message))
        })
    }

    fn sink_statuses(&self) -> Vec<Value> {
        let sinks = self.service.sinks().into_iter();
        sinks.map(|status| self.with_origin(SINK, status)).collect()
    }

    fn sink_status(&self, name: &str) -> Option<Value> {
        let status = self.service.sink_status(name)?;
        Some(self.with_origin(SINK, status))
    }

    fn source_statuses(&self) -> Vec<Value> {
        let sources = self.service.sources().into_iter();
        sources
            .map(|status| self.with_origin(SOURCE, status))
            .collect()
    }

    fn admit_push(
        &self,
        source: &str,
        headers: &HeaderMap,
    ) -> Result<Box<dyn PendingPush>, SourcePushError> {
        let fields = headers.iter().filter_map(|(name, value)| {
            let value = std::str::from_utf8(value.as_bytes()).ok()?;
            Some((name.as_str().to_owned(), value.to_owned()))
        });
        match self.service.admit(source, &RequestHead::new(fields)) {
            Ok(post) => Ok(Box::new(AdmittedPush(post))),
            Err(refused) => Err(to_push_error(refused)),
        }
    }

    fn dead_letters(&self, sink: &str, after: u64, limit: usize) -> Option<Vec<Value>> {
        let letters = self.service.dead_letters(sink, after, limit)?;
        Some(letters.iter().map(dead_letter_json).collect())
    }

    fn replay_dead_letters<'a>(
        &'a self,
        sink: &'a str,
        ids: Option<Vec<u64>>,
    ) -> BackendFuture<'a, Option<usize>> {
        Box::pin(self.service.replay(sink, ids))
    }

    fn discard_dead_letters<'a>(
        &'a self,
        sink: &'a str,
        ids: Option<Vec<u64>>,
    ) -> BackendFuture<'a, Option<usize>> {
        Box::pin(self.service.discard(sink, ids))
    }
}
