//! `[alarms]`

use devices::alarm::AlarmConfig;

/// Alarm settings of the configuration.
#[derive(Debug, Clone)]
pub(crate) struct AlarmSettings {
    pub(crate) alarms: AlarmConfig,
    /// Whether the node raises alarms about itself.
    pub(crate) node_alarms_enabled: bool,
    pub(crate) node_alarm_interval_s: u32,
}

impl Default for AlarmSettings {
    fn default() -> Self {
        Self {
            alarms: AlarmConfig::default(),
            node_alarms_enabled: true,
            node_alarm_interval_s: 10,
        }
    }
}
