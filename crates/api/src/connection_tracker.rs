//! Open HTTP connections and their use, counted by source address and class. No client and no class of requests can
//! thus exhaust the capacity that others need.
//!
//! A connection takes an ordinary permit from accept to close. A request takes a permit in its
//! class until the body of its response has been sent. A stream or a long poll returns both and
//! holds a permit of its own kind. When all ordinary permits are taken, a new connection evicts the
//! one that has been idle or sending its head for the longest time.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use hooks::{MetricFamily, MetricKind, failed_attempts::counted_address};
use tokio::sync::Notify;

use crate::config::HttpConfig;
use crate::problem_details::ProblemDetails;

/// The class of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestClass {
    /// Health, metrics, documentation and other requests that need no operator.
    Health,
    /// Logins, which hash passwords.
    Login,
    /// Requests of operators and API keys.
    Operator,
    /// Requests of devices, of push sources, and with share links.
    Device,
}

/// The kind of a request that outlives the ordinary time limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum LongRequestKind {
    EventStream,
    LongPoll,
}

/// Why a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CloseReason {
    ConnectionLimit,
    AddressLimit,
    Evicted,
    WriteTimeout,
    HeaderTimeout,
    ProxyHeader,
}

const REQUEST_CLASSES: [(RequestClass, &str); 4] = [
    (RequestClass::Health, "health"),
    (RequestClass::Login, "login"),
    (RequestClass::Operator, "operator"),
    (RequestClass::Device, "device"),
];
const LONG_REQUEST_KINDS: [(LongRequestKind, &str); 2] = [
    (LongRequestKind::EventStream, "event_stream"),
    (LongRequestKind::LongPoll, "long_poll"),
];
const CLOSE_REASONS: [(CloseReason, &str); 6] = [
    (CloseReason::ConnectionLimit, "connection_limit"),
    (CloseReason::AddressLimit, "address_limit"),
    (CloseReason::Evicted, "evicted"),
    (CloseReason::WriteTimeout, "write_timeout"),
    (CloseReason::HeaderTimeout, "header_timeout"),
    (CloseReason::ProxyHeader, "proxy_header"),
];

struct ConnectionLimits {
    connections: usize,
    connections_per_address: usize,
    requests: [usize; REQUEST_CLASSES.len()],
    requests_per_address: usize,
    long_requests: [usize; LONG_REQUEST_KINDS.len()],
    max_long_requests_per_holder: [usize; LONG_REQUEST_KINDS.len()],
}

pub(crate) struct ConnectionTracker {
    limits: ConnectionLimits,
    table: Mutex<ConnectionTable>,
    close_counts: [AtomicU64; CLOSE_REASONS.len()],
    rejected_requests: [AtomicU64; REQUEST_CLASSES.len()],
    rejected_lasting: [AtomicU64; LONG_REQUEST_KINDS.len()],
}

#[derive(Default)]
struct ConnectionTable {
    next: u64,
    open: HashMap<u64, OpenConnection>,
    /// Number of connections without a long request.
    ordinary: usize,
    by_address: HashMap<IpAddr, AddressUse>,
    requests: [usize; REQUEST_CLASSES.len()],
    lasting: [usize; LONG_REQUEST_KINDS.len()],
    long_requests_by_holder: HashMap<(LongRequestKind, String), usize>,
}

#[derive(Default, PartialEq)]
struct AddressUse {
    connections: usize,
    requests: [usize; REQUEST_CLASSES.len()],
}

struct OpenConnection {
    /// `None` for a trusted proxy or a Unix socket, which have no per-address limit.
    address: Option<IpAddr>,
    /// Number of requests whose response has not been sent completely.
    requests: usize,
    idle_since: Instant,
    lasting: usize,
    evicted: Arc<Notify>,
}

/// The permit of a connection; returned on drop.
pub(crate) struct ConnectionPermit {
    connections: Arc<ConnectionTracker>,
    pub(crate) number: u64,
    evicted: Arc<Notify>,
}

/// The permit of a request in its class; returned on drop.
pub(crate) struct RequestPermit {
    place: Arc<ConnectionPermit>,
    address: IpAddr,
    class: RequestClass,
}

/// The permit of an event stream or a long poll; returned on drop.
pub(crate) struct LongRequestPermit {
    connections: Arc<ConnectionTracker>,
    /// The number of the connection it uses.
    number: Option<u64>,
    kind: LongRequestKind,
    holder: String,
}

