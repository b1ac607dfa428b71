//! The course of a campaign as a state machine without clock, store and devices.
//!
//! The caller passes the time and the results of devices: [`CampaignRun::advance`] returns the devices to be notified next, and
//! [`CampaignRun::record_result`] takes what they report. [`CampaignRun::take_changes`] returns what has to be stored before
//! devices are notified.

use std::collections::{BTreeMap, BTreeSet};

use devices::DeviceNo;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::definition::CampaignDefinition;

/// Devices that are notified at once; others follow in the next call.
const MAX_STARTS_AT_ONCE: usize = 1000;

/// State of a campaign.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CampaignStatus {
    Running,
    /// Stopped by an operator; no device is notified. It can be resumed.
    Paused,
    /// Stopped because too few devices succeeded. It can be resumed.
    Halted,
    Completed,
    Cancelled,
}

impl CampaignStatus {
    #[must_use]
    pub fn is_final(self) -> bool {
        matches!(self, Self::Completed | Self::Cancelled)
    }
}

/// State of a device in a campaign.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CampaignDeviceState {
    Waiting,
    /// It was notified, and has not reported a result.
    Started,
    Succeeded,
    Failed,
    /// The campaign was cancelled, or the device was deleted, before a result.
    Cancelled,
}

impl CampaignDeviceState {
    #[must_use]
    pub fn is_final(self) -> bool {
        !matches!(self, Self::Waiting | Self::Started)
    }
}

/// A device of a campaign.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CampaignDevice {
    pub wave: u16,
    pub state: CampaignDeviceState,
    /// How often it was notified.
    pub attempts: u8,
    /// When it was notified last, or has ended; milliseconds since 1970.
    pub changed_at_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Id of a device that was deleted, which the registry no longer knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deleted_id: Option<String>,
}

impl CampaignDevice {
    pub(crate) fn waiting(wave: u16) -> Self {
        Self {
            wave,
            state: CampaignDeviceState::Waiting,
            attempts: 0,
            changed_at_ms: 0,
            error: None,
            deleted_id: None,
        }
    }
}

/// Numbers of devices by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CampaignCounts {
    pub waiting: u32,
    pub started: u32,
    pub succeeded: u32,
    pub failed: u32,
    pub cancelled: u32,
}

impl CampaignCounts {
    fn of(&mut self, state: CampaignDeviceState) -> &mut u32 {
        match state {
            CampaignDeviceState::Waiting => &mut self.waiting,
            CampaignDeviceState::Started => &mut self.started,
            CampaignDeviceState::Succeeded => &mut self.succeeded,
            CampaignDeviceState::Failed => &mut self.failed,
            CampaignDeviceState::Cancelled => &mut self.cancelled,
        }
    }
}

/// The part of a campaign that changes, besides its devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CampaignProgress {
    pub(crate) status: CampaignStatus,
    /// Why it was halted.
    pub(crate) reason: Option<String>,
    /// Succeeded and failed devices that no longer count for the threshold, because an operator has resumed the campaign.
    pub(crate) settled: (u32, u32),
    pub(crate) changed_at_ms: u64,
}

/// What has to be stored.
#[derive(Debug, Default)]
pub(crate) struct CampaignChanges {
    pub(crate) progress: Option<CampaignProgress>,
    pub(crate) devices: Vec<(DeviceNo, CampaignDevice)>,
}

pub(crate) struct CampaignRun {
    definition: CampaignDefinition,
    progress: CampaignProgress,
    devices: BTreeMap<DeviceNo, CampaignDevice>,
    counts: CampaignCounts,
    /// Devices without a result, by wave.
    open_by_wave: BTreeMap<u16, u32>,
    /// Waves of which any device was notified.
    begun_waves: BTreeSet<u16>,
    /// Wave, attempts and device; those that were never notified come first.
    waiting: BTreeSet<(u16, u8, DeviceNo)>,
    /// Devices that were notified, by the time at which they have failed without a result.
    deadlines: BTreeSet<(u64, DeviceNo)>,
    /// Devices that may be notified, in thousandths, and when that was computed.
    allowance: (u64, u64),
    changed: BTreeSet<DeviceNo>,
    has_progressed: bool,
}

