//! Membership in a consumer group (classic protocol): assignment of partitions, and committed offsets.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::cluster::KafkaCluster;
use crate::connection::BrokerConnection;
use crate::error::KafkaError;
use crate::fetcher::TopicPartition;
use crate::partitioning::{Assignment, assign_ranges};
use crate::protocol::{
    DecodeError, Decoder, Encode as _, ErrorCode, FIND_COORDINATOR, HEARTBEAT, JOIN_GROUP,
    LEAVE_GROUP, OFFSET_COMMIT, OFFSET_FETCH, SYNC_GROUP,
};

const PROTOCOL_TYPE: &str = "consumer";
const ASSIGNOR: &str = "range";
/// How long the group waits for members to rejoin in a rebalance.
const REBALANCE_TIMEOUT: Duration = Duration::from_secs(60);
/// Added to the time that the group waits for others.
const RESPONSE_MARGIN: Duration = Duration::from_secs(10);
/// Connection slot of the coordinator, separate because fetches would delay it.
const SLOT: usize = 1;
/// Limit on join attempts: for a member id, after being removed, and during changes of the membership.
const MAX_ATTEMPTS: usize = 20;

/// Settings of a group.
#[derive(Debug, Clone)]
pub struct ConsumerGroup {
    pub name: String,
    pub topics: Vec<String>,
    pub session_timeout: Duration,
}

/// Why the present assignment is no longer valid.
pub enum MembershipChange {
    /// Partitions are being reassigned.
    Rebalance,
    Failed(KafkaError),
}

/// A member with its assignment.
#[derive(Clone)]
pub struct GroupMember {
    group: ConsumerGroup,
    coordinator: Arc<BrokerConnection>,
    id: String,
    generation: i32,
    pub assignment: Assignment,
    /// The leader assigns the partitions, and has to detect changes of their number.
    pub is_leader: bool,
}

/// A JoinGroup response.
struct JoinResponse {
    code: ErrorCode,
    generation: i32,
    leader: String,
    id: String,
    members: BTreeMap<String, Vec<String>>,
}

impl GroupMember {
    /// Joins a group, as the previous member if there is one, and gets an assignment. Updates `id`.
    pub async fn join(
        cluster: &KafkaCluster,
        group: &ConsumerGroup,
        id: &mut String,
    ) -> Result<Self, KafkaError> {
        let coordinator = find_coordinator(cluster, &group.name).await?;
        let group_error =
            |code: ErrorCode| coordinator.failure(&format!("group {}: {code}", group.name));
        for _ in 0..MAX_ATTEMPTS {
            let joined = request_join(&coordinator, group, id).await?;
            match joined.code {
                ErrorCode::NONE => id.clone_from(&joined.id),
                ErrorCode::MEMBER_ID_REQUIRED => {
                    id.clone_from(&joined.id);
                    continue;
                }
                ErrorCode::UNKNOWN_MEMBER => {
                    id.clear();
                    continue;
                }
                ErrorCode::REBALANCE_IN_PROGRESS => continue,
                code => return Err(group_error(code)),
            }
            let is_leader = joined.leader == *id;
            let shares = match is_leader {
                true => assign_partitions(cluster, &joined.members).await?,
                false => BTreeMap::new(),
            };
            let mut member = Self {
                group: group.clone(),
                coordinator: coordinator.clone(),
                id: id.clone(),
                generation: joined.generation,
                assignment: Assignment::new(),
                is_leader,
            };
            match member.sync(&shares).await? {
                (ErrorCode::NONE, share) => {
                    member.assignment = share;
                    return Ok(member);
                }
                (ErrorCode::REBALANCE_IN_PROGRESS | ErrorCode::ILLEGAL_GENERATION, _) => {}
                (ErrorCode::UNKNOWN_MEMBER, _) => id.clear(),
                (code, _) => return Err(group_error(code)),
            }
        }
        let what = format!("group {} did not complete a rebalance", group.name);
        Err(coordinator.failure(&what))
    }

    async fn sync(
        &self,
        shares: &BTreeMap<String, Assignment>,
    ) -> Result<(ErrorCode, Assignment), KafkaError> {
        let fill = |version: i16, out: &mut Vec<u8>| {
            self.put_member_identity(version, 3, out);
            out.put_count(shares.len());
            for (member, share) in shares {
                out.put_text(member);
                out.put_bytes(&encode_assignment(share));
            }
        };
        let within = REBALANCE_TIMEOUT + RESPONSE_MARGIN;
        let answer = self
            .coordinator
            .request_with_timeout(SYNC_GROUP, within, fill)
            .await?;
        answer.read(|take, _| {
            take.i32()?;
            let code = ErrorCode::take(take)?;
            let mut share = Decoder(take.bytes()?);
            match code.is_error() || share.0.is_empty() {
                true => Ok((code, Assignment::new())),
                false => Ok((code, decode_assignment(&mut share)?)),
            }
        })
    }

