//! Membership in a consumer group (the classic protocol): who reads which partition, and how far everybody is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::cluster::Cluster;
use super::fetch::Place;
use super::partition::{Share, assign_ranges};
use super::session::Session;
use super::wire::{
    Code, FIND_COORDINATOR, HEARTBEAT, JOIN_GROUP, LEAVE_GROUP, Malformed, OFFSET_COMMIT,
    OFFSET_FETCH, Put as _, SYNC_GROUP, Take,
};
use crate::connector::Failure;

const PROTOCOL_TYPE: &str = "consumer";
const ASSIGNOR: &str = "range";
/// How long the group waits for members to come back when it deals out partitions.
const REBALANCE_TIMEOUT: Duration = Duration::from_secs(60);
/// On top of what the group waits for others.
const ANSWER: Duration = Duration::from_secs(10);
/// Which connection to a broker it is: fetches would hold it up.
const SLOT: usize = 1;
/// To be let in: for a member id, after having been forgotten, and when others come and go meanwhile.
const MAX_ATTEMPTS: usize = 20;

/// What a group is, for us.
#[derive(Debug, Clone)]
pub(super) struct Group {
    pub(super) name: String,
    pub(super) topics: Vec<String>,
    pub(super) session_timeout: Duration,
}

/// Why we do not read what we read before.
pub(super) enum Change {
    /// Partitions are dealt out anew.
    Rebalance,
    Failed(Failure),
}

/// A member, with its share.
#[derive(Clone)]
pub(super) struct Member {
    group: Group,
    coordinator: Arc<Session>,
    pub(super) id: String,
    generation: i32,
    pub(super) share: Share,
    /// It deals out the partitions, and has to notice when there are others.
    pub(super) is_leader: bool,
}

/// What the coordinator says about a wish to be in the group.
struct Joined {
    code: Code,
    generation: i32,
    leader: String,
    id: String,
    members: BTreeMap<String, Vec<String>>,
}

impl Member {
    /// Joins a group, as the member we were before if there is one, and gets a share. `id` is who we are from now on.
    pub(super) async fn join(
        cluster: &Cluster,
        group: &Group,
        id: &mut String,
    ) -> Result<Self, Failure> {
        let coordinator = coordinator(cluster, &group.name).await?;
        let told = |code: Code| coordinator.failure(&format!("group {}: {code}", group.name));
        for _ in 0..MAX_ATTEMPTS {
            let joined = ask_to_join(&coordinator, group, id).await?;
            match joined.code {
                Code::NONE => id.clone_from(&joined.id),
                Code::MEMBER_ID_REQUIRED => {
                    id.clone_from(&joined.id);
                    continue;
                }
                Code::UNKNOWN_MEMBER => {
                    id.clear();
                    continue;
                }
                Code::REBALANCE_IN_PROGRESS => continue,
                code => return Err(told(code)),
            }
            let is_leader = joined.leader == *id;
            let shares = match is_leader {
                true => deal_out(cluster, &joined.members).await?,
                false => BTreeMap::new(),
            };
            let mut member = Self {
                group: group.clone(),
                coordinator: coordinator.clone(),
                id: id.clone(),
                generation: joined.generation,
                share: Share::new(),
                is_leader,
            };
            match member.sync(&shares).await? {
                (Code::NONE, share) => {
                    member.share = share;
                    return Ok(member);
                }
                (Code::REBALANCE_IN_PROGRESS | Code::ILLEGAL_GENERATION, _) => {}
                (Code::UNKNOWN_MEMBER, _) => id.clear(),
                (code, _) => return Err(told(code)),
            }
        }
        let what = format!("group {} does not come to rest", group.name);
        Err(coordinator.failure(&what))
    }