impl CampaignRun {
    /// A campaign as it was stored, or a new one.
    pub(crate) fn new(
        definition: CampaignDefinition,
        progress: CampaignProgress,
        devices: BTreeMap<DeviceNo, CampaignDevice>,
        now_ms: u64,
    ) -> Self {
        let mut run = Self {
            definition,
            progress,
            devices: BTreeMap::new(),
            counts: CampaignCounts::default(),
            open_by_wave: BTreeMap::new(),
            begun_waves: BTreeSet::new(),
            waiting: BTreeSet::new(),
            deadlines: BTreeSet::new(),
            allowance: (1000, now_ms),
            changed: BTreeSet::new(),
            has_progressed: false,
        };
        for (no, device) in devices {
            *run.counts.of(device.state) += 1;
            if !device.state.is_final() {
                *run.open_by_wave.entry(device.wave).or_default() += 1;
            }
            if device.attempts > 0 {
                run.begun_waves.insert(device.wave);
            }
            match device.state {
                CampaignDeviceState::Waiting => {
                    run.waiting.insert((device.wave, device.attempts, no));
                }
                CampaignDeviceState::Started => {
                    run.deadlines.insert((run.deadline(&device), no));
                }
                _ => {}
            }
            run.devices.insert(no, device);
        }
        run
    }

    fn deadline(&self, device: &CampaignDevice) -> u64 {
        device.changed_at_ms + u64::from(self.definition.timeout_s) * 1000
    }

    pub(crate) fn definition(&self) -> &CampaignDefinition {
        &self.definition
    }

    pub(crate) fn progress(&self) -> &CampaignProgress {
        &self.progress
    }

    pub(crate) fn counts(&self) -> CampaignCounts {
        self.counts
    }

    pub(crate) fn devices(&self) -> &BTreeMap<DeviceNo, CampaignDevice> {
        &self.devices
    }

    /// The wave whose devices are notified.
    pub(crate) fn wave(&self) -> Option<u16> {
        self.open_by_wave.keys().next().copied()
    }

    /// Whether the campaign decides what the device installs: it was notified, and the campaign was not cancelled before it
    /// had a result.
    pub(crate) fn is_target_of(&self, device: DeviceNo) -> bool {
        self.devices.get(&device).is_some_and(|device| {
            device.attempts > 0 && device.state != CampaignDeviceState::Cancelled
        })
    }

    fn set_status(&mut self, status: CampaignStatus, reason: Option<String>, now_ms: u64) {
        self.progress.status = status;
        self.progress.reason = reason;
        self.progress.changed_at_ms = now_ms;
        self.has_progressed = true;
    }

    /// Changes the state of a device, and everything that is derived from it.
    fn set_device(
        &mut self,
        no: DeviceNo,
        state: CampaignDeviceState,
        error: Option<String>,
        now_ms: u64,
    ) {
        let timeout_ms = u64::from(self.definition.timeout_s) * 1000;
        let Some(device) = self.devices.get_mut(&no) else {
            return;
        };
        let before = device.state;
        match before {
            CampaignDeviceState::Waiting => {
                self.waiting.remove(&(device.wave, device.attempts, no));
            }
            CampaignDeviceState::Started => {
                self.deadlines
                    .remove(&(device.changed_at_ms + timeout_ms, no));
            }
            _ => {}
        }
        device.state = state;
        device.error = error;
        device.changed_at_ms = now_ms;
        match state {
            CampaignDeviceState::Waiting => {
                self.waiting.insert((device.wave, device.attempts, no));
            }
            CampaignDeviceState::Started => {
                device.attempts = device.attempts.saturating_add(1);
                self.begun_waves.insert(device.wave);
                self.deadlines.insert((now_ms + timeout_ms, no));
            }
            _ => {}
        }
        if state.is_final()
            && !before.is_final()
            && let Some(open) = self.open_by_wave.get_mut(&device.wave)
        {
            *open -= 1;
            if *open == 0 {
                self.open_by_wave.remove(&device.wave);
            }
        }
        *self.counts.of(before) -= 1;
        *self.counts.of(state) += 1;
        self.changed.insert(no);
    }

