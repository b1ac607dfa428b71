//! The Kafka source: receives as a member of a consumer group, which stores the position, or alone from a configured position.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use kafka::{
    ConsumerGroup, FetchedRecord, GroupMember, IsolationLevel, KafkaCluster, KafkaError,
    MembershipChange, PartitionFetcher, PartitionOffsets, StartPosition, TopicPartition,
    count_partitions,
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Map;
use tokio::runtime::Handle;
use tokio::time::{Instant, MissedTickBehavior, interval, interval_at};

use super::connector::{KafkaConnector, MAX_NAME_BYTES};
use super::topic_name::is_topic_name;
use crate::connector::{BoxFuture, ConnectorError, SourceMessage, SourcePort, SourceReader};
use crate::settings::{SettingsError, check_range};

const MAX_TOPICS: usize = 256;
const MAX_HEARTBEAT_INTERVAL: Duration = Duration::from_secs(3);
/// Interval of checks for a topic that does not exist.
const MISSING_TOPIC_INTERVAL: Duration = Duration::from_secs(5);
/// Time-out for committing offsets and leaving the group.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);

/// Settings of a Kafka source.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct KafkaSourceSettings {
    #[schemars(length(min = 1, max = 256))]
    topics: Vec<String>,
    /// Consumer group, whose members share the partitions and which stores their offsets. Default: none; the source
    /// receives all partitions, and begins again at `start` after a restart of the node.
    group: Option<String>,
    /// Start position of a new group, or of a source without one.
    #[serde(default)]
    start: StartPosition,
    #[serde(default)]
    isolation_level: IsolationLevel,
    /// Interval of offset commits in milliseconds.
    #[serde(default = "default_commit_interval_ms")]
    #[schemars(range(min = 10, max = 600_000))]
    commit_interval_ms: u64,
    /// Time-out in milliseconds after which a silent member is removed and others get its partitions.
    #[serde(default = "default_session_timeout_ms")]
    #[schemars(range(min = 1000, max = 1_800_000))]
    session_timeout_ms: u64,
}

fn default_commit_interval_ms() -> u64 {
    1000
}

fn default_session_timeout_ms() -> u64 {
    45_000
}

pub(super) struct KafkaSource {
    kafka: Arc<KafkaConnector>,
    settings: KafkaSourceSettings,
    /// Positions of a source without a group, used after a reconnect.
    positions: PartitionOffsets,
    membership: Mutex<GroupMembership>,
    /// Runtime for leaving the group on drop, from any thread.
    runtime: OnceLock<Handle>,
}

/// Our membership, kept when a connection is lost.
#[derive(Default)]
struct GroupMembership {
    id: String,
    member: Option<(GroupMember, Arc<PartitionOffsets>)>,
}

impl KafkaSource {
    pub(super) fn new(
        kafka: Arc<KafkaConnector>,
        settings: KafkaSourceSettings,
    ) -> Result<Self, SettingsError> {
        if !(1..=MAX_TOPICS).contains(&settings.topics.len()) {
            let detail = format!("expected 1 to {MAX_TOPICS}");
            return Err(SettingsError::new("topics", detail));
        }
        for (at, topic) in settings.topics.iter().enumerate() {
            let field = format!("topics[{at}]");
            if !is_topic_name(topic) {
                let detail = format!("{topic:?} is not a valid Kafka topic name");
                return Err(SettingsError::new(&field, detail));
            }
            if settings.topics[..at].contains(topic) {
                return Err(SettingsError::new(&field, "it is listed twice"));
            }
        }
        if let Some(group) = &settings.group
            && !(1..=MAX_NAME_BYTES).contains(&group.len())
        {
            let detail = format!("expected 1 to {MAX_NAME_BYTES} bytes");
            return Err(SettingsError::new("group", detail));
        }
        let commit_ms = settings.commit_interval_ms;
        check_range("commit_interval_ms", commit_ms, 10..=600_000)?;
        let session_ms = settings.session_timeout_ms;
        check_range("session_timeout_ms", session_ms, 1000..=1_800_000)?;
        Ok(Self {
            kafka,
            settings,
            positions: PartitionOffsets::default(),
            membership: Mutex::default(),
            runtime: OnceLock::new(),
        })
    }

