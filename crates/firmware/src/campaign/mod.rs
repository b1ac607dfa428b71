//! Campaigns: a package is installed on devices wave by wave.

mod definition;
mod run;
mod service;
mod store;

pub use definition::{CampaignDefinition, CampaignWave, CampaignWindow, MAX_CAMPAIGN_DEVICES};
pub use run::{CampaignCounts, CampaignDevice, CampaignDeviceState, CampaignStatus};
pub use service::{CampaignAction, CampaignDeviceRow, CampaignError, CampaignInfo};

pub(crate) use service::{CampaignTarget, CampaignTotals, Campaigns, FreedDevices, assign_waves};
