//! Everybody who wants to know of what devices say and what of it is stored. Who is new gets a field in [`Others`] and a line in
//! the methods that concern it; all of them are called on shards and workers and never wait.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use broker::Handle;
use broker::control::Publication;
use broker::hooks::Settled;
use devices::DeviceNo;
use devices::command::{Commands, Letter, Recipient};
use devices::dialect::{Dialect, Said};
use devices::ingest::{Outside, Profile, Voice};
use series::Point;
use tokio::sync::mpsc;

use super::alarms::Alarming;
use super::device_sinks::DeviceSinks;
use super::devices::now_ms;

/// Messages of rule chains that may wait to be published.
const MAX_REPUBLISHED: usize = 16_384;
/// From so many on, publishers wait.
const MANY_REPUBLISHED: usize = MAX_REPUBLISHED / 4;

pub(super) struct Others {
    sinks: DeviceSinks,
    commands: Commands,
    republished: mpsc::Sender<Publication>,
    /// Until the broker runs.
    waiting: Mutex<Option<mpsc::Receiver<Publication>>>,
    lost: AtomicU64,
    alarming: Alarming,
}

impl Others {
    pub(super) fn new(alarming: Alarming, sinks: DeviceSinks, commands: Commands) -> Self {
        let (republished, waiting) = mpsc::channel(MAX_REPUBLISHED);
        Self {
            commands,
            sinks,
            republished,
            waiting: Mutex::new(Some(waiting)),
            lost: AtomicU64::new(0),
            alarming,
        }
    }

    pub(super) fn sinks(&self) -> &DeviceSinks {
        &self.sinks
    }

    /// What of a letter is to be logged, once it is on its way.
    pub(super) fn log_of(self: &Arc<Self>, letter: &Letter) -> Logging {
        let written = |to: &Recipient| Written {
            others: self.clone(),
            to: to.clone(),
            topic: letter.topic.clone(),
            payload: letter.payload.clone(),
        };
        Logging(letter.logged.as_ref().map(written))
    }

    /// Devices that wait for a command over HTTP look again whether they may; `None`: all of them.
    pub(super) fn wake_askers(&self, device: Option<DeviceNo>) {
        self.commands.wake_askers(device);
    }

    /// The broker runs. To be called within the runtime.
    pub(super) fn start(&self, handle: Handle) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mut waiting) = waiting.take() else {
            return;
        };
        tokio::spawn(async move {
            while let Some(publication) = waiting.recv().await {
                if let Err(refusal) = handle.publish(publication).await {
                    tracing::warn!(%refusal, "what a rule chain publishes was not published");
                }
            }
        });
    }
}

/// A message to a device, for the log of its product, if that keeps one.
pub(super) struct Logging(Option<Written>);

struct Written {
    others: Arc<Others>,
    to: Recipient,
    topic: String,
    payload: String,
}

impl Logging {
    /// The message was sent. Never waits.
    pub(super) fn write(self) {
        if let Some(written) = self.0 {
            let sinks = &written.others.sinks;
            let (topic, payload) = (&written.topic, written.payload.as_bytes());
            sinks.told(&written.to, topic, payload, now_ms() as i64);
        }
    }
}

/// Whether somebody who subscribes to this hears by it what is for devices behind it.
fn may_be_of_gateway(filter: &str) -> bool {
    filter.starts_with("v1/gateway/") || filter.contains("/child/") || filter.ends_with('#')
}

impl Outside for Others {
    fn wants_rows(&self) -> bool {
        self.alarming.alarms.is_in_use()
            || self.alarming.events.are_wanted()
            || self.sinks.wants_rows()
    }

    fn stored(&self, speaker: Voice<'_>, profile: &Profile, ts_ms: i64, points: &[Point<'_>]) {
        // Other chains say themselves when alarms are to look.
        if profile.has_alarms && profile.chain.only_saves() {
            self.alarm(speaker, profile, ts_ms, points);
        }
        let events = &self.alarming.events;
        if events.are_wanted() {
            events.stored(speaker.id, profile.product.as_str(), ts_ms, points);
        }
        self.sinks.row(speaker, profile, ts_ms, points);
    }

    fn said(&self, _by: Voice<'_>, about: Voice<'_>, _: Dialect, said: &Said<'_>, now_ms: i64) {
        if let Said::Reply(replied) = said {
            let now_ms = now_ms.max(0) as u64;
            self.commands.answered(about.no, replied, now_ms);
        }
        if let Said::Event {
            id,
            ts_ms,
            data_json,
        } = said
            && self.alarming.events.are_wanted()
        {
            self.alarming
                .said_event(about, id, ts_ms.unwrap_or(now_ms), data_json);
        }
    }

    fn logged(&self, by: Voice<'_>, profile: &Profile, topic: &str, payload: &[u8], now_ms: i64) {
        self.sinks.log(by, profile, (topic, payload), now_ms);
    }

    fn listens(&self, device: Voice<'_>, filter: Option<&str>) {
        self.commands.arrived(device.no);
        // Most devices are no gateways.
        if filter.is_some_and(may_be_of_gateway) {
            self.commands.arrived_behind(device.no);
        }
    }

    fn alarm(&self, speaker: Voice<'_>, profile: &Profile, ts_ms: i64, points: &[Point<'_>]) {
        if profile.has_alarms {
            self.alarming.observe(speaker.no, ts_ms, points);
        }
    }

    fn republish(&self, topic: &str, payload: &[u8], qos: u8, retain: bool) {
        let publication = Publication {
            topic: topic.to_owned(),
            payload: payload.to_vec().into(),
            qos,
            retain,
            ..Publication::default()
        };
        if self.republished.try_send(publication).is_err() {
            let lost = self.lost.fetch_add(1, Relaxed) + 1;
            // Once per power of two.
            if lost.is_power_of_two() {
                tracing::warn!(lost, "rule chains publish faster than the node takes it");
            }
        }
    }

    fn sink(&self, name: &str, row: rules::Value<'_>) {
        self.sinks.of_chain(name, row);
    }

    fn is_unsettled(&self) -> bool {
        self.alarming.alarms.is_unsettled() || self.sinks.is_unsettled()
    }

    fn settle(&self, done: Settled) {
        // What chains publish is not waited for: its own answer may wait for the turn whose answers wait for this.
        let sinks = self.sinks.settler();
        self.alarming.alarms.settle(Box::new(move || sinks(done)));
    }

    fn is_full(&self) -> bool {
        self.republished.capacity() < MAX_REPUBLISHED - MANY_REPUBLISHED
            || self.alarming.alarms.is_full()
            || self.alarming.events.is_full()
            || self.sinks.is_full()
            || self.commands.is_full()
    }
}
