//! Metadata of a Kafka cluster (brokers and partition leaders), and connections to its brokers.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::connection::BrokerConnection;
use crate::error::KafkaError;
use crate::options::KafkaConnectionOptions;
use crate::protocol::{DecodeError, Decoder, Encode as _, ErrorCode, METADATA};
use crate::sasl;

/// Limit on cached topics; templates can name any number.
const MAX_TOPICS: usize = 10_000;

type BrokerAddress = (String, u16);
/// Several connections to a broker have different slots.
type ConnectionSlot = tokio::sync::Mutex<Option<Arc<BrokerConnection>>>;

/// The brokers of a cluster, their topics, and connections to them.
pub struct KafkaCluster {
    bootstrap: Vec<BrokerAddress>,
    login: Arc<KafkaConnectionOptions>,
    known: Mutex<ClusterState>,
    connections: Mutex<HashMap<(BrokerAddress, usize), Arc<ConnectionSlot>>>,
    /// Serialises metadata requests.
    asking: tokio::sync::Mutex<()>,
}

/// Cached metadata.
#[derive(Default)]
struct ClusterState {
    brokers: BTreeMap<i32, BrokerAddress>,
    topics: HashMap<Arc<str>, TopicMetadata>,
}

#[derive(Clone)]
struct TopicMetadata {
    /// Leader of each partition; -1 if there is none at present.
    leaders: Arc<[i32]>,
    at: Instant,
    is_stale: bool,
}

/// Why a topic cannot be used.
#[derive(Debug, Clone)]
pub struct TopicError {
    pub code: ErrorCode,
    pub failure: KafkaError,
}

/// A metadata response.
struct MetadataResponse {
    brokers: BTreeMap<i32, BrokerAddress>,
    cluster_id: Option<String>,
    topics: Vec<(String, ErrorCode, Vec<i32>)>,
}

impl KafkaCluster {
    /// Does not connect yet. `bootstrap` are host and port of some brokers.
    pub fn new(bootstrap: Vec<BrokerAddress>, login: Arc<KafkaConnectionOptions>) -> Self {
        Self {
            bootstrap,
            login,
            known: Mutex::default(),
            connections: Mutex::default(),
            asking: tokio::sync::Mutex::default(),
        }
    }

    /// Options of its connections.
    pub fn login(&self) -> &KafkaConnectionOptions {
        &self.login
    }

    fn known(&self) -> MutexGuard<'_, ClusterState> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The leaders of a topic's partitions; -1 where there is none at present. With `may_make` the broker creates the topic if
    /// it is configured to.
    pub async fn leaders(&self, topic: &str, may_make: bool) -> Result<Arc<[i32]>, TopicError> {
        if let Some(leaders) = self.known_leaders(topic) {
            return Ok(leaders);
        }
        let _turn = self.asking.lock().await;
        // Another task may have fetched them while this one waited.
        if let Some(leaders) = self.known_leaders(topic) {
            return Ok(leaders);
        }
        let untold = |failure| TopicError {
            code: ErrorCode::NONE,
            failure,
        };
        let metadata = self
            .request_metadata(&[topic], may_make)
            .await
            .map_err(untold)?;
        let described_topic = metadata.topics.into_iter().find(|(name, ..)| name == topic);
        let (_, code, leaders) = described_topic.ok_or_else(|| {
            untold(KafkaError::transient(format!(
                "the response does not contain topic {topic}"
            )))
        })?;
        if code.is_error() {
            let failure = KafkaError::transient(format!("topic {topic}: {code}"));
            return Err(TopicError { code, failure });
        }
        let leaders: Arc<[i32]> = leaders.into();
        let mut known = self.known();
        if known.topics.len() >= MAX_TOPICS && !known.topics.contains_key(topic) {
            // They are fetched again on demand.
            known.topics.clear();
        }
        let fresh = TopicMetadata {
            leaders: leaders.clone(),
            at: Instant::now(),
            is_stale: false,
        };
        known.topics.insert(topic.into(), fresh);
        Ok(leaders)
    }

    /// The leader of a partition, from the cache.
    pub(crate) fn leader(&self, topic: &str, partition: i32) -> Option<i32> {
        let known = self.known();
        let leaders = &known.topics.get(topic)?.leaders;
        let leader = *leaders.get(usize::try_from(partition).ok()?)?;
        (leader >= 0).then_some(leader)
    }

    fn known_leaders(&self, topic: &str) -> Option<Arc<[i32]>> {
        let known = self.known();
        let topic = known.topics.get(topic)?;
        let is_fresh = !topic.is_stale && topic.at.elapsed() < self.login.metadata_max_age;
        is_fresh.then(|| topic.leaders.clone())
    }

    /// Marks the metadata of a topic as outdated; it is fetched again before the next use.
    pub(crate) fn invalidate_topic(&self, topic: &str) {
        if let Some(topic) = self.known().topics.get_mut(topic) {
            topic.is_stale = true;
        }
    }

    /// As [`KafkaCluster::invalidate_topic`] for all topics.
    pub(crate) fn invalidate_all_topics(&self) {
        let mut known = self.known();
        known
            .topics
            .values_mut()
            .for_each(|topic| topic.is_stale = true);
    }

