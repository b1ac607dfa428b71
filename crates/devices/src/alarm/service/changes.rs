//! Applies alarm changes: writes them to the store, then emits events.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};

use serde_json::{Map, Value as Json};
use series::DeviceNo;

use super::super::alarm_index::OpenAlarm;
use super::super::alarm_store::AlarmFilter;
use super::super::definition::Severity;
use super::super::device_alarms::AlarmTransitionKind;
use super::super::event::{AlarmChange, AlarmEvent};
use super::super::record::{Alarm, AlarmId, AlarmState, DeviceNumbers};
use super::super::watched_devices::AlarmSubject;
use super::alarms_inner::{AlarmError, AlarmsInner, lock};
use crate::device::Device;
use crate::registry::RegistryError;

/// Maximum number of gateway levels that an alarm is propagated to.
const MAX_PARENTS: usize = 8;

/// A change to apply to an alarm.
pub(super) struct AlarmUpdate<'a> {
    pub(super) subject: &'a AlarmSubject,
    pub(super) kind: &'a str,
    pub(super) transition: AlarmTransitionKind,
    pub(super) at_ms: u64,
    pub(super) details: String,
    pub(super) values: Map<String, Json>,
    pub(super) rule: &'a str,
    pub(super) notify: &'a [String],
    pub(super) propagate: bool,
    pub(super) tag: u64,
}

impl AlarmsInner {
    pub(super) fn apply_update(&self, wanted: &AlarmUpdate<'_>) -> Result<(), store::StoreError> {
        let _notify_guard = lock(&self.notify_lock);
        // Several alarms of one type end together.
        loop {
            let is_cleared = matches!(wanted.transition, AlarmTransitionKind::Cleared);
            match self.apply_to_first(wanted)? {
                true if is_cleared => {}
                _ => return Ok(()),
            }
        }
    }

    /// Returns whether an alarm has changed.
    fn apply_to_first(&self, wanted: &AlarmUpdate<'_>) -> Result<bool, store::StoreError> {
        let (change, alarm, no) = {
            let mut state = self.store.lock();
            let open = state.open(wanted.subject.no(), wanted.kind);
            let before = open
                .first()
                .map(|open: &OpenAlarm| self.store.get(open.id))
                .transpose()?
                .flatten();
            let (change, alarm) = match (&before, wanted.transition) {
                (None, AlarmTransitionKind::Cleared) => return Ok(false),
                (
                    None,
                    AlarmTransitionKind::Raised(severity)
                    | AlarmTransitionKind::SeverityChanged { to: severity, .. },
                ) => {
                    let alarm = self.new_alarm(state.next_id(), wanted, severity)?;
                    (AlarmChange::Raised, alarm)
                }
                (Some(alarm), AlarmTransitionKind::Cleared) => {
                    let mut alarm = alarm.clone();
                    alarm.cleared_at_ms = Some(wanted.at_ms);
                    (AlarmChange::Cleared, alarm)
                }
                // The alarm was raised again, for example by a rule for each message.
                (
                    Some(alarm),
                    AlarmTransitionKind::Raised(to)
                    | AlarmTransitionKind::SeverityChanged { to, .. },
                ) if alarm.severity == to => {
                    return Ok(false);
                }
                (
                    Some(alarm),
                    AlarmTransitionKind::Raised(to)
                    | AlarmTransitionKind::SeverityChanged { to, .. },
                ) => {
                    let mut alarm = alarm.clone();
                    alarm.severity = to;
                    alarm.severity_changes = alarm.severity_changes.saturating_add(1);
                    alarm.changed_at_ms = wanted.at_ms;
                    alarm.details.clone_from(&wanted.details);
                    alarm.values.clone_from(&wanted.values);
                    (AlarmChange::SeverityChanged, alarm)
                }
            };
            let mut alarm = alarm;
            alarm.refresh_state();
            let no = self
                .store
                .put(&mut state, (before.as_ref(), &alarm), change, false)?;
            (change, alarm, no)
        };
        match change {
            AlarmChange::Raised => self.raised.fetch_add(1, Relaxed),
            AlarmChange::Cleared => self.cleared.fetch_add(1, Relaxed),
            _ => 0,
        };
        self.notify_observers(change, alarm, wanted.tag, no);
        Ok(true)
    }

