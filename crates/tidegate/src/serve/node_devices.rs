//! The devices of the node: credentials for `auth`, and lists and changes for the API. Telemetry
//! and connection states are handled in `node_ingest`.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use api::{
    AttributeNews, DeviceBackend, DeviceBackendError, DeviceEventQuery, DeviceExportPage,
    DevicePage, DeviceQuery, DeviceView,
};
use auth::{
    DeviceDirectory, DeviceIdentity, DeviceLogin, DeviceLookupResult, DevicePermissions,
    OwnedClientDevice,
};
use broker::hooks::ClientAction;
use devices::{
    AttributeScope, Device, DeviceAuthenticator, DeviceFilter, DeviceLookup, DeviceNo,
    DeviceStates, ImportFormat, ImportMode, NewDevice, PROVISION_REQUEST, PROVISION_RESPONSE,
    PresentedCredentials, Product, Registry, RegistryError, WritePrecondition,
};
use serde_json::{Map, Value, json};
use store::Store;
use tokio::sync::broadcast;

/// Interval for writing last-seen times and detecting silent devices.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(1);

/// The device registry of the node and related services.
#[derive(Clone)]
pub(super) struct NodeDevices {
    pub(super) registry: Registry,
    pub(super) directory: Arc<DeviceAuthenticator>,
    pub(super) states: DeviceStates,
    /// Attribute changes, for the API.
    pub(super) attribute_news: broadcast::Sender<Arc<AttributeNews>>,
}

pub(super) fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_millis() as u64
}

/// Maximum number of changes waiting for one subscriber of the API; after a loss it reads the
/// attributes again.
const MAX_WAITING_NEWS: usize = 1024;

fn attribute_news(registry: &Registry) -> broadcast::Sender<Arc<AttributeNews>> {
    let (news, _) = broadcast::channel(MAX_WAITING_NEWS);
    let told = news.clone();
    registry.add_attribute_observer(Box::new(move |change| {
        if told.receiver_count() == 0 {
            return;
        }
        let changed = change.changed.iter();
        let changed = changed.map(|(key, value)| (key.clone(), Some(value.clone())));
        let removed = change.removed.iter().map(|key| (key.clone(), None));
        let one = AttributeNews {
            device: change.device.id.to_string(),
            scope: match change.scope {
                AttributeScope::Client => "client",
                AttributeScope::Shared => "shared",
                AttributeScope::Server => "server",
            },
            values: changed.chain(removed).collect(),
            at_ms: now_ms(),
        };
        // Without subscribers the send fails, which is harmless.
        let _ = told.send(Arc::new(one));
    }));
    news
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
            attribute_news: attribute_news(&registry),
            directory: Arc::new(DeviceAuthenticator::new(registry.clone())?),
            states: DeviceStates::new(registry.clone()),
            registry,
        })
    }

    /// Marks silent devices as offline and writes last-seen times. Ends with the runtime.
    pub(super) async fn run_maintenance(self) {
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
        }
    }

    /// Validates a product and returns its stored form.
    pub(super) fn prepare_product(
        &self,
        id: &str,
        mut input: Value,
        current: Option<&Value>,
    ) -> Result<Value, api::ObjectValidationError> {
        // Omitted secrets keep their values.
        for (part, secret) in PRODUCT_SECRETS {
            if let Some(fields) = input.get_mut(part).and_then(Value::as_object_mut)
                && !fields.contains_key(secret)
                && let Some(kept) = current.and_then(|current| current.get(part)?.get(secret))
            {
                fields.insert(secret.to_owned(), kept.clone());
            }
        }
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
        match product.and_then(|product| self.registry.owner_of_key(&product)) {
            None => Ok(()),
            Some(owner) => Err(api::ObjectValidationError {
                field: "provisioning.key".to_owned(),
                detail: format!(
                    "the product {:?} has this key already; choose another key.",
                    owner.as_str()
                ),
            }),
        }
    }

    pub(super) fn product_view(stored: &Value) -> Value {
        let mut shown = stored.clone();
        for (part, secret) in PRODUCT_SECRETS {
            if let Some(fields) = shown.get_mut(part).and_then(Value::as_object_mut) {
                fields.remove(secret);
            }
        }
        shown
    }
}

/// Secret fields of products, which are not shown.
const PRODUCT_SECRETS: [(&str, &str); 2] = [("provisioning", "secret"), ("secure", "secure_key")];

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

/// JSON schemas of products as written and as shown.
pub(super) fn product_schemas() -> (Value, Value) {
    let mut schema = inline_schema::<devices::ProductDefinition>();
    let mut shown = schema.clone();
    for (part, secret) in PRODUCT_SECRETS {
        hide_secret_field(&mut schema, part, secret, false);
        hide_secret_field(&mut shown, part, secret, true);
    }
    (schema, shown)
}

