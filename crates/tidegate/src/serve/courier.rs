//! Brings notifications of alarms on their way: rows to sinks, messages to the broker.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use broker::Handle;
use broker::control::{Publication, Refusal};
use connect::{Pushed, Service};
use devices::alarm::{Courier, Safe};
use serde_json::{Map, Value};
use tokio::sync::mpsc;

/// Messages that may wait to be published.
const MAX_WAITING: usize = 10_000;
const RETRY_AFTER: Duration = Duration::from_secs(1);

pub(super) struct Post {
    sinks: Service,
    /// What tells apart who pushes rows; held, since alarms are told on several threads.
    lane: Arc<Mutex<u16>>,
    messages: mpsc::Sender<Letter>,
    /// Until the broker runs.
    waiting: Mutex<Option<mpsc::Receiver<Letter>>>,
}

enum Letter {
    Message(Publication),
    /// To be called when all before it is published and all rows are in their files.
    Settle(Safe),
}

impl Post {
    /// `lane` is nobody else's.
    pub(super) fn new(sinks: Service, lane: u16) -> Self {
        let (messages, waiting) = mpsc::channel(MAX_WAITING);
        Self {
            sinks,
            lane: Arc::new(Mutex::new(lane)),
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
        let (sinks, lane) = (self.sinks.clone(), Arc::clone(&self.lane));
        tokio::spawn(async move {
            while let Some(letter) = waiting.recv().await {
                let publication = match letter {
                    Letter::Message(publication) => publication,
                    Letter::Settle(done) => {
                        let lane = lane.lock().unwrap_or_else(PoisonError::into_inner);
                        sinks.settle(*lane, done);
                        continue;
                    }
                };
                publish(&handle, publication).await;
            }
        });
    }
}

/// Publishes a message. While the store takes none it waits: what comes behind is no better off.
async fn publish(handle: &Handle, publication: Publication) {
    let mut has_waited = false;
    while let Err(refusal) = handle.publish(publication.clone()).await {
        let can_pass = matches!(refusal, Refusal::NotStored | Refusal::Unavailable);
        if !std::mem::replace(&mut has_waited, can_pass) {
            let topic = &publication.topic;
            tracing::warn!(topic, %refusal, "a notification cannot be published");
        }
        if !can_pass {
            return;
        }
        tokio::time::sleep(RETRY_AFTER).await;
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
        let sent = self.messages.try_send(Letter::Message(publication));
        sent.map_err(|_| format!("{MAX_WAITING} messages wait to be published already"))
    }

    fn settle(&self, done: Safe) {
        // Dropped if there is no room: it is asked for again.
        let _ = self.messages.try_send(Letter::Settle(done));
    }
}
