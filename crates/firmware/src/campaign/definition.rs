//! What a user writes to begin a campaign.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::definition_error::{DefinitionError, check_length, read_definition};

/// Maximum number of devices of a campaign.
pub const MAX_CAMPAIGN_DEVICES: usize = 100_000;
const MAX_WAVES: usize = 32;
const MAX_NAMED_DEVICES: usize = 10_000;
const MAX_RATE: u32 = 1_000_000;
const MAX_TIMEOUT_S: u32 = 30 * 24 * 3600;
const MAX_ATTEMPTS: u8 = 10;
const MINUTES_OF_DAY: u32 = 24 * 60;

/// Installs a package on devices step by step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CampaignDefinition {
    /// Id of the firmware package.
    #[schemars(length(min = 1, max = 256))]
    pub package: String,
    #[serde(default = "namespaces::default_id")]
    #[schemars(length(min = 1, max = 64))]
    pub namespace: String,
    #[serde(default)]
    #[schemars(length(max = 256))]
    pub description: String,
    /// Id of the device group; without `group` and `devices`, all devices of the product.
    #[serde(default)]
    #[schemars(length(max = 256))]
    pub group: Option<String>,
    /// Ids of devices.
    #[serde(default)]
    #[schemars(length(max = 10_000))]
    pub devices: Vec<String>,
    /// A wave begins when all devices of the wave before have ended. Devices that are in no wave are in a last one; without
    /// waves there is only that.
    #[serde(default)]
    #[schemars(length(max = 32))]
    pub waves: Vec<CampaignWave>,
    /// Devices that are notified per minute; 0: no limit.
    #[serde(default = "default_rate")]
    #[schemars(range(max = 1_000_000))]
    pub max_devices_per_minute: u32,
    /// Time of the day at which devices are notified; without it, always.
    #[serde(default)]
    pub window: Option<CampaignWindow>,
    /// Percentage of ended devices that must have succeeded; below it, the campaign halts.
    #[serde(default = "default_success")]
    #[schemars(range(max = 100))]
    pub min_success_percent: u8,
    /// Number of ended devices from which `min_success_percent` counts; at the end of a wave it always counts.
    #[serde(default = "default_ended")]
    #[schemars(range(min = 1, max = 100_000))]
    pub min_ended: u32,
    /// Time in seconds after which a device that has reported no result has failed.
    #[serde(default = "default_timeout_s")]
    #[schemars(range(min = 1, max = 2_592_000))]
    pub timeout_s: u32,
    /// How often a device that fails is notified, at most.
    #[serde(default = "default_attempts")]
    #[schemars(range(min = 1, max = 10))]
    pub max_attempts: u8,
}

fn default_rate() -> u32 {
    100
}

fn default_success() -> u8 {
    90
}

fn default_ended() -> u32 {
    10
}

fn default_timeout_s() -> u32 {
    3600
}

fn default_attempts() -> u8 {
    2
}

/// Devices that install the package together; exactly one of the fields is set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CampaignWave {
    /// Percentage of all devices.
    #[serde(default)]
    #[schemars(range(min = 1, max = 100))]
    pub percent: Option<u8>,
    /// Id of a device group.
    #[serde(default)]
    #[schemars(length(max = 256))]
    pub group: Option<String>,
}

/// A time of the day in UTC. If `to` is not later than `from`, it lasts until the next day.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CampaignWindow {
    /// Such as `22:00`.
    #[schemars(regex(pattern = "^([01][0-9]|2[0-3]):[0-5][0-9]$"))]
    pub from: String,
    #[schemars(regex(pattern = "^([01][0-9]|2[0-3]):[0-5][0-9]$"))]
    pub to: String,
}

/// Minutes since midnight.
fn minute_of_day(text: &str) -> Option<u32> {
    let (hours, minutes) = text.split_once(':')?;
    let number = |text: &str| {
        let is_number = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| text.parse::<u32>().ok()).flatten()
    };
    let (hours, minutes) = (number(hours)?, number(minutes)?);
    (hours < 24 && minutes < 60).then_some(hours * 60 + minutes)
}

impl CampaignWindow {
    pub(crate) fn contains(&self, now_ms: u64) -> bool {
        let (Some(from), Some(to)) = (minute_of_day(&self.from), minute_of_day(&self.to)) else {
            return true;
        };
        let now = (now_ms / 60_000 % u64::from(MINUTES_OF_DAY)) as u32;
        match from < to {
            true => (from..to).contains(&now),
            false => now >= from || now < to,
        }
    }
}