impl ConnectionTracker {
    pub(crate) fn new(config: &HttpConfig) -> Arc<Self> {
        Arc::new(Self {
            limits: ConnectionLimits {
                connections: config.max_connections,
                connections_per_address: config.max_connections_per_address,
                requests: [
                    config.max_health_requests,
                    config.max_login_requests,
                    config.max_operator_requests,
                    config.max_device_requests,
                ],
                requests_per_address: config.max_requests_per_address,
                long_requests: [config.max_event_streams, config.max_long_polls],
                max_long_requests_per_holder: [
                    config.max_event_streams_per_identity,
                    config.max_long_polls_per_device,
                ],
            },
            table: Mutex::default(),
            close_counts: Default::default(),
            rejected_requests: Default::default(),
            rejected_lasting: Default::default(),
        })
    }

    /// Takes a permit for an accepted connection. On `Err` the caller closes the connection.
    pub(crate) fn open(
        self: &Arc<Self>,
        address: Option<IpAddr>,
    ) -> Result<Arc<ConnectionPermit>, CloseReason> {
        let address = address.map(counted_address);
        let mut table = self.lock();
        if table.is_address_full(address, &self.limits) {
            self.count_close(CloseReason::AddressLimit);
            return Err(CloseReason::AddressLimit);
        }
        if table.ordinary >= self.limits.connections {
            let Some(number) = table.longest_idle_connection() else {
                self.count_close(CloseReason::ConnectionLimit);
                return Err(CloseReason::ConnectionLimit);
            };
            self.count_close(CloseReason::Evicted);
            if let Some(evicted) = table.remove(number) {
                evicted.notify_one();
            }
        }
        let number = table.next;
        table.next += 1;
        let evicted = Arc::new(Notify::new());
        table.ordinary += 1;
        if let Some(address) = address {
            table.by_address.entry(address).or_default().connections += 1;
        }
        let connection = OpenConnection {
            address,
            requests: 0,
            idle_since: Instant::now(),
            lasting: 0,
            evicted: evicted.clone(),
        };
        table.open.insert(number, connection);
        Ok(Arc::new(ConnectionPermit {
            connections: self.clone(),
            number,
            evicted,
        }))
    }

    /// Takes a permit for a long request of `holder`; `number` is the connection it occupies.
    pub(crate) fn begin_long_request(
        self: &Arc<Self>,
        number: Option<u64>,
        kind: LongRequestKind,
        holder: String,
    ) -> Result<LongRequestPermit, ProblemDetails> {
        let at = kind as usize;
        let mut guard = self.lock();
        let table = &mut *guard;
        let held = table
            .long_requests_by_holder
            .get(&(kind, holder.clone()))
            .copied();
        let (of_all, per_holder) = (
            self.limits.long_requests[at],
            self.limits.max_long_requests_per_holder[at],
        );
        let (one, many) = match kind {
            LongRequestKind::EventStream => ("operator or API key", "event streams"),
            LongRequestKind::LongPoll => ("device", "long polls"),
        };
        let rejected = if table.lasting[at] >= of_all {
            Some(format!("{of_all} {many} are open, which is the limit."))
        } else if held.unwrap_or_default() >= per_holder {
            let detail = format!(
                "{per_holder} {many} of this {one} are open, which is the limit; close one first."
            );
            Some(detail)
        } else {
            None
        };
        if let Some(detail) = rejected {
            drop(guard);
            self.rejected_lasting[at].fetch_add(1, Relaxed);
            return Err(ProblemDetails::too_many_requests(10, detail));
        }
        table.lasting[at] += 1;
        *table
            .long_requests_by_holder
            .entry((kind, holder.clone()))
            .or_default() += 1;
        if let Some(connection) = number.and_then(|number| table.open.get_mut(&number)) {
            connection.lasting += 1;
            if connection.lasting == 1 {
                let address = connection.address;
                table.ordinary -= 1;
                table.release_address(address);
            }
        }
        Ok(LongRequestPermit {
            connections: self.clone(),
            number,
            kind,
            holder,
        })
    }

