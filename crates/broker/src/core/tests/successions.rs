//! The standby of a node adopts its sessions when the node fails, and gets the messages that were for them.

use mqtt::{Packet, PacketType, QoS, ReasonCode};

use super::cluster_sim::{ClusterSim, name, packets, payloads};
use super::sim::{AWAY_TIMEOUT_MS, Sim, SimConnection};
use crate::config::MAX_PEER_NODES;
use crate::core::node_messages::NODE_PROTOCOL;
use crate::core::peer_loss::PeerLoss;
use crate::core::peer_node_ix::PeerNodeIx;
use crate::core::succession::SessionHold;
use crate::core::tables::TableIx as _;

/// A cluster of three nodes. The second one is the standby of the first, which has failed; it had the durable session
/// `client`. The third one has published a message for it.
struct FailedNode {
    cluster: ClusterSim,
    near: SimConnection,
    publisher: SimConnection,
}

fn connack(cluster: &mut ClusterSim, connection: SimConnection) -> Option<(ReasonCode, bool)> {
    packets(
        &cluster.nodes[2].peek_bytes(connection),
        |packet| match packet {
            Packet::ConnAck(connack) => Some((connack.code, connack.session_present)),
            _ => None,
        },
    )
}

/// Whether messages wait for the session `client` of a node.
fn has_messages(node: &Sim) -> bool {
    let mut sessions = node.shards.iter().filter_map(|shard| {
        let &at = shard.by_client_id.get("client")?;
        Some(&shard.delivery.sessions[at])
    });
    sessions.any(|session| session.outbound.is_some())
}

impl FailedNode {
    fn new(seed: u64) -> Self {
        Self::with_standbys(seed, &[1])
    }

    /// These nodes expect to adopt the sessions of the first one.
    fn with_standbys(seed: u64, standbys: &[usize]) -> Self {
        let mut cluster = ClusterSim::new(3, 2, seed, true);
        for &standby in standbys {
            cluster.nodes[standby].with_router(|router| router.set_standby_for(&name(0), true));
        }
        let mut client = cluster.connect(0, 0, "client", false);
        cluster.nodes[0].subscribe(&mut client, "a/+", QoS::ExactlyOnce);
        let mut near = cluster.connect(1, 0, "near", true);
        cluster.nodes[1].subscribe(&mut near, "a/#", QoS::ExactlyOnce);
        let mut publisher = cluster.connect(2, 0, "publisher", true);
        cluster.settle();
        // The others notice it one after the other.
        cluster.is_silent.push(0);
        let first = 1 + seed as usize % 2;
        cluster.separate(0, first);
        cluster.nodes[2].publish(&mut publisher, "a/b", b"during", QoS::AtLeastOnce, 5);
        cluster.settle();
        cluster.separate(0, 3 - first);
        cluster.settle();
        cluster.is_silent.clear();
        Self {
            cluster,
            near,
            publisher,
        }
    }

    fn is_acknowledged(&mut self) -> bool {
        self.cluster.nodes[2].has(self.publisher, PacketType::PubAck)
    }
}

#[test]
fn messages_for_a_failed_node_reach_the_sessions_that_its_standby_adopts() {
    for seed in 0..20 {
        let mut failed = FailedNode::new(700 + seed);
        assert!(!failed.is_acknowledged(), "seed {seed}");
        // Longer than a node is kept that nobody succeeds.
        for _ in 0..4 {
            failed.cluster.pass(AWAY_TIMEOUT_MS);
        }
        assert!(!failed.is_acknowledged(), "seed {seed}");
        let waiting = failed.cluster.nodes[2].connect(1, "client", false);
        failed.cluster.pass(500);
        assert_eq!(connack(&mut failed.cluster, waiting), None, "seed {seed}");
        let standby = &mut failed.cluster.nodes[1];
        standby.adopt_session(seed as usize % 2, &name(0), "client", "a/+");
        failed.cluster.settle();
        assert!(!failed.is_acknowledged(), "seed {seed}");
        failed.cluster.nodes[1].with_router(|router| router.end_succession(&name(0), true));
        failed.cluster.settle();
        assert!(failed.is_acknowledged(), "seed {seed}");
        // The client that waited gets its session, and the message.
        assert_eq!(
            connack(&mut failed.cluster, waiting),
            Some((ReasonCode::SUCCESS, true)),
            "seed {seed}"
        );
        assert!(has_messages(&failed.cluster.nodes[1]), "seed {seed}");
        // The other subscriber of the standby has got it from the publisher's node.
        let got = payloads(&mut failed.cluster.nodes[1], &mut failed.near);
        assert_eq!(got, [b"during".to_vec()], "seed {seed}");
    }
}