    /// Appends the member's identity; in versions from `instance_since` on also that it is not a static member.
    fn put_member_identity(&self, version: i16, instance_since: i16, out: &mut Vec<u8>) {
        out.put_text(&self.group.name);
        out.put_i32(self.generation);
        out.put_text(&self.id);
        if version >= instance_since {
            out.put_no_text();
        }
    }

    /// Sends a heartbeat.
    pub async fn heartbeat(&self) -> Result<(), MembershipChange> {
        let fill = |version: i16, out: &mut Vec<u8>| self.put_member_identity(version, 3, out);
        let answer = self.coordinator.request(HEARTBEAT, fill).await;
        let code = answer.and_then(|answer| {
            answer.read(|take, _| {
                take.i32()?;
                ErrorCode::take(take)
            })
        });
        self.check_membership(code)
    }

    fn check_membership(
        &self,
        code: Result<ErrorCode, KafkaError>,
    ) -> Result<(), MembershipChange> {
        match code {
            Ok(ErrorCode::NONE) => Ok(()),
            // A removed member is detected when it joins again.
            Ok(
                ErrorCode::REBALANCE_IN_PROGRESS
                | ErrorCode::ILLEGAL_GENERATION
                | ErrorCode::UNKNOWN_MEMBER,
            ) => Err(MembershipChange::Rebalance),
            Ok(code) => {
                let what = format!("group {}: {code}", self.group.name);
                Err(MembershipChange::Failed(self.coordinator.failure(&what)))
            }
            Err(failure) => Err(MembershipChange::Failed(failure)),
        }
    }

    /// Commits offsets to the group.
    pub async fn commit_offsets(
        &self,
        offsets: &BTreeMap<TopicPartition, i64>,
    ) -> Result<(), MembershipChange> {
        let fill = |version: i16, out: &mut Vec<u8>| {
            self.put_member_identity(version, 7, out);
            let topics = group_by_topic(offsets.keys());
            out.put_count(topics.len());
            for (topic, places) in topics {
                out.put_text(topic);
                out.put_count(places.len());
                for place in places {
                    out.put_i32(place.1);
                    out.put_i64(offsets[place]);
                    out.put_i32(-1);
                    out.put_no_text();
                }
            }
        };
        let answer = self.coordinator.request(OFFSET_COMMIT, fill).await;
        let code = answer.and_then(|answer| {
            answer.read(|take, _| {
                take.i32()?;
                let mut first = ErrorCode::NONE;
                for _ in 0..take.count()? {
                    take.text()?;
                    for _ in 0..take.count()? {
                        take.i32()?;
                        let code = ErrorCode::take(take)?;
                        first = if first.is_error() { first } else { code };
                    }
                }
                Ok(first)
            })
        });
        self.check_membership(code)
    }

    /// The committed offsets of the assigned partitions; partitions without one are left out.
    pub async fn fetch_committed_offsets(
        &self,
    ) -> Result<BTreeMap<TopicPartition, i64>, KafkaError> {
        let fill = |_: i16, out: &mut Vec<u8>| {
            out.put_text(&self.group.name);
            out.put_count(self.assignment.len());
            for (topic, partitions) in &self.assignment {
                out.put_text(topic);
                out.put_count(partitions.len());
                partitions.iter().for_each(|number| out.put_i32(*number));
            }
        };
        let answer = self.coordinator.request(OFFSET_FETCH, fill).await?;
        let (code, offsets) = answer.read(|take, version| {
            take.i32()?;
            let (mut first, mut offsets) = (ErrorCode::NONE, BTreeMap::new());
            for _ in 0..take.count()? {
                let topic: Arc<str> = take.text()?.into();
                for _ in 0..take.count()? {
                    let (partition, offset) = (take.i32()?, take.i64()?);
                    if version >= 5 {
                        take.i32()?;
                    }
                    take.nullable_text()?;
                    let code = ErrorCode::take(take)?;
                    first = if first.is_error() { first } else { code };
                    if offset >= 0 {
                        offsets.insert((topic.clone(), partition), offset);
                    }
                }
            }
            let code = ErrorCode::take(take)?;
            first = if code.is_error() { code } else { first };
            Ok((first, offsets))
        })?;
        match code.is_error() {
            true => {
                let what = format!("offsets of group {}: {code}", self.group.name);
                Err(self.coordinator.failure(&what))
            }
            false => Ok(offsets),
        }
    }

    /// Leaves the group, which releases the partitions immediately.
    pub async fn leave(&self) {
        let fill = |_: i16, out: &mut Vec<u8>| {
            out.put_text(&self.group.name);
            out.put_text(&self.id);
        };
        // On failure, the group notices at the session time-out.
        let _ = self.coordinator.request(LEAVE_GROUP, fill).await;
    }
}

async fn find_coordinator(
    cluster: &KafkaCluster,
    group: &str,
) -> Result<Arc<BrokerConnection>, KafkaError> {
    let session = cluster.any_connection().await?;
    let answer = session
        .request(FIND_COORDINATOR, |_, out| {
            out.put_text(group);
            // Coordinator type: group, not transaction.
            out.put_i8(0);
        })
        .await?;
    let (code, address) = answer.read(|take, _| {
        take.i32()?;
        let code = ErrorCode::take(take)?;
        take.nullable_text()?;
        take.i32()?;
        let (host, port) = (take.text()?.to_owned(), take.i32()?);
        Ok((code, (host, u16::try_from(port).unwrap_or(0))))
    })?;
    if code.is_error() {
        return Err(session.failure(&format!("group {group}: {code}")));
    }
    cluster.connection_to(address, SLOT).await
}

