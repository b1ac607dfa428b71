//! The devices of the node: clients that are devices to `auth`, lists and changes to the API. What they say and when they come is the matter of `ingest`.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use api::{
    AttributeNews, DeviceEventQuery, DevicePage, DeviceProblem, DeviceQuery, DeviceTools,
    ExportedDevices, ShownDevice,
};
use auth::{DeviceAnswer, DeviceDirectory, DeviceIdentity, DeviceLogin, DeviceName, DeviceRights};
use broker::hooks::Action;
use devices::{
    Device, DeviceNo, Directory, Expected, Filter, Found, ImportFormat, ImportMode, NewDevice,
    PROVISION_REQUEST, PROVISION_RESPONSE, Product, Registry, RegistryError, Scope, Shown, States,
};
use serde_json::{Map, Value, json};
use store::Store;
use tokio::sync::broadcast;

/// How often what was seen is written and who fell silent is looked for.
const TICK: Duration = Duration::from_secs(1);

/// The registry of a node with what hangs on it.
#[derive(Clone)]
pub(super) struct Devices {
    pub(super) registry: Registry,
    pub(super) directory: Arc<Directory>,
    pub(super) states: States,
    /// Changes of attributes, for the API.
    pub(super) attribute_news: broadcast::Sender<Arc<AttributeNews>>,
}

pub(super) fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_millis() as u64
}

/// Changes that wait for one listener of the API; it reads anew what it has missed.
const MAX_WAITING_NEWS: usize = 1024;

fn attribute_news(registry: &Registry) -> broadcast::Sender<Arc<AttributeNews>> {
    let (news, _) = broadcast::channel(MAX_WAITING_NEWS);
    let told = news.clone();
    registry.on_attributes(Box::new(move |change| {
        if told.receiver_count() == 0 {
            return;
        }
        let changed = change.changed.iter();
        let changed = changed.map(|(key, value)| (key.clone(), Some(value.clone())));
        let removed = change.removed.iter().map(|key| (key.clone(), None));
        let one = AttributeNews {
            device: change.device.id.to_string(),
            scope: match change.scope {
                Scope::Client => "client",
                Scope::Shared => "shared",
                Scope::Server => "server",
            },
            values: changed.chain(removed).collect(),
            at_ms: now_ms(),
        };
        // The last listener may have gone meanwhile.
        let _ = told.send(Arc::new(one));
    }));
    news
}

impl Devices {
    /// With the products of the configuration.
    pub(super) fn open(
        store: &Store,
        config: devices::Config,
        declared: &[(String, Value)],
    ) -> Result<Self, RegistryError> {
        let registry = Registry::open(store.objects(), config)?;
        for (id, product) in declared {
            if let Err(errors) = registry.declare(id, product) {
                for error in errors {
                    tracing::error!(id, %error, "a product of the configuration cannot be used");
                }
            }
        }
        Ok(Self {
            attribute_news: attribute_news(&registry),
            directory: Arc::new(Directory::new(registry.clone())?),
            states: States::new(registry.clone()),
            registry,
        })
    }

    /// Lets those go that fell silent, and writes when devices were seen. Ends with the runtime.
    pub(super) async fn keep(self) {
        loop {
            tokio::time::sleep(TICK).await;
            let states = self.states.clone();
            let kept = tokio::task::spawn_blocking(move || {
                states.sweep(now_ms());
                states.flush()
            });
            if let Ok(Err(error)) = kept.await {
                tracing::error!(%error, "when devices were seen cannot be written; it is tried again");
            }
        }
    }