    async fn request_metadata(
        &self,
        topics: &[&str],
        may_make: bool,
    ) -> Result<MetadataResponse, KafkaError> {
        let session = self.any_connection().await?;
        let answer = session
            .request(METADATA, |version, out| {
                out.put_count(topics.len());
                topics.iter().for_each(|topic| out.put_text(topic));
                out.put_i8(may_make.into());
                if version >= 8 {
                    // No authorised operations.
                    out.put_i16(0);
                }
            })
            .await?;
        let metadata = answer.read(read_metadata)?;
        self.known().brokers.clone_from(&metadata.brokers);
        Ok(metadata)
    }

    /// Description of the cluster for people.
    pub async fn describe(&self) -> Result<String, KafkaError> {
        let metadata = self.request_metadata(&[], false).await?;
        let id = metadata
            .cluster_id
            .unwrap_or_else(|| "without a name".into());
        let count = metadata.brokers.len();
        let brokers = if count == 1 { "broker" } else { "brokers" };
        Ok(format!("Kafka cluster {id} with {count} {brokers}"))
    }

    /// A connection to any broker that answers, preferably an open one.
    pub(crate) async fn any_connection(&self) -> Result<Arc<BrokerConnection>, KafkaError> {
        if let Some(session) = self.find_open_connection() {
            return Ok(session);
        }
        let mut all = self.bootstrap.clone();
        let known: Vec<BrokerAddress> = self.known().brokers.values().cloned().collect();
        all.extend(known.into_iter().filter(|a| !self.bootstrap.contains(a)));
        let mut why = Vec::new();
        for address in all {
            match self.connection_to(address, 0).await {
                Ok(session) => return Ok(session),
                Err(failure) => why.push(failure.to_string()),
            }
        }
        Err(KafkaError::transient(why.join("; ")))
    }

    fn find_open_connection(&self) -> Option<Arc<BrokerConnection>> {
        let sessions = self
            .connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let first = sessions.iter().filter(|((_, slot), _)| *slot == 0);
        first.map(|(_, slot)| slot).find_map(|slot| {
            // A locked slot is being connected.
            let session = slot.try_lock().ok()?.clone();
            session.filter(|session| !session.is_closed())
        })
    }

    /// The connection of this slot to a broker.
    pub(crate) async fn connection(
        &self,
        broker: i32,
        slot: usize,
    ) -> Result<Arc<BrokerConnection>, KafkaError> {
        let address = self.known().brokers.get(&broker).cloned();
        let unknown = || KafkaError::transient(format!("broker {broker} is not known"));
        self.connection_to(address.ok_or_else(unknown)?, slot).await
    }

    pub(crate) async fn connection_to(
        &self,
        address: BrokerAddress,
        slot: usize,
    ) -> Result<Arc<BrokerConnection>, KafkaError> {
        let slot = {
            let mut sessions = self
                .connections
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            sessions.entry((address.clone(), slot)).or_default().clone()
        };
        let mut session = slot.lock().await;
        if let Some(session) = session.as_ref().filter(|session| !session.is_closed()) {
            return Ok(session.clone());
        }
        *session = None;
        let (host, port) = &address;
        let mut opened = BrokerConnection::open(&self.login, host, *port).await?;
        if let Some(credentials) = &self.login.sasl {
            let lifetime = sasl::log_in(&opened, credentials).await?;
            opened.set_login_lifetime(lifetime);
        }
        let opened = Arc::new(opened);
        *session = Some(opened.clone());
        Ok(opened)
    }
}

fn read_metadata(take: &mut Decoder<'_>, version: i16) -> Result<MetadataResponse, DecodeError> {
    take.i32()?;
    let mut brokers = BTreeMap::new();
    for _ in 0..take.count()? {
        let (id, host, port) = (take.i32()?, take.text()?.to_owned(), take.i32()?);
        take.nullable_text()?;
        let port = u16::try_from(port).map_err(|_| DecodeError("a port"))?;
        brokers.insert(id, (host, port));
    }
    let cluster_id = take.nullable_text()?.map(str::to_owned);
    take.i32()?;
    let mut topics = Vec::new();
    for _ in 0..take.count()? {
        let code = ErrorCode::take(take)?;
        let name = take.text()?.to_owned();
        take.i8()?;
        let count = take.count()?;
        let mut leaders = vec![-1; count];
        for _ in 0..count {
            take.i16()?;
            let (number, leader) = (take.i32()?, take.i32()?);
            take.i32()?;
            for _ in 0..3 {
                let replicas = take.count()?;
                take.raw(replicas * 4)?;
            }
            let place = usize::try_from(number).ok();
            let place = place.and_then(|place| leaders.get_mut(place));
            *place.ok_or(DecodeError("a partition's number"))? = leader;
        }
        if version >= 8 {
            take.i32()?;
        }
        topics.push((name, code, leaders));
    }
    Ok(MetadataResponse {
        brokers,
        cluster_id,
        topics,
    })
}

/// Time-out of a request on which the broker waits for `wait_ms`.
pub(crate) fn extend_timeout(timeout: Duration, wait_ms: u32) -> Duration {
    timeout + Duration::from_millis(wait_ms.into())
}
