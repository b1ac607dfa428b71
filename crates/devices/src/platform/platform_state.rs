//! The parts of the platform and its state.

use std::sync::{Arc, OnceLock};

use super::device_connections::DeviceConnections;
use super::device_job_queue::DeviceJobQueue;
use super::product_numbers::ProductNumbers;
use super::provisioning_attempts::ProvisioningAttempts;
use super::registration_log::RegistrationLog;
use crate::authenticator::DeviceAuthenticator;
use crate::chain::Chains;
use crate::command::EncodedDownlink;
use crate::ingest::{Pipeline, PipelineOutputs};
use crate::live::LiveTelemetry;
use crate::presence::DeviceStates;
use crate::registry::Registry;

/// Sends messages to clients, and disconnects them.
pub trait ClientMessenger: Send + Sync {
    /// Never waits.
    fn send(&self, client_id: &str, message: EncodedDownlink);

    /// Ends the connections of clients. Never waits.
    fn disconnect(&self, client_ids: &[Box<str>]);
}

/// Creates products. May wait.
pub trait ProductFactory: Send + Sync {
    /// Returns whether the product was created; the registry knows it then.
    fn create(&self, id: &str, product: &serde_json::Value) -> bool;
}

/// The parts of the platform.
pub struct PlatformParts {
    pub registry: Registry,
    pub directory: Arc<DeviceAuthenticator>,
    pub states: DeviceStates,
    pub live: Arc<LiveTelemetry>,
    pub chains: Chains,
    /// Other consumers: rules, sinks, alarms.
    pub outputs: Arc<dyn PipelineOutputs>,
    pub messenger: Arc<dyn ClientMessenger>,
    pub registration_log: Arc<dyn RegistrationLog>,
    /// Whether a gateway may register devices by naming them in messages.
    pub may_gateways_register: bool,
    pub product_factory: Arc<dyn ProductFactory>,
    /// Maximum number of products created on behalf of gateways; 0 disables their creation.
    pub max_gateway_products: usize,
}

/// Clones share the platform.
#[derive(Clone)]
pub struct Platform {
    pub(super) inner: Arc<PlatformInner>,
}

pub(super) struct PlatformInner {
    pub(super) parts: PlatformParts,
    pub(super) product_numbers: ProductNumbers,
    pub(super) pipeline: OnceLock<Arc<Pipeline>>,
    pub(super) connections: DeviceConnections,
    pub(super) jobs: DeviceJobQueue,
    pub(super) provisioning_attempts: ProvisioningAttempts,
}

impl Platform {
    pub(super) fn registry(&self) -> &Registry {
        &self.inner.parts.registry
    }
}
