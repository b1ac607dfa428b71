//! All endpoints of a node.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use arc_swap::ArcSwap;
use foldhash::fast::RandomState;
use hashbrown::HashMap;
use hooks::MessageView;
use hooks::relay::{
    RELAY_TOPIC_PREFIX, RelayAdmission, RelayClose, RelayConnection, RelayRequest,
    RelayService as RelayServicePort,
};
use namespaces::{CountedConnection, Namespaces};
use ring::rand::{SecureRandom, SystemRandom};
use wall_clock::now_ms;

use crate::client::EndpointClient;
use crate::definition::EndpointDefinition;
use crate::devices::{RelayDevices, device_close};
use crate::endpoint::{ConnectionSummary, Endpoint, EndpointConnection, EndpointStatus};
use crate::events::{ConnectionEvents, RelayEvents, RelayEventsPort};
use crate::message_batch::record_published;
use crate::message_history::HistoryEntry;
use crate::owner_ban::OwnerBan;
use crate::statistics::{ChangedEndpoints, StatisticsCounters, StatisticsRecord};
use crate::system_message::{internal_error_close, policy_close};
use crate::units::unit_of;

/// Sub-protocols that begin with this carry an access key.
const KEY_SUBPROTOCOL_PREFIX: &str = "key.";
/// Query parameter with the access key.
const KEY_PARAMETER: &str = "key";
/// Characters of ids made here.
const ID_CHARACTERS: &[u8; 64] =
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
const CONNECTION_ID_LEN: usize = 16;

type EndpointMap = HashMap<String, Arc<Endpoint>, RandomState>;
type OwnerBanMap = HashMap<String, OwnerBan, RandomState>;

/// The endpoints of a node. Clones share them.
#[derive(Clone, Default)]
pub struct RelayService {
    inner: Arc<ServiceInner>,
}

#[derive(Default)]
struct ServiceInner {
    endpoints: ArcSwap<EndpointMap>,
    /// Serialises changes of `endpoints`.
    change: Mutex<()>,
    devices: OnceLock<Arc<dyn RelayDevices>>,
    events: RelayEventsPort,
    namespaces: OnceLock<Namespaces>,
    /// Bans of the owners of namespaces, by namespace; a ban may have ended.
    owner_bans: ArcSwap<OwnerBanMap>,
    changed: Arc<ChangedEndpoints>,
    /// Removed endpoints whose stored statistics are not removed yet.
    removed: Mutex<Vec<String>>,
}

/// A random id that is valid in topics, addresses and sub-protocols, and as an argument of a command: it does not begin
/// with a hyphen. `None` if the system provides no random bytes.
fn random_id(len: usize) -> Option<String> {
    let mut random = [0_u8; 32];
    SystemRandom::new().fill(&mut random).ok()?;
    let characters = random[..len].iter().enumerate();
    Some(
        characters
            .map(|(position, byte)| {
                let choices = if position == 0 { 62 } else { 64 };
                char::from(ID_CHARACTERS[usize::from(*byte) % choices])
            })
            .collect(),
    )
}

impl RelayService {
    pub fn new() -> Self {
        Self::default()
    }

    /// Connects the device platform; call it once, before clients connect. Without it, messages of devices are only
    /// relayed.
    pub fn set_devices(&self, devices: Arc<dyn RelayDevices>) {
        // The first stays.
        let _ = self.inner.devices.set(devices);
    }

    /// Applies the limits of namespaces; call it once, before clients connect.
    pub fn set_namespaces(&self, namespaces: Namespaces) {
        // The first stays.
        let _ = self.inner.namespaces.set(namespaces);
    }

    /// Connects the rules; call it once. Without them, events of connections are ignored.
    pub fn set_events(&self, events: Arc<dyn RelayEvents>) {
        // The first stays.
        let _ = self.inner.events.set(events);
    }

    /// Sends a text message to the client with this client id; false if it is not connected.
    pub fn send_to_client(&self, client_id: &str, text: String) -> bool {
        self.find_client(client_id)
            .is_some_and(|(endpoint, id)| endpoint.send_to_connection(id, text))
    }