    /// The result of a device that was notified: the package runs, or why it does not.
    pub(crate) fn record_result(&mut self, no: DeviceNo, result: Result<(), String>, now_ms: u64) {
        let device = self.devices.get(&no);
        let started = device.filter(|device| device.state == CampaignDeviceState::Started);
        let Some(attempts) = started.map(|device| device.attempts) else {
            return;
        };
        match result {
            Ok(()) => self.set_device(no, CampaignDeviceState::Succeeded, None, now_ms),
            Err(error) if attempts < self.definition.max_attempts => {
                self.set_device(no, CampaignDeviceState::Waiting, Some(error), now_ms);
            }
            Err(error) => self.set_device(no, CampaignDeviceState::Failed, Some(error), now_ms),
        }
    }

    /// A device was deleted: without a result it is cancelled. `id` is kept for those who read the campaign. False: the device does
    /// not belong to the campaign.
    pub(crate) fn device_deleted(&mut self, no: DeviceNo, id: Option<&str>, now_ms: u64) -> bool {
        let Some(device) = self.devices.get_mut(&no) else {
            return false;
        };
        if let Some(id) = id {
            device.deleted_id = Some(id.to_owned());
        }
        let has_result = device.state.is_final();
        self.changed.insert(no);
        if !has_result {
            let reason = "the device was deleted".to_owned();
            self.set_device(no, CampaignDeviceState::Cancelled, Some(reason), now_ms);
        }
        true
    }

    /// Ends what takes too long, halts or completes the campaign, and returns the devices to be notified now.
    pub(crate) fn advance(&mut self, now_ms: u64) -> Vec<DeviceNo> {
        if self.progress.status.is_final() {
            return Vec::new();
        }
        while let Some((deadline, no)) = self.deadlines.first().copied()
            && deadline <= now_ms
        {
            let seconds = self.definition.timeout_s;
            let error = format!("the device has reported no result within {seconds} s");
            self.record_result(no, Err(error), now_ms);
        }
        let had_wave = self.wave();
        if self.progress.status == CampaignStatus::Running {
            self.check_threshold(now_ms);
        }
        if had_wave.is_none() && self.progress.status == CampaignStatus::Running {
            self.set_status(CampaignStatus::Completed, None, now_ms);
        }
        self.refill(now_ms);
        let window = self.definition.window.as_ref();
        let is_open = window.is_none_or(|window| window.contains(now_ms));
        if self.progress.status != CampaignStatus::Running || !is_open {
            return Vec::new();
        }
        self.start_devices(now_ms)
    }

    /// Halts the campaign if too few devices have succeeded.
    fn check_threshold(&mut self, now_ms: u64) {
        let (succeeded_before, failed_before) = self.progress.settled;
        let succeeded = self.counts.succeeded.saturating_sub(succeeded_before);
        let failed = self.counts.failed.saturating_sub(failed_before);
        let ended = succeeded + failed;
        let has_wave_ended = self
            .wave()
            .is_none_or(|wave| !self.begun_waves.contains(&wave));
        let counts = ended >= self.definition.min_ended || (has_wave_ended && ended > 0);
        let least = self.definition.min_success_percent;
        if counts && u64::from(succeeded) * 100 < u64::from(least) * u64::from(ended) {
            let reason = format!(
                "{succeeded} of {ended} devices succeeded, which is less than {least} % (min_success_percent)"
            );
            self.set_status(CampaignStatus::Halted, Some(reason), now_ms);
        }
    }

    /// Adds what the rate permits since the last call, up to one second's worth.
    fn refill(&mut self, now_ms: u64) {
        let rate = u64::from(self.definition.max_devices_per_minute);
        let (thousandths, at_ms) = self.allowance;
        let elapsed_ms = now_ms.saturating_sub(at_ms).min(60_000);
        let most = (rate * 1000 / 60).max(1000);
        self.allowance = ((thousandths + elapsed_ms * rate / 60).min(most), now_ms);
    }

