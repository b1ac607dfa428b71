//! What other nodes watch at this one: a session for each node, see [`node_live`](crate::node_live).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Mutex as AsyncMutex, mpsc};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};
use wall_clock::now_ms;

use crate::alarm_service::AlarmService;
use crate::blocking::run_blocking;
use crate::node_live::{LiveAnswer, LiveQuestion, SharedItem, SharedWatch};
use crate::shared_value::SharedValue;
use crate::telemetry_backend::{
    LiveTelemetryItem, LiveTelemetryStream, TelemetryBackend, TelemetryBackendError,
    TelemetryReader, to_reason,
};

/// Time for which an answer waits for items.
pub(crate) const POLL_TIME: Duration = Duration::from_secs(10);
/// Time for which an answer collects further items.
const COLLECT_TIME: Duration = Duration::from_millis(10);
/// A session that nobody has asked for during this time ends.
const SESSION_TIME: Duration = Duration::from_secs(30);
/// Items of a session that wait to be asked for; then the watches wait, whose queues are bounded.
const MAX_WAITING: usize = 256;
/// Items and bytes of an answer.
const MAX_ANSWER_ITEMS: usize = 4096;
const MAX_ANSWER_BYTES: usize = 1 << 20;
/// Watches of one node.
const MAX_WATCHES: usize = 16_384;

/// The sessions of other nodes at this one.
#[derive(Default)]
pub(crate) struct LiveSessions {
    sessions: Arc<Mutex<SessionMap>>,
}

/// By the numbers of the sessions.
type SessionMap = HashMap<u64, Arc<LiveSession>>;

/// What can be watched at this node.
struct LiveSources {
    telemetry: Arc<dyn TelemetryBackend>,
    alarms: AlarmService,
}

struct LiveSession {
    node: String,
    /// The task of each watch.
    watches: Mutex<HashMap<u64, AbortHandle>>,
    sender: mpsc::Sender<(u64, SharedItem)>,
    items: AsyncMutex<mpsc::Receiver<(u64, SharedItem)>>,
    last_poll: Mutex<Instant>,
}

