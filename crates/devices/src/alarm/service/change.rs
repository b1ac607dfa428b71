//! What becomes of alarms: first in the book, then told.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};

use serde_json::{Map, Value as Json};
use series::DeviceNo;

use super::super::book::{AlarmFilter, Open};
use super::super::definition::Severity;
use super::super::event::{AlarmChange, AlarmEvent};
use super::super::machine::Happened;
use super::super::record::{Alarm, AlarmId, AlarmState, Numbers};
use super::super::watch::Subject;
use super::{AlarmError, Inner, lock};
use crate::registry::RegistryError;

/// Gateways of gateways: how far up an alarm is told.
const MAX_PARENTS: usize = 8;

/// What an alarm is to become.
pub(super) struct Wanted<'a> {
    pub(super) subject: &'a Subject,
    pub(super) kind: &'a str,
    pub(super) happened: Happened,
    pub(super) at_ms: u64,
    pub(super) details: String,
    pub(super) values: Map<String, Json>,
    pub(super) rule: &'a str,
    pub(super) notify: &'a [String],
    pub(super) propagate: bool,
    pub(super) tag: u64,
}

impl Inner {
    pub(super) fn become_(&self, wanted: &Wanted<'_>) -> Result<(), store::Error> {
        let _telling = lock(&self.telling);
        let (change, alarm, no) = {
            let mut state = self.book.lock();
            let open = state.open(wanted.subject.no(), wanted.kind);
            let before = open
                .map(|open: Open| self.book.get(open.id))
                .transpose()?
                .flatten();
            let (change, alarm) = match (&before, wanted.happened) {
                (None, Happened::Cleared) => return Ok(()),
                (None, Happened::Raised(severity) | Happened::Changed { to: severity, .. }) => {
                    let alarm = self.new_alarm(state.next_id(), wanted, severity)?;
                    (AlarmChange::Raised, alarm)
                }
                (Some(alarm), Happened::Cleared) => {
                    let mut alarm = alarm.clone();
                    alarm.cleared_ms = Some(wanted.at_ms);
                    (AlarmChange::Cleared, alarm)
                }
                // Somebody has raised it again, such as a rule with each message.
                (Some(alarm), Happened::Raised(to) | Happened::Changed { to, .. })
                    if alarm.severity == to =>
                {
                    return Ok(());
                }
                (Some(alarm), Happened::Raised(to) | Happened::Changed { to, .. }) => {
                    let mut alarm = alarm.clone();
                    alarm.severity = to;
                    alarm.changed_ms = wanted.at_ms;
                    alarm.details.clone_from(&wanted.details);
                    alarm.values.clone_from(&wanted.values);
                    (AlarmChange::SeverityChanged, alarm)
                }
            };
            let mut alarm = alarm;
            alarm.renew_state();
            let no = self.book.put(&mut state, before.as_ref(), &alarm, change)?;
            (change, alarm, no)
        };
        match change {
            AlarmChange::Raised => self.raised.fetch_add(1, Relaxed),
            AlarmChange::Cleared => self.cleared.fetch_add(1, Relaxed),
            _ => 0,
        };
        self.tell(change, alarm, wanted.tag, no);
        Ok(())
    }

    fn new_alarm(
        &self,
        id: AlarmId,
        wanted: &Wanted<'_>,
        severity: Severity,
    ) -> Result<Alarm, store::Error> {
        let subject = wanted.subject;
        let mut numbers = vec![subject.no()];
        let mut parent = subject.parent().filter(|_| wanted.propagate);
        while let Some(no) = parent {
            if numbers.contains(&no) || numbers.len() > MAX_PARENTS {
                break;
            }
            numbers.push(no);
            parent = self.parent_of(no)?;
        }
        Ok(Alarm {
            id,
            kind: wanted.kind.to_owned(),
            severity,
            state: AlarmState::ActiveUnack,
            device: subject.id().to_owned(),
            product: subject.product().to_owned(),
            details: wanted.details.clone(),
            values: wanted.values.clone(),
            rule: wanted.rule.to_owned(),
            notify: wanted.notify.to_vec(),
            raised_ms: wanted.at_ms,
            changed_ms: wanted.at_ms,
            cleared_ms: None,
            cleared_by: None,
            acknowledged_ms: None,
            acknowledged_by: None,
            device_no: Numbers(numbers),
        })
    }

    fn parent_of(&self, device: DeviceNo) -> Result<Option<DeviceNo>, store::Error> {
        match self.registry.by_no(device) {
            Ok(device) => Ok(device.and_then(|device| device.parent)),
            Err(RegistryError::Store(error)) => Err(error),
            // It is not propagated further.
            Err(_) => Ok(None),
        }
    }

    pub(super) fn change(
        &self,
        id: AlarmId,
        change: AlarmChange,
        make: impl FnOnce(&mut Alarm) -> Result<(), AlarmError>,
    ) -> Result<Alarm, AlarmError> {
        let _telling = lock(&self.telling);
        let (alarm, no) = {
            let mut state = self.book.lock();
            let before = self.book.get(id)?.ok_or(AlarmError::NotFound(id))?;
            let mut alarm = before.clone();
            make(&mut alarm)?;
            alarm.renew_state();
            let no = self.book.put(&mut state, Some(&before), &alarm, change)?;
            (alarm, no)
        };
        if change == AlarmChange::Cleared {
            self.unwatch(&alarm);
        }
        self.tell(change, alarm.clone(), 0, no);
        Ok(alarm)
    }

    pub(super) fn unwatch(&self, alarm: &Alarm) {
        if let Some(device) = alarm.device_no.0.first() {
            self.watches.cleared(*device, &alarm.kind);
        }
    }

    pub(super) fn forget(&self, device: DeviceNo) -> Result<(), store::Error> {
        self.watches.forget(device);
        let filter = AlarmFilter {
            device: Some(device),
            ..AlarmFilter::default()
        };
        let mut before = None;
        loop {
            let page = self.book.list(&filter, before, 500)?;
            let own = |alarm: &Alarm| alarm.device_no.0.first() == Some(&device);
            let alarms: Vec<_> = page.alarms.into_iter().filter(own).collect();
            self.book.remove(&mut self.book.lock(), &alarms)?;
            before = page.next;
            if before.is_none() {
                return Ok(());
            }
        }
    }

    pub(super) fn tell(&self, change: AlarmChange, alarm: Alarm, tag: u64, no: u64) {
        let event = AlarmEvent {
            change,
            alarm: Arc::new(alarm),
            tag,
            no,
        };
        self.book.untold.tell(&event);
        let listeners = self
            .listeners
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        listeners.iter().for_each(|listener| listener(&event));
    }
}