    /// Whether a product may be written like this, and as what it is stored.
    pub(super) fn accept_product(
        &self,
        id: &str,
        mut input: Value,
        current: Option<&Value>,
    ) -> Result<Value, api::Invalid> {
        // Secrets that are left out stay what they are.
        for (part, secret) in PRODUCT_SECRETS {
            if let Some(fields) = input.get_mut(part).and_then(Value::as_object_mut)
                && !fields.contains_key(secret)
                && let Some(kept) = current.and_then(|current| current.get(part)?.get(secret))
            {
                fields.insert(secret.to_owned(), kept.clone());
            }
        }
        let invalid = |error: &devices::InvalidProduct| api::Invalid {
            field: match error.field.as_str() {
                "product" => String::new(),
                field => field.to_owned(),
            },
            detail: format!("{}.", error.message),
        };
        let product = Product::read(id, &input, 0).map_err(|errors| match &errors[..] {
            [] => api::Invalid {
                field: String::new(),
                detail: "It is no product.".to_owned(),
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

    /// Whether another product has what is to be unique of this one.
    pub(super) fn check_product_is_unique(
        &self,
        id: &str,
        stored: &Value,
    ) -> Result<(), api::Invalid> {
        // What is no product was refused before.
        let product = Product::read(id, stored, 0).ok();
        match product.and_then(|product| self.registry.owner_of_key(&product)) {
            None => Ok(()),
            Some(owner) => Err(api::Invalid {
                field: "provisioning.key".to_owned(),
                detail: format!(
                    "the product {:?} has this key already; choose another key.",
                    owner.as_str()
                ),
            }),
        }
    }

    pub(super) fn show_product(stored: &Value) -> Value {
        let mut shown = stored.clone();
        for (part, secret) in PRODUCT_SECRETS {
            if let Some(fields) = shown.get_mut(part).and_then(Value::as_object_mut) {
                fields.remove(secret);
            }
        }
        shown
    }
}

/// Fields of products that are not shown.
const PRODUCT_SECRETS: [(&str, &str); 2] = [("provisioning", "secret"), ("secure", "secure_key")];

/// A schema without references.
pub(super) fn plain_schema<T: schemars::JsonSchema>() -> Value {
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

/// JSON schemas of what is written and shown of products.
pub(super) fn product_schemas() -> (Value, Value) {
    let mut schema = plain_schema::<devices::Definition>();
    let mut shown = schema.clone();
    for (part, secret) in PRODUCT_SECRETS {
        forget_field(&mut schema, part, secret, false);
        forget_field(&mut shown, part, secret, true);
    }
    (schema, shown)
}

/// A secret may be left out where it is written, and is never shown.
fn forget_field(schema: &mut Value, part: &str, secret: &str, wholly: bool) {
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

struct Rights(Arc<Device>);

impl DeviceRights for Rights {
    fn may(&self, action: &Action<'_>) -> bool {
        match action {
            Action::Publish { topic, .. } => self.0.may_publish(topic),
            Action::Subscribe { filter, .. } => self.0.may_subscribe(filter),
        }
    }
}

struct Provisioning;

impl DeviceRights for Provisioning {
    fn may(&self, action: &Action<'_>) -> bool {
        match action {
            Action::Publish { topic, .. } => *topic == PROVISION_REQUEST,
            Action::Subscribe { filter, .. } => *filter == PROVISION_RESPONSE,
        }
    }
}

impl Devices {
    fn shown<'a>(login: &DeviceLogin<'a>) -> Shown<'a> {
        Shown {
            client_id: login.client_id,
            username: login.username,
            password: login.password(),
            common_name: login.common_name,
            now_ms: now_ms(),
        }
    }

    fn answer(&self, login: &DeviceLogin<'_>, shown: &Shown<'_>, found: Found) -> DeviceAnswer {
        match found {
            Found::Nobody => DeviceAnswer::NoDevice,
            Found::Refused => DeviceAnswer::Refused,
            Found::Cold => DeviceAnswer::Cold,
            Found::Provisioning => DeviceAnswer::Device(Box::new(DeviceIdentity {
                name: None,
                attributes: Vec::new(),
                expires_at_ms: None,
                rights: Arc::new(Provisioning),
            })),
            Found::Device(admission) => {
                let device = Arc::clone(&admission.device);
                let expires_at_ms = admission.expires_at_ms;
                self.directory.remember(login.peer, shown, admission);
                DeviceAnswer::Device(Box::new(DeviceIdentity {
                    name: Some(DeviceName {
                        id: device.id.as_str().into(),
                        product: device.product.id().as_str().into(),
                    }),
                    attributes: vec![
                        ("deviceId".into(), device.id.as_str().into()),
                        ("productId".into(), device.product.id().as_str().into()),
                    ],
                    expires_at_ms,
                    rights: Arc::new(Rights(device)),
                }))
            }
        }
    }
}

impl DeviceDirectory for Devices {
    fn concerns(&self, username: Option<&str>, common_name: Option<&str>) -> bool {
        self.directory.concerns(username, common_name)
    }

    fn find(&self, login: &DeviceLogin<'_>) -> DeviceAnswer {
        self.directory.forget(login.peer, login.client_id);
        let shown = Self::shown(login);
        self.answer(login, &shown, self.directory.find(&shown))
    }

    fn look_up(&self, login: &DeviceLogin<'_>) -> Result<DeviceAnswer, String> {
        let shown = Self::shown(login);
        let found = self.directory.look_up(&shown);
        let found = found.map_err(|error| error.to_string())?;
        Ok(self.answer(login, &shown, found))
    }

    fn find_cold(&self, login: &DeviceLogin<'_>) -> Result<DeviceAnswer, String> {
        let shown = Self::shown(login);
        let found = self.directory.find_cold(&shown);
        let found = found.map_err(|error| error.to_string())?;
        Ok(self.answer(login, &shown, found))
    }
}

pub(super) fn problem(error: RegistryError) -> DeviceProblem {
    match error {
        RegistryError::NotFound { what: "device", id } => {
            DeviceProblem::NotFound(format!("There is no device {id:?}."))
        }
        RegistryError::NotFound { what, .. } => DeviceProblem::Field {
            field: what.to_owned(),
            detail: "there is none with this id".to_owned(),
        },
        RegistryError::Invalid { field, message } => DeviceProblem::Field {
            field,
            detail: message,
        },
        RegistryError::Exists { .. }
        | RegistryError::Taken { .. }
        | RegistryError::HasChildren { .. }
        | RegistryError::Full { .. } => DeviceProblem::Conflict(format!("{error}.")),
        RegistryError::Conflict { .. } => DeviceProblem::Changed,
        other => DeviceProblem::Unavailable(format!("{other}.")),
    }
}

fn version_of(device: &Device) -> u64 {
    u64::from(device.no.0) << 32 | u64::from(device.revision)
}

impl Devices {
    pub(super) fn value_of(&self, device: &Device) -> Result<Value, RegistryError> {
        let written = self.registry.as_written(device)?;
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
            "version": version_of(device),
        }))
    }

    fn shown_device(&self, device: &Device) -> Result<ShownDevice, RegistryError> {
        Ok(ShownDevice {
            value: self.value_of(device)?,
            version: version_of(device),
        })
    }

    fn known(&self, id: &str) -> Result<Arc<Device>, DeviceProblem> {
        let device = self.registry.device(id).map_err(problem)?;
        device.ok_or_else(|| DeviceProblem::NotFound(format!("There is no device {id:?}.")))
    }

    fn expected(expected: Option<u64>) -> Expected {
        match expected {
            None => Expected::Any,
            Some(0) => Expected::Absent,
            Some(version) => Expected::Revision(version as u32),
        }
    }
}

fn scope_of(name: &str) -> Result<Scope, DeviceProblem> {
    match name {
        "client" => Ok(Scope::Client),
        "shared" => Ok(Scope::Shared),
        "server" => Ok(Scope::Server),
        _ => Err(DeviceProblem::NotFound(
            "Attributes are client, shared or server ones.".to_owned(),
        )),
    }
}

fn format_of(name: &str) -> ImportFormat {
    match name {
        "csv" => ImportFormat::Csv,
        _ => ImportFormat::Jsonl,
    }
}

impl DeviceTools for Devices {
    fn events(&self, id: &str, query: &DeviceEventQuery) -> Result<Vec<Value>, DeviceProblem> {
        let query = devices::EventQuery {
            event: query.event.clone(),
            from_ms: query.from_ms,
            to_ms: query.to_ms,
            before: query.before,
            limit: query.limit,
        };
        let events = self.registry.events(self.known(id)?.no, &query);
        let events = events.map_err(problem)?.into_iter();
        Ok(events.map(|event| json!(event)).collect())
    }