    async fn receive(&self, port: &dyn SourcePort) -> Result<(), KafkaError> {
        self.runtime.get_or_init(Handle::current);
        // Separate connections, because fetches wait and must not delay sinks.
        let fetcher = PartitionFetcher {
            cluster: Arc::new(self.kafka.separate_cluster()),
            start: self.settings.start,
            isolation: self.settings.isolation_level,
        };
        match &self.settings.group {
            None => self.receive_without_group(&fetcher, port).await,
            Some(name) => {
                let group = ConsumerGroup {
                    name: name.clone(),
                    topics: self.settings.topics.clone(),
                    session_timeout: Duration::from_millis(self.settings.session_timeout_ms),
                };
                loop {
                    self.receive_as_member(&group, &fetcher, port).await?;
                }
            }
        }
    }

    async fn receive_without_group(
        &self,
        fetcher: &PartitionFetcher,
        port: &dyn SourcePort,
    ) -> Result<(), KafkaError> {
        loop {
            let mut known = BTreeMap::new();
            for topic in &self.settings.topics {
                let leaders = fetcher.cluster.leaders(topic, false).await;
                let count = leaders.map_err(|none| none.failure)?.len();
                let name: Arc<str> = topic.as_str().into();
                for partition in 0..count as i32 {
                    let place = (name.clone(), partition);
                    if self.positions.get(&place).is_none() {
                        let offset = fetcher.first_offset(&place).await?;
                        self.positions.set(&place, offset);
                    }
                }
                known.insert(topic.clone(), count);
            }
            tokio::select! {
                failure = deliver(fetcher, &self.positions, port) => return Err(failure),
                changed = wait_for_partition_change(&fetcher.cluster, &known) => changed?,
            }
        }
    }

    /// Receives as a member of a group until the next rebalance.
    async fn receive_as_member(
        &self,
        group: &ConsumerGroup,
        fetcher: &PartitionFetcher,
        port: &dyn SourcePort,
    ) -> Result<(), KafkaError> {
        let mut id = self.lock_membership().id.clone();
        let joined = GroupMember::join(&fetcher.cluster, group, &mut id).await;
        self.lock_membership().id = id;
        let member = joined?;
        let mut offsets = member.fetch_committed_offsets().await?;
        let mut known = BTreeMap::new();
        for topic in &group.topics {
            // Their leaders must be known before reading.
            known.insert(
                topic.clone(),
                count_partitions(&fetcher.cluster, topic).await?,
            );
        }
        for (topic, partitions) in &member.assignment {
            let topic: Arc<str> = topic.as_str().into();
            for partition in partitions {
                let place = (topic.clone(), *partition);
                if let Entry::Vacant(unknown) = offsets.entry(place) {
                    let first = fetcher.first_offset(unknown.key()).await?;
                    unknown.insert(first);
                }
            }
        }
        let positions = Arc::new(PartitionOffsets::of(offsets.clone()));
        self.lock_membership().member = Some((member.clone(), positions.clone()));
        let changed = tokio::select! {
            failure = deliver(fetcher, &positions, port) => MembershipChange::Failed(failure),
            changed = self.maintain_membership(&member, &positions, offsets) => changed,
            changed = wait_for_partition_change(&fetcher.cluster, &known), if member.is_leader => {
                changed.map_or_else(MembershipChange::Failed, |()| MembershipChange::Rebalance)
            }
        };
        // Commits the last positions, if still possible, for the next owner of the partitions.
        let _ = member.commit_offsets(&positions.all()).await;
        self.lock_membership().member = None;
        match changed {
            MembershipChange::Rebalance => Ok(()),
            MembershipChange::Failed(failure) => Err(failure),
        }
    }