    /// Disconnects the client with this client id, because its device may no longer use the connection.
    pub fn disconnect_device(&self, client_id: &str) {
        if let Some((endpoint, id)) = self.find_client(client_id) {
            endpoint.close_connection(id, device_close());
        }
    }

    fn find_client<'c>(&self, client_id: &'c str) -> Option<(Arc<Endpoint>, &'c str)> {
        let (endpoint, connection) = client_id
            .strip_prefix(RELAY_TOPIC_PREFIX)?
            .split_once('/')?;
        Some((self.endpoint(endpoint)?, connection))
    }

    /// The namespace of an endpoint; `None`: there is no such endpoint.
    pub fn namespace_of(&self, id: &str) -> Option<String> {
        let endpoint = self.endpoint(id)?;
        let active = endpoint.active();
        Some(active.definition.namespace.clone())
    }

    /// The unit of a key of an endpoint's devices that the thing model does not tell: that of the endpoint, or the usual one for the
    /// key. `None` also if the namespace has no such endpoint.
    pub fn unit_of(&self, id: &str, namespace: &str, key: &str) -> Option<String> {
        let endpoint = self.endpoint(id)?;
        let active = endpoint.active();
        let is_of_namespace = active.definition.namespace == namespace;
        let unit = is_of_namespace.then(|| unit_of(&active.definition.units, key))?;
        unit.map(str::to_owned)
    }

    /// Sends a text message as it is, whatever the mode, to all connections of an endpoint, and returns their number.
    /// `None`: there is no such endpoint.
    pub fn send_to_all(&self, id: &str, text: &str) -> Option<usize> {
        Some(self.endpoint(id)?.send_to_all(text))
    }

    /// Adds an endpoint, or changes it. `stored_statistics` is called for a new one only.
    ///
    /// # Errors
    /// Those of `stored_statistics`.
    pub fn set<E>(
        &self,
        id: &str,
        definition: EndpointDefinition,
        stored_statistics: impl FnOnce() -> Result<StatisticsRecord, E>,
    ) -> Result<(), E> {
        let now_ms = now_ms();
        let disabled = definition.disabled_reason.clone();
        let present = self.endpoint(id);
        match &present {
            Some(endpoint) => endpoint.set_definition(definition),
            None => {
                // What is stored may belong to an endpoint that had the same id and was just removed.
                let is_new = self.lock_removed().iter().any(|removed| removed == id);
                let record = match is_new {
                    true => StatisticsRecord::default(),
                    false => stored_statistics()?,
                };
                let counters = StatisticsCounters::restored(record, self.inner.changed.clone());
                let endpoint = Arc::new(Endpoint::new(id, definition, counters));
                self.change(|map| drop(map.insert(id.to_owned(), endpoint)));
            }
        }
        if let (Some(endpoint), Some(reason)) = (present, disabled) {
            endpoint.close_all(&disabled_close(&reason, now_ms));
        }
        Ok(())
    }

    /// Adds the endpoints that exist when the node starts, and their stored statistics. Each change copies the table of endpoints, so
    /// that adding many one by one would take quadratic time.
    pub(crate) fn add_all(
        &self,
        endpoints: impl IntoIterator<Item = (String, EndpointDefinition, StatisticsRecord)>,
    ) {
        let endpoints = endpoints.into_iter().map(|(id, definition, record)| {
            let counters = StatisticsCounters::restored(record, self.inner.changed.clone());
            let endpoint = Arc::new(Endpoint::new(&id, definition, counters));
            (id, endpoint)
        });
        self.change(|map| map.extend(endpoints));
    }

    fn lock_removed(&self) -> MutexGuard<'_, Vec<String>> {
        let removed = self.inner.removed.lock();
        removed.unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes an endpoint and closes its connections.
    pub fn remove(&self, id: &str) {
        let mut removed = None;
        self.change(|map| removed = map.remove(id));
        if let Some(endpoint) = removed {
            self.lock_removed().push(id.to_owned());
            let message = "This endpoint was deleted.";
            endpoint.close_all(&policy_close(
                "ENDPOINT_DELETED",
                message,
                "Endpoint was deleted",
                now_ms(),
            ));
        }
    }

    /// Closes the connections of all endpoints of a namespace that has been disabled.
    pub fn close_disabled_namespace(&self, namespace: &str, reason: &str) {
        self.close_namespace(namespace, &disabled_namespace_close(reason, now_ms()));
    }

    /// Closes the endpoints of a namespace whose owners are banned, until the ban ends; `None`: they are not banned any more.
    pub fn set_owner_ban(&self, namespace: &str, ban: Option<OwnerBan>) {
        let now_ms = now_ms();
        let close = ban.as_ref().and_then(|ban| ban.close(now_ms));
        {
            let _changing = (self.inner.change.lock()).unwrap_or_else(PoisonError::into_inner);
            let mut bans = OwnerBanMap::clone(&self.inner.owner_bans.load());
            match ban {
                Some(ban) => drop(bans.insert(namespace.to_owned(), ban)),
                None => drop(bans.remove(namespace)),
            }
            self.inner.owner_bans.store(Arc::new(bans));
        }
        if let Some(close) = close {
            self.close_namespace(namespace, &close);
        }
    }

    fn close_namespace(&self, namespace: &str, close: &RelayClose) {
        for endpoint in self.inner.endpoints.load().values() {
            if endpoint.active().definition.namespace == namespace {
                endpoint.close_all(close);
            }
        }
    }

    /// Why nobody may use the endpoints of a namespace now.
    fn check_namespace(&self, namespace: &str, now_ms: u64) -> Result<(), RelayClose> {
        let namespaces = self.inner.namespaces.get();
        let limits = namespaces.and_then(|it| it.get(namespace));
        if let Some(reason) = limits.as_ref().and_then(|it| it.disabled_reason.as_deref()) {
            return Err(disabled_namespace_close(reason, now_ms));
        }
        let bans = self.inner.owner_bans.load();
        let ban = bans.get(namespace);
        ban.and_then(|ban| ban.close(now_ms)).map_or(Ok(()), Err)
    }

    /// Why a client that has just been added may not stay. Its endpoint was disabled or deleted meanwhile, and the
    /// connections that existed then were closed.
    fn check_still_open(&self, endpoint: &Arc<Endpoint>, now_ms: u64) -> Result<(), RelayClose> {
        let current = self.endpoint(&endpoint.id);
        if !current.is_some_and(|current| Arc::ptr_eq(&current, endpoint)) {
            let message = "Invalid endpoint";
            return Err(policy_close("INVALID_ENDPOINT", message, message, now_ms));
        }
        if let Some(reason) = &endpoint.active().definition.disabled_reason {
            return Err(disabled_close(reason, now_ms));
        }
        self.check_namespace(&endpoint.active().definition.namespace, now_ms)
    }

    /// Counts a connection in the namespace of its endpoint.
    fn count_in_namespace(
        &self,
        endpoint: &Endpoint,
        now_ms: u64,
    ) -> Result<Option<CountedConnection>, RelayClose> {
        let active = endpoint.active();
        let namespace = &active.definition.namespace;
        self.check_namespace(namespace, now_ms)?;
        let namespaces = self.inner.namespaces.get();
        let Some(usage) = namespaces.and_then(|it| it.usage(namespace)) else {
            return Ok(None);
        };
        usage.try_connect().map(Some).map_err(|limit| {
            let message = format!(
                "The quota connections of the namespace {namespace:?} is {limit}, and all are in use."
            );
            policy_close(
                "TOO_MANY_CONNECTIONS",
                &message,
                "Too many connections",
                now_ms,
            )
        })
    }

    fn change(&self, change: impl FnOnce(&mut EndpointMap)) {
        let _changing = (self.inner.change.lock()).unwrap_or_else(PoisonError::into_inner);
        let mut map = EndpointMap::clone(&self.inner.endpoints.load());
        change(&mut map);
        self.inner.endpoints.store(Arc::new(map));
    }

    fn endpoint(&self, id: &str) -> Option<Arc<Endpoint>> {
        self.inner.endpoints.load().get(id).cloned()
    }

    /// `None`: there is no endpoint with this id.
    pub fn status(&self, id: &str) -> Option<EndpointStatus> {
        let endpoint = self.endpoint(id)?;
        Some(self.status_of(&endpoint))
    }

    fn status_of(&self, endpoint: &Endpoint) -> EndpointStatus {
        let mut status = endpoint.status();
        let namespace = self.check_namespace(&status.namespace, now_ms());
        status.is_enabled &= namespace.is_ok();
        status
    }

    /// All endpoints, in the order of their ids.
    pub fn all_statuses(&self) -> Vec<EndpointStatus> {
        let endpoints = self.inner.endpoints.load();
        let mut all: Vec<_> = endpoints
            .values()
            .map(|endpoint| self.status_of(endpoint))
            .collect();
        all.sort_unstable_by(|a, b| a.id.cmp(&b.id));
        all
    }

    /// The last messages, newest first.
    pub fn history(&self, id: &str, limit: usize) -> Option<Vec<HistoryEntry>> {
        Some(self.endpoint(id)?.history(limit))
    }

    /// The connections in the order of their ids, after `after`.
    pub fn connections(
        &self,
        id: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Option<Vec<ConnectionSummary>> {
        Some(self.endpoint(id)?.connections(after, limit))
    }

    /// Disconnects one client; false if there is no such connection.
    pub fn disconnect(&self, id: &str, connection_id: &str) -> bool {
        let close = policy_close(
            "DISCONNECTED",
            "An operator has closed this connection.",
            "Disconnected by an operator",
            now_ms(),
        );
        self.endpoint(id)
            .is_some_and(|endpoint| endpoint.close_connection(connection_id, close))
    }

    /// Calls `store` when the statistics of many endpoints have changed since they were last stored; call it once. `store` is called
    /// on the shards' threads; it must not block.
    pub fn when_many_changed(&self, store: impl Fn() + Send + Sync + 'static) {
        self.inner.changed.on_many(store);
    }

    /// Begins a new count of changes, because all of them are stored now.
    pub(crate) fn reset_change_count(&self) {
        self.inner.changed.reset();
    }

    /// The statistics that changed since the last call, at most `limit`, with the ids of their endpoints.
    pub(crate) fn changed_statistics(&self, limit: usize) -> Vec<(String, StatisticsRecord)> {
        let endpoints = self.inner.endpoints.load();
        let changed = endpoints
            .values()
            .filter_map(|endpoint| Some((endpoint.id.clone(), endpoint.counters.take_changed()?)));
        changed.take(limit).collect()
    }

    /// The endpoints removed since the last call.
    pub(crate) fn take_removed(&self) -> Vec<String> {
        std::mem::take(&mut *self.lock_removed())
    }

    /// These statistics could not be removed and changed in the store; they are returned again.
    pub(crate) fn retry_statistics<'i>(
        &self,
        removed: Vec<String>,
        changed: impl Iterator<Item = &'i str>,
    ) {
        self.lock_removed().extend(removed);
        for endpoint in changed.filter_map(|id| self.endpoint(id)) {
            endpoint.counters.mark_changed();
        }
    }

    /// Samples the rates of messages; called every few seconds.
    pub fn sample_rates(&self) {
        let now_ms = now_ms();
        for endpoint in self.inner.endpoints.load().values() {
            endpoint.counters.sample(now_ms);
        }
    }
}

