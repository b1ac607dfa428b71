//! Evaluates devices without a message once it is known that no other node of the cluster has them.

use std::collections::HashSet;
use std::sync::Arc;

use series::DeviceNo;

use super::super::device_checks::UnconfirmedInput;
use super::super::watched_devices::DeviceInput;
use super::alarms_inner::{AlarmJob, AlarmsInner};
use crate::device::Device;

impl AlarmsInner {
    pub(super) fn observe_presence(&self, device: &Arc<Device>, now_ms: u64, is_online: bool) {
        let find = || Some(Arc::clone(device));
        let input = DeviceInput::Online(is_online);
        self.observe(device.no, &find, now_ms, input);
    }

    /// Whether it is to be found out first where a device is that has gone offline here.
    pub(super) fn check_offline(&self, device: &Arc<Device>, now_ms: u64) -> bool {
        let Some(checks) = self.places.get() else {
            return false;
        };
        checks.add(device.no, Some((Arc::clone(device), now_ms)));
        true
    }

    /// Adds devices to be checked, and asks the other nodes for those that are due. At most one question is under way.
    pub(super) fn check_devices(self: &Arc<Self>, unconfirmed: Vec<DeviceNo>) {
        let Some(checks) = self.places.get() else {
            return;
        };
        for device in unconfirmed {
            checks.add(device, None);
        }
        let Some(mut due) = checks.begin_question() else {
            return;
        };
        let devices = due.iter().map(|input| input.device).collect();
        let asking = AskingGuard(Arc::clone(self));
        checks.places.find_elsewhere(
            devices,
            Box::new(move |elsewhere| {
                let elsewhere: HashSet<DeviceNo> = elsewhere.into_iter().collect();
                for input in &mut due {
                    input.is_elsewhere = elsewhere.contains(&input.device);
                }
                asking.0.enqueue(AlarmJob::Evaluate(due));
            }),
        );
    }

    /// Evaluates devices of which it is known where they are.
    pub(super) fn evaluate_confirmed(&self, inputs: &[UnconfirmedInput]) {
        for input in inputs {
            if self
                .places
                .get()
                .is_some_and(|checks| checks.is_here(input.device))
            {
                // It has come back, and is evaluated as any other device.
                self.evaluate_due(input.device);
            } else if input.is_elsewhere {
                self.watched_devices.remove(input.device);
            } else if let Some((device, at_ms)) = &input.offline {
                self.observe_presence(device, *at_ms, false);
                self.evaluate_due(input.device);
            } else {
                self.evaluate_due(input.device);
            }
        }
    }

    fn evaluate_due(&self, device: DeviceNo) {
        let now_ms = wall_clock::now_ms();
        let turned = self.watched_devices.evaluate_time(device, self, now_ms);
        if let Some(turned) = turned {
            self.enqueue(AlarmJob::Transitions(turned));
        }
    }
}

/// Allows the next question, also if the answer to this one was dropped.
struct AskingGuard(Arc<AlarmsInner>);

impl Drop for AskingGuard {
    fn drop(&mut self) {
        if let Some(checks) = self.0.places.get() {
            checks.end_question();
        }
    }
}
