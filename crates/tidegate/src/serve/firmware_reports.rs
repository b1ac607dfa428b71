//! Passes what devices report about their firmware from their telemetry to the firmware service.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use devices::DeviceNo;
use firmware::{FirmwareService, FirmwareType, InstallReport};
use series::{KeyId, Point, PointValue, Series};

/// A field of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReportField {
    State,
    Error,
    CurrentTitle,
    CurrentVersion,
}

/// The telemetry keys of ThingsBoard's firmware protocol.
const KEYS: [(&str, FirmwareType, ReportField); 8] = [
    ("fw_state", FirmwareType::Firmware, ReportField::State),
    ("fw_error", FirmwareType::Firmware, ReportField::Error),
    (
        "current_fw_title",
        FirmwareType::Firmware,
        ReportField::CurrentTitle,
    ),
    (
        "current_fw_version",
        FirmwareType::Firmware,
        ReportField::CurrentVersion,
    ),
    ("sw_state", FirmwareType::Software, ReportField::State),
    ("sw_error", FirmwareType::Software, ReportField::Error),
    (
        "current_sw_title",
        FirmwareType::Software,
        ReportField::CurrentTitle,
    ),
    (
        "current_sw_version",
        FirmwareType::Software,
        ReportField::CurrentVersion,
    ),
];
/// The number of a key that no device has reported yet.
const UNKNOWN: u32 = u32::MAX;

pub(super) struct FirmwareReports {
    service: FirmwareService,
    series: Series,
    /// Numbers of [`KEYS`].
    numbers: [AtomicU32; KEYS.len()],
}

impl FirmwareReports {
    pub(super) fn new(service: FirmwareService, series: Series) -> Self {
        Self {
            service,
            series,
            numbers: std::array::from_fn(|_| AtomicU32::new(UNKNOWN)),
        }
    }

    /// Whether reports matter.
    #[inline]
    pub(super) fn is_in_use(&self) -> bool {
        self.service.is_in_use()
    }

    fn number(&self, at: usize) -> Option<KeyId> {
        match self.numbers[at].load(Relaxed) {
            UNKNOWN => {
                let key = self.series.find_key(KEYS[at].0)?;
                self.numbers[at].store(key.0, Relaxed);
                Some(key)
            }
            known => Some(KeyId(known)),
        }
    }

    /// A device has connected or subscribed.
    pub(super) fn notify_reachable(&self, device: DeviceNo) {
        self.service.device_reachable(device);
    }

    /// Passes on a message on a firmware topic. Never blocks.
    pub(super) fn receive(&self, device: DeviceNo, step: &str, json: &str) {
        if self.is_in_use() {
            self.service.receive(device, step, json);
        }
    }

    /// Looks for reports in a row. Never blocks.
    pub(super) fn observe_row(&self, device: DeviceNo, points: &[Point<'_>]) {
        if !self.is_in_use() {
            return;
        }
        for kind in FirmwareType::ALL {
            let mut report = InstallReport::default();
            for (at, (_, of, field)) in KEYS.iter().enumerate() {
                if *of != kind {
                    continue;
                }
                let Some(number) = self.number(at) else {
                    continue;
                };
                let point = points.iter().find(|point| point.key == number);
                let Some(PointValue::Text(text)) = point.map(|point| point.value) else {
                    continue;
                };
                let text = Some(text.to_owned());
                match field {
                    ReportField::State => report.state = text,
                    ReportField::Error => report.error = text,
                    ReportField::CurrentTitle => report.current_title = text,
                    ReportField::CurrentVersion => report.current_version = text,
                }
            }
            if report != InstallReport::default() {
                self.service.report(device, kind, report);
            }
        }
    }
}