    async fn sync(&self, shares: &BTreeMap<String, Share>) -> Result<(Code, Share), Failure> {
        let fill = |version: i16, out: &mut Vec<u8>| {
            self.put_self(version, 3, out);
            out.put_count(shares.len());
            for (member, share) in shares {
                out.put_text(member);
                out.put_bytes(&share_to_bytes(share));
            }
        };
        let within = REBALANCE_TIMEOUT + ANSWER;
        let answer = self
            .coordinator
            .ask_within(SYNC_GROUP, within, fill)
            .await?;
        answer.read(|take, _| {
            take.i32()?;
            let code = Code::take(take)?;
            let mut share = Take(take.bytes()?);
            match code.is_error() || share.0.is_empty() {
                true => Ok((code, Share::new())),
                false => Ok((code, share_from_bytes(&mut share)?)),
            }
        })
    }

    /// Who we are; in versions from `instance_since` on also that we are no static member.
    fn put_self(&self, version: i16, instance_since: i16, out: &mut Vec<u8>) {
        out.put_text(&self.group.name);
        out.put_i32(self.generation);
        out.put_text(&self.id);
        if version >= instance_since {
            out.put_no_text();
        }
    }

    /// Says that we are still here.
    pub(super) async fn beat(&self) -> Result<(), Change> {
        let fill = |version: i16, out: &mut Vec<u8>| self.put_self(version, 3, out);
        let answer = self.coordinator.ask(HEARTBEAT, fill).await;
        let code = answer.and_then(|answer| {
            answer.read(|take, _| {
                take.i32()?;
                Code::take(take)
            })
        });
        self.changed(code)
    }

    fn changed(&self, code: Result<Code, Failure>) -> Result<(), Change> {
        match code {
            Ok(Code::NONE) => Ok(()),
            // Whoever is not known any more finds out when joining.
            Ok(Code::REBALANCE_IN_PROGRESS | Code::ILLEGAL_GENERATION | Code::UNKNOWN_MEMBER) => {
                Err(Change::Rebalance)
            }
            Ok(code) => {
                let what = format!("group {}: {code}", self.group.name);
                Err(Change::Failed(self.coordinator.failure(&what)))
            }
            Err(failure) => Err(Change::Failed(failure)),
        }
    }

