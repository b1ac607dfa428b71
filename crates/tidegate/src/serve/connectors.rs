//! Connectors and sinks of the node: those of the store, followed as they change, and those of the configuration, which
//! stay; and what the API asks about them.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use api::{Asking, ConnectorTools, Invalid, PostRefused, Posted, RuledKind, Tested};
use broker::Handle;
use broker::control::Publication;
use connect::connector::Doing;
use connect::objects::{self, CONNECTOR, SINK, SOURCE};
use connect::post::{Head, Post, Refused};
use connect::{Letter, Listener, Received, Row, Service};
use engine::{Engine, Incoming};
use hyper::HeaderMap;
use hyper::body::Bytes;
use serde_json::{Map, Value, json};
use store::{Change, Objects};

const PAGE: usize = 1000;

/// The kind of object of `connect` that a kind of the API is.
pub(super) fn object(kind: RuledKind) -> Option<&'static str> {
    match kind {
        RuledKind::Connector => Some(CONNECTOR),
        RuledKind::Sink => Some(SINK),
        RuledKind::Source => Some(SOURCE),
        _ => None,
    }
}

#[derive(Clone)]
pub(super) struct Connectors {
    service: Service,
    runtime: tokio::runtime::Handle,
    /// Kind and name of those that stand in the configuration.
    declared: Arc<HashSet<(&'static str, String)>>,
}

impl Connectors {
    /// With those of the configuration, which was checked when it was read.
    /// Runs within a tokio runtime.
    pub(super) fn new(service: Service, declared: &[(&'static str, String, Value)]) -> Self {
        for (kind, name, value) in declared {
            if let Err(error) = set(&service, kind, name, value) {
                tracing::error!(kind, name, %error, "what the configuration declares cannot be used");
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

    /// Takes over those of the store, and from now on every change of them.
    pub(super) fn follow(&self, objects: &Objects) -> Result<(), store::Error> {
        let (this, stored) = (self.clone(), objects.clone());
        objects.on_change(Box::new(move |change: &Change| {
            if let Some(kind) = [CONNECTOR, SINK, SOURCE]
                .into_iter()
                .find(|kind| *kind == change.kind)
            {
                this.apply(&stored, kind, &change.id);
            }
        }));
        for kind in [CONNECTOR, SINK, SOURCE] {
            let mut after: Option<String> = None;
            loop {
                let page = objects.list(kind, after.as_deref(), PAGE)?;
                for object in &page {
                    self.put(kind, &object.id, Some(&object.value));
                }
                match page.last() {
                    Some(last) if page.len() == PAGE => after = Some(last.id.clone()),
                    _ => break,
                }
            }
        }
        Ok(())
    }

    fn apply(&self, objects: &Objects, kind: &'static str, name: &str) {
        match objects.get(kind, name) {
            Ok(object) => self.put(kind, name, object.map(|object| object.value).as_ref()),
            Err(error) => {
                tracing::error!(kind, name, %error, "a change cannot be read; what was before goes on");
            }
        }
    }

    fn put(&self, kind: &'static str, name: &str, value: Option<&Value>) {
        if self.is_declared(kind, name) {
            return;
        }
        match value {
            None if kind == CONNECTOR => self.service.remove_connector(name),
            None if kind == SOURCE => self.service.remove_source(name),
            None => self.service.remove_sink(name),
            Some(value) => {
                if let Err(error) = set(&self.service, kind, name, value) {
                    tracing::error!(kind, name, %error, "what is in the store cannot be used");
                }
            }
        }
    }

    /// From what a client wrote to what is stored.
    pub(super) fn accept(
        &self,
        kind: &'static str,
        name: &str,
        input: Value,
        current: Option<&Value>,
    ) -> Result<Value, Invalid> {
        let value = objects::sealed(kind, input, current);
        let checked = match kind {
            CONNECTOR => self.service.check_connector(name, &value),
            SOURCE => self.service.check_source(&value),
            _ => self.service.check_sink(&value),
        };
        checked.map_err(invalid)?;
        if kind == SINK {
            // On a thread that may block.
            let probing = self.service.probe_sink(&value);
            self.runtime.block_on(probing).map_err(invalid)?;
        }
        Ok(value)
    }

    pub(super) fn service(&self) -> &Service {
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

fn set(service: &Service, kind: &str, name: &str, value: &Value) -> Result<(), connect::Invalid> {
    match kind {
        CONNECTOR => service.set_connector(name, value),
        SOURCE => service.set_source(name, value),
        _ => service.set_sink(name, value).map(drop),
    }
}

fn invalid(error: connect::Invalid) -> Invalid {
    Invalid {
        field: error.field,
        detail: error.detail,
    }
}

/// What messages of sources that are published here have in front of `TYPE:NAME` as their client id.
const BRIDGE_CLIENT_ID: &str = "$bridges/";

/// Shows rules what sources receive, and publishes it here if it is to be.
pub(super) struct Bridges {
    pub(super) engine: Engine,
    pub(super) handle: Handle,
}

impl Listener for Bridges {
    fn take<'a>(&'a self, kind: &'a str, name: &'a str, message: Received) -> Doing<'a, ()> {
        Box::pin(async move {
            let incoming = Incoming {
                topic: &message.topic,
                payload: &message.payload,
                qos: message.qos,
                retain: message.retain,
                key: message.key.as_deref(),
                properties: &message.properties,
                fields: &message.fields,
            };
            let bridge = format!("{kind}:{name}");
            self.engine.take_bridged(&bridge, incoming).await;
            let Some(topic) = message.local_topic else {
                return;
            };
            let publication = Publication {
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
            if let Err(refusal) = self.handle.publish_from(publication, &client_id, "").await {
                tracing::warn!(bridge, %refusal, "a message from outside cannot be published here");
            }
        })
    }
}

/// A request that somebody posted to a source.
struct Admitted(Post);

impl Posted for Admitted {
    fn max_body_bytes(&self) -> usize {
        self.0.max_body_bytes()
    }

    fn take(self: Box<Self>, body: Bytes) -> Asking<'static, Result<(), PostRefused>> {
        Box::pin(async move { self.0.take(body.into()).await.map_err(post_refused) })
    }
}

fn post_refused(refused: Refused) -> PostRefused {
    match refused {
        Refused::Unknown => PostRefused::Unknown,
        Refused::Closed(why) => PostRefused::Closed(why.to_owned()),
        Refused::Credentials(why) => PostRefused::Credentials(why.to_owned()),
        Refused::Content(why) => PostRefused::Content(why),
        Refused::Crowded => PostRefused::Crowded,
        Refused::Late => PostRefused::Late,
    }
}

fn letter(letter: &Letter) -> Value {
    json!({
        "id": letter.id,
        "at_ms": letter.at_ms,
        "error": letter.error,
        "attempts": letter.attempts,
        "row": Row::from_bytes(&letter.row).to_json()
    })
}

impl ConnectorTools for Connectors {
    fn types(&self) -> Vec<Map<String, Value>> {
        objects::types()
    }

    fn connectors(&self) -> Vec<Value> {
        let connectors = self.service.connectors().into_iter();
        connectors
            .map(|status| self.with_origin(CONNECTOR, status))
            .collect()
    }

    fn test<'a>(&'a self, name: &'a str) -> Asking<'a, Option<Tested>> {
        Box::pin(async move {
            let tested = self.service.test_connector(name).await?;
            Some(tested.map_err(|failure| failure.message))
        })
    }

    fn test_sink<'a>(&'a self, name: &'a str) -> Asking<'a, Option<Tested>> {
        Box::pin(async move {
            let tested = self.service.test_sink(name).await?;
            Some(tested.map_err(|failure| failure.message))
        })
    }

    fn test_settings<'a>(&'a self, settings: &'a Value) -> Asking<'a, Result<Tested, Invalid>> {
        Box::pin(async move {
            let tested = self.service.test_settings(settings).await;
            let tested = tested.map_err(invalid)?;
            Ok(tested.map_err(|failure| failure.message))
        })
    }

    fn sinks(&self) -> Vec<Value> {
        let sinks = self.service.sinks().into_iter();
        sinks.map(|status| self.with_origin(SINK, status)).collect()
    }

    fn sink(&self, name: &str) -> Option<Value> {
        let status = self.service.sink_status(name)?;
        Some(self.with_origin(SINK, status))
    }

    fn sources(&self) -> Vec<Value> {
        let sources = self.service.sources().into_iter();
        sources
            .map(|status| self.with_origin(SOURCE, status))
            .collect()
    }

    fn admit(&self, source: &str, headers: &HeaderMap) -> Result<Box<dyn Posted>, PostRefused> {
        let fields = headers.iter().filter_map(|(name, value)| {
            let value = std::str::from_utf8(value.as_bytes()).ok()?;
            Some((name.as_str().to_owned(), value.to_owned()))
        });
        match self.service.admit(source, &Head::new(fields)) {
            Ok(post) => Ok(Box::new(Admitted(post))),
            Err(refused) => Err(post_refused(refused)),
        }
    }

    fn dead_letters(&self, sink: &str, after: u64, limit: usize) -> Option<Vec<Value>> {
        let letters = self.service.dead_letters(sink, after, limit)?;
        Some(letters.iter().map(letter).collect())
    }

    fn replay<'a>(&'a self, sink: &'a str, ids: Option<Vec<u64>>) -> Asking<'a, Option<usize>> {
        Box::pin(self.service.replay(sink, ids))
    }

    fn discard<'a>(&'a self, sink: &'a str, ids: Option<Vec<u64>>) -> Asking<'a, Option<usize>> {
        Box::pin(self.service.discard(sink, ids))
    }
}