#[test]
fn a_standby_that_adopts_nothing_leaves_the_sessions_to_the_node() {
    let mut failed = FailedNode::new(800);
    failed.cluster.nodes[1].with_router(|router| router.end_succession(&name(0), false));
    failed.cluster.settle();
    failed.cluster.pass(AWAY_TIMEOUT_MS + 100);
    assert!(
        failed.is_acknowledged(),
        "nothing waits for the node any more"
    );
    let new = failed.cluster.nodes[2].connect(1, "client", false);
    failed.cluster.pass(2500);
    assert_eq!(
        connack(&mut failed.cluster, new),
        Some((ReasonCode::SUCCESS, false))
    );
}

#[test]
fn a_standby_that_fails_as_well_is_not_waited_for() {
    let mut failed = FailedNode::new(810);
    failed.cluster.separate(1, 2);
    failed.cluster.pass(AWAY_TIMEOUT_MS + 100);
    failed.cluster.pass(AWAY_TIMEOUT_MS + 100);
    assert!(failed.is_acknowledged());
}

#[test]
fn a_node_that_returns_while_its_sessions_are_adopted_does_not_get_their_messages() {
    for seed in 0..20 {
        let mut failed = FailedNode::new(820 + seed);
        failed.cluster.nodes[0].with_router(|router| router.hold_sessions(SessionHold::Held));
        failed.cluster.join(0, 2);
        failed.cluster.settle();
        assert!(!failed.is_acknowledged(), "seed {seed}");
        let standby = &mut failed.cluster.nodes[1];
        standby.adopt_session(0, &name(0), "client", "a/+");
        failed.cluster.nodes[1].with_router(|router| router.end_succession(&name(0), true));
        failed.cluster.settle();
        assert!(failed.is_acknowledged(), "seed {seed}");
        assert!(failed.cluster.nodes[1].has_session("client"));
    }
}

#[test]
fn the_sessions_of_a_node_that_are_held_are_not_announced() {
    let mut cluster = ClusterSim::new(2, 1, 900, true);
    cluster.nodes[0].with_router(|router| router.hold_sessions(SessionHold::Held));
    cluster.nodes[0].restore_session("client");
    cluster.settle();
    cluster.separate(0, 1);
    cluster.join(0, 1);
    cluster.settle();
    // Another node has adopted it.
    cluster.nodes[1].restore_session("client");
    cluster.settle();
    assert!(cluster.nodes[0].has_session("client"));
    assert!(cluster.nodes[1].has_session("client"));
    cluster.nodes[0].terminate("client");
    cluster.settle();
    cluster.nodes[0].with_router(|router| router.hold_sessions(SessionHold::Released));
    cluster.settle();
    assert!(!cluster.nodes[0].has_session("client"));
    assert!(cluster.nodes[1].has_session("client"));
}

/// Otherwise the clients would get new sessions, and lose what is queued for them.
#[test]
fn sessions_that_are_withheld_while_the_nodes_change_are_not_given_to_others() {
    let mut cluster = ClusterSim::new(3, 1, 910, true);
    let ids: Vec<String> = (0..20).map(|n| format!("client-{n}")).collect();
    for id in &ids {
        let connection = cluster.connect(0, 0, id, false);
        cluster.nodes[0].drop_connection(connection);
    }
    cluster.settle();
    cluster.nodes[0].with_router(|router| router.hold_sessions(SessionHold::Withheld));
    cluster.separate(0, 1);
    cluster.separate(1, 2);
    cluster.settle();
    for _ in 0..6 {
        cluster.pass(500);
    }
    let waiting: Vec<_> = ids
        .iter()
        .map(|id| cluster.nodes[2].connect(0, id, false))
        .collect();
    cluster.settle();
    for &connection in &waiting {
        assert_eq!(connack(&mut cluster, connection), None);
    }
    cluster.nodes[0].with_router(|router| router.hold_sessions(SessionHold::Released));
    cluster.settle();
    for connection in waiting {
        assert_eq!(
            connack(&mut cluster, connection),
            Some((ReasonCode::SUCCESS, true))
        );
    }
}

