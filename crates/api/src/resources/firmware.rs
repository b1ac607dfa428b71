//! Firmware of devices, beyond the objects that define it.

use ::firmware::{AssignedPackage, AssignmentTarget, FirmwareType};
use schemars::JsonSchema;
use serde::Serialize;

use super::devices::run_blocking;
use crate::access::Role;
use crate::call::{self, ApiCall};
use crate::device_service::DeviceServiceError;
use crate::endpoint::{Endpoint, EndpointScope, get};
use crate::problem_details::ApiResult;

/// What a device is to install.
#[derive(Serialize, JsonSchema)]
struct AssignedFirmware {
    #[serde(rename = "type")]
    kind: FirmwareType,
    /// Id of the package.
    package: String,
    title: String,
    version: String,
    /// Size of the image in bytes.
    size: u64,
    /// What the package is assigned to: `product`, `group` or `device`.
    assigned_to: &'static str,
    /// Id of the product, group or device.
    target: String,
}

impl AssignedFirmware {
    fn new(assigned: AssignedPackage) -> Self {
        let (assigned_to, target) = match assigned.target {
            AssignmentTarget::Product(id) => ("product", id),
            AssignmentTarget::Group(id) => ("group", id),
            AssignmentTarget::Device(id) => ("device", id),
        };
        let package = assigned.package;
        Self {
            kind: package.kind,
            package: package.id.clone(),
            title: package.title.clone(),
            version: package.version.clone(),
            size: package.size,
            assigned_to,
            target,
        }
    }
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        get(
            "/api/v1/devices/{id}/firmware",
            "getDeviceFirmware",
            of_device,
        )
        .role(Role::Viewer, EndpointScope::device("id"))
        .tag("firmware")
        .path_parameter("id", "The device's id, percent-encoded.")
        .summary("List what a device is to install")
        .description("At most one package of each type.")
        .unpaged::<AssignedFirmware>(),
    ]
}

async fn of_device(call: ApiCall) -> ApiResult {
    let (id, firmware) = (call.path("id").to_owned(), call.app.firmware.clone());
    let assigned = run_blocking(&call.app, move |devices| {
        let device = devices.registry().device(&id)?;
        let device = device
            .ok_or_else(|| DeviceServiceError::NotFound(format!("There is no device {id:?}.")))?;
        let types = FirmwareType::ALL.into_iter();
        let assigned = types.filter_map(|kind| firmware.assigned(&device, kind));
        Ok(assigned.map(AssignedFirmware::new).collect::<Vec<_>>())
    });
    call::unpaged_list(assigned.await?)
}
