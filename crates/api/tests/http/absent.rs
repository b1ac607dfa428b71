//! Backends of a node without telemetry.

use std::io;
use std::net::IpAddr;

use api::{
    AttributeUpdate, DeviceCaller, DeviceHttpBackend, DeviceHttpError, DevicePostKind,
    DeviceRejectionList, ImportedRow, IntervalQuery, IntervalRow, LiveTelemetryStream, NextCommand,
    RequestedAttributes, RowQuery, TelemetryBackend, TelemetryBackendError, TelemetryReader,
    TelemetrySample, TelemetryTable,
};
use namespaces::NamespaceSelection;
use serde_json::{Value, json};

/// Accepts no requests of devices.
pub(crate) struct NoDeviceHttpBackend;

impl DeviceHttpBackend for NoDeviceHttpBackend {
    fn device(&self, _: &DeviceCaller) -> Result<std::sync::Arc<devices::Device>, DeviceHttpError> {
        Err(DeviceHttpError::UnknownDevice)
    }

    fn post_data(
        &self,
        _: &DeviceCaller,
        _: DevicePostKind,
        _: &[u8],
    ) -> Result<(), DeviceHttpError> {
        Err(DeviceHttpError::UnknownDevice)
    }

    fn store_telemetry(&self, _: &str, _: &[u8]) -> Result<(), DeviceHttpError> {
        Err(DeviceHttpError::UnknownDevice)
    }

    fn attributes(
        &self,
        _: &DeviceCaller,
        _: Option<&str>,
        _: Option<&str>,
    ) -> Result<RequestedAttributes, DeviceHttpError> {
        Err(DeviceHttpError::UnknownDevice)
    }

    fn attribute_update(&self, _: &DeviceCaller) -> Result<AttributeUpdate, DeviceHttpError> {
        Err(DeviceHttpError::UnknownDevice)
    }

    fn next_command(&self, _: &DeviceCaller) -> Result<NextCommand, DeviceHttpError> {
        Err(DeviceHttpError::UnknownDevice)
    }

    fn answer_command(&self, _: &DeviceCaller, _: &str, _: &[u8]) -> Result<(), DeviceHttpError> {
        Err(DeviceHttpError::UnknownDevice)
    }

    fn call_platform(&self, _: &DeviceCaller, _: &[u8]) -> Result<Value, DeviceHttpError> {
        Err(DeviceHttpError::UnknownDevice)
    }

    fn offer_claim(&self, _: &DeviceCaller, _: &[u8]) -> Result<(), DeviceHttpError> {
        Err(DeviceHttpError::UnknownDevice)
    }

    fn provision_device(&self, _: IpAddr, _: &[u8]) -> Result<Value, Value> {
        Err(json!({"status": "FAILURE", "errorMsg": "this node has no devices"}))
    }
}

/// Has no telemetry.
pub(crate) struct NoTelemetryBackend;

fn device_not_found(device: &str) -> TelemetryBackendError {
    TelemetryBackendError::NoDevice(device.to_owned())
}

impl TelemetryReader for NoTelemetryBackend {
    fn latest(
        &self,
        device: &str,
        _: Option<&[String]>,
    ) -> Result<Vec<TelemetrySample>, TelemetryBackendError> {
        Err(device_not_found(device))
    }

    fn rows(
        &self,
        query: &RowQuery,
        _: &mut dyn FnMut(i64, Vec<(String, Value)>) -> bool,
    ) -> Result<(), TelemetryBackendError> {
        Err(device_not_found(&query.device))
    }

    fn write_rows(
        &self,
        query: &RowQuery,
        _: u8,
        _: &mut Vec<u8>,
        _: &mut dyn FnMut(&mut Vec<u8>) -> bool,
    ) -> Result<usize, TelemetryBackendError> {
        Err(device_not_found(&query.device))
    }

    fn parquet_table<'a>(
        &'a self,
        _: &'a mut (dyn io::Write + Send),
    ) -> Result<Box<dyn TelemetryTable + 'a>, TelemetryBackendError> {
        Err(TelemetryBackendError::Unavailable(
            "there is no telemetry".to_owned(),
        ))
    }

    fn intervals(&self, query: &IntervalQuery) -> Result<Vec<IntervalRow>, TelemetryBackendError> {
        Err(device_not_found(
            query.devices.first().map_or("", String::as_str),
        ))
    }

    fn subscribe(
        &self,
        devices: &[String],
        _: Option<&[String]>,
    ) -> Result<Box<dyn LiveTelemetryStream>, TelemetryBackendError> {
        Err(device_not_found(devices.first().map_or("", String::as_str)))
    }
}

impl TelemetryBackend for NoTelemetryBackend {
    fn import_rows(
        &self,
        rows: &[ImportedRow],
        _: &NamespaceSelection,
    ) -> Result<Vec<Result<(), String>>, TelemetryBackendError> {
        let reason = || "there are no devices".to_owned();
        Ok(rows.iter().map(|_| Err(reason())).collect())
    }

    fn delete(
        &self,
        device: &str,
        _: Option<&[String]>,
        _: i64,
        _: i64,
    ) -> Result<(), TelemetryBackendError> {
        Err(device_not_found(device))
    }

    fn rejections(&self, device: &str) -> Result<DeviceRejectionList, TelemetryBackendError> {
        Err(device_not_found(device))
    }
}
