//! Firmware packages of a simulation on a node, and the campaigns that install them.
//!
//! A package that no phase installs by a campaign is assigned to its product. Packages that a simulation has created carry
//! [`MARK`] in their notes, and only those are removed.

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};
use load_client::node_api::NodeApi;
use outbound::url_encoding::url_encode;
use serde_json::{Map, Value, json};

use crate::creation_mark::MARK;
use crate::definition::{FirmwareDefinition, SimulationDefinition};
use crate::random::RandomKey;
use crate::setup_mode::SetupMode;

const PACKAGES: &str = "/api/v1/firmware";
const ASSIGNMENTS: &str = "/api/v1/firmware-assignments";
const CAMPAIGNS: &str = "/api/v1/firmware-campaigns";

/// The packages of a simulation.
#[derive(Debug)]
pub(crate) struct FirmwareSetup<'a> {
    node: &'a NodeApi,
    definition: &'a SimulationDefinition,
    mode: SetupMode,
}

impl<'a> FirmwareSetup<'a> {
    pub(crate) fn new(
        node: &'a NodeApi,
        definition: &'a SimulationDefinition,
        mode: SetupMode,
    ) -> Self {
        Self {
            node,
            definition,
            mode,
        }
    }

    /// Creates all packages. The names of those created before an error are in `created`.
    pub(crate) fn create(&self, created: &mut Vec<String>) -> anyhow::Result<()> {
        for (name, firmware) in &self.definition.firmware {
            self.create_package(name, firmware)?;
            created.push(name.clone());
            let is_installed_by_phase = self
                .definition
                .phase
                .iter()
                .any(|phase| phase.campaign.as_ref() == Some(name));
            if !is_installed_by_phase {
                let id = package_id(name);
                let assignment = json!({"package": id, "product": firmware.product});
                self.node.create(&path(ASSIGNMENTS, &id), &assignment)?;
            }
        }
        Ok(())
    }

    fn create_package(&self, name: &str, firmware: &FirmwareDefinition) -> anyhow::Result<()> {
        let id = package_id(name);
        ensure!(
            self.node.get(&path(PACKAGES, &id))?.is_none(),
            "the firmware package `{id}` exists on the node; {}",
            self.mode.remedy()
        );
        let upload = format!("/api/v1/uploads/{}.bin", url_encode(&id));
        let file = self
            .node
            .upload(&upload, &image(self.definition.seed, firmware.bytes))
            .context("cannot upload the image of a firmware package")?;
        let mut package = json!({
            "id": id, "product": firmware.product, "title": firmware.title.as_ref().unwrap_or(&firmware.product),
            "firmware_version": firmware.version, "file": file["id"], "notes": MARK,
            "type": if firmware.software { "software" } else { "firmware" },
        });
        if let Some(algorithm) = &firmware.digest_algorithm {
            package["digest_algorithm"] = json!(algorithm);
        }
        let created = self.node.request_json("POST", PACKAGES, Some(&package));
        if created.is_err() {
            self.delete_file(&file["id"])?;
        }
        created.map(drop)
    }

