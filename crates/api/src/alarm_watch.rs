//! Which changes of alarms a subscriber gets. Nodes send each other the filter, whose device has another number at each.

use devices::DeviceNo;
use devices::alarm::AlarmEvent;
use serde::{Deserialize, Serialize};

use crate::alarm_service::{AlarmService, AlarmServiceError};
use crate::node_lists::namespace_selection;

/// The filter of a subscriber.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct AlarmWatchFilter {
    /// The id of a device.
    pub(crate) device: Option<String>,
    pub(crate) product: Option<String>,
    pub(crate) kind: Option<String>,
    /// Empty: all severities.
    pub(crate) severities: Vec<String>,
    /// `None`: all namespaces.
    pub(crate) namespaces: Option<Vec<String>>,
}

/// The filter with the number of the device at this node.
pub(crate) struct LocalAlarmFilter {
    filter: AlarmWatchFilter,
    namespaces: namespaces::NamespaceSelection,
    device: Option<DeviceNo>,
}

impl AlarmWatchFilter {
    /// `None`: this node does not have the device. May block.
    pub(crate) fn at_this_node(
        self,
        alarms: &AlarmService,
    ) -> Result<Option<LocalAlarmFilter>, AlarmServiceError> {
        let device = match &self.device {
            None => None,
            Some(id) => match alarms.device_number(id)? {
                None => return Ok(None),
                number => number,
            },
        };
        Ok(Some(LocalAlarmFilter {
            namespaces: namespace_selection(self.namespaces.clone()),
            filter: self,
            device,
        }))
    }
}

impl LocalAlarmFilter {
    pub(crate) fn matches(&self, event: &AlarmEvent) -> bool {
        let alarm = &*event.alarm;
        let filter = &self.filter;
        let is = |wanted: &Option<String>, found: &str| {
            wanted.as_deref().is_none_or(|wanted| wanted == found)
        };
        let severity = alarm.severity.as_str();
        let severities = &filter.severities;
        self.device.is_none_or(|no| alarm.devices().contains(&no))
            && is(&filter.product, &alarm.product)
            && is(&filter.kind, &alarm.kind)
            && self.namespaces.contains(&alarm.namespace)
            && (severities.is_empty() || severities.iter().any(|one| one == severity))
    }
}
