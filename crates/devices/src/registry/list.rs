//! Lists devices by common properties, one page at a time.

use std::ops::Bound;
use std::sync::Arc;

use namespaces::NamespaceSelection;
use series::DeviceNo;

use super::keys::{DeviceIndexKey, no_at_end};
use super::{Registry, RegistryError};
use crate::device::Device;

/// Maximum number of records that one page examines; the next page continues there.
const MAX_SCANNED: usize = 20_000;

/// Selects devices; all given conditions must hold.
#[derive(Debug, Clone, Default)]
pub struct DeviceFilter<'a> {
    pub product: Option<&'a str>,
    pub group: Option<&'a str>,
    pub tag: Option<(&'a str, &'a str)>,
    /// The gateway in front of the devices.
    pub parent: Option<DeviceNo>,
    /// Part of the id or the name.
    pub text: Option<&'a str>,
    pub namespaces: NamespaceSelection,
}

/// One page of devices.
#[derive(Debug, Default)]
pub struct DeviceListPage {
    pub devices: Vec<Arc<Device>>,
    /// Start of the next page, if there may be one. A short or empty page may still have a next one.
    pub next: Option<DeviceNo>,
}

impl<'a> DeviceFilter<'a> {
    /// The key that is likely to match the fewest devices.
    fn most_selective_key(&self) -> Option<DeviceIndexKey<'a>> {
        let parent = self.parent.map(DeviceIndexKey::Parent);
        let tag = self.tag.map(|(key, value)| DeviceIndexKey::Tag(key, value));
        let group = self.group.map(DeviceIndexKey::Group);
        let product = self.product.map(DeviceIndexKey::Product);
        parent.or(group).or(tag).or(product)
    }

    fn matches(&self, device: &Device) -> bool {
        let has = |wanted: Option<&str>, found: Option<&str>| wanted.is_none() || wanted == found;
        let text = |text: &str| {
            let is_in = |whole: &str| whole.to_lowercase().contains(&text.to_lowercase());
            is_in(device.id.as_str()) || is_in(&device.name)
        };
        has(self.product, Some(device.product.id().as_str()))
            && has(self.group, device.group.as_deref())
            && self
                .tag
                .is_none_or(|(key, value)| device.tag(key) == Some(value))
            && (self.parent.is_none() || self.parent == device.parent)
            && self.text.is_none_or(text)
            && self.namespaces.contains(device.product.get().namespace())
    }
}

impl Registry {
    /// Returns devices from number `from` on, in the order of their numbers, which is the order of creation. `also`
    /// is an additional filter.
    pub fn list(
        &self,
        filter: &DeviceFilter<'_>,
        from: DeviceNo,
        limit: usize,
        also: &mut dyn FnMut(&Device) -> bool,
    ) -> Result<DeviceListPage, RegistryError> {
        let inner = &*self.inner;
        // Most namespaces have few products; one alone is found by its index.
        let products = match &filter.namespaces {
            NamespaceSelection::All => Vec::new(),
            NamespaceSelection::Only(_) => self.product_ids(&filter.namespaces),
        };
        let own_product = match &products[..] {
            [only] => Some(DeviceIndexKey::Product(only)),
            _ => None,
        };
        let (table, prefix) = match filter.most_selective_key().or(own_product) {
            Some(narrowest) => (&inner.index, narrowest.prefix()),
            None => (&inner.devices, Vec::new()),
        };
        let start = [&prefix[..], &from.0.to_be_bytes()].concat();
        let mut page = DeviceListPage::default();
        let mut scanned = 0;
        let is_index = !prefix.is_empty();
        let mut failed = None;
        table.scan(&prefix, Bound::Included(&start), &mut |key, value| {
            let Some(no) = no_at_end(key) else {
                return true;
            };
            if page.devices.len() == limit || scanned == MAX_SCANNED {
                page.next = Some(no);
                return false;
            }
            scanned += 1;
            let device = match inner.cache.get(no) {
                Some(device) => Some(device),
                None if is_index => match inner.load_device_uncached(no) {
                    Ok(device) => device.map(Arc::new),
                    Err(error) => {
                        failed = Some(error);
                        return false;
                    }
                },
                None => Device::decode(no, value, |id| inner.product(id)).map(Arc::new),
            };
            if let Some(device) = device
                && filter.matches(&device)
                && also(&device)
            {
                page.devices.push(device);
            }
            true
        })?;
        match failed {
            Some(error) => Err(error),
            None => Ok(page),
        }
    }

    /// The ids of products in these namespaces, in their order.
    #[must_use]
    pub fn product_ids(&self, namespaces: &NamespaceSelection) -> Vec<String> {
        let products = self.products();
        let products = products.iter();
        let selected = products.filter(|slot| namespaces.contains(slot.get().namespace()));
        selected.map(|slot| slot.id().to_string()).collect()
    }

    /// Returns the child devices of a gateway.
    pub fn children(
        &self,
        parent: DeviceNo,
        limit: usize,
    ) -> Result<DeviceListPage, RegistryError> {
        let filter = DeviceFilter {
            parent: Some(parent),
            ..DeviceFilter::default()
        };
        self.list(&filter, DeviceNo(0), limit, &mut |_| true)
    }
}