/// A secret is optional in the written schema and absent from the shown one.
fn hide_secret_field(schema: &mut Value, part: &str, secret: &str, wholly: bool) {
    let part = &mut schema["properties"][part];
    let objects = match part.get_mut("anyOf") {
        Some(Value::Array(variants)) => variants.iter_mut().collect(),
        _ => vec![part],
    };
    for object in objects {
        if let Some(required) = object.get_mut("required").and_then(Value::as_array_mut) {
            required.retain(|name| name != secret);
        }
        if wholly
            && let Some(properties) = object.get_mut("properties").and_then(Value::as_object_mut)
        {
            properties.remove(secret);
        }
    }
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

pub(super) fn to_backend_error(error: RegistryError) -> DeviceBackendError {
    match error {
        RegistryError::NotFound { what: "device", id } => {
            DeviceBackendError::NotFound(format!("There is no device {id:?}."))
        }
        RegistryError::NotFound { what, .. } => DeviceBackendError::Field {
            field: what.to_owned(),
            detail: "there is none with this id".to_owned(),
        },
        RegistryError::Invalid { field, message } => DeviceBackendError::Field {
            field,
            detail: message,
        },
        RegistryError::Exists { .. }
        | RegistryError::NameTaken { .. }
        | RegistryError::HasChildren { .. }
        | RegistryError::Full { .. } => DeviceBackendError::Conflict(format!("{error}.")),
        RegistryError::Conflict { .. } => DeviceBackendError::Changed,
        other => DeviceBackendError::Unavailable(format!("{other}.")),
    }
}

fn device_version(device: &Device) -> u64 {
    u64::from(device.no.0) << 32 | u64::from(device.revision)
}

impl NodeDevices {
    pub(super) fn device_json(&self, device: &Device) -> Result<Value, RegistryError> {
        let written = self.registry.to_new_device(device)?;
        let presence = self.states.presence(device.no)?;
        Ok(json!({
            "id": written.id,
            "product": written.product,
            "name": written.name,
            "group": written.group,
            "tags": written.tags,
            "parent": written.parent,
            "enabled": written.enabled,
            "gateway": written.gateway,
            "credentials": self.registry.credentials_of(device),
            "state": presence.state.as_str(),
            "activated_at_ms": presence.activated_ms,
            "last_seen_at_ms": presence.last_seen_ms,
            "created_at_ms": device.created_ms,
            "version": device_version(device),
        }))
    }

    fn device_view(&self, device: &Device) -> Result<DeviceView, RegistryError> {
        Ok(DeviceView {
            value: self.device_json(device)?,
            version: device_version(device),
        })
    }

    fn require_device(&self, id: &str) -> Result<Arc<Device>, DeviceBackendError> {
        let device = self.registry.device(id).map_err(to_backend_error)?;
        device.ok_or_else(|| DeviceBackendError::NotFound(format!("There is no device {id:?}.")))
    }

    fn write_precondition(expected: Option<u64>) -> WritePrecondition {
        match expected {
            None => WritePrecondition::Any,
            Some(0) => WritePrecondition::Absent,
            Some(version) => WritePrecondition::Revision(version as u32),
        }
    }
}

fn parse_scope(name: &str) -> Result<AttributeScope, DeviceBackendError> {
    match name {
        "client" => Ok(AttributeScope::Client),
        "shared" => Ok(AttributeScope::Shared),
        "server" => Ok(AttributeScope::Server),
        _ => Err(DeviceBackendError::NotFound(
            "Attributes are client, shared or server ones.".to_owned(),
        )),
    }
}

fn import_format(name: &str) -> ImportFormat {
    match name {
        "csv" => ImportFormat::Csv,
        _ => ImportFormat::Jsonl,
    }
}

impl DeviceBackend for NodeDevices {
    fn events(&self, id: &str, query: &DeviceEventQuery) -> Result<Vec<Value>, DeviceBackendError> {
        let query = devices::DeviceEventFilter {
            event: query.event.clone(),
            from_ms: query.from_ms,
            to_ms: query.to_ms,
            before: query.before,
            limit: query.limit,
        };
        let events = self.registry.events(self.require_device(id)?.no, &query);
        let events = events.map_err(to_backend_error)?.into_iter();
        Ok(events.map(|event| json!(event)).collect())
    }

    fn list(&self, query: &DeviceQuery) -> Result<DevicePage, DeviceBackendError> {
        let parent = match &query.parent {
            None => None,
            Some(id) => match self.registry.device(id).map_err(to_backend_error)? {
                Some(parent) => Some(parent.no),
                None => return Ok(DevicePage::default()),
            },
        };
        let tag = query.tag.as_ref();
        let filter = DeviceFilter {
            product: query.product.as_deref(),
            group: query.group.as_deref(),
            tag: tag.map(|(key, value)| (key.as_str(), value.as_str())),
            parent,
            text: query.text.as_deref(),
        };
        let states: Option<Vec<&str>> = query.state.as_ref().map(|s| s.split(',').collect());
        let is_wanted = &mut |device: &Device| match &states {
            None => true,
            Some(states) => (self.states.presence(device.no))
                .is_ok_and(|presence| states.contains(&presence.state.as_str())),
        };
        let from = DeviceNo(query.from);
        let page = self.registry.list(&filter, from, query.limit, is_wanted);
        let page = page.map_err(to_backend_error)?;
        let rows = page.devices.iter().map(|device| self.device_json(device));
        Ok(DevicePage {
            rows: rows.collect::<Result<_, _>>().map_err(to_backend_error)?,
            next: page.next.map(|no| no.0),
        })
    }

    fn get(&self, id: &str) -> Result<Option<DeviceView>, DeviceBackendError> {
        let device = self.registry.device(id).map_err(to_backend_error)?;
        let shown = device.map(|device| self.device_view(&device));
        shown.transpose().map_err(to_backend_error)
    }

    fn id_for_name(&self, name: &str) -> String {
        devices::id_for_name(name).into_owned()
    }

    fn attribute_news(&self) -> broadcast::Receiver<Arc<AttributeNews>> {
        self.attribute_news.subscribe()
    }

    fn has_product(&self, id: &str) -> bool {
        self.registry.product(id).is_some()
    }

    fn put(
        &self,
        id: &str,
        mut device: Map<String, Value>,
        expected: Option<u64>,
    ) -> Result<(DeviceView, bool), DeviceBackendError> {
        if let Some(version) = expected.filter(|version| *version > 0) {
            let is_same = self.require_device(id)?.no.0 == (version >> 32) as u32;
            if !is_same {
                return Err(DeviceBackendError::Changed);
            }
        }
        device.insert("id".to_owned(), id.into());
        let device: NewDevice = serde_json::from_value(Value::Object(device)).map_err(|error| {
            DeviceBackendError::Field {
                field: String::new(),
                detail: format!(
                    "The body is invalid: {}.",
                    outbound::redaction::redact_quoted_texts(&error.to_string())
                ),
            }
        })?;
        let written = self
            .registry
            .put(device, Self::write_precondition(expected));
        let written = written.map_err(to_backend_error)?;
        let mut shown = self
            .device_view(&written.device)
            .map_err(to_backend_error)?;
        if !written.issued.is_empty() {
            shown.value["issued"] = json!(written.issued);
        }
        Ok((shown, written.was_created))
    }

    fn remove(&self, id: &str, expected: Option<u64>) -> Result<bool, DeviceBackendError> {
        let removed = self.registry.remove(id, Self::write_precondition(expected));
        removed.map_err(|error| match error {
            RegistryError::Invalid { message, .. } => {
                DeviceBackendError::Conflict(format!("{message}."))
            }
            other => to_backend_error(other),
        })
    }

    fn attributes(&self, id: &str, scope: &str) -> Result<Vec<Value>, DeviceBackendError> {
        let (device, scope) = (self.require_device(id)?, parse_scope(scope)?);
        let found = self
            .registry
            .attributes(&device, scope)
            .map_err(to_backend_error)?;
        Ok(found
            .into_iter()
            .map(|attribute| json!(attribute))
            .collect())
    }

    fn set_attributes(
        &self,
        id: &str,
        scope: &str,
        values: Map<String, Value>,
    ) -> Result<(), DeviceBackendError> {
        let (device, scope) = (self.require_device(id)?, parse_scope(scope)?);
        let values = values.into_iter().collect();
        self.registry
            .set_attributes(&device, scope, values)
            .map_err(to_backend_error)
    }

    fn claim(&self, id: &str, secret: &str, group: &str) -> Result<DeviceView, DeviceBackendError> {
        self.require_device(id)?;
        let claimed = self.registry.claim(id, secret, group, now_ms());
        let device = claimed.map_err(to_backend_error)?;
        self.device_view(&device).map_err(to_backend_error)
    }

    fn import(
        &self,
        text: &str,
        format: &str,
        creates_only: bool,
        first_line: u64,
    ) -> Result<Value, DeviceBackendError> {
        let mode = match creates_only {
            true => ImportMode::Create,
            false => ImportMode::Replace,
        };
        let imported = self
            .registry
            .import(text, import_format(format), mode, first_line)
            .map_err(to_backend_error)?;
        Ok(json!(imported))
    }

    fn export(
        &self,
        format: &str,
        from: u32,
        limit: usize,
    ) -> Result<DeviceExportPage, DeviceBackendError> {
        let format = import_format(format);
        let page = self
            .registry
            .list(&DeviceFilter::default(), DeviceNo(from), limit, &mut |_| {
                true
            })
            .map_err(to_backend_error)?;
        let mut text = devices::export_header(format).unwrap_or_default();
        for device in &page.devices {
            self.registry
                .export_line(device, format, &mut text)
                .map_err(to_backend_error)?;
        }
        Ok(DeviceExportPage {
            text,
            next: page.next.map(|no| no.0),
        })
    }

    fn counts(&self) -> Result<Value, DeviceBackendError> {
        let mut products = Map::new();
        for product in self.registry.products() {
            let id = product.id().as_str();
            let count = self.registry.count_of(id).map_err(to_backend_error)?;
            products.insert(id.to_owned(), count.into());
        }
        let (cached, hits, misses) = self.registry.cache_counts();
        Ok(json!({
            "devices": self.registry.count(),
            "online": self.states.online_count(),
            "products": products,
            "cached": cached,
            "cache_hits": hits,
            "cache_misses": misses,
        }))
    }
}
