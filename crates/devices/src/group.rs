//! Groups of devices: an explicit list, a selector over common properties, or both.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use series::DeviceNo;

use crate::device::Device;
use crate::registry::{DeviceFilter, DeviceListPage, Registry, RegistryError};

/// The kind of the configuration objects that define groups.
pub const KIND: &str = "device_group";
/// Maximum number of groups of a node.
pub const MAX_GROUPS: usize = 10_000;
/// Maximum number of devices in one request about a group.
pub const MAX_MEMBERS: usize = 10_000;
const MAX_TAGS: usize = 16;
const MAX_TEXT_CHARS: usize = 256;

/// Members of a group: the devices listed in `devices`, and all devices that match `product`, `group` and `tags`
/// (those that are set).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GroupDefinition {
    /// Display name; default: the id.
    #[schemars(length(max = 256))]
    pub name: String,
    #[schemars(length(max = 1000))]
    pub description: String,
    /// Namespace of the group; members are devices of this namespace. Cannot change.
    #[schemars(length(min = 1, max = 64))]
    pub namespace: String,
    /// Ids of devices that always belong to the group.
    #[schemars(with = "Vec<String>", length(max = 10_000))]
    pub devices: BTreeSet<String>,
    /// Id of the product that members must have.
    #[schemars(length(max = 256))]
    pub product: Option<String>,
    /// Value of the `group` field that members must have.
    #[schemars(length(max = 256))]
    pub group: Option<String>,
    /// Tags that members must all have.
    #[schemars(extend("maxProperties" = 16))]
    pub tags: BTreeMap<String, String>,
}

impl Default for GroupDefinition {
    fn default() -> Self {
        Self {
            name: String::new(),
            description: String::new(),
            namespace: namespaces::default_id(),
            devices: BTreeSet::new(),
            product: None,
            group: None,
            tags: BTreeMap::new(),
        }
    }
}

/// A field of a group with an invalid value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {detail}")]
pub struct GroupDefinitionError {
    /// Path of the field; empty: the group as a whole.
    pub field: String,
    pub detail: String,
}

impl GroupDefinition {
    /// # Errors
    /// Returns the path of the invalid field and what is wrong with it.
    pub fn read(value: &Value) -> Result<Self, GroupDefinitionError> {
        let invalid = |field: &str, detail: String| GroupDefinitionError {
            field: field.to_owned(),
            detail,
        };
        let read: Result<Self, _> = definition::read_definition(value);
        let group = read.map_err(|error| invalid(&error.field, error.detail))?;
        if group.devices.len() > MAX_MEMBERS {
            let detail = format!("expected at most {MAX_MEMBERS} devices; use a tag or a product");
            return Err(invalid("devices", detail));
        }
        if group.tags.len() > MAX_TAGS {
            return Err(invalid("tags", format!("expected at most {MAX_TAGS} tags")));
        }
        let texts = [
            ("name", Some(&group.name), MAX_TEXT_CHARS),
            ("description", Some(&group.description), 1000),
            ("product", group.product.as_ref(), MAX_TEXT_CHARS),
            ("group", group.group.as_ref(), MAX_TEXT_CHARS),
        ];
        let texts = texts.into_iter();
        let texts = texts.filter_map(|(field, text, most)| Some((field, text?, most)));
        let ids = group
            .devices
            .iter()
            .map(|id| ("devices", id, MAX_TEXT_CHARS));
        let tags = group.tags.iter().flat_map(|(key, value)| [key, value]);
        let tags = tags.map(|text| ("tags", text, MAX_TEXT_CHARS));
        for (field, text, most) in texts.chain(ids).chain(tags) {
            if text.chars().count() > most {
                return Err(invalid(
                    field,
                    format!("expected at most {most} characters"),
                ));
            }
        }
        Ok(group)
    }

    /// Whether devices are members by their properties.
    fn has_selector(&self) -> bool {
        self.product.is_some() || self.group.is_some() || !self.tags.is_empty()
    }

    /// Whether a device is a member.
    #[must_use]
    pub fn contains(&self, device: &Device) -> bool {
        let is = |wanted: &Option<String>, value: Option<&str>| {
            wanted.is_none() || wanted.as_deref() == value
        };
        let is_selected = || {
            let mut tags = self.tags.iter();
            self.has_selector()
                && is(&self.product, Some(device.product.id().as_str()))
                && is(&self.group, device.group.as_deref())
                && tags.all(|(key, value)| device.tag(key) == Some(value))
        };
        device.is_in_namespace(&self.namespace)
            && (self.devices.contains(device.id.as_str()) || is_selected())
    }

