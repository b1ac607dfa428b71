//! The complete configuration of a node.

use std::collections::HashMap;
use std::path::PathBuf;

use api::HttpConfig;
use broker::config::{BrokerConfig, TlsConfig};
use serde_json::{Value, json};

use super::alarm_settings::AlarmSettings;
use super::backup_settings::BackupSettings;
use super::cluster_settings::ClusterSettings;
use super::config_error::ValueOrigin;
use super::damage_policy::DamagePolicy;
use super::ingest_settings::IngestSettings;
use super::object_tables::DeclaredObjects;
use super::product_tables::DeclaredProducts;
use super::runtime_settings::RuntimeSettings;
use super::simulation_settings::SimulationSettings;
use crate::logging::LogFormat;

/// The complete configuration of a node.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) broker: BrokerConfig,
    pub(crate) auth: auth::AuthSettings,
    pub(crate) rules: engine::RuleEngineSettings,
    pub(crate) devices: devices::RegistryConfig,
    pub(crate) telemetry: IngestSettings,
    pub(crate) alarms: AlarmSettings,
    pub(crate) commands: devices::command::CommandConfig,
    pub(crate) files: transfer::TransferSettings,
    pub(crate) link: link_gateway::LinkSettings,
    pub(crate) firmware: firmware::FirmwareSettings,
    pub(crate) simulations: SimulationSettings,
    /// `[[rule]]`: names and definitions in the form of the API.
    pub(crate) declared_rules: Vec<(String, Value)>,
    /// `[[connector]]`, `[[sink]]` and `[[source]]`, connectors first.
    pub(crate) declared_connectors: DeclaredObjects,
    /// `[[product]]`: ids and definitions in the form of the API.
    pub(crate) declared_products: DeclaredProducts,
    /// `[[namespace]]`, `[[rule_chain]]`, `[[device_group]]`, `[[endpoint]]`, `[[pull_source]]` and `[[notification]]`.
    pub(crate) declared_others: DeclaredObjects,
    /// The addresses that the node may connect to on behalf of objects.
    pub(crate) targets: outbound::target_policy::TargetPolicy,
    pub(crate) data_dir: PathBuf,
    /// `None`: sessions and messages are in memory only.
    pub(crate) store: Option<store::StoreConfig>,
    pub(crate) on_damage: DamagePolicy,
    pub(crate) backup: BackupSettings,
    /// `None`: the node is alone.
    pub(crate) cluster: Option<ClusterSettings>,
    /// The server that stores session queues instead of the store's log.
    pub(crate) queue: Option<(offline::QueueBackendKind, offline::QueueBackendOptions)>,
    /// `None`: HTTP is off.
    pub(crate) http: Option<HttpConfig>,
    /// `None`: HTTP is served without TLS.
    pub(crate) http_tls: Option<TlsConfig>,
    pub(crate) log_level: String,
    pub(crate) log_format: LogFormat,
    /// The file that was read, if any.
    pub(crate) file: Option<PathBuf>,
    /// Warnings about settings that are valid but probably unintended.
    pub(crate) warnings: Vec<String>,
    /// Every setting with its value and origin, as the API shows it.
    pub(crate) settings: Vec<api::SettingInfo>,
    /// Used to change settings at run time.
    pub(crate) running: RuntimeSettings,
    pub(super) origins: HashMap<String, ValueOrigin>,
    pub(super) declared_at: HashMap<(&'static str, String), ValueOrigin>,
}

/// What a configuration declares in tables besides settings.
#[derive(Clone)]
pub(crate) struct DeclaredDefinitions {
    /// By the name for logs.
    tables: [(&'static str, Value); 7],
}

impl DeclaredDefinitions {
    /// The names of what differs.
    pub(crate) fn differences<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = &'static str> {
        let pairs = self.tables.iter().zip(&other.tables);
        pairs
            .filter(|((_, one), (_, other))| one != other)
            .map(|((name, _), _)| *name)
    }
}

impl Config {
    /// What the configuration declares besides settings.
    pub(crate) fn declared_definitions(&self) -> DeclaredDefinitions {
        DeclaredDefinitions {
            tables: [
                ("[[rule]]", json!(self.declared_rules)),
                (
                    "[[connector]], [[sink]] or [[source]]",
                    json!(self.declared_connectors.0),
                ),
                ("[[product]]", json!(self.declared_products.0)),
                ("tables of other objects", json!(self.declared_others.0)),
                ("[[auth.authenticator]]", json!(self.auth.authenticators)),
                ("[[auth.rule_source]]", json!(self.auth.rule_sources)),
                ("[[auth.rule]]", json!(self.auth.rules)),
            ],
        }
    }
}

/// A declared object. Its value may contain secrets.
#[derive(Clone)]
pub(crate) struct Declaration {
    pub(crate) kind: &'static str,
    pub(crate) id: String,
    pub(crate) value: Value,
    pub(crate) origin: ValueOrigin,
}

impl Config {
    /// All declared objects in their stored form.
    pub(crate) fn declared_objects(&self) -> Vec<Declaration> {
        let users = self.broker.users.iter().map(|user| {
            let value = json!({"scram": user.credential});
            (auth::objects::USER, user.username.clone(), value)
        });
        let authenticators = self.auth.authenticator_ids().into_iter();
        let authenticators = authenticators.zip(self.auth.authenticators.iter().cloned());
        let acl_rules = self.auth.rule_ids().into_iter();
        let acl_rules = acl_rules.zip(self.auth.rules.iter().cloned());
        let of = |kind| move |(id, value)| (kind, id, value);
        let objects = users
            .chain(authenticators.map(of(auth::objects::AUTHENTICATOR)))
            .chain(acl_rules.map(of(auth::objects::ACL_RULE)))
            .chain(
                self.declared_rules
                    .iter()
                    .cloned()
                    .map(of(engine::RULE_KIND)),
            )
            .chain((self.declared_products.0.iter().cloned()).map(of(devices::PRODUCT_KIND)))
            .chain(self.declared_connectors.iter().cloned())
            .chain(self.declared_others.iter().cloned());
        let declarations = objects.map(|(kind, id, value)| {
            let user_key = format!("user.{id}");
            let origin = match kind {
                auth::objects::USER => self.origins.get(&user_key),
                _ => self.declared_at.get(&(kind, id.clone())),
            };
            Declaration {
                origin: origin.unwrap_or(&ValueOrigin::Default).clone(),
                kind,
                id,
                value,
            }
        });
        declarations.collect()
    }

    /// The origin of a key's value (`listener.mqtt.bind`).
    pub(crate) fn origin(&self, key: &str) -> &ValueOrigin {
        self.origins.get(key).unwrap_or(&ValueOrigin::Default)
    }
}
