//! Receiving messages: as a member of a group that remembers how far it is, or alone from a stated position on.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use tokio::runtime::Handle;
use tokio::time::{Instant, MissedTickBehavior, interval, interval_at};

use super::cluster::Cluster;
use super::fetch::{Fetcher, Isolation, Place, Positions, Start};
use super::group::{Change, Group, Member, count_partitions};
use super::sink::is_topic;
use super::{Kafka, MAX_NAME_BYTES};
use crate::connector::{Doing, Failure, Inlet, Reader};
use crate::settings::{Invalid, check_range};

const MAX_TOPICS: usize = 256;
const MAX_BEAT: Duration = Duration::from_secs(3);
/// How often a topic is looked for that is not there.
const LOOK: Duration = Duration::from_secs(5);
/// For saying how far we are and that we leave.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);

/// What is received.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Settings {
    #[schemars(length(min = 1, max = 256))]
    topics: Vec<String>,
    /// The members of a consumer group share the partitions, and the group remembers how far they are. Left out: this source
    /// receives all, and after a restart of the node begins again at `start`.
    group: Option<String>,
    /// Where a new group begins, or a source without one.
    #[serde(default)]
    start: Start,
    #[serde(default)]
    isolation: Isolation,
    /// How often the group is told how far we are.
    #[serde(default = "one_second_ms")]
    #[schemars(range(min = 10, max = 600_000))]
    commit_interval_ms: u64,
    /// A member that is silent for so long is taken for dead, and others get its partitions.
    #[serde(default = "three_quarters_of_a_minute_ms")]
    #[schemars(range(min = 1000, max = 1_800_000))]
    session_timeout_ms: u64,
}

fn one_second_ms() -> u64 {
    1000
}

fn three_quarters_of_a_minute_ms() -> u64 {
    45_000
}

pub(super) struct Source {
    kafka: Arc<Kafka>,
    settings: Settings,
    /// Of a source without a group, so that it goes on after a lost connection.
    positions: Positions,
    seat: Mutex<Seat>,
    /// Where it can say good-bye, whoever drops it.
    runtime: OnceLock<Handle>,
}

/// Our place in the group; it is kept when a connection breaks.
#[derive(Default)]
struct Seat {
    id: String,
    member: Option<(Member, Arc<Positions>)>,
}

impl Source {
    pub(super) fn new(kafka: Arc<Kafka>, settings: Settings) -> Result<Self, Invalid> {
        if !(1..=MAX_TOPICS).contains(&settings.topics.len()) {
            let detail = format!("expected 1 to {MAX_TOPICS}");
            return Err(Invalid::new("topics", detail));
        }
        for (at, topic) in settings.topics.iter().enumerate() {
            let field = format!("topics[{at}]");
            if !is_topic(topic) {
                let detail = format!("{topic:?} is no name of a topic of Kafka");
                return Err(Invalid::new(&field, detail));
            }
            if settings.topics[..at].contains(topic) {
                return Err(Invalid::new(&field, "it is there twice"));
            }
        }
        if let Some(group) = &settings.group
            && !(1..=MAX_NAME_BYTES).contains(&group.len())
        {
            let detail = format!("expected 1 to {MAX_NAME_BYTES} bytes");
            return Err(Invalid::new("group", detail));
        }
        let commit_ms = settings.commit_interval_ms;
        check_range("commit_interval_ms", commit_ms, 10..=600_000)?;
        let session_ms = settings.session_timeout_ms;
        check_range("session_timeout_ms", session_ms, 1000..=1_800_000)?;
        Ok(Self {
            kafka,
            settings,
            positions: Positions::default(),
            seat: Mutex::default(),
            runtime: OnceLock::new(),
        })
    }

    async fn receive(&self, inlet: &dyn Inlet) -> Result<(), Failure> {
        self.runtime.get_or_init(Handle::current);
        // Connections of its own: what waits for messages must not hold up what sinks wait for.
        let fetcher = Fetcher {
            cluster: Arc::new(self.kafka.apart()),
            start: self.settings.start,
            isolation: self.settings.isolation,
        };
        match &self.settings.group {
            None => self.receive_alone(&fetcher, inlet).await,
            Some(name) => {
                let group = Group {
                    name: name.clone(),
                    topics: self.settings.topics.clone(),
                    session_timeout: Duration::from_millis(self.settings.session_timeout_ms),
                };
                loop {
                    self.receive_share(&group, &fetcher, inlet).await?;
                }
            }
        }
    }