async fn request_join(
    session: &BrokerConnection,
    group: &ConsumerGroup,
    id: &str,
) -> Result<JoinResponse, KafkaError> {
    let fill = |version: i16, out: &mut Vec<u8>| {
        out.put_text(&group.name);
        out.put_i32(group.session_timeout.as_millis() as i32);
        out.put_i32(REBALANCE_TIMEOUT.as_millis() as i32);
        out.put_text(id);
        if version >= 5 {
            out.put_no_text();
        }
        out.put_text(PROTOCOL_TYPE);
        out.put_count(1);
        out.put_text(ASSIGNOR);
        out.put_bytes(&encode_subscription(&group.topics));
    };
    let within = REBALANCE_TIMEOUT + RESPONSE_MARGIN;
    let answer = session
        .request_with_timeout(JOIN_GROUP, within, fill)
        .await?;
    answer.read(|take, version| {
        take.i32()?;
        let code = ErrorCode::take(take)?;
        let generation = take.i32()?;
        take.nullable_text()?;
        let leader = take.text()?.to_owned();
        let id = take.text()?.to_owned();
        let mut members = BTreeMap::new();
        for _ in 0..take.count()? {
            let member = take.text()?.to_owned();
            if version >= 5 {
                take.nullable_text()?;
            }
            let topics = decode_subscription(&mut Decoder(take.bytes()?))?;
            members.insert(member, topics);
        }
        Ok(JoinResponse {
            code,
            generation,
            leader,
            id,
            members,
        })
    })
}

async fn assign_partitions(
    cluster: &KafkaCluster,
    members: &BTreeMap<String, Vec<String>>,
) -> Result<BTreeMap<String, Assignment>, KafkaError> {
    let topics: BTreeSet<&String> = members.values().flatten().collect();
    let mut partitions = BTreeMap::new();
    for topic in topics {
        partitions.insert(topic.clone(), count_partitions(cluster, topic).await?);
    }
    Ok(assign_ranges(members, &partitions))
}

/// Number of partitions of a topic; none if it does not exist.
pub async fn count_partitions(cluster: &KafkaCluster, topic: &str) -> Result<usize, KafkaError> {
    match cluster.leaders(topic, false).await {
        Ok(leaders) => Ok(leaders.len()),
        Err(none) if none.code == ErrorCode::UNKNOWN_TOPIC => Ok(0),
        Err(none) => Err(none.failure),
    }
}

fn group_by_topic<'p>(
    places: impl Iterator<Item = &'p TopicPartition>,
) -> BTreeMap<&'p str, Vec<&'p TopicPartition>> {
    let mut topics: BTreeMap<&str, Vec<&TopicPartition>> = BTreeMap::new();
    for place in places {
        topics.entry(&place.0).or_default().push(place);
    }
    topics
}

fn encode_subscription(topics: &[String]) -> Vec<u8> {
    let mut out = Vec::new();
    out.put_i16(0);
    out.put_count(topics.len());
    topics.iter().for_each(|topic| out.put_text(topic));
    out.put_i32(-1);
    out
}

fn decode_subscription(take: &mut Decoder<'_>) -> Result<Vec<String>, DecodeError> {
    take.i16()?;
    let count = take.count()?;
    let topics = (0..count).map(|_| take.text().map(str::to_owned));
    topics.collect()
}

fn encode_assignment(share: &Assignment) -> Vec<u8> {
    let mut out = Vec::new();
    out.put_i16(0);
    out.put_count(share.len());
    for (topic, partitions) in share {
        out.put_text(topic);
        out.put_count(partitions.len());
        partitions.iter().for_each(|number| out.put_i32(*number));
    }
    out.put_i32(-1);
    out
}

fn decode_assignment(take: &mut Decoder<'_>) -> Result<Assignment, DecodeError> {
    take.i16()?;
    let mut share = Assignment::new();
    for _ in 0..take.count()? {
        let topic = take.text()?.to_owned();
        let count = take.count()?;
        let partitions = (0..count).map(|_| take.i32());
        share.insert(topic, partitions.collect::<Result<_, _>>()?);
    }
    Ok(share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wishes_and_shares_come_back() {
        let topics = vec!["a".to_owned(), "b".to_owned()];
        let bytes = encode_subscription(&topics);
        assert_eq!(decode_subscription(&mut Decoder(&bytes)), Ok(topics));
        let share = Assignment::from([("a".into(), vec![0, 2]), ("b".into(), vec![])]);
        let bytes = encode_assignment(&share);
        assert_eq!(decode_assignment(&mut Decoder(&bytes)), Ok(share));
        assert!(decode_assignment(&mut Decoder(&bytes[..9])).is_err());
    }
}