impl Drop for LiveSession {
    fn drop(&mut self) {
        let watches = self.watches.get_mut();
        for (_, task) in watches.unwrap_or_else(PoisonError::into_inner).drain() {
            task.abort();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LiveSessions {
    pub(crate) async fn answer(
        &self,
        telemetry: Arc<dyn TelemetryBackend>,
        alarms: AlarmService,
        question: LiveQuestion,
    ) -> Result<Vec<u8>, String> {
        let sources = LiveSources { telemetry, alarms };
        let json = match question {
            LiveQuestion::Begin {
                node,
                session,
                may_open,
                watches,
            } => {
                let session = match may_open {
                    true => self.open(node, session),
                    false => {
                        let known = self.session(session);
                        known.ok_or("it has ended the session")?
                    }
                };
                let mut reasons = Vec::with_capacity(watches.len());
                for (number, watch) in watches {
                    reasons.push(session.begin(&sources, number, watch).await.err());
                }
                serde_json::to_vec(&reasons)
            }
            LiveQuestion::End { session, watches } => {
                if let Some(session) = self.session(session) {
                    let mut known = lock(&session.watches);
                    for number in watches {
                        if let Some(task) = known.remove(&number) {
                            task.abort();
                        }
                    }
                }
                serde_json::to_vec(&Value::Null)
            }
            LiveQuestion::Poll { session } => {
                let session = self.session(session);
                let items = match &session {
                    Some(session) => session.poll().await,
                    None => Vec::new(),
                };
                serde_json::to_vec(&LiveAnswer {
                    is_open: session.is_some(),
                    items,
                })
            }
        };
        json.map_err(|error| error.to_string())
    }

    fn session(&self, number: u64) -> Option<Arc<LiveSession>> {
        lock(&self.sessions).get(&number).cloned()
    }

    /// The session, which is opened if it does not exist. Earlier ones of the node end.
    fn open(&self, node: String, number: u64) -> Arc<LiveSession> {
        let mut sessions = lock(&self.sessions);
        if let Some(known) = sessions.get(&number) {
            return known.clone();
        }
        sessions.retain(|_, session| session.node != node);
        let (sender, items) = mpsc::channel(MAX_WAITING);
        let session = Arc::new(LiveSession {
            node,
            watches: Mutex::default(),
            sender,
            items: AsyncMutex::new(items),
            last_poll: Mutex::new(Instant::now()),
        });
        sessions.insert(number, session.clone());
        drop(sessions);
        let sessions = Arc::downgrade(&self.sessions);
        tokio::spawn(async move {
            loop {
                sleep(SESSION_TIME / 2).await;
                let Some(sessions) = sessions.upgrade() else {
                    return;
                };
                let mut sessions = lock(&sessions);
                match sessions.get(&number) {
                    Some(session) if lock(&session.last_poll).elapsed() < SESSION_TIME => {}
                    _ => {
                        sessions.remove(&number);
                        return;
                    }
                }
            }
        });
        session
    }
}

impl LiveSession {
    async fn begin(
        &self,
        sources: &LiveSources,
        number: u64,
        watch: SharedWatch,
    ) -> Result<(), String> {
        if lock(&self.watches).len() >= MAX_WATCHES {
            return Err(format!("a node watches at most {MAX_WATCHES} streams"));
        }
        let sender = self.sender.clone();
        let task = match watch {
            SharedWatch::Telemetry { devices, keys } => {
                let telemetry = sources.telemetry.clone();
                let subscribe = move || subscribe_existing(&*telemetry, devices, keys.as_deref());
                let rows = run_blocking(subscribe, "The telemetry cannot be read now.").await;
                let rows = rows.map_err(|problem| problem.detail)?;
                tokio::spawn(send_rows(rows.map_err(to_reason)?, number, sender))
            }
            SharedWatch::Alarms(filter) => {
                let alarms = sources.alarms.clone();
                let mut updates = alarms.subscribe();
                let read = move || filter.at_this_node(&alarms);
                let filter = run_blocking(read, "The alarms cannot be read now.").await;
                let filter = filter.map_err(|problem| problem.detail)?;
                let filter = filter.map_err(|_| "its devices cannot be read".to_owned())?;
                let Some(filter) = filter else {
                    return Ok(());
                };
                tokio::spawn(async move {
                    loop {
                        let item = match updates.recv().await {
                            Ok(update) if filter.matches(&update) => SharedItem::Alarm {
                                change: update.change.as_str().to_owned(),
                                at_ms: now_ms(),
                                alarm: serde_json::to_value(&*update.alarm).unwrap_or_default(),
                            },
                            Ok(_) => continue,
                            Err(RecvError::Lagged(count)) => SharedItem::Lost(count),
                            Err(RecvError::Closed) => return,
                        };
                        if sender.send((number, item)).await.is_err() {
                            return;
                        }
                    }
                })
            }
        };
        let earlier = lock(&self.watches).insert(number, task.abort_handle());
        if let Some(earlier) = earlier {
            earlier.abort();
        }
        Ok(())
    }

    /// Waits for items; empty: there are none.
    async fn poll(&self) -> Vec<(u64, SharedItem)> {
        *lock(&self.last_poll) = Instant::now();
        let mut receiver = self.items.lock().await;
        let Ok(Some(first)) = timeout(POLL_TIME, receiver.recv()).await else {
            return Vec::new();
        };
        *lock(&self.last_poll) = Instant::now();
        let mut bytes = first.1.text_bytes();
        let mut items = vec![first];
        let until = Instant::now() + COLLECT_TIME;
        while items.len() < MAX_ANSWER_ITEMS && bytes < MAX_ANSWER_BYTES {
            let Ok(Some(item)) = tokio::time::timeout_at(until, receiver.recv()).await else {
                break;
            };
            bytes += item.1.text_bytes();
            items.push(item);
        }
        items
    }
}

/// Subscribes to those of the devices that exist here.
fn subscribe_existing(
    telemetry: &dyn TelemetryReader,
    mut devices: Vec<String>,
    keys: Option<&[String]>,
) -> Result<Box<dyn LiveTelemetryStream>, TelemetryBackendError> {
    loop {
        match telemetry.subscribe(&devices, keys) {
            Err(TelemetryBackendError::NoDevice(absent)) if devices.contains(&absent) => {
                devices.retain(|device| *device != absent);
            }
            subscribed => return subscribed,
        }
    }
}

async fn send_rows(
    mut rows: Box<dyn LiveTelemetryStream>,
    number: u64,
    sender: mpsc::Sender<(u64, SharedItem)>,
) {
    while let Some(item) = rows.next().await {
        let item = match item {
            LiveTelemetryItem::Row {
                device,
                ts_ms,
                values,
            } => {
                let values = values.into_iter();
                let values = values.map(|(key, value)| (key, SharedValue::from(value)));
                SharedItem::Row {
                    device,
                    ts_ms,
                    values: values.collect(),
                }
            }
            LiveTelemetryItem::Lost(count) => SharedItem::Lost(count),
            LiveTelemetryItem::MissingNodes(_) => continue,
        };
        if sender.send((number, item)).await.is_err() {
            return;
        }
    }
}