    async fn receive_alone(&self, fetcher: &Fetcher, inlet: &dyn Inlet) -> Result<(), Failure> {
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
                failure = fetcher.run(&self.positions, inlet) => return Err(failure),
                changed = other_partitions(&fetcher.cluster, &known) => changed?,
            }
        }
    }

    /// Receives as a member of a group until partitions are dealt out anew.
    async fn receive_share(
        &self,
        group: &Group,
        fetcher: &Fetcher,
        inlet: &dyn Inlet,
    ) -> Result<(), Failure> {
        let mut id = self.seat().id.clone();
        let joined = Member::join(&fetcher.cluster, group, &mut id).await;
        self.seat().id = id;
        let member = joined?;
        let mut offsets = member.committed().await?;
        let mut known = BTreeMap::new();
        for topic in &group.topics {
            // Who leads them has to be known before they are read.
            known.insert(
                topic.clone(),
                count_partitions(&fetcher.cluster, topic).await?,
            );
        }
        for (topic, partitions) in &member.share {
            let topic: Arc<str> = topic.as_str().into();
            for partition in partitions {
                let place = (topic.clone(), *partition);
                if let Entry::Vacant(unknown) = offsets.entry(place) {
                    let first = fetcher.first_offset(unknown.key()).await?;
                    unknown.insert(first);
                }
            }
        }
        let positions = Arc::new(Positions::of(offsets.clone()));
        self.seat().member = Some((member.clone(), positions.clone()));
        let changed = tokio::select! {
            failure = fetcher.run(&positions, inlet) => Change::Failed(failure),
            changed = self.stay(&member, &positions, offsets) => changed,
            changed = other_partitions(&fetcher.cluster, &known), if member.is_leader => {
                changed.map_or_else(Change::Failed, |()| Change::Rebalance)
            }
        };
        // Whoever gets our share goes on where we were, if it can still be told.
        let _ = member.commit(&positions.all()).await;
        self.seat().member = None;
        match changed {
            Change::Rebalance => Ok(()),
            Change::Failed(failure) => Err(failure),
        }
    }

    /// Shows the group that we are here, and how far.
    async fn stay(
        &self,
        member: &Member,
        positions: &Positions,
        mut committed: BTreeMap<Place, i64>,
    ) -> Change {
        let every = Duration::from_millis(self.settings.session_timeout_ms / 3).min(MAX_BEAT);
        let mut beat = interval(every);
        let commit_every = Duration::from_millis(self.settings.commit_interval_ms);
        let mut commit = interval_at(Instant::now() + commit_every, commit_every);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        commit.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let done = tokio::select! {
                _ = beat.tick() => member.beat().await,
                _ = commit.tick() => {
                    let now = positions.all();
                    let is_new = |(place, at): &(Place, i64)| committed.get(place) != Some(at);
                    let new: BTreeMap<Place, i64> = now.clone().into_iter().filter(is_new).collect();
                    match new.is_empty() {
                        true => Ok(()),
                        false => {
                            let done = member.commit(&new).await;
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

    fn seat(&self) -> MutexGuard<'_, Seat> {
        self.seat.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Resolves when a topic has another number of partitions than is known.
async fn other_partitions(
    cluster: &Cluster,
    known: &BTreeMap<String, usize>,
) -> Result<(), Failure> {
    let is_missing = known.values().any(|count| *count == 0);
    let pause = match is_missing {
        true => LOOK,
        false => cluster.login().metadata_max_age,
    };
    loop {
        tokio::time::sleep(pause).await;
        for (topic, count) in known {
            // If it cannot be told now, it is asked again.
            if count_partitions(cluster, topic)
                .await
                .is_ok_and(|now| now != *count)
            {
                return Ok(());
            }
        }
    }
}

impl Reader for Source {
    fn read<'a>(&'a self, inlet: &'a dyn Inlet) -> Doing<'a, Failure> {
        Box::pin(async move {
            match self.receive(inlet).await {
                Ok(()) => Failure::passing("it ended"),
                Err(failure) => failure,
            }
        })
    }
}

/// A source that ends lets others have its partitions at once, and tells how far it was.
impl Drop for Source {
    fn drop(&mut self) {
        let seat = self.seat.get_mut().unwrap_or_else(PoisonError::into_inner);
        let (Some((member, positions)), Some(runtime)) = (seat.member.take(), self.runtime.get())
        else {
            return;
        };
        runtime.spawn(tokio::time::timeout(LEAVE_TIMEOUT, async move {
            let _ = member.commit(&positions.all()).await;
            member.leave().await;
        }));
    }
}