/// Otherwise the node would register a session that it has no longer, and others would end theirs because of that.
#[test]
fn nothing_is_left_of_a_claim_that_an_adopted_session_has_answered() {
    for seed in 1..=20 {
        for is_gone in [false, true] {
            let mut cluster = ClusterSim::new(3, 2, seed * 7, true);
            cluster.nodes[1].with_router(|router| router.set_standby_for(&name(0), true));
            let client = cluster.connect(0, 0, "client", false);
            cluster.nodes[0].drop_connection(client);
            cluster.settle();
            cluster.pass(1000);
            cluster.separate(0, 1);
            cluster.separate(0, 2);
            cluster.settle();
            let client = cluster.connect(1, seed as usize % 2, "client", false);
            cluster.nodes[1].adopt_session(0, &name(0), "client", "q");
            if is_gone {
                cluster.nodes[1].drop_connection(client);
            }
            cluster.nodes[1].with_router(|router| router.end_succession(&name(0), true));
            cluster.settle();
            assert!(cluster.nodes[1].has_session("client"));
            // Another node has adopted it meanwhile.
            cluster.nodes[1].terminate("client");
            cluster.settle();
            cluster.nodes[2].restore_session_after("client", true);
            cluster.settle();
            cluster.separate(1, 2);
            cluster.join(1, 2);
            cluster.settle();
            assert!(
                cluster.nodes[2].has_session("client"),
                "seed {seed}, {is_gone}"
            );
        }
    }
}

/// A node that was started again gets what others have kept for it, which must not pass its sessions by.
#[test]
fn messages_that_arrive_before_the_sessions_are_restored_wait_for_them() {
    let mut cluster = ClusterSim::new(2, 2, 920, true);
    let mut publisher = cluster.connect(1, 0, "publisher", true);
    cluster.nodes[0] = Sim::in_cluster(&name(0), 2, 7, true);
    cluster.separate(0, 1);
    cluster.join(0, 1);
    cluster.settle();
    // The subscriber is restored on the first shard, before the second one has restored its sessions.
    cluster.nodes[0].adopt_session(0, "an earlier run", "client", "a/+");
    cluster.settle();
    cluster.nodes[1].publish(&mut publisher, "a/b", b"early", QoS::AtLeastOnce, 5);
    cluster.settle();
    assert!(!cluster.nodes[1].has(publisher, PacketType::PubAck));
    cluster.nodes[0].finish_restore();
    cluster.settle();
    assert!(cluster.nodes[1].has(publisher, PacketType::PubAck));
    assert!(has_messages(&cluster.nodes[0]));
}

/// A node that was started again says that others know everything it wants when its stored sessions are restored. Until then
/// they keep messages for what it wanted before.
#[test]
fn messages_wait_for_a_node_that_has_not_announced_its_stored_subscriptions() {
    for seed in 0..20 {
        let mut cluster = ClusterSim::new(2, 2, 930 + seed, true);
        let mut client = cluster.connect(0, 0, "client", false);
        cluster.nodes[0].subscribe(&mut client, "a/+", QoS::ExactlyOnce);
        let mut publisher = cluster.connect(1, 0, "publisher", true);
        cluster.settle();
        cluster.separate(0, 1);
        cluster.nodes[0] = Sim::in_cluster(&name(0), 2, 7, true);
        cluster.join(0, 1);
        cluster.settle();
        cluster.nodes[1].publish(&mut publisher, "a/b", b"early", QoS::AtLeastOnce, 5);
        cluster.settle();
        let is_acknowledged = cluster.nodes[1].has(publisher, PacketType::PubAck);
        assert!(!is_acknowledged, "seed {seed}");
        cluster.nodes[0].adopt_session(0, "an earlier run", "client", "a/+");
        cluster.nodes[0].finish_restore();
        cluster.settle();
        let is_acknowledged = cluster.nodes[1].has(publisher, PacketType::PubAck);
        assert!(is_acknowledged, "seed {seed}");
        assert!(has_messages(&cluster.nodes[0]), "seed {seed}");
    }
}