impl CampaignDefinition {
    /// # Errors
    /// Names the invalid field.
    pub fn read(value: &Value) -> Result<Self, DefinitionError> {
        let read: Self = read_definition(value)?;
        check_length("package", &read.package, (1, 256))?;
        check_length("description", &read.description, (0, 256))?;
        if read.group.is_some() && !read.devices.is_empty() {
            let detail = "expected either group or devices";
            return Err(DefinitionError::new("devices", detail));
        }
        let numbers = [
            (
                "devices",
                read.devices.len() as u64,
                0,
                MAX_NAMED_DEVICES as u64,
            ),
            ("waves", read.waves.len() as u64, 0, MAX_WAVES as u64),
            (
                "max_devices_per_minute",
                read.max_devices_per_minute.into(),
                0,
                MAX_RATE.into(),
            ),
            (
                "min_success_percent",
                read.min_success_percent.into(),
                0,
                100,
            ),
            (
                "min_ended",
                read.min_ended.into(),
                1,
                MAX_CAMPAIGN_DEVICES as u64,
            ),
            ("timeout_s", read.timeout_s.into(), 1, MAX_TIMEOUT_S.into()),
            (
                "max_attempts",
                read.max_attempts.into(),
                1,
                MAX_ATTEMPTS.into(),
            ),
        ];
        for (field, number, least, most) in numbers {
            if !(least..=most).contains(&number) {
                let detail = format!("expected {least} to {most}, not {number}");
                return Err(DefinitionError::new(field, detail));
            }
        }
        let mut percents = 0;
        for (at, wave) in read.waves.iter().enumerate() {
            let field = format!("waves[{at}]");
            match (wave.percent, &wave.group) {
                (Some(percent @ 1..=100), None) => percents += u32::from(percent),
                (None, Some(_)) => {}
                _ => {
                    let detail = "expected either a percent of 1 to 100 or a group";
                    return Err(DefinitionError::new(&field, detail));
                }
            }
        }
        if percents > 100 {
            let detail = format!("expected percentages of at most 100 in all, not {percents}");
            return Err(DefinitionError::new("waves", detail));
        }
        if let Some(window) = &read.window {
            for (field, text) in [("window.from", &window.from), ("window.to", &window.to)] {
                if minute_of_day(text).is_none() {
                    let detail = format!("expected a time of the day such as 22:00, not {text:?}");
                    return Err(DefinitionError::new(field, detail));
                }
            }
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn windows_may_pass_midnight() {
        let window = |from: &str, to: &str| CampaignWindow {
            from: from.to_owned(),
            to: to.to_owned(),
        };
        let at = |hours: u64, minutes: u64| (hours * 60 + minutes) * 60_000 + 86_400_000 * 20_000;
        assert!(window("08:00", "09:30").contains(at(9, 29)));
        assert!(!window("08:00", "09:30").contains(at(9, 30)));
        for (time, is_within) in [
            (at(23, 0), true),
            (at(4, 59), true),
            (at(5, 0), false),
            (at(21, 59), false),
        ] {
            assert_eq!(window("22:00", "05:00").contains(time), is_within);
        }
    }

    #[test]
    fn invalid_fields_are_named() {
        for (fields, expected) in [
            (json!({}), ""),
            (
                json!({"package": "p", "waves": [{"percent": 0}]}),
                "waves[0]",
            ),
            (
                json!({"package": "p", "waves": [{"percent": 60}, {"percent": 60}]}),
                "waves",
            ),
            (
                json!({"package": "p", "waves": [{"percent": 1, "group": "g"}]}),
                "waves[0]",
            ),
            (
                json!({"package": "p", "window": {"from": "24:00", "to": "01:00"}}),
                "window.from",
            ),
            (
                json!({"package": "p", "window": {"from": "1:00", "to": "01:00"}}),
                "window.from",
            ),
            (json!({"package": "p", "max_attempts": 0}), "max_attempts"),
            (
                json!({"package": "p", "group": "g", "devices": ["d"]}),
                "devices",
            ),
        ] {
            let rejected = CampaignDefinition::read(&fields).expect_err("rejected");
            assert_eq!(rejected.field, expected, "{fields}");
        }
    }
}
