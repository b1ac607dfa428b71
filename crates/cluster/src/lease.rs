//! A lease: of all nodes, at most one holds it at a time, for work that is to be done once per cluster.
//!
//! The holder renews an object three times in its term, each time with the revision that it knows as precondition. Another
//! node takes the lease when it has seen the same revision for a whole term, by its own clock. The holder counts its time from the
//! beginning of a renewal, which is before anybody can see the new revision, and gives up a tenth of the term earlier. Clocks
//! may therefore show any time, and their rates may differ by several per cent.
//!
//! Nobody holds the lease while the servers of the objects cannot be used for longer than a term.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::error::PutError;
use crate::fabric::{ClusterObjects, ExpectedRevision, ObjectEntry};
use crate::member::NodeName;

/// The object of a lease, as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct LeaseRecord {
    node: NodeName,
    /// Differs in each run of a node.
    run_id: u64,
}

/// Who holds a lease, as a node knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseStatus {
    Held,
    /// Another node holds it, or held it until a moment ago.
    HeldBy(NodeName),
    /// Contains the reason, if there is one.
    Unknown(Option<String>),
}

/// A lease that this node tries to hold.
pub struct ClusterLease {
    objects: Arc<dyn ClusterObjects>,
    key: String,
    record: LeaseRecord,
    term: Duration,
    started: Instant,
    state: Mutex<LeaseState>,
}

impl ClusterLease {
    /// `name` consists of letters, digits, `_` and `-`. `run_id` differs in each run of a node.
    pub fn new(
        objects: Arc<dyn ClusterObjects>,
        name: &str,
        (node, run_id): (NodeName, u64),
        term: Duration,
    ) -> Arc<Self> {
        Arc::new(Self {
            objects,
            key: format!("lease.{name}"),
            record: LeaseRecord { node, run_id },
            term,
            started: Instant::now(),
            state: Mutex::new(LeaseState::new(term.as_millis() as u64)),
        })
    }

    /// Takes and renews the lease until the future is dropped.
    pub async fn hold(self: Arc<Self>) {
        loop {
            self.renew().await;
            tokio::time::sleep(self.term / 3).await;
        }
    }

    pub fn status(&self) -> LeaseStatus {
        self.state().status(self.now_ms())
    }

    /// Gives the lease up, so that another node gets it at once. This node no longer counts as the holder from now on.
    pub async fn release(&self) {
        let revision = self.state().release();
        if let Some(revision) = revision {
            let deleted = self
                .objects
                .delete(&self.key, ExpectedRevision::Revision(revision));
            if let Err(error) = deleted.await {
                tracing::debug!(key = self.key, %error, "a lease was not given up; it ends with its term");
            }
        }
    }

    async fn renew(&self) {
        let begun_ms = self.now_ms();
        let entry = match self.objects.get(&self.key).await {
            Ok(entry) => entry,
            Err(error) => return self.state().fail(error.to_string()),
        };
        let expected = {
            let mut state = self.state();
            state.examine(entry.as_ref(), self.now_ms(), &self.record)
        };
        let Some(expected) = expected else { return };
        let value = serde_json::to_vec(&self.record).expect("a name and a number can be written");
        let put = self.objects.put(&self.key, Bytes::from(value), expected);
        match put.await {
            Ok(revision) => self.state().confirm(revision, begun_ms),
            // Another node was faster; the next look shows which one.
            Err(PutError::Conflict) => {}
            Err(error) => self.state().fail(error.to_string()),
        }
    }

    fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    fn state(&self) -> MutexGuard<'_, LeaseState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a node knows of a lease. It uses no clock: the caller passes the time.
struct LeaseState {
    term_ms: u64,
    other: Option<OtherHolder>,
    /// The revision of the record of this node, and until when it holds the lease by it.
    own: Option<(u64, u64)>,
    is_released: bool,
    error: Option<String>,
}

/// The record of another node, as it was seen last.
struct OtherHolder {
    /// `None`: a later version has written the record.
    node: Option<NodeName>,
    revision: u64,
    since_ms: u64,
}

impl LeaseState {
    fn new(term_ms: u64) -> Self {
        Self {
            term_ms,
            other: None,
            own: None,
            is_released: false,
            error: None,
        }
    }