fn disabled_close(reason: &str, now_ms: u64) -> RelayClose {
    let message = match reason {
        "" => "This endpoint is disabled.".to_owned(),
        reason => format!("This endpoint is disabled: {reason}"),
    };
    policy_close(
        "ENDPOINT_DISABLED",
        &message,
        "Endpoint is disabled",
        now_ms,
    )
}

fn disabled_namespace_close(reason: &str, now_ms: u64) -> RelayClose {
    let message = match reason {
        "" => "The namespace of this endpoint is disabled.".to_owned(),
        reason => format!("The namespace of this endpoint is disabled: {reason}"),
    };
    policy_close(
        "NAMESPACE_DISABLED",
        &message,
        "Namespace is disabled",
        now_ms,
    )
}

/// The endpoint's id and the access key in a request target such as `ID?key=KEY`.
fn parse_target(target: &str) -> (&str, Option<&str>) {
    let (id, query) = target.split_once('?').unwrap_or((target, ""));
    let mut parameters = query.split('&').filter_map(|pair| pair.split_once('='));
    let key = parameters.find(|(name, _)| *name == KEY_PARAMETER);
    (id, key.map(|(_, key)| key))
}

impl RelayServicePort for RelayService {
    fn admit(
        &self,
        request: &RelayRequest<'_>,
        connection: Arc<dyn RelayConnection>,
    ) -> Result<RelayAdmission, RelayClose> {
        let now_ms = request.now_ms;
        let (id, key) = parse_target(request.target);
        if EndpointDefinition::check_id(id).is_err() {
            let message = "Invalid URL format";
            return Err(policy_close("INVALID_URL", message, message, now_ms));
        }
        let Some(endpoint) = self.endpoint(id) else {
            let message = "Invalid endpoint";
            return Err(policy_close("INVALID_ENDPOINT", message, message, now_ms));
        };
        let count = || self.count_in_namespace(&endpoint, now_ms);
        let result = admit_to(&endpoint, request, key, count);
        let (connection_id, counted) = result.inspect_err(|_| endpoint.counters.reject())?;
        let connection =
            EndpointConnection::new(&connection_id, connection, (request.peer, now_ms));
        endpoint.add_connection(connection.clone());
        self.check_still_open(&endpoint, now_ms)
            .inspect_err(|_| endpoint.remove_connection(&connection_id))?;
        let events = ConnectionEvents::new(endpoint.clone(), connection, self.inner.events.clone());
        Ok(RelayAdmission {
            client: Box::new(EndpointClient::new(
                events,
                self.inner.devices.get().cloned(),
                (request.shard, counted),
            )),
            endpoint,
            connection_id,
        })
    }