    fn new_alarm(
        &self,
        id: AlarmId,
        wanted: &AlarmUpdate<'_>,
        severity: Severity,
    ) -> Result<Alarm, store::StoreError> {
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
            namespace: subject.namespace(),
            details: wanted.details.clone(),
            values: wanted.values.clone(),
            rule: wanted.rule.to_owned(),
            notify: wanted.notify.to_vec(),
            raised_at_ms: wanted.at_ms,
            changed_at_ms: wanted.at_ms,
            cleared_at_ms: None,
            cleared_by: None,
            acknowledged_at_ms: None,
            acknowledged_by: None,
            comments: Vec::new(),
            node: match subject {
                AlarmSubject::Device(_) => self.node_name(),
                AlarmSubject::Node => None,
            },
            severity_changes: 0,
            device_no: DeviceNumbers(numbers),
        })
    }

    fn parent_of(&self, device: DeviceNo) -> Result<Option<DeviceNo>, store::StoreError> {
        match self.registry.by_no(device) {
            Ok(device) => Ok(device.and_then(|device| device.parent)),
            Err(RegistryError::Store(error)) => Err(error),
            // The alarm is not propagated further.
            Err(_) => Ok(None),
        }
    }

    pub(super) fn change(
        &self,
        id: AlarmId,
        change: AlarmChange,
        make: impl FnOnce(&mut Alarm) -> Result<(), AlarmError>,
    ) -> Result<Alarm, AlarmError> {
        let _notify_guard = lock(&self.notify_lock);
        let (alarm, no) = {
            let mut state = self.store.lock();
            let before = self.store.get(id)?.ok_or(AlarmError::NotFound(id))?;
            let mut alarm = before.clone();
            make(&mut alarm)?;
            alarm.refresh_state();
            let no = self
                .store
                .put(&mut state, (Some(&before), &alarm), change, true)?;
            (alarm, no)
        };
        if change == AlarmChange::Cleared {
            self.unwatch(&alarm);
        }
        self.notify_observers(change, alarm.clone(), 0, no);
        Ok(alarm)
    }

    pub(super) fn unwatch(&self, alarm: &Alarm) {
        if let Some(device) = alarm.device_no.0.first() {
            self.watched_devices.mark_cleared(*device, &alarm.kind);
        }
    }

    /// Clears the alarms of a device that this node has raised while it did not know that another node had done so.
    pub(super) fn clear_duplicates(&self, device: DeviceNo) -> Result<(), store::StoreError> {
        let _notify_guard = lock(&self.notify_lock);
        let open = {
            let state = self.store.lock();
            let mut kinds: Vec<_> = state.open.get(&device).into_iter().flatten().collect();
            kinds.sort_unstable_by_key(|(kind, open)| (kind, open.rank()));
            let duplicates = kinds.windows(2).filter(|pair| pair[0].0 == pair[1].0);
            duplicates.map(|pair| pair[1].1.id).collect::<Vec<_>>()
        };
        for id in open {
            let mut state = self.store.lock();
            let Some(before) = self.store.get(id)? else {
                continue;
            };
            if before.node != self.node_name() || before.is_cleared() {
                continue;
            }
            let mut alarm = before.clone();
            alarm.cleared_at_ms = Some(wall_clock::now_ms());
            alarm.refresh_state();
            let change = AlarmChange::Cleared;
            let no = self
                .store
                .put(&mut state, (Some(&before), &alarm), change, false)?;
            drop(state);
            self.cleared.fetch_add(1, Relaxed);
            self.notify_observers(change, alarm, 0, no);
        }
        Ok(())
    }

    pub(super) fn remove_alarms_of(&self, device: &Device) -> Result<(), store::StoreError> {
        self.watched_devices.remove(device.no);
        let filter = AlarmFilter {
            device: Some(device.no),
            ..AlarmFilter::default()
        };
        let mut before = None;
        loop {
            let page = self.store.list(&filter, before, 500)?;
            let own = |alarm: &Alarm| alarm.devices().first() == Some(&device.no);
            let alarms: Vec<_> = page.alarms.into_iter().filter(own).collect();
            self.store.expire(&mut self.store.lock(), &alarms)?;
            before = page.next;
            if before.is_none() {
                break;
            }
        }
        self.store.remove_awaiting(device)
    }

    pub(super) fn notify_observers(&self, change: AlarmChange, alarm: Alarm, tag: u64, no: u64) {
        let event = AlarmEvent {
            change,
            alarm: Arc::new(alarm),
            tag,
            change_no: no,
        };
        self.store.pending_notifications.notify(&event);
        let observers = self
            .observers
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        observers.iter().for_each(|observer| observer(&event));
    }
}
