//! What the API asks of the registry of devices. Devices are JSON here; what they mean is known elsewhere.

use std::sync::Arc;

use serde_json::{Map, Value};
use tokio::sync::broadcast;

/// A change or a question that cannot be answered with a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceBackendError {
    /// There is no such device, product or group.
    NotFound(String),
    /// A field is not as it has to be.
    Field {
        field: String,
        detail: String,
    },
    /// It is there already, or there is no room.
    Conflict(String),
    /// It has changed meanwhile.
    Changed,
    Unavailable(String),
}

/// Which devices of a list.
#[derive(Debug, Clone, Default)]
pub struct DeviceQuery {
    pub product: Option<String>,
    pub group: Option<String>,
    /// Key and value.
    pub tag: Option<(String, String)>,
    /// The id of their gateway.
    pub parent: Option<String>,
    /// Part of the id or name.
    pub text: Option<String>,
    /// `notActive`, `online`, `offline`.
    pub state: Option<String>,
    /// The number where the page begins.
    pub from: u32,
    pub limit: usize,
}

/// A device with its version, which grows with each change and is never the same for two devices of one id.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceView {
    pub value: Value,
    pub version: u64,
}

/// Devices of a page, and where the next one begins.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DevicePage {
    pub rows: Vec<Value>,
    pub next: Option<u32>,
}

/// Text of an export, and where the next piece begins.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceExportPage {
    pub text: String,
    pub next: Option<u32>,
}

/// Which events of a device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceEventQuery {
    /// `None`: of any id.
    pub event: Option<String>,
    pub from_ms: Option<i64>,
    /// Behind the last one.
    pub to_ms: Option<i64>,
    /// Only those with a smaller number.
    pub before: Option<u64>,
    pub limit: usize,
}

/// Attributes of a device have changed.
#[derive(Debug, Clone, PartialEq)]
pub struct AttributeNews {
    pub device: String,
    /// `client`, `shared` or `server`.
    pub scope: &'static str,
    /// `None`: removed.
    pub values: Vec<(String, Option<Value>)>,
    pub at_ms: u64,
}

/// The registry. Called on threads that may block.
pub trait DeviceBackend: Send + Sync + 'static {
    /// Events of a device, the newest first: `number`, `ts_ms`, `event` and `data` of each.
    fn events(&self, id: &str, query: &DeviceEventQuery) -> Result<Vec<Value>, DeviceBackendError>;

    fn list(&self, query: &DeviceQuery) -> Result<DevicePage, DeviceBackendError>;

    fn get(&self, id: &str) -> Result<Option<DeviceView>, DeviceBackendError>;

    /// The id that a device with this name gets where nobody gives one: the name itself if it can be an id.
    fn id_for_name(&self, name: &str) -> String;

    /// Whether there is a product with this id, stored or of the configuration.
    fn has_product(&self, id: &str) -> bool;

    /// Makes or replaces a device; `expected` is the version that has to be there, 0 that there is none, `None` whatever.
    /// `true`: it was made. What was made for it is told in `issued`, once.
    fn put(
        &self,
        id: &str,
        device: Map<String, Value>,
        expected: Option<u64>,
    ) -> Result<(DeviceView, bool), DeviceBackendError>;

    /// `false`: there was none.
    fn remove(&self, id: &str, expected: Option<u64>) -> Result<bool, DeviceBackendError>;

    fn attributes(&self, id: &str, scope: &str) -> Result<Vec<Value>, DeviceBackendError>;

    /// Changes of attributes of all devices from now on.
    fn attribute_news(&self) -> broadcast::Receiver<Arc<AttributeNews>>;

    /// Sets some; `null` removes one.
    fn set_attributes(
        &self,
        id: &str,
        scope: &str,
        values: Map<String, Value>,
    ) -> Result<(), DeviceBackendError>;

    /// Puts a device into the group of whoever knows the secret that it has offered.
    fn claim(&self, id: &str, secret: &str, group: &str) -> Result<DeviceView, DeviceBackendError>;

    /// Takes lines of `jsonl` or `csv`.
    fn import(
        &self,
        text: &str,
        format: &str,
        creates_only: bool,
        first_line: u64,
    ) -> Result<Value, DeviceBackendError>;

    fn export(
        &self,
        format: &str,
        from: u32,
        limit: usize,
    ) -> Result<DeviceExportPage, DeviceBackendError>;

    /// How many there are.
    fn counts(&self) -> Result<Value, DeviceBackendError>;
}

/// A node without devices.
pub struct NoDeviceBackend;

fn no_devices_error<T>() -> Result<T, DeviceBackendError> {
    Err(DeviceBackendError::Unavailable(
        "This node has no registry of devices.".to_owned(),
    ))
}

impl DeviceBackend for NoDeviceBackend {
    fn events(&self, id: &str, _: &DeviceEventQuery) -> Result<Vec<Value>, DeviceBackendError> {
        Err(DeviceBackendError::NotFound(format!(
            "There is no device {id:?}."
        )))
    }

    fn list(&self, _: &DeviceQuery) -> Result<DevicePage, DeviceBackendError> {
        Ok(DevicePage::default())
    }

    fn get(&self, _: &str) -> Result<Option<DeviceView>, DeviceBackendError> {
        Ok(None)
    }

    fn id_for_name(&self, name: &str) -> String {
        name.to_owned()
    }

    fn has_product(&self, _: &str) -> bool {
        false
    }

    fn put(
        &self,
        _: &str,
        _: Map<String, Value>,
        _: Option<u64>,
    ) -> Result<(DeviceView, bool), DeviceBackendError> {
        no_devices_error()
    }

    fn remove(&self, _: &str, _: Option<u64>) -> Result<bool, DeviceBackendError> {
        Ok(false)
    }

    fn attributes(&self, id: &str, _: &str) -> Result<Vec<Value>, DeviceBackendError> {
        Err(DeviceBackendError::NotFound(format!(
            "There is no device {id:?}."
        )))
    }

    fn attribute_news(&self) -> broadcast::Receiver<Arc<AttributeNews>> {
        broadcast::channel(1).1
    }

    fn set_attributes(
        &self,
        id: &str,
        _: &str,
        _: Map<String, Value>,
    ) -> Result<(), DeviceBackendError> {
        Err(DeviceBackendError::NotFound(format!(
            "There is no device {id:?}."
        )))
    }

    fn claim(&self, id: &str, _: &str, _: &str) -> Result<DeviceView, DeviceBackendError> {
        Err(DeviceBackendError::NotFound(format!(
            "There is no device {id:?}."
        )))
    }

    fn import(&self, _: &str, _: &str, _: bool, _: u64) -> Result<Value, DeviceBackendError> {
        no_devices_error()
    }

    fn export(&self, _: &str, _: u32, _: usize) -> Result<DeviceExportPage, DeviceBackendError> {
        Ok(DeviceExportPage::default())
    }

    fn counts(&self) -> Result<Value, DeviceBackendError> {
        no_devices_error()
    }
}