    fn list(&self, query: &DeviceQuery) -> Result<DevicePage, DeviceProblem> {
        let parent = match &query.parent {
            None => None,
            Some(id) => match self.registry.device(id).map_err(problem)? {
                Some(parent) => Some(parent.no),
                None => return Ok(DevicePage::default()),
            },
        };
        let tag = query.tag.as_ref();
        let filter = Filter {
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
        let page = page.map_err(problem)?;
        let rows = page.devices.iter().map(|device| self.value_of(device));
        Ok(DevicePage {
            rows: rows.collect::<Result<_, _>>().map_err(problem)?,
            next: page.next.map(|no| no.0),
        })
    }

    fn get(&self, id: &str) -> Result<Option<ShownDevice>, DeviceProblem> {
        let device = self.registry.device(id).map_err(problem)?;
        let shown = device.map(|device| self.shown_device(&device));
        shown.transpose().map_err(problem)
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
    ) -> Result<(ShownDevice, bool), DeviceProblem> {
        if let Some(version) = expected.filter(|version| *version > 0) {
            let is_same = self.known(id)?.no.0 == (version >> 32) as u32;
            if !is_same {
                return Err(DeviceProblem::Changed);
            }
        }
        device.insert("id".to_owned(), id.into());
        let device: NewDevice = serde_json::from_value(Value::Object(device)).map_err(|error| {
            DeviceProblem::Field {
                field: String::new(),
                detail: format!("The body is not what was expected: {error}."),
            }
        })?;
        let written = self.registry.put(device, Self::expected(expected));
        let written = written.map_err(problem)?;
        let mut shown = self.shown_device(&written.device).map_err(problem)?;
        if !written.issued.is_empty() {
            shown.value["issued"] = json!(written.issued);
        }
        Ok((shown, written.was_created))
    }

    fn remove(&self, id: &str, expected: Option<u64>) -> Result<bool, DeviceProblem> {
        let removed = self.registry.remove(id, Self::expected(expected));
        removed.map_err(|error| match error {
            RegistryError::Invalid { message, .. } => {
                DeviceProblem::Conflict(format!("{message}."))
            }
            other => problem(other),
        })
    }

    fn attributes(&self, id: &str, scope: &str) -> Result<Vec<Value>, DeviceProblem> {
        let (device, scope) = (self.known(id)?, scope_of(scope)?);
        let found = self.registry.attributes(&device, scope).map_err(problem)?;
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
    ) -> Result<(), DeviceProblem> {
        let (device, scope) = (self.known(id)?, scope_of(scope)?);
        let values = values.into_iter().collect();
        self.registry
            .set_attributes(&device, scope, values)
            .map_err(problem)
    }

    fn claim(&self, id: &str, secret: &str, group: &str) -> Result<ShownDevice, DeviceProblem> {
        self.known(id)?;
        let claimed = self.registry.claim(id, secret, group, now_ms());
        let device = claimed.map_err(problem)?;
        self.shown_device(&device).map_err(problem)
    }

    fn import(
        &self,
        text: &str,
        format: &str,
        creates_only: bool,
        first_line: u64,
    ) -> Result<Value, DeviceProblem> {
        let mode = match creates_only {
            true => ImportMode::Create,
            false => ImportMode::Replace,
        };
        let imported = self
            .registry
            .import(text, format_of(format), mode, first_line)
            .map_err(problem)?;
        Ok(json!(imported))
    }

    fn export(
        &self,
        format: &str,
        from: u32,
        limit: usize,
    ) -> Result<ExportedDevices, DeviceProblem> {
        let format = format_of(format);
        let page = self
            .registry
            .list(&Filter::default(), DeviceNo(from), limit, &mut |_| true)
            .map_err(problem)?;
        let mut text = devices::export_header(format).unwrap_or_default();
        for device in &page.devices {
            self.registry
                .export_line(device, format, &mut text)
                .map_err(problem)?;
        }
        Ok(ExportedDevices {
            text,
            next: page.next.map(|no| no.0),
        })
    }

    fn counts(&self) -> Result<Value, DeviceProblem> {
        let mut products = Map::new();
        for product in self.registry.products() {
            let id = product.id().as_str();
            let count = self.registry.count_of(id).map_err(problem)?;
            products.insert(id.to_owned(), count.into());
        }
        let (cached, hits, misses) = self.registry.cache_counts();
        Ok(json!({
            "devices": self.registry.count(),
            "online": self.states.online(),
            "products": products,
            "cached": cached,
            "cache_hits": hits,
            "cache_misses": misses,
        }))
    }
}