/// A node that has lost its standby and returned to it may have chosen another one. Only one adopts.
#[test]
fn two_nodes_that_expect_to_adopt_do_not_disturb_each_other() {
    for seed in 0..40 {
        let mut failed = FailedNode::with_standbys(940 + seed, &[1, 2]);
        failed.cluster.pass(1500);
        let waiting = failed.cluster.nodes[2].connect(1, "client", false);
        failed.cluster.pass(500);
        assert_eq!(connack(&mut failed.cluster, waiting), None, "seed {seed}");
        let decline = |failed: &mut FailedNode| {
            failed.cluster.nodes[2].with_router(|router| router.end_succession(&name(0), false));
        };
        let declines_first = seed % 2 == 0;
        if declines_first {
            decline(&mut failed);
            failed.cluster.settle();
            assert!(!failed.is_acknowledged(), "seed {seed}");
        }
        let standby = &mut failed.cluster.nodes[1];
        standby.adopt_session(seed as usize % 2, &name(0), "client", "a/+");
        failed.cluster.settle();
        failed.cluster.nodes[1].with_router(|router| router.end_succession(&name(0), true));
        if !declines_first {
            failed.cluster.settle();
            decline(&mut failed);
        }
        failed.cluster.settle();
        assert!(failed.is_acknowledged(), "seed {seed}");
        assert!(has_messages(&failed.cluster.nodes[1]), "seed {seed}");
        let answer = connack(&mut failed.cluster, waiting);
        assert_eq!(answer, Some((ReasonCode::SUCCESS, true)), "seed {seed}");
    }
}

#[test]
fn a_node_that_returns_before_its_standby_declines_gets_each_message_once() {
    for seed in 0..20 {
        let mut cluster = ClusterSim::new(3, 2, 990 + seed, true);
        cluster.nodes[1].with_router(|router| router.set_standby_for(&name(0), true));
        let mut client = cluster.connect(0, 0, "client", false);
        cluster.nodes[0].subscribe(&mut client, "a/+", QoS::AtLeastOnce);
        let mut publisher = cluster.connect(2, 0, "publisher", true);
        cluster.settle();
        cluster.separate(0, 1);
        cluster.separate(0, 2);
        cluster.settle();
        cluster.nodes[2].publish(&mut publisher, "a/1", b"during", QoS::AtLeastOnce, 5);
        cluster.settle();
        cluster.join(0, 2);
        cluster.settle();
        cluster.nodes[2].publish(&mut publisher, "a/1", b"after", QoS::AtLeastOnce, 6);
        cluster.settle();
        cluster.join(0, 1);
        cluster.nodes[1].with_router(|router| router.end_succession(&name(0), false));
        cluster.settle();
        let mut got = payloads(&mut cluster.nodes[0], &mut client);
        got.sort();
        assert_eq!(got, [b"after".to_vec(), b"during".to_vec()], "seed {seed}");
        assert!(cluster.nodes[2].has(publisher, PacketType::PubAck));
    }
}

/// A subscriber, perhaps a member of a group, at the first of three nodes, whose standby is the second one, and a publisher at the third one.
struct AdoptedMember {
    cluster: ClusterSim,
    filter: &'static str,
    member: SimConnection,
    publisher: SimConnection,
    published: u16,
}

impl AdoptedMember {
    fn new(seed: u64) -> Self {
        Self::with_filter(seed, "$share/g/a/+")
    }

    fn with_filter(seed: u64, filter: &'static str) -> Self {
        let mut cluster = ClusterSim::new(3, 2, seed, true);
        cluster.nodes[1].with_router(|router| router.set_standby_for(&name(0), true));
        let mut member = cluster.connect(0, 0, "client", false);
        cluster.nodes[0].subscribe(&mut member, filter, QoS::AtLeastOnce);
        let publisher = cluster.connect(2, 0, "publisher", true);
        cluster.settle();
        Self {
            cluster,
            filter,
            member,
            publisher,
            published: 0,
        }
    }

