//! The configuration. It is read from a file, the environment and flags by one table of settings, and validated as a
//! whole. Its reference is generated from the same table.

mod added_listener;
mod alarm_settings;
mod auth_tables;
mod backup_settings;
mod byte_size;
mod cluster_draft;
mod cluster_settings;
mod config_draft;
mod config_error;
mod config_table;
mod connector_tables;
mod damage_policy;
mod environment;
mod explain;
mod file;
mod ingest_settings;
mod node_config;
mod object_tables;
mod product_tables;
mod reference;
mod rule_tables;
mod runtime_settings;
mod setting_kind;
mod settings_table;
mod settings_view;
mod simulation_settings;
mod sources;
mod standby_use;
#[cfg(test)]
mod tests;
mod tls_files;
mod validation;

pub(crate) use added_listener::{
    DefinitionError, added_listener, certificates_of, check_certificate_file,
};
pub(crate) use alarm_settings::AlarmSettings;
pub(crate) use byte_size::parse_size;
pub(crate) use cluster_settings::{ClusterServers, ClusterSettings, ManagedServer};
pub(crate) use config_error::{ConfigErrors, ValueOrigin};
pub(crate) use damage_policy::DamagePolicy;
pub(crate) use explain::{UnknownSettingError, explain};
pub(crate) use ingest_settings::IngestSettings;
pub(crate) use node_config::{Config, Declaration, DeclaredDefinitions};
pub(crate) use reference::{markdown, toml_template};
pub(crate) use runtime_settings::RuntimeSettings;
pub(crate) use simulation_settings::SimulationSettings;
pub(crate) use sources::{ConfigSources, FlagValue, load};
pub(crate) use standby_use::StandbyUse;
