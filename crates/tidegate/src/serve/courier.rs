//! Brings notifications of alarms on their way: rows to sinks, messages to the broker.

use std::sync::{Mutex, PoisonError};

use broker::Handle;
use broker::control::Publication;
use connect::{Pushed, Service};
use devices::alarm::Courier;
use serde_json::{Map, Value};
use tokio::sync::mpsc;

/// Messages that may wait to be published.
const MAX_WAITING: usize = 10_000;

pub(super) struct Post {
    sinks: Service,
    /// What tells apart who pushes rows; held, since alarms are told on several threads.
    lane: Mutex<u16>,
    messages: mpsc::Sender<Publication>,
    /// Until the broker runs.
    waiting: Mutex<Option<mpsc::Receiver<Publication>>>,
}

impl Post {
    /// `lane` is nobody else's.
    pub(super) fn new(sinks: Service, lane: u16) -> Self {
        let (messages, waiting) = mpsc::channel(MAX_WAITING);
        Self {
            sinks,
            lane: Mutex::new(lane),
            messages,
            waiting: Mutex::new(Some(waiting)),
        }
    }

    /// The broker runs. To be called within the runtime.
    pub(super) fn start(&self, handle: Handle) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mut waiting) = waiting.take() else {
            return;
        };
        tokio::spawn(async move {
            while let Some(publication) = waiting.recv().await {
                let topic = publication.topic.clone();
                if let Err(refusal) = handle.publish(publication).await {
                    tracing::warn!(topic, %refusal, "a notification cannot be published");
                }
            }
        });
    }
}

impl Courier for Post {
    fn to_sink(&self, name: &str, row: &Map<String, Value>) -> Result<(), String> {
        let none = || format!("there is no sink {name:?}");
        let sink = self.sinks.sink(name).ok_or_else(none)?;
        if self.sinks.is_full(sink) {
            return Err(format!("the sink {name:?} is full"));
        }
        let lane = self.lane.lock().unwrap_or_else(PoisonError::into_inner);
        match self.sinks.push(sink, *lane, |out| out.json_fields(row)) {
            Pushed::Queued | Pushed::Blocked => Ok(()),
            Pushed::Dropped => Err(format!("the sink {name:?} is full")),
            Pushed::Unknown => Err(none()),
        }
    }

    fn publish(&self, topic: &str, payload: Vec<u8>, qos: u8, retain: bool) -> Result<(), String> {
        let publication = Publication {
            topic: topic.to_owned(),
            payload: payload.into(),
            qos,
            retain,
            is_utf8: true,
            content_type: Some("application/json".to_owned()),
            ..Publication::default()
        };
        let sent = self.messages.try_send(publication);
        sent.map_err(|_| format!("{MAX_WAITING} messages wait to be published already"))
    }
}