    /// Sends heartbeats and commits offsets.
    async fn maintain_membership(
        &self,
        member: &GroupMember,
        positions: &PartitionOffsets,
        mut committed: BTreeMap<TopicPartition, i64>,
    ) -> MembershipChange {
        let every =
            Duration::from_millis(self.settings.session_timeout_ms / 3).min(MAX_HEARTBEAT_INTERVAL);
        let mut beat = interval(every);
        let commit_every = Duration::from_millis(self.settings.commit_interval_ms);
        let mut commit = interval_at(Instant::now() + commit_every, commit_every);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        commit.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let done = tokio::select! {
                _ = beat.tick() => member.heartbeat().await,
                _ = commit.tick() => {
                    let now = positions.all();
                    let is_new = |(place, at): &(TopicPartition, i64)| committed.get(place) != Some(at);
                    let new: BTreeMap<TopicPartition, i64> = now.clone().into_iter().filter(is_new).collect();
                    match new.is_empty() {
                        true => Ok(()),
                        false => {
                            let done = member.commit_offsets(&new).await;
                            committed = now;
                            done
                        }
                    }
                }
            };
            if let Err(change) = done {
                return change;
            }
        }
    }

    fn lock_membership(&self) -> MutexGuard<'_, GroupMembership> {
        self.membership
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Passes on messages from these positions, and advances them as messages are processed. Returns on failure only.
async fn deliver(
    fetcher: &PartitionFetcher,
    positions: &PartitionOffsets,
    port: &dyn SourcePort,
) -> KafkaError {
    let mut fetched = match fetcher.start(positions) {
        Ok(fetched) => fetched,
        Err(failure) => return failure,
    };
    loop {
        match fetched.next().await {
            Ok(piece) => {
                for record in piece.records {
                    let next = record.offset + 1;
                    port.accept(source_message(&piece.place, record)).await;
                    positions.set(&piece.place, next);
                }
                positions.set(&piece.place, piece.next_offset);
            }
            Err(failure) => return failure,
        }
    }
}

fn source_message((topic, partition): &TopicPartition, record: FetchedRecord) -> SourceMessage {
    let message = record.message;
    let mut fields = Map::new();
    fields.insert("partition".into(), (*partition).into());
    fields.insert("offset".into(), record.offset.into());
    fields.insert("ts".into(), message.timestamp_ms.into());
    let headers = message.headers.into_iter();
    SourceMessage {
        topic: topic.to_string(),
        payload: message.value.unwrap_or_default(),
        key: message.key,
        properties: headers
            .map(|(name, value)| (name, String::from_utf8_lossy(&value).into_owned()))
            .collect(),
        fields,
        ..SourceMessage::default()
    }
}

/// Resolves when the number of partitions of a topic has changed.
async fn wait_for_partition_change(
    cluster: &KafkaCluster,
    known: &BTreeMap<String, usize>,
) -> Result<(), KafkaError> {
    let is_missing = known.values().any(|count| *count == 0);
    let pause = match is_missing {
        true => MISSING_TOPIC_INTERVAL,
        false => cluster.login().metadata_max_age,
    };
    loop {
        tokio::time::sleep(pause).await;
        for (topic, count) in known {
            // On failure it is retried later.
            if count_partitions(cluster, topic)
                .await
                .is_ok_and(|now| now != *count)
            {
                return Ok(());
            }
        }
    }
}

impl SourceReader for KafkaSource {
    fn read<'a>(&'a self, port: &'a dyn SourcePort) -> BoxFuture<'a, ConnectorError> {
        Box::pin(async move {
            match self.receive(port).await {
                Ok(()) => ConnectorError::transient("it ended"),
                Err(failure) => failure.into(),
            }
        })
    }
}

/// Leaves the group on drop, so that others get the partitions immediately, and commits the positions.
impl Drop for KafkaSource {
    fn drop(&mut self) {
        let seat = self
            .membership
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        let (Some((member, positions)), Some(runtime)) = (seat.member.take(), self.runtime.get())
        else {
            return;
        };
        runtime.spawn(tokio::time::timeout(LEAVE_TIMEOUT, async move {
            let _ = member.commit_offsets(&positions.all()).await;
            member.leave().await;
        }));
    }
}