    /// Removes packages with their campaigns and files. After a failure, the others are removed, too.
    pub(crate) fn remove(&self, names: impl Iterator<Item = &'a String>) -> anyhow::Result<u64> {
        let mut removed = 0;
        let mut first_error = None;
        for name in names {
            match self.remove_package(name) {
                Ok(is_removed) => removed += u64::from(is_removed),
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        first_error.map_or(Ok(removed), Err)
    }

    /// Removes a package that a simulation has created; `false`: there is none.
    fn remove_package(&self, name: &str) -> anyhow::Result<bool> {
        let id = package_id(name);
        let package = self.node.get(&path(PACKAGES, &id))?;
        let Some(package) = package.filter(|package| package["notes"] == MARK) else {
            return Ok(false);
        };
        self.remove_campaigns(&id)?;
        self.node.delete(&path(ASSIGNMENTS, &id))?;
        ensure!(
            self.node.delete(&path(PACKAGES, &id))?,
            "the node keeps the firmware package `{id}`, since it is still assigned"
        );
        self.delete_file(&package["file"])?;
        Ok(true)
    }

    /// Removes what earlier runs of the file have left.
    pub(crate) fn clean(&self) -> anyhow::Result<u64> {
        self.remove(self.definition.firmware.keys())
    }

    fn remove_campaigns(&self, package: &str) -> anyhow::Result<()> {
        let campaigns = self.node.get(CAMPAIGNS)?.unwrap_or_default();
        let campaigns = campaigns["data"].as_array().into_iter().flatten();
        for campaign in campaigns.filter(|campaign| campaign["package"] == package) {
            let campaign_path = format!("{CAMPAIGNS}/{}", campaign["id"]);
            if campaign["status"] != "completed" && campaign["status"] != "cancelled" {
                let cancel = format!("{campaign_path}/cancel");
                self.node.request_json("POST", &cancel, None)?;
            }
            self.node.delete(&campaign_path)?;
        }
        Ok(())
    }

    fn delete_file(&self, id: &Value) -> anyhow::Result<()> {
        if let Some(id) = id.as_str() {
            self.node.delete(&path("/api/v1/files", id))?;
        }
        Ok(())
    }
}

/// Begins the campaigns of phases, and reports how far they are.
#[derive(Debug)]
pub(crate) struct CampaignRunner {
    node: NodeApi,
    /// Bodies of the requests, by the names of packages.
    campaigns: BTreeMap<String, Value>,
}

/// How far a campaign is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct CampaignCounts {
    pub(crate) succeeded: u64,
    pub(crate) failed: u64,
    /// Whether the node notifies no more devices.
    pub(crate) is_ended: bool,
}

impl CampaignRunner {
    pub(crate) fn new(node: NodeApi, definition: &SimulationDefinition) -> Self {
        let campaigns = definition.firmware.iter().map(|(name, firmware)| {
            let mut campaign = Map::new();
            // A simulation is not limited unless it says so.
            campaign.insert("max_devices_per_minute".to_owned(), json!(0));
            campaign.extend(firmware.campaign.clone());
            campaign.insert("package".to_owned(), json!(package_id(name)));
            campaign.insert("description".to_owned(), json!(MARK));
            (name.clone(), Value::Object(campaign))
        });
        Self {
            campaigns: campaigns.collect(),
            node,
        }
    }

    /// Begins the campaign of a package; returns its number.
    pub(crate) fn begin(&self, package: &str) -> anyhow::Result<u64> {
        let body = self.campaigns.get(package);
        let begun = self.node.request_json("POST", CAMPAIGNS, body);
        let begun = begun.with_context(|| format!("cannot begin the campaign of `{package}`"))?;
        begun["id"]
            .as_u64()
            .context("the node has given the campaign no number")
    }

    pub(crate) fn counts(&self, campaign: u64) -> anyhow::Result<CampaignCounts> {
        let campaign = self.node.get(&format!("{CAMPAIGNS}/{campaign}"))?;
        let campaign = campaign.context("the campaign of the phase has been deleted")?;
        let count = |name: &str| campaign["counts"][name].as_u64().unwrap_or(0);
        Ok(CampaignCounts {
            succeeded: count("succeeded"),
            failed: count("failed"),
            is_ended: campaign["status"] != "running",
        })
    }
}

fn package_id(name: &str) -> String {
    format!("simulate-{name}")
}

fn path(resource: &str, id: &str) -> String {
    format!("{resource}/{}", url_encode(id))
}

/// Letters without a short period, so that lost and repeated chunks change the digest.
fn image(seed: u64, bytes: u32) -> String {
    let key = RandomKey::of_device(seed, u32::MAX, u32::MAX);
    let letters = (0..u64::from(bytes)).map(|at| (b'a' + key.below(at, 26) as u8) as char);
    letters.collect()
}