    /// Returns the devices of the group in the order of their numbers, from `from` on. A short page does not mean
    /// that it is the last one.
    ///
    /// # Errors
    /// Fails if the registry cannot be read.
    pub fn members(
        &self,
        registry: &Registry,
        from: DeviceNo,
        limit: usize,
    ) -> Result<DeviceListPage, RegistryError> {
        let mut page = DeviceListPage::default();
        if self.has_selector() {
            let filter = DeviceFilter {
                product: self.product.as_deref(),
                group: self.group.as_deref(),
                tag: (self.tags.iter().next()).map(|(key, value)| (key.as_str(), value.as_str())),
                ..DeviceFilter::default()
            };
            let has_all = &mut |device: &Device| {
                let mut tags = self.tags.iter();
                tags.all(|(key, value)| device.tag(key) == Some(value))
                    && device.is_in_namespace(&self.namespace)
            };
            page = registry.list(&filter, from, limit, has_all)?;
        }
        let mut named: Vec<Arc<Device>> = Vec::new();
        for id in &self.devices {
            // A removed or not yet created device is not a member.
            named.extend(registry.device(id)?);
        }
        let is_here = |device: &Arc<Device>| {
            device.no >= from
                && page.next.is_none_or(|next| device.no < next)
                && device.is_in_namespace(&self.namespace)
        };
        named.retain(is_here);
        page.devices.append(&mut named);
        page.devices.sort_unstable_by_key(|device| device.no);
        page.devices.dedup_by_key(|device| device.no);
        if let Some(first_left) = page.devices.get(limit) {
            page.next = Some(first_left.no);
            page.devices.truncate(limit);
        }
        Ok(page)
    }

    /// Returns all devices of the group up to a limit, and whether there are more.
    ///
    /// # Errors
    /// Fails if the registry cannot be read.
    pub fn all_members(
        &self,
        registry: &Registry,
        most: usize,
    ) -> Result<(Vec<Arc<Device>>, bool), RegistryError> {
        let (mut all, mut from) = (Vec::new(), DeviceNo(0));
        loop {
            let page = self.members(registry, from, most - all.len())?;
            all.extend(page.devices);
            match page.next {
                None => return Ok((all, false)),
                Some(_) if all.len() >= most => return Ok((all, true)),
                Some(next) => from = next,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{NewDevice, RegistryConfig, WritePrecondition};

    #[test]
    fn members_are_the_listed_devices_and_all_matching_ones() {
        let directory = tempfile::tempdir().unwrap();
        let (store, _) =
            store::Store::open(directory.path(), store::StoreConfig::default()).unwrap();
        let objects = store.objects();
        for product in ["a", "b"] {
            let put = objects.put(
                crate::PRODUCT_KIND,
                product,
                json!({}),
                store::ExpectedVersion::Absent,
            );
            put.unwrap();
        }
        let registry = Registry::open(objects, RegistryConfig::default()).unwrap();
        for number in 0..20 {
            let product = if number % 2 == 0 { "a" } else { "b" };
            let device = json!({
                "id": format!("d{number:02}"), "product": product,
                "tags": {"floor": (number % 3).to_string(), "side": "west"},
            });
            let device: NewDevice = serde_json::from_value(device).unwrap();
            registry.put(device, WritePrecondition::Absent).unwrap();
        }
        let ids = |group: Value, page: usize| {
            let group = GroupDefinition::read(&group).unwrap();
            for number in 0..20 {
                let device = registry.device(&format!("d{number:02}")).unwrap().unwrap();
                let (all, _) = group.all_members(&registry, MAX_MEMBERS).unwrap();
                let is_listed = all.iter().any(|member| member.no == device.no);
                assert_eq!(group.contains(&device), is_listed, "{}", device.id);
            }
            let (mut ids, mut from) = (Vec::new(), DeviceNo(0));
            loop {
                let page = group.members(&registry, from, page).unwrap();
                ids.extend(page.devices.iter().map(|device| device.id.to_string()));
                match page.next {
                    Some(next) => from = next,
                    None => return ids.join(" "),
                }
            }
        };
        for page in [1, 2, 3, 100] {
            assert_eq!(ids(json!({}), page), "");
            assert_eq!(
                ids(json!({"devices": ["d19", "none", "d01"]}), page),
                "d01 d19"
            );
            let group = json!({"product": "a", "tags": {"floor": "0", "side": "west"}});
            assert_eq!(ids(group, page), "d00 d06 d12 d18");
            let group =
                json!({"devices": ["d01", "d06", "d19"], "product": "a", "tags": {"floor": "0"}});
            assert_eq!(ids(group, page), "d00 d01 d06 d12 d18 d19");
        }
        let foreign = json!({"namespace": "acme", "devices": ["d01"], "tags": {"floor": "0"}});
        assert_eq!(ids(foreign, 100), "", "devices of another namespace");
        let group = GroupDefinition::read(&json!({"product": "b"})).unwrap();
        let (some, are_more) = group.all_members(&registry, 4).unwrap();
        assert!(some.len() == 4 && are_more);
        let (all, are_more) = group.all_members(&registry, 10).unwrap();
        assert!(all.len() == 10 && !are_more);
    }

    #[test]
    fn group_errors_name_the_field() {
        let field = |group: Value| GroupDefinition::read(&group).unwrap_err().field;
        assert_eq!(field(json!({"devices": "d"})), "devices");
        assert_eq!(field(json!({"device": []})), "device");
        assert_eq!(field(json!({"name": "n".repeat(257)})), "name");
    }
}