    pub(crate) fn count_close(&self, why: CloseReason) {
        self.close_counts[why as usize].fetch_add(1, Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, ConnectionTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn families(&self) -> Vec<MetricFamily> {
        let (open, requests, lasting) = {
            let table = self.lock();
            (table.open.len(), table.requests, table.lasting)
        };
        let read = |counter: &AtomicU64| counter.load(Relaxed) as f64;
        let classes = || {
            let kinds = LONG_REQUEST_KINDS.iter().map(|(_, name)| *name);
            REQUEST_CLASSES.iter().map(|(_, name)| *name).chain(kinds)
        };
        let reasons = CLOSE_REASONS.iter().map(|(_, name)| *name);
        let active = requests.iter().chain(&lasting).map(|count| *count as f64);
        let rejected = self.rejected_requests.iter().chain(&self.rejected_lasting);
        vec![
            MetricFamily::gauge("http_connections", "Open HTTP connections.", open as f64),
            MetricFamily::by_label(
                "http_requests_active",
                "HTTP requests being answered, event streams and long polls, by class.",
                MetricKind::Gauge,
                "class",
                classes().zip(active),
            ),
            MetricFamily::by_label(
                "http_requests_rejected_total",
                "HTTP requests rejected because their class, address, device or operator had too many concurrent requests.",
                MetricKind::Counter,
                "class",
                classes().zip(rejected.map(read)),
            ),
            MetricFamily::by_label(
                "http_connections_closed_total",
                "HTTP connections closed because of a limit or a time-out.",
                MetricKind::Counter,
                "reason",
                reasons.zip(self.close_counts.iter().map(read)),
            ),
        ]
    }
}

impl ConnectionTable {
    fn is_address_full(&self, address: Option<IpAddr>, limits: &ConnectionLimits) -> bool {
        let used = address.and_then(|address| self.by_address.get(&address));
        used.is_some_and(|used| used.connections >= limits.connections_per_address)
    }

    fn longest_idle_connection(&self) -> Option<u64> {
        let idle = (self.open.iter()).filter(|(_, one)| one.requests == 0 && one.lasting == 0);
        idle.min_by_key(|(_, connection)| connection.idle_since)
            .map(|(number, _)| *number)
    }

    /// Removes a connection from the table. `None`: it is already gone.
    fn remove(&mut self, number: u64) -> Option<Arc<Notify>> {
        let connection = self.open.remove(&number)?;
        if connection.lasting == 0 {
            self.ordinary -= 1;
            self.release_address(connection.address);
        }
        Some(connection.evicted)
    }

    fn release_address(&mut self, address: Option<IpAddr>) {
        let Some(address) = address else { return };
        if let Some(used) = self.by_address.get_mut(&address) {
            used.connections -= 1;
        }
        self.remove_unused(address);
    }

    fn remove_unused(&mut self, address: IpAddr) {
        if self.by_address.get(&address) == Some(&AddressUse::default()) {
            self.by_address.remove(&address);
        }
    }
}

impl ConnectionPermit {
    /// Resolves when the connection is evicted.
    pub(crate) async fn wait_for_eviction(&self) {
        self.evicted.notified().await;
    }

    /// Sets the client address that a proxy has named.
    pub(crate) fn set_address(&self, address: IpAddr) -> Result<(), CloseReason> {
        let address = counted_address(address);
        let mut guard = self.connections.lock();
        let table = &mut *guard;
        if table.is_address_full(Some(address), &self.connections.limits) {
            self.connections.count_close(CloseReason::AddressLimit);
            return Err(CloseReason::AddressLimit);
        }
        if let Some(connection) = table.open.get_mut(&self.number)
            && connection.address.replace(address).is_none()
        {
            table.by_address.entry(address).or_default().connections += 1;
        }
        Ok(())
    }

    /// Takes a permit for a request of this class from this address.
    pub(crate) fn begin_request(
        self: &Arc<Self>,
        class: RequestClass,
        address: IpAddr,
    ) -> Result<RequestPermit, ProblemDetails> {
        let (at, address) = (class as usize, counted_address(address));
        let limits = &self.connections.limits;
        let of_class = limits.requests[at];
        // One address never takes more than half of a class.
        let per_address = limits.requests_per_address.min(of_class.div_ceil(2));
        let mut guard = self.connections.lock();
        let table = &mut *guard;
        let used = table.by_address.get(&address);
        let used = used.map_or(0, |used| used.requests[at]);
        if table.requests[at] < of_class && used < per_address {
            table.requests[at] += 1;
            table.by_address.entry(address).or_default().requests[at] += 1;
            if let Some(connection) = table.open.get_mut(&self.number) {
                connection.requests += 1;
            }
            return Ok(RequestPermit {
                place: self.clone(),
                address,
                class,
            });
        }
        drop(guard);
        self.connections.rejected_requests[at].fetch_add(1, Relaxed);
        let name = REQUEST_CLASSES[at].1;
        Err(match used < per_address {
            true => ProblemDetails::busy(
                1,
                format!("{of_class} {name} requests are being answered; try again."),
            ),
            false => ProblemDetails::too_many_requests(
                1,
                format!("{used} {name} requests from this address are being answered; try again."),
            ),
        })
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.connections.lock().remove(self.number);
    }
}

impl Drop for RequestPermit {
    fn drop(&mut self) {
        let at = self.class as usize;
        let mut table = self.place.connections.lock();
        table.requests[at] -= 1;
        if let Some(used) = table.by_address.get_mut(&self.address) {
            used.requests[at] -= 1;
        }
        table.remove_unused(self.address);
        if let Some(connection) = table.open.get_mut(&self.place.number) {
            connection.requests -= 1;
            connection.idle_since = Instant::now();
        }
    }
}

impl Drop for LongRequestPermit {
    fn drop(&mut self) {
        let mut guard = self.connections.lock();
        let table = &mut *guard;
        table.lasting[self.kind as usize] -= 1;
        let key = (self.kind, std::mem::take(&mut self.holder));
        if let Some(held) = table.long_requests_by_holder.get_mut(&key) {
            *held -= 1;
            if *held == 0 {
                table.long_requests_by_holder.remove(&key);
            }
        }
        let connection = self.number.and_then(|number| table.open.get_mut(&number));
        if let Some(connection) = connection {
            connection.lasting -= 1;
            if connection.lasting == 0 {
                connection.idle_since = Instant::now();
                let address = connection.address;
                // The count may exceed the limit by one until the next accept.
                table.ordinary += 1;
                if let Some(address) = address {
                    table.by_address.entry(address).or_default().connections += 1;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;

    use super::*;

    fn connections(change: impl FnOnce(&mut HttpConfig)) -> Arc<ConnectionTracker> {
        let mut config = HttpConfig::new(([127, 0, 0, 1], 0).into());
        change(&mut config);
        ConnectionTracker::new(&config)
    }

    fn address(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    #[test]
    fn one_address_leaves_room_for_others() {
        let connections = connections(|config| config.max_connections_per_address = 2);
        let first = connections.open(Some(address(1))).ok().unwrap();
        let _second = connections.open(Some(address(1))).ok().unwrap();
        assert_eq!(
            connections.open(Some(address(1))).err(),
            Some(CloseReason::AddressLimit)
        );
        assert!(connections.open(Some(address(2))).is_ok());
        assert!(
            connections.open(None).is_ok(),
            "a trusted proxy has no bound of its own"
        );
        drop(first);
        assert!(connections.open(Some(address(1))).is_ok());
    }

    #[tokio::test]
    async fn the_longest_idle_connection_makes_room_and_one_that_is_used_does_not() {
        let connections = connections(|config| config.max_connections = 2);
        let used = connections.open(Some(address(1))).ok().unwrap();
        let request = used
            .begin_request(RequestClass::Operator, address(1))
            .unwrap();
        let idle = connections.open(Some(address(1))).ok().unwrap();
        let third = connections.open(Some(address(2))).ok().unwrap();
        idle.wait_for_eviction().await;
        let busy = third
            .begin_request(RequestClass::Health, address(2))
            .unwrap();
        assert_eq!(
            connections.open(None).err(),
            Some(CloseReason::ConnectionLimit)
        );
        drop((idle, request, busy));
        assert!(connections.open(None).is_ok());
    }

    #[test]
    fn one_address_takes_at_most_half_of_a_class_and_no_class_takes_from_another() {
        let connections = connections(|config| config.max_health_requests = 4);
        let place = connections.open(None).ok().unwrap();
        let begin = |class, last| place.begin_request(class, address(last));
        let one: Vec<_> = (0..2)
            .map(|_| begin(RequestClass::Health, 1).unwrap())
            .collect();
        let full = begin(RequestClass::Health, 1).err().unwrap();
        assert_eq!(full.status, StatusCode::TOO_MANY_REQUESTS);
        let other: Vec<_> = (0..2)
            .map(|_| begin(RequestClass::Health, 2).unwrap())
            .collect();
        let full = begin(RequestClass::Health, 3).err().unwrap();
        assert_eq!(full.status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(begin(RequestClass::Operator, 1).is_ok());
        drop((one, other));
        assert!(begin(RequestClass::Health, 3).is_ok());
        assert!(connections.lock().by_address.is_empty());
    }

    #[test]
    fn what_lasts_takes_no_ordinary_place_and_is_bounded_by_holder() {
        let connections = connections(|config| {
            config.max_connections = 1;
            config.max_long_polls = 3;
            config.max_long_polls_per_device = 2;
        });
        let last = |place: Option<u64>, holder: &str| {
            connections.begin_long_request(place, LongRequestKind::LongPoll, holder.to_owned())
        };
        let place = connections.open(Some(address(1))).ok().unwrap();
        let poll = last(Some(place.number), "a").unwrap();
        let next = connections.open(Some(address(1))).ok().unwrap();
        let _second = last(None, "a").unwrap();
        assert!(last(None, "a").is_err());
        let _third = last(None, "b").unwrap();
        assert!(last(None, "c").is_err());
        drop(poll);
        assert_eq!(connections.lock().ordinary, 2);
        drop((place, next));
        assert!(last(None, "a").is_ok());
        let table = connections.lock();
        assert_eq!(
            (table.ordinary, table.open.len(), table.by_address.len()),
            (0, 0, 0)
        );
    }
}