    fn start_devices(&mut self, now_ms: u64) -> Vec<DeviceNo> {
        let Some(wave) = self.wave() else {
            return Vec::new();
        };
        let has_limit = self.definition.max_devices_per_minute > 0;
        let mut started = Vec::new();
        while let Some((of, _, no)) = self.waiting.first().copied()
            && of == wave
            && (!has_limit || self.allowance.0 >= 1000)
            && started.len() < MAX_STARTS_AT_ONCE
        {
            if has_limit {
                self.allowance.0 -= 1000;
            }
            self.set_device(no, CampaignDeviceState::Started, None, now_ms);
            started.push(no);
        }
        started
    }

    /// Stops notifying devices; false: the campaign is not running.
    pub(crate) fn pause(&mut self, now_ms: u64) -> bool {
        let is_running = self.progress.status == CampaignStatus::Running;
        if is_running {
            self.set_status(CampaignStatus::Paused, None, now_ms);
        }
        is_running
    }

    /// Continues; devices that have ended no longer count for the threshold. False: it is neither paused nor halted.
    pub(crate) fn resume(&mut self, now_ms: u64) -> bool {
        let is_stopped = matches!(
            self.progress.status,
            CampaignStatus::Paused | CampaignStatus::Halted
        );
        if self.progress.status == CampaignStatus::Halted {
            self.progress.settled = (self.counts.succeeded, self.counts.failed);
        }
        if is_stopped {
            self.set_status(CampaignStatus::Running, None, now_ms);
        }
        is_stopped
    }

    /// Ends the campaign. Returns the devices that were notified and have no result; `None`: it has ended before.
    pub(crate) fn cancel(&mut self, now_ms: u64) -> Option<Vec<DeviceNo>> {
        if self.progress.status.is_final() {
            return None;
        }
        let waiting = self.waiting.iter().map(|(_, _, no)| *no);
        let started = self.deadlines.iter().map(|(_, no)| *no);
        let open: Vec<DeviceNo> = waiting.chain(started).collect();
        for no in &open {
            self.set_device(*no, CampaignDeviceState::Cancelled, None, now_ms);
        }
        self.set_status(CampaignStatus::Cancelled, None, now_ms);
        Some(open)
    }

