//! Device groups beyond their objects: members and counts.

use std::ops::ControlFlow;
use std::sync::Arc;

use ::devices::group::{self, GroupDefinition};
use ::devices::{DeviceNo, DeviceState};
use namespaces::NamespaceSelection;
use schemars::JsonSchema;
use serde::Serialize;
use store::Objects;

use super::devices;
use crate::access::Role;
use crate::blocking;
use crate::call::{self, ApiCall};
use crate::device_service::{DevicePage, DeviceService, DeviceServiceError, DeviceView};
use crate::endpoint::{Endpoint, EndpointScope, get};
use crate::objects::{BackendObjectKind, ObjectBackend};
use crate::problem_details::{ApiResult, ProblemDetails};
use crate::state::ApiState;

/// Counting stops when this many devices are counted.
const MAX_COUNTED: usize = 1_000_000;
/// Number of devices read at once.
const PAGE_DEVICES: usize = 1000;

/// Number of devices in a group.
#[derive(Serialize, JsonSchema)]
struct GroupCounts {
    device_group: String,
    devices: usize,
    online: usize,
    /// Whether counting stopped at a limit and there are more.
    is_truncated: bool,
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    let one = |endpoint: Endpoint| {
        endpoint
            .role(
                Role::Viewer,
                EndpointScope::object(BackendObjectKind::DeviceGroup, "id"),
            )
            .tag("devices")
            .path_parameter("id", "The group's id, percent-encoded.")
    };
    vec![
        one(get(
            "/api/v1/device-groups/{id}/devices",
            "listDevicesOfGroup",
            list_devices,
        ))
        .summary("List devices of a group")
        .description(
            "In the order of creation. A page may be short or empty and still have a next one.",
        )
        .paged::<DeviceView>(),
        one(get(
            "/api/v1/device-groups/{id}/counts",
            "countDevicesOfGroup",
            counts,
        ))
        .summary("Count devices of a group")
        .response::<GroupCounts>(200, "Now."),
    ]
}

/// The groups and their devices.
pub(super) struct DeviceGroups {
    objects: Objects,
    declared: Arc<dyn ObjectBackend>,
    devices: DeviceService,
}

impl DeviceGroups {
    fn load(&self, id: &str) -> Result<GroupDefinition, DeviceServiceError> {
        let unavailable =
            |error: &dyn std::fmt::Display| DeviceServiceError::Unavailable(format!("{error}."));
        let mut declared = self
            .declared
            .declared(BackendObjectKind::DeviceGroup)
            .into_iter();
        if let Some(declared) = declared.find(|declared| declared.id == id) {
            return GroupDefinition::read(&declared.value).map_err(|error| unavailable(&error));
        }
        let object = self.objects.get(group::KIND, id);
        let object = object
            .map_err(|error| unavailable(&error))?
            .ok_or_else(|| group_not_found(id))?;
        GroupDefinition::read(&object.value).map_err(|error| unavailable(&error))
    }

    pub(super) fn new(app: &ApiState) -> Self {
        Self {
            objects: app.objects.clone(),
            declared: app.object_backend.clone(),
            devices: app.devices.clone(),
        }
    }

    pub(super) fn namespace_of(&self, id: &str) -> Result<String, DeviceServiceError> {
        Ok(self.load(id)?.namespace)
    }

    /// The devices of a group, as in the list of all devices.
    fn devices(
        &self,
        group: &str,
        from: u32,
        limit: usize,
    ) -> Result<DevicePage, DeviceServiceError> {
        let group = self.load(group)?;
        let page = group.members(self.devices.registry(), DeviceNo(from), limit)?;
        self.devices.device_page(page)
    }

    fn counts(&self, id: &str) -> Result<GroupCounts, DeviceServiceError> {
        let definition = self.load(id)?;
        let (mut devices, mut online, mut from) = (0, 0, DeviceNo(0));
        let is_truncated = loop {
            let page = definition.members(self.devices.registry(), from, PAGE_DEVICES)?;
            devices += page.devices.len();
            for device in &page.devices {
                online += usize::from(self.devices.state_of(device)? == DeviceState::Online);
            }
            match page.next {
                None => break false,
                Some(_) if devices >= MAX_COUNTED => break true,
                Some(next) => from = next,
            }
        };
        Ok(GroupCounts {
            device_group: id.to_owned(),
            devices,
            online,
            is_truncated,
        })
    }

    /// The ids of all devices of a group of these namespaces; an error if there are too many for
    /// one query.
    pub(super) fn members(
        &self,
        id: &str,
        namespaces: &NamespaceSelection,
    ) -> Result<Vec<String>, DeviceServiceError> {
        let (all, are_more) = self.first_members(id, namespaces, group::MAX_MEMBERS)?;
        if are_more {
            return Err(DeviceServiceError::Field {
                field: "group".to_owned(),
                detail: format!(
                    "the group {id:?} has more than {} devices, which is the limit of a query",
                    group::MAX_MEMBERS
                ),
            });
        }
        Ok(all)
    }

    /// Passes the ids of all devices of a group to `each` in the order of creation, until it breaks. Reads a page at a time, so that
    /// a group of any size needs little memory.
    pub(super) fn for_each_member<B>(
        &self,
        id: &str,
        mut each: impl FnMut(&str) -> ControlFlow<B>,
    ) -> Result<Option<B>, DeviceServiceError> {
        let group = self.load(id)?;
        let mut from = DeviceNo(0);
        loop {
            let page = group.members(self.devices.registry(), from, PAGE_DEVICES)?;
            for device in &page.devices {
                if let ControlFlow::Break(result) = each(device.id.as_str()) {
                    return Ok(Some(result));
                }
            }
            match page.next {
                None => return Ok(None),
                Some(next) => from = next,
            }
        }
    }

    /// The ids of at most `limit` devices of a group of these namespaces, and whether there are
    /// more.
    pub(super) fn first_members(
        &self,
        id: &str,
        namespaces: &NamespaceSelection,
        limit: usize,
    ) -> Result<(Vec<String>, bool), DeviceServiceError> {
        let group = self.load(id)?;
        if !namespaces.contains(&group.namespace) {
            return Err(group_not_found(id));
        }
        let (devices, are_more) = group.all_members(self.devices.registry(), limit)?;
        let ids = devices.iter().map(|device| device.id.to_string());
        Ok((ids.collect(), are_more))
    }
}

fn group_not_found(id: &str) -> DeviceServiceError {
    DeviceServiceError::NotFound(format!("There is no group of devices {id:?}."))
}

/// Runs a query on a thread that may read the disk.
pub(super) async fn run_blocking<T: Send + 'static>(
    app: &ApiState,
    question: impl FnOnce(&DeviceGroups) -> Result<T, DeviceServiceError> + Send + 'static,
) -> Result<T, ProblemDetails> {
    let groups = DeviceGroups::new(app);
    let result =
        blocking::run_blocking(move || question(&groups), "The devices cannot be read now.")
            .await?;
    result.map_err(devices::to_problem)
}

async fn list_devices(call: ApiCall) -> ApiResult {
    let from = call.query.after_number("devices")?.unwrap_or(0);
    let (group, limit) = (call.path("id").to_owned(), call.query.limit());
    let page = run_blocking(&call.app, move |groups| groups.devices(&group, from, limit)).await?;
    call::page_of(page.rows, page.next)
}

async fn counts(call: ApiCall) -> ApiResult {
    let group = call.path("id").to_owned();
    call::json_response(run_blocking(&call.app, move |groups| groups.counts(&group)).await?)
}
