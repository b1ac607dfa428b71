//! Attributes of devices in three scopes: written by the device (client), stored about it (server), and sent to it
//! (shared).

use std::convert::Infallible;
use std::ops::Bound;
use std::sync::PoisonError;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::attribute_scope::AttributeScope;
use super::attribute_sharing::AttributeTransaction;
use super::keys::attribute_row;
use super::observers::AttributeChange;
use super::{Registry, RegistryError, RegistryInner};
use crate::device::Device;

pub const MAX_ATTRIBUTES: usize = 1024;
const MAX_KEY_BYTES: usize = 256;
const MAX_VALUE_BYTES: usize = 64 << 10;
/// The time of the last change before the value in a row.
const TIME_BYTES: usize = 8;

#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct DeviceAttribute {
    pub key: String,
    pub value: Value,
    pub updated_at_ms: u64,
}

impl Registry {
    /// Registers an observer that is called after each change of attributes.
    pub fn add_attribute_observer(
        &self,
        observer: Box<dyn Fn(&AttributeChange<'_>) + Send + Sync>,
    ) {
        let observers = self.inner.attribute_observers.write();
        observers
            .unwrap_or_else(PoisonError::into_inner)
            .push(observer);
    }

    /// Returns all attributes of a scope in the order of their keys.
    pub fn attributes(
        &self,
        device: &Device,
        scope: AttributeScope,
    ) -> Result<Vec<DeviceAttribute>, RegistryError> {
        let prefix = attribute_row(device.no, scope, "");
        let mut found = Vec::new();
        let table = &self.inner.attributes;
        table.scan(&prefix, Bound::Unbounded, &mut |key, value| {
            let key = String::from_utf8_lossy(&key[prefix.len()..]).into_owned();
            found.extend(decode(key, value));
            found.len() < MAX_ATTRIBUTES
        })?;
        Ok(found)
    }

    pub fn attribute(
        &self,
        device: &Device,
        scope: AttributeScope,
        key: &str,
    ) -> Result<Option<DeviceAttribute>, RegistryError> {
        let row = attribute_row(device.no, scope, key);
        let found = self
            .inner
            .attributes
            .get_with(&row, |value| decode(key.to_owned(), value))?;
        Ok(found.flatten())
    }

    /// Sets the given attributes and leaves the others. `null` removes an attribute.
    pub fn set_attributes(
        &self,
        device: &Device,
        scope: AttributeScope,
        values: Vec<(String, Value)>,
    ) -> Result<(), RegistryError> {
        let Ok(()) =
            self.write_attributes(device, scope, values, || Ok(Ok::<(), Infallible>(())))?;
        Ok(())
    }

    /// Does the same, unless `check` rejects the attributes that the scope has now. No other change happens in between.
    pub fn set_attributes_if<E>(
        &self,
        device: &Device,
        scope: AttributeScope,
        values: Vec<(String, Value)>,
        check: impl FnOnce(Vec<DeviceAttribute>) -> Result<(), E>,
    ) -> Result<Result<(), E>, RegistryError> {
        self.write_attributes(device, scope, values, || {
            Ok(check(self.attributes(device, scope)?))
        })
    }

    fn write_attributes<E>(
        &self,
        device: &Device,
        scope: AttributeScope,
        values: Vec<(String, Value)>,
        check: impl FnOnce() -> Result<Result<(), E>, RegistryError>,
    ) -> Result<Result<(), E>, RegistryError> {
        let invalid = |message: String| RegistryError::Invalid {
            field: "attributes".to_owned(),
            message,
        };
        for (key, _) in &values {
            if key.is_empty() || key.len() > MAX_KEY_BYTES || key.contains('\0') {
                let message = format!("expected keys of 1 to {MAX_KEY_BYTES} bytes without NUL");
                return Err(invalid(message));
            }
        }
        let now_ms = wall_clock::now_ms();
        let inner = &self.inner;
        // Changes are serialised, so that the limit and the check hold.
        let writing = inner.next_no.lock().unwrap_or_else(PoisonError::into_inner);
        if !inner.has_record(device.no)? {
            // It was removed meanwhile.
            return Err(RegistryError::NotFound {
                what: "device",
                id: device.id.to_string(),
            });
        }
        if let Err(rejection) = check()? {
            return Ok(Err(rejection));
        }
        let mut changes = AttributeTransaction::new(inner)?;
        let mut fresh = 0;
        for (key, value) in &values {
            if value.is_null() {
                changes.write_change(device, scope, key, None, now_ms)?;
                continue;
            }
            let row = attribute_row(device.no, scope, key);
            fresh += usize::from(!inner.attributes.has(&row)?);
            let json = value.to_string();
            if TIME_BYTES + json.len() > MAX_VALUE_BYTES {
                return Err(invalid(format!(
                    "{key:?}: expected at most {MAX_VALUE_BYTES} bytes"
                )));
            }
            changes.write_change(device, scope, key, Some(json.as_bytes()), now_ms)?;
        }
        if fresh > 0 && self.attributes(device, scope)?.len() + fresh > MAX_ATTRIBUTES {
            return Err(invalid(format!(
                "expected at most {MAX_ATTRIBUTES} attributes per scope"
            )));
        }
        changes.commit()?;
        drop(writing);
        let (removed, changed): (Vec<_>, Vec<_>) =
            values.into_iter().partition(|(_, value)| value.is_null());
        let removed: Vec<_> = removed.into_iter().map(|(key, _)| key).collect();
        inner.notify_attribute_observers(&AttributeChange {
            device,
            scope,
            changed: &changed,
            removed: &removed,
            is_of_other_node: false,
        });
        Ok(Ok(()))
    }
}

impl RegistryInner {
    pub(super) fn notify_attribute_observers(&self, change: &AttributeChange<'_>) {
        let observers = self.attribute_observers.read();
        let observers = observers.unwrap_or_else(PoisonError::into_inner);
        observers.iter().for_each(|observer| observer(change));
    }
}

fn decode(key: String, bytes: &[u8]) -> Option<DeviceAttribute> {
    let (time, json) = bytes.split_first_chunk::<8>()?;
    Some(DeviceAttribute {
        key,
        value: serde_json::from_slice(json).ok()?,
        updated_at_ms: u64::from_be_bytes(*time),
    })
}