    /// Has the group remember how far we are.
    pub(super) async fn commit(&self, offsets: &BTreeMap<Place, i64>) -> Result<(), Change> {
        let fill = |version: i16, out: &mut Vec<u8>| {
            self.put_self(version, 7, out);
            let topics = by_topic(offsets.keys());
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
        let answer = self.coordinator.ask(OFFSET_COMMIT, fill).await;
        let code = answer.and_then(|answer| {
            answer.read(|take, _| {
                take.i32()?;
                let mut first = Code::NONE;
                for _ in 0..take.count()? {
                    take.text()?;
                    for _ in 0..take.count()? {
                        take.i32()?;
                        let code = Code::take(take)?;
                        first = if first.is_error() { first } else { code };
                    }
                }
                Ok(first)
            })
        });
        self.changed(code)
    }

    /// How far the group was with our share; partitions without such a memory are left out.
    pub(super) async fn committed(&self) -> Result<BTreeMap<Place, i64>, Failure> {
        let fill = |_: i16, out: &mut Vec<u8>| {
            out.put_text(&self.group.name);
            out.put_count(self.share.len());
            for (topic, partitions) in &self.share {
                out.put_text(topic);
                out.put_count(partitions.len());
                partitions.iter().for_each(|number| out.put_i32(*number));
            }
        };
        let answer = self.coordinator.ask(OFFSET_FETCH, fill).await?;
        let (code, offsets) = answer.read(|take, version| {
            take.i32()?;
            let (mut first, mut offsets) = (Code::NONE, BTreeMap::new());
            for _ in 0..take.count()? {
                let topic: Arc<str> = take.text()?.into();
                for _ in 0..take.count()? {
                    let (partition, offset) = (take.i32()?, take.i64()?);
                    if version >= 5 {
                        take.i32()?;
                    }
                    take.nullable_text()?;
                    let code = Code::take(take)?;
                    first = if first.is_error() { first } else { code };
                    if offset >= 0 {
                        offsets.insert((topic.clone(), partition), offset);
                    }
                }
            }
            let code = Code::take(take)?;
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

    /// Lets the others have our share at once.
    pub(super) async fn leave(&self) {
        let fill = |_: i16, out: &mut Vec<u8>| {
            out.put_text(&self.group.name);
            out.put_text(&self.id);
        };
        // If that fails, the group notices when the session's time is up.
        let _ = self.coordinator.ask(LEAVE_GROUP, fill).await;
    }
}

async fn coordinator(cluster: &Cluster, group: &str) -> Result<Arc<Session>, Failure> {
    let session = cluster.any_session().await?;
    let answer = session
        .ask(FIND_COORDINATOR, |_, out| {
            out.put_text(group);
            // Of a group, not of transactions.
            out.put_i8(0);
        })
        .await?;
    let (code, address) = answer.read(|take, _| {
        take.i32()?;
        let code = Code::take(take)?;
        take.nullable_text()?;
        take.i32()?;
        let (host, port) = (take.text()?.to_owned(), take.i32()?);
        Ok((code, (host, u16::try_from(port).unwrap_or(0))))
    })?;
    if code.is_error() {
        return Err(session.failure(&format!("group {group}: {code}")));
    }
    cluster.session_to(address, SLOT).await
}

async fn ask_to_join(session: &Session, group: &Group, id: &str) -> Result<Joined, Failure> {
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
        out.put_bytes(&wish_to_bytes(&group.topics));
    };
    let within = REBALANCE_TIMEOUT + ANSWER;
    let answer = session.ask_within(JOIN_GROUP, within, fill).await?;
    answer.read(|take, version| {
        take.i32()?;
        let code = Code::take(take)?;
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
            let topics = wish_from_bytes(&mut Take(take.bytes()?))?;
            members.insert(member, topics);
        }
        Ok(Joined {
            code,
            generation,
            leader,
            id,
            members,
        })
    })
}

async fn deal_out(
    cluster: &Cluster,
    members: &BTreeMap<String, Vec<String>>,
) -> Result<BTreeMap<String, Share>, Failure> {
    let topics: BTreeSet<&String> = members.values().flatten().collect();
    let mut partitions = BTreeMap::new();
    for topic in topics {
        partitions.insert(topic.clone(), count_partitions(cluster, topic).await?);
    }
    Ok(assign_ranges(members, &partitions))
}

/// How many partitions a topic has; none if there is no such topic.
pub(super) async fn count_partitions(cluster: &Cluster, topic: &str) -> Result<usize, Failure> {
    match cluster.leaders(topic, false).await {
        Ok(leaders) => Ok(leaders.len()),
        Err(none) if none.code == Code::UNKNOWN_TOPIC => Ok(0),
        Err(none) => Err(none.failure),
    }
}

fn by_topic<'p>(places: impl Iterator<Item = &'p Place>) -> BTreeMap<&'p str, Vec<&'p Place>> {
    let mut topics: BTreeMap<&str, Vec<&Place>> = BTreeMap::new();
    for place in places {
        topics.entry(&place.0).or_default().push(place);
    }
    topics
}

fn wish_to_bytes(topics: &[String]) -> Vec<u8> {
    let mut out = Vec::new();
    out.put_i16(0);
    out.put_count(topics.len());
    topics.iter().for_each(|topic| out.put_text(topic));
    out.put_i32(-1);
    out
}

fn wish_from_bytes(take: &mut Take<'_>) -> Result<Vec<String>, Malformed> {
    take.i16()?;
    let count = take.count()?;
    let topics = (0..count).map(|_| take.text().map(str::to_owned));
    topics.collect()
}

fn share_to_bytes(share: &Share) -> Vec<u8> {
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

fn share_from_bytes(take: &mut Take<'_>) -> Result<Share, Malformed> {
    take.i16()?;
    let mut share = Share::new();
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
        let bytes = wish_to_bytes(&topics);
        assert_eq!(wish_from_bytes(&mut Take(&bytes)), Ok(topics));
        let share = Share::from([("a".into(), vec![0, 2]), ("b".into(), vec![])]);
        let bytes = share_to_bytes(&share);
        assert_eq!(share_from_bytes(&mut Take(&bytes)), Ok(share));
        assert!(share_from_bytes(&mut Take(&bytes[..9])).is_err());
    }
}
