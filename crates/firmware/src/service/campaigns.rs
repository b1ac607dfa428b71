//! Campaigns over the API: creation, lists and actions.

use std::sync::Arc;

use devices::group::GroupDefinition;
use devices::{Device, DeviceNo};
use namespaces::NamespaceSelection;
use wall_clock::now_ms;

use super::FirmwareService;
use crate::campaign::{
    CampaignAction, CampaignDefinition, CampaignDeviceRow, CampaignError, CampaignInfo,
    FreedDevices, MAX_CAMPAIGN_DEVICES, assign_waves,
};
use crate::definition_error::DefinitionError;

impl FirmwareService {
    /// Begins a campaign.
    ///
    /// # Errors
    /// If a field is invalid, there is no such device, or a limit is reached.
    pub fn create_campaign(
        &self,
        definition: CampaignDefinition,
    ) -> Result<CampaignInfo, CampaignError> {
        let invalid = |field: &str, detail: String| {
            CampaignError::Invalid(DefinitionError::new(field, detail))
        };
        let namespace = definition.namespace.clone();
        let package = self.package(&definition.package);
        let package = package.filter(|package| package.namespace == namespace);
        let package = package.ok_or_else(|| {
            let id = &definition.package;
            invalid(
                "package",
                format!("there is no firmware package {id:?} in the namespace {namespace:?}"),
            )
        })?;
        let group = |field: &str, id: &str| {
            let group = self.inner.read_catalog().group(id).cloned();
            let group = group.filter(|group| group.namespace == namespace);
            group.ok_or_else(|| invalid(field, format!("there is no device group {id:?}")))
        };
        let mut waves = Vec::new();
        for (at, wave) in definition.waves.iter().enumerate() {
            if let Some(id) = &wave.group {
                waves.push((at as u16, group(&format!("waves[{at}].group"), id)?));
            }
        }
        let mut devices: Vec<Arc<Device>> = Vec::new();
        if definition.devices.is_empty() {
            let selected = match &definition.group {
                Some(id) => group("group", id)?,
                None => GroupDefinition {
                    namespace: namespace.clone(),
                    product: Some(package.product.clone()),
                    ..GroupDefinition::default()
                },
            };
            let (all, _) = selected.all_members(&self.inner.registry, MAX_CAMPAIGN_DEVICES + 1)?;
            devices = all;
        }
        for (at, id) in definition.devices.iter().enumerate() {
            let device = self.inner.registry.device(id)?;
            let device = device.filter(|device| device.is_in_namespace(&namespace));
            let device = device.filter(|device| device.product.id().as_str() == package.product);
            let device = device.ok_or_else(|| {
                let product = &package.product;
                invalid(
                    &format!("devices[{at}]"),
                    format!("there is no device {id:?} of the product {product:?}"),
                )
            })?;
            devices.push(device);
        }
        devices.retain(|device| device.product.id().as_str() == package.product);
        let wave_of = |device: &Device| {
            let mut waves = waves.iter();
            waves
                .find(|(_, group)| group.contains(device))
                .map(|(at, _)| *at)
        };
        let devices = assign_waves(&definition, &devices, wave_of);
        let campaigns = &self.inner.campaigns;
        let created = campaigns.create(definition, package.kind, devices, now_ms())?;
        self.share_campaigns();
        Ok(created)
    }

    /// Tells other nodes of the progress of campaigns.
    pub(crate) fn share_campaigns(&self) {
        let inner = &self.inner;
        inner.share_change(|sharing| sharing.set_campaigns(inner.campaigns.take_changed()));
    }

    /// The nodes of a cluster that have a campaign of this number, as far as this node knows; more than one only if they had
    /// it before they became a cluster.
    #[must_use]
    pub fn campaign_nodes(&self, id: u32) -> Vec<String> {
        let sharing = self.inner.sharing();
        let known = sharing.map(|sharing| sharing.campaigns_of_number(id));
        let known = known.unwrap_or_default().into_iter();
        known.filter_map(|info| info.node).collect()
    }

    /// A campaign of this node, or what another node last told of its campaign: without the ids of its devices.
    #[must_use]
    pub fn known_campaign(&self, id: u32) -> Option<CampaignInfo> {
        self.campaign(id).or_else(|| {
            let known = self.inner.sharing()?.campaigns_of_number(id);
            known.into_iter().next()
        })
    }

    /// Campaigns of these namespaces, the newest first.
    #[must_use]
    pub fn campaigns(&self, namespaces: &NamespaceSelection) -> Vec<CampaignInfo> {
        self.inner.campaigns.list(namespaces)
    }

    #[must_use]
    pub fn campaign(&self, id: u32) -> Option<CampaignInfo> {
        self.inner.campaigns.get(id)
    }

    /// Up to `limit` devices of a campaign, and the position of the next ones.
    ///
    /// # Errors
    /// If there is no such campaign, or the registry cannot be read.
    pub fn campaign_devices(
        &self,
        id: u32,
        from: DeviceNo,
        limit: usize,
    ) -> Result<(Vec<CampaignDeviceRow>, Option<DeviceNo>), CampaignError> {
        let mut found = self.inner.campaigns.devices(id, from, limit + 1)?;
        let next = found.get(limit).map(|(no, _)| *no);
        found.truncate(limit);
        let mut rows = Vec::with_capacity(found.len());
        for (no, device) in found {
            let known = self.inner.registry.by_no(no)?;
            rows.push(CampaignDeviceRow {
                device: match (known, device.deleted_id) {
                    (Some(known), _) => known.id.to_string(),
                    (None, deleted) => deleted.unwrap_or_default(),
                },
                wave: device.wave,
                state: device.state,
                attempts: device.attempts,
                changed_at_ms: device.changed_at_ms,
                error: device.error,
            });
        }
        Ok((rows, next))
    }

    /// Pauses, resumes or cancels a campaign.
    ///
    /// # Errors
    /// If there is no such campaign, or its state does not permit it.
    pub fn act_on_campaign(
        &self,
        id: u32,
        action: CampaignAction,
    ) -> Result<CampaignInfo, CampaignError> {
        let (info, freed) = self.inner.campaigns.act(id, action, now_ms())?;
        self.free_devices(id, freed);
        self.share_campaigns();
        Ok(info)
    }

    /// Deletes a campaign that has ended. Its devices install what is assigned to them.
    ///
    /// # Errors
    /// If there is no such campaign, or it has not ended.
    pub fn delete_campaign(&self, id: u32) -> Result<CampaignInfo, CampaignError> {
        let (info, freed) = self.inner.campaigns.delete(id)?;
        self.free_devices(id, freed);
        (self.inner).share_change(|sharing| sharing.remove_campaign(id));
        Ok(info)
    }

    fn free_devices(&self, id: u32, freed: FreedDevices) {
        let FreedDevices { kind, devices } = freed;
        (self.inner).share_change(|sharing| sharing.remove_targets(id, kind, &devices));
        self.examine_all(devices);
    }

    /// A campaign that prevents the removal of a package, and its node if that is another one.
    #[must_use]
    pub fn campaign_of_package(&self, package: &str) -> Option<(u32, Option<String>)> {
        let own = self.inner.campaigns.uses_package(package);
        own.map(|id| (id, None)).or_else(|| {
            let (id, node) = self.inner.sharing()?.campaign_of_package(package)?;
            Some((id, Some(node)))
        })
    }
}
