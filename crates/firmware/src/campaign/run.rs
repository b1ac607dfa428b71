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
    pub(crate) const ALL: [Self; 5] = [
        Self::Running,
        Self::Paused,
        Self::Halted,
        Self::Completed,
        Self::Cancelled,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Halted => "halted",
            Self::Completed => "completed",
            Self::Cancelled => "cancelled",
        }
    }

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
    pub(crate) const ALL: [Self; 5] = [
        Self::Waiting,
        Self::Started,
        Self::Succeeded,
        Self::Failed,
        Self::Cancelled,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Started => "started",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

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

    pub(crate) fn get(mut self, state: CampaignDeviceState) -> u32 {
        *self.of(state)
    }

    pub(crate) fn add(&mut self, other: Self) {
        for state in CampaignDeviceState::ALL {
            *self.of(state) += other.get(state);
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
mod tests;