    /// What the object has to be for this node to write its record; `None`: it must not.
    fn examine(
        &mut self,
        entry: Option<&ObjectEntry>,
        now_ms: u64,
        own: &LeaseRecord,
    ) -> Option<ExpectedRevision> {
        self.error = None;
        if self.is_released {
            return None;
        }
        let Some(entry) = entry else {
            self.other = None;
            return Some(ExpectedRevision::Absent);
        };
        let record = serde_json::from_slice::<LeaseRecord>(&entry.value).ok();
        if record.as_ref() == Some(own) {
            return Some(ExpectedRevision::Revision(entry.revision));
        }
        let since_ms = match &self.other {
            Some(other) if other.revision == entry.revision => other.since_ms,
            _ => now_ms,
        };
        self.other = Some(OtherHolder {
            node: record.map(|record| record.node),
            revision: entry.revision,
            since_ms,
        });
        (now_ms - since_ms >= self.term_ms).then_some(ExpectedRevision::Revision(entry.revision))
    }

    /// The record of this node was written with this revision, by a renewal that began at this time.
    fn confirm(&mut self, revision: u64, begun_ms: u64) {
        self.other = None;
        self.own = Some((revision, begun_ms + self.term_ms * 9 / 10));
    }

    /// Returns the revision of the record of this node, if it may still be the current one.
    fn release(&mut self) -> Option<u64> {
        self.is_released = true;
        self.own.take().map(|(revision, _)| revision)
    }

    fn fail(&mut self, reason: String) {
        self.error = Some(reason);
    }