    fn publish(&mut self) {
        self.published += 1;
        let (node, number) = (&mut self.cluster.nodes[2], self.published);
        node.publish(&mut self.publisher, "a/b", b"1", QoS::AtLeastOnce, number);
        self.cluster.settle();
    }

    fn adopt(&mut self) {
        self.cluster.nodes[1].adopt_session(0, &name(0), "client", self.filter);
        self.cluster.settle();
        self.cluster.nodes[1].with_router(|router| router.end_succession(&name(0), true));
        self.cluster.settle();
    }

    fn hold(&mut self, hold: SessionHold) {
        self.cluster.nodes[0].with_router(|router| router.hold_sessions(hold));
        self.cluster.settle();
    }

    /// How many messages wait for the session that the standby has adopted.
    fn adopted_messages(&self) -> usize {
        let mut sessions = self.cluster.nodes[1].shards.iter().filter_map(|shard| {
            let &at = shard.by_client_id.get("client")?;
            shard.delivery.sessions[at].outbound.as_ref()
        });
        sessions
            .next()
            .map_or(0, |outbound| outbound.size().messages)
    }

    /// The first node ends its sessions, and gets a new member of the group, which is online.
    fn abandon(&mut self) {
        self.cluster.nodes[0].terminate("client");
        self.cluster.settle();
        self.hold(SessionHold::Released);
        self.cluster.join(0, 1);
        // Claims wait for the nodes that have not registered their sessions.
        for _ in 0..8 {
            self.cluster.pass(1000);
        }
        self.member = self.cluster.connect(0, 0, "new", false);
        let node = &mut self.cluster.nodes[0];
        node.subscribe(&mut self.member, "$share/g/a/+", QoS::AtLeastOnce);
        self.cluster.settle();
    }

    fn is_acknowledged(&mut self) -> bool {
        self.cluster.nodes[2].has(self.publisher, PacketType::PubAck)
    }

    fn take(&mut self) -> usize {
        payloads(&mut self.cluster.nodes[0], &mut self.member).len()
    }
}

/// The node ends the sessions of its members, with all messages that they have got since.
#[test]
fn members_of_a_node_get_no_messages_between_the_adoption_and_the_end_of_their_sessions() {
    for seed in 0..20 {
        for is_lost in [false, true] {
            let mut adopted = AdoptedMember::new(1010 + seed);
            adopted.cluster.separate(0, 1);
            if is_lost {
                adopted.cluster.separate(0, 2);
                adopted.cluster.settle();
                adopted.adopt();
                // It registers its sessions before it notices that they may be at another node.
                adopted.cluster.join(0, 2);
                adopted.cluster.settle();
                adopted.publish();
                adopted.hold(SessionHold::Withheld);
            } else {
                adopted.hold(SessionHold::Withheld);
                adopted.adopt();
                adopted.publish();
            }
            adopted.publish();
            let context = format!("seed {seed}, {is_lost}");
            assert_eq!(adopted.adopted_messages(), 2, "{context}");
            assert_eq!(adopted.take(), 0, "{context}");
            adopted.abandon();
            adopted.publish();
            assert_eq!(adopted.take(), 1, "{context}");
        }
    }
}

#[test]
fn messages_that_a_member_has_not_confirmed_before_its_session_is_adopted_go_to_another_member() {
    for seed in 0..20 {
        for has_returned in [false, true] {
            let mut adopted = AdoptedMember::new(1030 + seed);
            adopted.cluster.separate(0, 1);
            if has_returned {
                adopted.cluster.separate(0, 2);
                adopted.cluster.settle();
                adopted.cluster.join(0, 2);
            }
            adopted.hold(SessionHold::Withheld);
            // What it stores is not at the standby, so that it confirms nothing.
            adopted.cluster.is_silent.push(0);
            adopted.publish();
            assert!(!adopted.is_acknowledged(), "seed {seed}, {has_returned}");
            adopted.adopt();
            assert_eq!(adopted.adopted_messages(), 1, "seed {seed}, {has_returned}");
            assert!(adopted.is_acknowledged(), "seed {seed}, {has_returned}");
        }
    }
}

