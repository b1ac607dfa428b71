//! The devices of the node: credentials for `auth`, and validation of products. Telemetry and
//! connection states are handled in `node_ingest`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use auth::{
    DeviceDirectory, DeviceIdentity, DeviceLogin, DeviceLookupResult, DevicePermissions,
    OwnedClientDevice,
};
use devices::{
    Device, DeviceAuthenticator, DeviceLookup, DeviceStates, PROVISION_REQUEST, PROVISION_RESPONSE,
    PresentedCredentials, Product, Registry, RegistryError,
};
use hooks::ClientAction;
use serde_json::Value;
use store::Store;
use wall_clock::now_ms;

/// Interval for writing last-seen times and detecting silent devices.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(1);
/// Interval for forgetting devices that were removed long ago. The start of the node does so too.
const FORGET_INTERVAL: Duration = Duration::from_secs(24 * 3600);

/// The device registry of the node and related services.
#[derive(Clone)]
pub(super) struct NodeDevices {
    pub(super) registry: Registry,
    pub(super) directory: Arc<DeviceAuthenticator>,
    pub(super) states: DeviceStates,
}

impl NodeDevices {
    /// Opens the registry, including the declared products.
    pub(super) fn open(
        store: &Store,
        config: devices::RegistryConfig,
        declared: &[(String, Value)],
    ) -> Result<Self, RegistryError> {
        let registry = Registry::open(store.objects(), config)?;
        for (id, product) in declared {
            if let Err(errors) = registry.declare(id, product) {
                for error in errors {
                    tracing::error!(id, %error, "declared product is invalid; ignored");
                }
            }
        }
        Ok(Self {
            directory: Arc::new(DeviceAuthenticator::new(registry.clone())?),
            states: DeviceStates::new(registry.clone()),
            registry,
        })
    }

    /// Marks silent devices as offline and writes last-seen times. Ends with the runtime.
    pub(super) async fn run_maintenance(self) {
        let mut forgotten = Instant::now();
        loop {
            tokio::time::sleep(MAINTENANCE_INTERVAL).await;
            let states = self.states.clone();
            let kept = tokio::task::spawn_blocking(move || {
                states.expire_inactive(now_ms());
                states.flush()
            });
            if let Ok(Err(error)) = kept.await {
                tracing::error!(%error, "writing the last-seen times of devices failed; retrying");
            }
            if forgotten.elapsed() >= FORGET_INTERVAL {
                forgotten = Instant::now();
                self.forget_removed_devices().await;
            }
        }
    }

    async fn forget_removed_devices(&self) {
        let registry = self.registry.clone();
        let forgotten =
            tokio::task::spawn_blocking(move || registry.forget_removed_devices(now_ms()));
        if let Ok(Err(error)) = forgotten.await {
            tracing::error!(%error, "removed devices could not be forgotten; tried again in a day");
        }
    }

    /// Validates a product and returns its stored form.
    pub(super) fn prepare_product(
        &self,
        id: &str,
        input: Value,
    ) -> Result<Value, api::ObjectValidationError> {
        let invalid = |error: &devices::ProductError| api::ObjectValidationError {
            field: match error.field.as_str() {
                "product" => String::new(),
                field => field.to_owned(),
            },
            detail: format!("{}.", error.message),
        };
        let product = Product::read(id, &input, 0).map_err(|errors| match &errors[..] {
            [] => api::ObjectValidationError {
                field: String::new(),
                detail: "The product is invalid.".to_owned(),
            },
            [only] => invalid(only),
            [first, others @ ..] => {
                let mut all = invalid(first);
                for other in others {
                    all.detail.push_str(&format!(" {other}."));
                }
                all
            }
        })?;
        let checked = self.registry.check_product(&product);
        checked.map_err(|error| invalid(&error))?;
        Ok(input)
    }

    /// Checks that the unique fields of this product are not used by another.
    pub(super) fn check_product_is_unique(
        &self,
        id: &str,
        stored: &Value,
    ) -> Result<(), api::ObjectValidationError> {
        // An invalid product was rejected before.
        let product = Product::read(id, stored, 0).ok();
        let owner = product
            .as_ref()
            .and_then(|product| self.registry.owner_of_key(product));
        let is_foreign = |owner: &str| {
            let owner = self.registry.product(owner);
            owner.is_some_and(|owner| {
                let namespace = product.as_ref().map(Product::namespace);
                namespace != Some(owner.get().namespace())
            })
        };
        match owner {
            None => Ok(()),
            // Products of other namespaces are not named.
            Some(owner) if is_foreign(owner.as_str()) => Err(api::ObjectValidationError {
                field: "provisioning.key".to_owned(),
                detail: "another product has this key already; choose another key.".to_owned(),
            }),
            Some(owner) => Err(api::ObjectValidationError {
                field: "provisioning.key".to_owned(),
                detail: format!(
                    "the product {:?} has this key already; choose another key.",
                    owner.as_str()
                ),
            }),
        }
    }
}