    fn published(&self, endpoint: &str, message: &MessageView<'_>) {
        if let Some(endpoint) = self.inner.endpoints.load().get(endpoint) {
            record_published(endpoint, message);
        }
    }
}

/// Checks whether a client may connect to an endpoint and counts it, also in its namespace; returns an id for the
/// connection.
fn admit_to(
    endpoint: &Endpoint,
    request: &RelayRequest<'_>,
    key: Option<&str>,
    count_in_namespace: impl FnOnce() -> Result<Option<CountedConnection>, RelayClose>,
) -> Result<(String, Option<CountedConnection>), RelayClose> {
    let now_ms = request.now_ms;
    let active = endpoint.active();
    let definition = &active.definition;
    if let Some(reason) = &definition.disabled_reason {
        return Err(disabled_close(reason, now_ms));
    }
    if let Some(origin) = request.origin
        && !definition.allowed_origins.is_empty()
        && !(definition.allowed_origins.iter()).any(|it| it.eq_ignore_ascii_case(origin))
    {
        let message = "Web pages of this origin may not use this endpoint.";
        return Err(policy_close(
            "ORIGIN_NOT_ALLOWED",
            message,
            "Origin not allowed",
            now_ms,
        ));
    }
    if let Some(expected) = &active.access_key {
        let offers = request.subprotocols.iter();
        let offered = offers.filter_map(|offer| offer.strip_prefix(KEY_SUBPROTOCOL_PREFIX));
        if !key
            .into_iter()
            .chain(offered)
            .any(|key| expected.matches(key))
        {
            let message = "This endpoint needs an access key: query parameter \"key\", or sub-protocol \"key.\" and the key.";
            return Err(policy_close(
                "INVALID_ACCESS_KEY",
                message,
                "Invalid access key",
                now_ms,
            ));
        }
    }
    let counted = count_in_namespace()?;
    if !endpoint
        .counters
        .try_connect(definition.max_connections, now_ms)
    {
        let message = format!(
            "This endpoint has {} connections, which are the most.",
            definition.max_connections
        );
        return Err(policy_close(
            "TOO_MANY_CONNECTIONS",
            &message,
            "Too many connections",
            now_ms,
        ));
    }
    let connection_id = random_id(CONNECTION_ID_LEN).ok_or_else(|| {
        endpoint.counters.disconnect();
        let message = "The system provides no random bytes.";
        internal_error_close(message, now_ms)
    })?;
    Ok((connection_id, counted))
}

#[cfg(test)]
mod tests;