    fn status(&self, now_ms: u64) -> LeaseStatus {
        let is_held = self.own.is_some_and(|(_, until_ms)| now_ms < until_ms);
        if is_held && !self.is_released {
            return LeaseStatus::Held;
        }
        let other = self.other.as_ref().and_then(|other| other.node.as_ref());
        match (&self.error, other) {
            (None, Some(node)) => LeaseStatus::HeldBy(node.clone()),
            (error, _) => LeaseStatus::Unknown(error.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERM_MS: u64 = 15_000;

    /// The object of a lease, and the nodes that want it. All times are those of a common clock.
    struct LeaseSimulation {
        object: Option<ObjectEntry>,
        revision: u64,
        states: Vec<(LeaseState, LeaseRecord)>,
    }

    impl LeaseSimulation {
        fn new(count: usize) -> Self {
            let state = |index: usize| {
                let record = LeaseRecord {
                    node: NodeName::new(&format!("n{index}")).unwrap(),
                    run_id: 1,
                };
                (LeaseState::new(TERM_MS), record)
            };
            Self {
                object: None,
                revision: 10,
                states: (0..count).map(state).collect(),
            }
        }

        /// A renewal that reads and writes at these times.
        fn renew(&mut self, node: usize, read_ms: u64, write_ms: u64) {
            let read = self.object.clone();
            let (state, record) = &mut self.states[node];
            let expected = state.examine(read.as_ref(), write_ms, record);
            let current = self.object.as_ref().map(|entry| entry.revision);
            let fits = match expected {
                None => false,
                Some(ExpectedRevision::Any) => true,
                Some(ExpectedRevision::Absent) => current.is_none(),
                Some(ExpectedRevision::Revision(revision)) => current == Some(revision),
            };
            if fits {
                self.revision += 1;
                let value = serde_json::to_vec(record).unwrap().into();
                let revision = self.revision;
                self.object = Some(ObjectEntry { value, revision });
                state.confirm(revision, read_ms);
            }
        }

        fn holders(&self, now_ms: u64) -> Vec<usize> {
            let holders = self.states.iter().enumerate();
            let holders =
                holders.filter(|(_, (state, _))| state.status(now_ms) == LeaseStatus::Held);
            holders.map(|(index, _)| index).collect()
        }
    }

    #[test]
    fn one_node_holds_the_lease_and_another_one_takes_it_after_its_term() {
        let mut nodes = LeaseSimulation::new(2);
        nodes.renew(0, 0, 0);
        nodes.renew(1, 0, 0);
        assert_eq!(nodes.holders(1), [0]);
        let holder = nodes.states[0].1.node.clone();
        assert_eq!(nodes.states[1].0.status(1), LeaseStatus::HeldBy(holder));
        for now_ms in (5_000..50_000).step_by(5_000) {
            nodes.renew(0, now_ms, now_ms);
            nodes.renew(1, now_ms + 1, now_ms + 1);
            assert_eq!(nodes.holders(now_ms + 2), [0]);
        }
        // The holder is gone. It was seen last at 45 s.
        for now_ms in (50_000..60_000).step_by(5_000) {
            nodes.renew(1, now_ms + 1, now_ms + 1);
            assert!(!nodes.holders(now_ms + 2).contains(&1));
        }
        assert_eq!(nodes.holders(58_600), [0_usize; 0], "a tenth of the term");
        nodes.renew(1, 60_001, 60_001);
        assert_eq!(nodes.holders(60_002), [1]);
        // The earlier one returns.
        nodes.renew(0, 60_003, 60_003);
        assert_eq!(nodes.holders(60_004), [1]);
    }

    #[test]
    fn no_two_nodes_hold_the_lease_at_any_time() {
        let mut random = 7_u64;
        let mut below = move |limit: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random >> 33) % limit
        };
        let mut nodes = LeaseSimulation::new(3);
        let (mut now_ms, mut held) = (0, [0_u32; 3]);
        for _ in 0..20_000 {
            now_ms += below(4_000);
            // A write that takes long follows a read that is old.
            let (node, took_ms) = (below(3) as usize, below(2) * below(20_000));
            nodes.renew(node, now_ms, now_ms + took_ms);
            now_ms += took_ms;
            if below(20) == 0 {
                // Nobody renews anything for a while.
                now_ms += below(40_000);
            }
            let holders = nodes.holders(now_ms);
            assert!(holders.len() <= 1, "{holders:?} at {now_ms}");
            for holder in holders {
                held[holder] += 1;
            }
        }
        assert!(held.iter().all(|&times| times > 100), "{held:?}");
    }

    #[test]
    fn a_node_that_gives_the_lease_up_does_not_take_it_again() {
        let mut nodes = LeaseSimulation::new(2);
        nodes.renew(0, 0, 0);
        assert_eq!(nodes.states[0].0.release(), Some(11));
        nodes.object = None;
        nodes.renew(0, 1, 1);
        assert_eq!(nodes.holders(2), [0_usize; 0]);
        nodes.renew(1, 3, 3);
        assert_eq!(nodes.holders(4), [1]);
        assert_eq!(nodes.states[0].0.release(), None);
    }

    #[test]
    fn without_servers_nobody_holds_the_lease_after_its_term() {
        let mut nodes = LeaseSimulation::new(1);
        nodes.renew(0, 0, 0);
        nodes.states[0].0.fail("no servers".to_owned());
        assert_eq!(nodes.holders(13_000), [0]);
        let unknown = LeaseStatus::Unknown(Some("no servers".to_owned()));
        assert_eq!(nodes.states[0].0.status(13_500), unknown);
        nodes.renew(0, 14_000, 14_000);
        assert_eq!(nodes.holders(14_001), [0]);
    }

    #[test]
    fn records_of_other_runs_and_versions_are_respected() {
        for value in [&br#"{"node":"n0","run_id":2}"#[..], b"later"] {
            let mut nodes = LeaseSimulation::new(1);
            let value = Bytes::copy_from_slice(value);
            nodes.object = Some(ObjectEntry { value, revision: 3 });
            nodes.renew(0, 0, 0);
            nodes.renew(0, 14_999, 14_999);
            assert_eq!(nodes.holders(15_000), [0_usize; 0]);
            nodes.renew(0, 15_000, 15_000);
            assert_eq!(nodes.holders(15_001), [0]);
        }
    }
}
