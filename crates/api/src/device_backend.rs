//! The interface between the API and the device registry. Devices are opaque JSON here.

use std::sync::Arc;

use serde_json::{Map, Value};
use tokio::sync::broadcast;

/// Why a query or change of a device failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceBackendError {
    /// The device, product or group does not exist.
    NotFound(String),
    /// A field is invalid.
    Field {
        field: String,
        detail: String,
    },
    /// The object already exists, or a limit is reached.
    Conflict(String),
    /// The object has changed since it was read.
    Changed,
    Unavailable(String),
}

/// Selects devices of a list.
#[derive(Debug, Clone, Default)]
pub struct DeviceQuery {
    pub product: Option<String>,
    pub group: Option<String>,
    /// Key and value.
    pub tag: Option<(String, String)>,
    /// The id of the gateway.
    pub parent: Option<String>,
    /// Part of the id or name.
    pub text: Option<String>,
    /// `notActive`, `online`, `offline`.
    pub state: Option<String>,
    /// The number at which the page begins.
    pub from: u32,
    pub limit: usize,
}

/// A device with its version. Versions grow with each change and never repeat for devices of the
/// same id.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceView {
    pub value: Value,
    pub version: u64,
}

/// A page of devices, and the cursor of the next page.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DevicePage {
    pub rows: Vec<Value>,
    pub next: Option<u32>,
}

/// Text of an export, and the cursor of the next piece.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceExportPage {
    pub text: String,
    pub next: Option<u32>,
}

/// Selects events of a device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceEventQuery {
    /// `None`: events of any id.
    pub event: Option<String>,
    pub from_ms: Option<i64>,
    /// End of the time range, exclusive.
    pub to_ms: Option<i64>,
    /// Only events with a smaller number.
    pub before: Option<u64>,
    pub limit: usize,
}

/// A change of attributes of a device.
#[derive(Debug, Clone, PartialEq)]
pub struct AttributeNews {
    pub device: String,
    /// `client`, `shared` or `server`.
    pub scope: &'static str,
    /// `None`: the attribute was removed.
    pub values: Vec<(String, Option<Value>)>,
    pub at_ms: u64,
}

/// The device registry. Methods are called on threads that may block.
pub trait DeviceBackend: Send + Sync + 'static {
    /// Events of a device, newest first: `number`, `ts_ms`, `event` and `data` of each.
    fn events(&self, id: &str, query: &DeviceEventQuery) -> Result<Vec<Value>, DeviceBackendError>;

    fn list(&self, query: &DeviceQuery) -> Result<DevicePage, DeviceBackendError>;

    fn get(&self, id: &str) -> Result<Option<DeviceView>, DeviceBackendError>;

    /// The id for a device with this name if the caller gives none: the name itself if it is a
    /// valid id.
    fn id_for_name(&self, name: &str) -> String;

    /// Whether a product with this id is stored or declared.
    fn has_product(&self, id: &str) -> bool;

    /// Creates or replaces a device. `expected` is the required version: 0 requires that the device
    /// is absent, `None` accepts any. Returns `true` if it was created. Generated credentials are
    /// in `issued`, which is shown only once.
    fn put(
        &self,
        id: &str,
        device: Map<String, Value>,
        expected: Option<u64>,
    ) -> Result<(DeviceView, bool), DeviceBackendError>;

    /// Deletes a device; `false` if it did not exist.
    fn remove(&self, id: &str, expected: Option<u64>) -> Result<bool, DeviceBackendError>;

    fn attributes(&self, id: &str, scope: &str) -> Result<Vec<Value>, DeviceBackendError>;

    /// Attribute changes of all devices from now on.
    fn attribute_news(&self) -> broadcast::Receiver<Arc<AttributeNews>>;

    /// Sets attributes; `null` removes one.
    fn set_attributes(
        &self,
        id: &str,
        scope: &str,
        values: Map<String, Value>,
    ) -> Result<(), DeviceBackendError>;

    /// Adds a device to the group of a caller that knows the secret offered by the device.
    fn claim(&self, id: &str, secret: &str, group: &str) -> Result<DeviceView, DeviceBackendError>;

    /// Imports lines of `jsonl` or `csv`.
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

    /// The number of devices.
    fn counts(&self) -> Result<Value, DeviceBackendError>;
}

/// The backend of a node without devices.
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