    /// What has changed since the last call.
    pub(crate) fn take_changes(&mut self) -> CampaignChanges {
        let changed = std::mem::take(&mut self.changed).into_iter();
        let devices = changed.filter_map(|no| Some((no, self.devices.get(&no)?.clone())));
        CampaignChanges {
            progress: std::mem::take(&mut self.has_progressed).then(|| self.progress.clone()),
            devices: devices.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const START_MS: u64 = 1_700_000_000_000;

    fn campaign(fields: Value, waves: &[(u16, u32)]) -> CampaignRun {
        let mut definition = json!({"package": "p"});
        for (name, value) in fields.as_object().expect("an object") {
            definition[name] = value.clone();
        }
        let definition = CampaignDefinition::read(&definition).expect("valid");
        let mut devices = BTreeMap::new();
        for (wave, count) in waves {
            for _ in 0..*count {
                let no = DeviceNo(devices.len() as u32);
                devices.insert(no, CampaignDevice::waiting(*wave));
            }
        }
        let progress = CampaignProgress {
            status: CampaignStatus::Running,
            reason: None,
            settled: (0, 0),
            changed_at_ms: START_MS,
        };
        CampaignRun::new(definition, progress, devices, START_MS)
    }

    /// Lets time pass second by second; each device reports 10 s after it was notified. Returns the seconds until the
    /// campaign stops, and the greatest number of devices that were notified within a minute.
    fn simulate(run: &mut CampaignRun, fails: impl Fn(DeviceNo) -> bool) -> (u64, usize) {
        let mut reports: BTreeMap<u64, Vec<DeviceNo>> = BTreeMap::new();
        let mut notified: Vec<(u64, usize)> = Vec::new();
        for second in 0..100_000 {
            let now_ms = START_MS + second * 1000;
            for no in reports.remove(&second).unwrap_or_default() {
                let result = match fails(no) {
                    true => Err("broken".to_owned()),
                    false => Ok(()),
                };
                run.record_result(no, result, now_ms);
            }
            let started = run.advance(now_ms);
            notified.push((second, started.len()));
            reports.entry(second + 10).or_default().extend(started);
            if run.progress().status != CampaignStatus::Running {
                let per_minute = notified
                    .windows(60)
                    .map(|all| all.iter().map(|(_, count)| count).sum());
                return (second, per_minute.max().unwrap_or(0));
            }
        }
        panic!("it does not end: {:?}", run.counts());
    }

    #[test]
    fn a_campaign_of_which_a_third_fails_halts_as_configured() {
        let fields = json!({"min_success_percent": 80, "min_ended": 50, "max_attempts": 1,
            "max_devices_per_minute": 600});
        let mut run = campaign(fields, &[(0, 1000)]);
        simulate(&mut run, |no| no.0 % 3 == 0);
        let counts = run.counts();
        assert_eq!(run.progress().status, CampaignStatus::Halted);
        let ended = counts.succeeded + counts.failed;
        // It reacts at the 50th result; devices that were notified before may still end.
        assert!((50..60).contains(&ended), "{counts:?}");
        assert!(counts.waiting > 800, "{counts:?}");
        let reason = run.progress().reason.clone().expect("a reason");
        assert!(reason.contains("less than 80 %"), "{reason}");
        assert!(run.advance(START_MS + 200_000_000).is_empty(), "halted");
    }

    #[test]
    fn a_campaign_with_enough_success_completes_within_its_rate() {
        let fields =
            json!({"min_success_percent": 60, "max_attempts": 2, "max_devices_per_minute": 120});
        let mut run = campaign(fields, &[(0, 10), (1, 90), (2, 900)]);
        let (seconds, per_minute) = simulate(&mut run, |no| no.0 % 3 == 0);
        assert_eq!(run.progress().status, CampaignStatus::Completed);
        let counts = run.counts();
        assert_eq!((counts.succeeded, counts.failed), (666, 334));
        assert!(per_minute <= 122, "{per_minute}");
        // Each third device was notified twice.
        assert!((1334 / 2..800).contains(&seconds), "{seconds}");
        assert!(run.devices().values().all(|device| device.attempts <= 2));
    }

    #[test]
    fn a_wave_begins_when_the_wave_before_has_ended_and_succeeded() {
        let fields = json!({"max_attempts": 1, "max_devices_per_minute": 0, "min_ended": 100});
        let mut run = campaign(fields, &[(0, 3), (1, 50)]);
        assert_eq!(run.advance(START_MS).len(), 3);
        for no in 0..2 {
            run.record_result(DeviceNo(no), Ok(()), START_MS);
        }
        assert!(run.advance(START_MS + 1000).is_empty());
        run.record_result(DeviceNo(2), Err("broken".to_owned()), START_MS);
        assert!(run.advance(START_MS + 2000).is_empty());
        assert_eq!(
            run.progress().status,
            CampaignStatus::Halted,
            "2 of 3 are less than 90 %"
        );
        assert!(run.resume(START_MS + 3000));
        assert_eq!(
            run.advance(START_MS + 3000).len(),
            50,
            "the failure no longer counts"
        );
    }

    #[test]
    fn silence_is_a_failure_and_repeated() {
        let fields = json!({"max_attempts": 2, "timeout_s": 60, "max_devices_per_minute": 0});
        let mut run = campaign(fields, &[(0, 1)]);
        let device = DeviceNo(0);
        assert_eq!(run.advance(START_MS), [device]);
        assert!(run.advance(START_MS + 59_999).is_empty());
        assert_eq!(
            run.advance(START_MS + 60_000),
            [device],
            "the second attempt"
        );
        assert!(run.is_target_of(device));
        run.record_result(device, Ok(()), START_MS + 70_000);
        run.record_result(device, Err("late".to_owned()), START_MS + 71_000);
        assert!(run.advance(START_MS + 72_000).is_empty());
        assert_eq!(run.progress().status, CampaignStatus::Completed);
        assert_eq!(run.counts().succeeded, 1);
    }

    #[test]
    fn deleted_devices_are_cancelled_and_do_not_count() {
        let fields = json!({"max_attempts": 1, "max_devices_per_minute": 0, "min_ended": 1});
        let mut run = campaign(fields, &[(0, 3), (1, 1)]);
        assert_eq!(run.advance(START_MS).len(), 3);
        for no in [0, 1, 3] {
            assert!(run.device_deleted(DeviceNo(no), Some("gone"), START_MS + 1000));
            let device = &run.devices()[&DeviceNo(no)];
            assert_eq!(device.state, CampaignDeviceState::Cancelled);
            assert_eq!(device.error.as_deref(), Some("the device was deleted"));
            assert_eq!(device.deleted_id.as_deref(), Some("gone"));
            assert!(!run.is_target_of(DeviceNo(no)));
        }
        assert!(!run.device_deleted(DeviceNo(9), Some("other"), START_MS + 1000));
        run.record_result(DeviceNo(2), Ok(()), START_MS + 2000);
        run.advance(START_MS + 2000);
        run.advance(START_MS + 3000);
        assert_eq!(run.progress().status, CampaignStatus::Completed);
        assert!(run.device_deleted(DeviceNo(2), Some("later"), START_MS + 4000));
        let ended = &run.devices()[&DeviceNo(2)];
        assert_eq!(
            ended.state,
            CampaignDeviceState::Succeeded,
            "a result stays"
        );
        assert_eq!(ended.deleted_id.as_deref(), Some("later"));
        let counts = run.counts();
        assert_eq!(
            (counts.succeeded, counts.failed, counts.cancelled),
            (1, 0, 3)
        );
    }

    #[test]
    fn a_campaign_is_paused_resumed_and_cancelled() {
        let mut run = campaign(json!({"max_devices_per_minute": 60}), &[(0, 100)]);
        assert_eq!(run.advance(START_MS).len(), 1);
        assert!(run.pause(START_MS) && !run.pause(START_MS));
        assert!(run.advance(START_MS + 60_000).is_empty());
        assert!(run.resume(START_MS + 60_000) && !run.resume(START_MS + 60_000));
        assert_eq!(
            run.advance(START_MS + 61_000).len(),
            1,
            "nothing is made up for"
        );
        let open = run.cancel(START_MS + 62_000).expect("open devices");
        assert_eq!((open.len(), run.counts().cancelled), (100, 100));
        assert!(run.cancel(START_MS + 63_000).is_none());
        assert!(!run.is_target_of(DeviceNo(0)) && run.advance(START_MS + 63_000).is_empty());
    }

    #[test]
    fn devices_are_notified_within_the_window_only() {
        // START_MS is 22:13:20 UTC.
        let window = json!({"from": "22:00", "to": "22:14"});
        let mut run = campaign(
            json!({"window": window, "max_devices_per_minute": 60}),
            &[(0, 1000)],
        );
        let mut notified = 0;
        for second in 0..3600 {
            notified += run.advance(START_MS + second * 1000).len();
        }
        assert_eq!(notified, 40);
        assert!(
            !run.advance(START_MS + 86_400_000).is_empty(),
            "the next day"
        );
    }

    #[test]
    fn a_restart_continues_where_it_was() {
        let fields = json!({"timeout_s": 60, "max_devices_per_minute": 0, "waves": []});
        let mut run = campaign(fields, &[(0, 2), (1, 2)]);
        run.advance(START_MS);
        run.record_result(DeviceNo(0), Ok(()), START_MS + 1000);
        let changes = run.take_changes();
        assert_eq!(changes.devices.len(), 2);
        assert!(run.take_changes().devices.is_empty());
        let (definition, progress) = (run.definition().clone(), run.progress().clone());
        let mut again =
            CampaignRun::new(definition, progress, run.devices().clone(), START_MS + 5000);
        assert_eq!((again.counts(), again.wave()), (run.counts(), Some(0)));
        assert_eq!(
            again.advance(START_MS + 60_000),
            [DeviceNo(1)],
            "its time is over"
        );
        again.record_result(DeviceNo(1), Ok(()), START_MS + 61_000);
        assert_eq!(again.advance(START_MS + 61_000).len(), 2, "the next wave");
    }
}
