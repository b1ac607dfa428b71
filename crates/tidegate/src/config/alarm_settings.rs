//! `[alarms]`

use devices::alarm::AlarmConfig;

/// Alarm settings of the configuration.
#[derive(Debug, Clone)]
pub(crate) struct AlarmSettings {
    pub(crate) alarms: AlarmConfig,
    /// Whether the node raises alarms about itself.
    pub(crate) platform: bool,
    pub(crate) platform_interval_s: u32,
}

impl Default for AlarmSettings {
    fn default() -> Self {
        Self {
            alarms: AlarmConfig::default(),
            platform: true,
            platform_interval_s: 10,
        }
    }
}