/// It says nothing of its sessions but that they are registered.
#[test]
fn members_of_a_node_that_has_ended_its_adopted_sessions_unseen_get_messages_after_some_time() {
    let mut adopted = AdoptedMember::new(1050);
    adopted.cluster.separate(0, 1);
    adopted.cluster.separate(0, 2);
    adopted.cluster.settle();
    adopted.adopt();
    adopted.abandon();
    adopted.cluster.join(0, 2);
    adopted.cluster.settle();
    for _ in 0..11 {
        adopted.cluster.pass(1000);
    }
    adopted.publish();
    assert_eq!(adopted.take(), 1);
}

/// The publisher's node learns of the adoption when it reaches the standby again, while the failed node has not ended its sessions.
#[test]
fn messages_for_a_node_whose_standby_could_not_be_reached_go_to_the_adopted_sessions() {
    for seed in 0..20 {
        let mut adopted = AdoptedMember::new(1060 + seed);
        adopted.cluster.separate(0, 1);
        adopted.cluster.separate(1, 2);
        adopted.hold(SessionHold::Held);
        // What it stores is not at the standby, so that it confirms nothing.
        adopted.cluster.is_silent.push(0);
        adopted.publish();
        adopted.adopt();
        adopted.cluster.join(1, 2);
        adopted.cluster.settle();
        assert_eq!(adopted.adopted_messages(), 1, "seed {seed}");
        assert!(!adopted.is_acknowledged(), "seed {seed}");
        adopted.cluster.is_silent.clear();
        adopted.cluster.settle();
        assert!(adopted.is_acknowledged(), "seed {seed}");
    }
}

/// The publisher's node reaches the failed node, which has ended its sessions, before it learns of the adoption.
#[test]
fn messages_that_arrive_at_a_node_after_its_sessions_were_adopted_are_passed_on() {
    for seed in 0..20 {
        let mut adopted = AdoptedMember::with_filter(1090 + seed, "a/+");
        for (a, b) in [(0, 1), (0, 2), (1, 2)] {
            adopted.cluster.separate(a, b);
        }
        adopted.publish();
        adopted.adopt();
        adopted.hold(SessionHold::Held);
        adopted.cluster.join(0, 1);
        adopted.cluster.settle();
        let is_late = seed % 2 == 0;
        if is_late {
            adopted.cluster.nodes[0].terminate("client");
            adopted.cluster.settle();
            adopted.hold(SessionHold::Released);
        }
        adopted.cluster.join(0, 2);
        adopted.cluster.settle();
        assert_eq!(adopted.adopted_messages(), 1, "seed {seed}");
        if is_late {
            assert!(adopted.is_acknowledged(), "seed {seed}");
        }
        // What follows is for the present sessions only.
        adopted.publish();
        assert_eq!(adopted.adopted_messages(), if is_late { 1 } else { 2 });
    }
}

/// Each of them would need another slot besides the one with what waits for it.
#[test]
fn messages_wait_for_a_node_that_returns_when_all_slots_are_used() {
    for seed in 0..10 {
        let mut adopted = AdoptedMember::with_filter(1120 + seed, "a/+");
        adopted.cluster.separate(0, 1);
        adopted.cluster.separate(0, 2);
        adopted.cluster.settle();
        adopted.publish();
        adopted.cluster.nodes[2].with_router(|router| {
            // The slot of the first one remains used, too.
            router.add_peer(PeerNodeIx::from_position(3), "other", NODE_PROTOCOL);
            router.remove_peer(PeerNodeIx::from_position(3), PeerLoss::Silent);
            for n in 3..MAX_PEER_NODES {
                let name = format!("other-{n}");
                router.add_peer(PeerNodeIx::from_position(n), &name, NODE_PROTOCOL);
            }
        });
        adopted.cluster.join(0, 2);
        adopted.cluster.settle();
        adopted.cluster.nodes[1].with_router(|router| router.end_succession(&name(0), false));
        adopted.cluster.settle();
        assert_eq!(adopted.take(), 1, "seed {seed}");
    }
}