/// A schema without references.
pub(super) fn inline_schema<T: schemars::JsonSchema>() -> Value {
    let mut settings = schemars::generate::SchemaSettings::draft2020_12();
    settings.inline_subschemas = true;
    let generator = settings.into_generator();
    let schema = generator.into_root_schema_for::<T>();
    let mut schema = schema.to_value();
    if let Some(fields) = schema.as_object_mut() {
        fields.remove("$schema");
        fields.remove("title");
    }
    schema
}

struct RegisteredDevicePermissions(Arc<Device>);

impl DevicePermissions for RegisteredDevicePermissions {
    fn is_allowed(&self, action: &ClientAction<'_>) -> bool {
        match action {
            ClientAction::Publish { topic, .. } => self.0.may_publish(topic),
            ClientAction::Subscribe { filter, .. } => self.0.may_subscribe(filter),
        }
    }
}

struct ProvisioningPermissions;

impl DevicePermissions for ProvisioningPermissions {
    fn is_allowed(&self, action: &ClientAction<'_>) -> bool {
        match action {
            ClientAction::Publish { topic, .. } => *topic == PROVISION_REQUEST,
            ClientAction::Subscribe { filter, .. } => *filter == PROVISION_RESPONSE,
        }
    }
}

impl NodeDevices {
    fn presented_credentials<'a>(login: &DeviceLogin<'a>) -> PresentedCredentials<'a> {
        PresentedCredentials {
            client_id: login.client_id,
            username: login.username,
            password: login.password(),
            common_name: login.common_name,
            now_ms: now_ms(),
        }
    }

    fn lookup_result(
        &self,
        login: &DeviceLogin<'_>,
        shown: &PresentedCredentials<'_>,
        found: DeviceLookup,
    ) -> DeviceLookupResult {
        match found {
            DeviceLookup::NotADevice => DeviceLookupResult::NoDevice,
            DeviceLookup::Rejected => DeviceLookupResult::WrongCredentials,
            DeviceLookup::WouldBlock => DeviceLookupResult::NotInMemory,
            DeviceLookup::Provisioning => DeviceLookupResult::Device(Box::new(DeviceIdentity {
                name: None,
                attributes: Vec::new(),
                expires_at_ms: None,
                permissions: Arc::new(ProvisioningPermissions),
            })),
            DeviceLookup::Device(admission) => {
                let device = Arc::clone(&admission.device);
                let usage = self
                    .registry
                    .namespace_usage(device.product.get().namespace());
                // A device that is online usually replaces its connection.
                if usage.is_some_and(|usage| !usage.has_room_for_connection())
                    && !self.states.is_online(device.no)
                {
                    return DeviceLookupResult::QuotaExceeded;
                }
                let expires_at_ms = admission.expires_at_ms;
                self.directory.add_admission(login.peer, shown, admission);
                DeviceLookupResult::Device(Box::new(DeviceIdentity {
                    name: Some(OwnedClientDevice {
                        id: device.id.as_str().into(),
                        product: device.product.id().as_str().into(),
                    }),
                    attributes: vec![
                        ("deviceId".into(), device.id.as_str().into()),
                        ("productId".into(), device.product.id().as_str().into()),
                    ],
                    expires_at_ms,
                    permissions: Arc::new(RegisteredDevicePermissions(device)),
                }))
            }
        }
    }
}

impl DeviceDirectory for NodeDevices {
    fn may_be_device(&self, username: Option<&str>, common_name: Option<&str>) -> bool {
        self.directory.may_be_device(username, common_name)
    }

    fn find_in_memory(&self, login: &DeviceLogin<'_>) -> DeviceLookupResult {
        self.directory.remove_admission(login.peer, login.client_id);
        let shown = Self::presented_credentials(login);
        self.lookup_result(login, &shown, self.directory.find_in_memory(&shown))
    }

    fn find_on_disk(&self, login: &DeviceLogin<'_>) -> Result<DeviceLookupResult, String> {
        let shown = Self::presented_credentials(login);
        let found = self.directory.find_on_disk(&shown);
        let found = found.map_err(|error| error.to_string())?;
        Ok(self.lookup_result(login, &shown, found))
    }

    fn find_blocking(&self, login: &DeviceLogin<'_>) -> Result<DeviceLookupResult, String> {
        let shown = Self::presented_credentials(login);
        let found = self.directory.find_blocking(&shown);
        let found = found.map_err(|error| error.to_string())?;
        Ok(self.lookup_result(login, &shown, found))
    }
}
