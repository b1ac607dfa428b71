//! Successions: a node adopts the durable sessions of another one that has failed.
//!
//! The standby of a node reports that it is about to adopt its sessions when the node cannot be reached any more. Until
//! it has done so, all nodes keep the filters of the failed node, and what it has not confirmed. Then they send these
//! messages to the standby, for the adopted sessions only: its other sessions have got theirs.

use std::sync::atomic::Ordering::Relaxed;

use mqtt::QoS;

use super::batches::MAX_REMEMBERED_NODES;
use super::{BatchRecipients, NodeRouter};
use crate::core::cross_shard_batch::NodeTraffic;
use crate::core::node_messages::{self, SuccessionState};
use crate::core::peer_node::RemoteNode;
use crate::core::peer_node_ix::PeerNodeIx;
use crate::core::session_directory::SessionMessage;
use crate::core::succession::{Abandonment, RecentAdoption, SessionHold, Succession, Successor};
use crate::core::tables::TableIx as _;

/// Time between two reports of a standby.
const REPORT_INTERVAL_MS: u64 = 1000;
/// A standby that cannot be reached, and has not reported for so long, does not adopt the sessions.
const REPORT_TIMEOUT_MS: u64 = 5000;

/// Time for which a node that was not reachable is told that sessions were adopted.
const ADOPTED_REPORT_MS: u64 = 60_000;

/// Time in which a node that can be reached notices that another one may have adopted its sessions. One that has not said so by
/// then has ended them before it could be reached.
const NOTICE_TIMEOUT_MS: u64 = 10_000;

impl NodeRouter {
    /// This node is, or is no longer, the standby of another one, and may adopt its sessions when it cannot be reached.
    pub(crate) fn set_standby_for(&mut self, node: &str, is_standby: bool) {
        let has_changed = match is_standby {
            true => self.standby_for.insert(node.into()),
            false => self.standby_for.remove(node),
        };
        if has_changed {
            self.report_succession(node, SuccessionState::of_standby(is_standby));
        }
    }

    /// Whether another node may adopt the sessions of a node.
    pub(super) fn has_standby(&self, node: &str) -> bool {
        self.standbys.contains_key(node)
    }

    /// This node begins to adopt the sessions of another one. Clients wait for their sessions until it has ended.
    pub(crate) fn begin_succession(&mut self, node: &str) {
        let succession = Succession {
            successor: Successor::ThisNode,
            reported_ms: self.now_ms,
        };
        let known = self.successions.insert(node.into(), succession);
        if known.is_none_or(|known| known.successor != Successor::ThisNode) {
            self.sessions.begin_adoption(node, None, self.now_ms);
        }
        self.sessions.hold_restore(self.now_ms);
        self.report_succession(node, SuccessionState::Begun);
    }

    /// This node has adopted the sessions of another one, or will not do so.
    pub(crate) fn end_succession(&mut self, node: &str, is_adopted: bool) {
        let known = self.successions.get(node);
        if known.is_none_or(|known| known.successor != Successor::ThisNode) {
            // Another node has adopted them meanwhile.
            return self.check_restored();
        }
        self.successions.remove(node);
        // The other nodes learn of the filters of the adopted sessions before they send messages for them.
        self.send_announcements();
        let state = match is_adopted {
            true => SuccessionState::Adopted,
            false => SuccessionState::Cancelled,
        };
        self.report_succession(node, state);
        match is_adopted {
            true => {
                let adoption = RecentAdoption {
                    ended_ms: self.now_ms,
                    is_of_earlier_run: false,
                };
                self.adopted_nodes.insert(node.into(), adoption);
                self.redirect(node, Successor::ThisNode, true);
            }
            false => {
                self.sessions.cancel_adoption(node, None);
                self.resume_returned(node);
            }
        }
        self.check_restored();
    }

    /// An earlier run of this node has adopted the sessions of another one. The other nodes may not know it.
    pub(crate) fn confirm_succession(&mut self, node: &str) {
        self.end_succession(node, true);
        if let Some(adoption) = self.adopted_nodes.get_mut(node) {
            adoption.is_of_earlier_run = true;
        }
    }

    /// The sessions that this node has stored may be at another one, or are not.
    pub(crate) fn hold_sessions(&mut self, hold: SessionHold) {
        let are_held = hold != SessionHold::Released;
        self.node.are_sessions_held.store(are_held, Relaxed);
        self.sessions.withhold_registrations(are_held, self.now_ms);
        self.update_exclusives();
        self.is_restore_held = hold == SessionHold::Held;
        if !are_held {
            self.send_announcements();
            self.forget_filters_with(self.sequence);
            if let Some((_, until_ms)) = &mut self.adopter {
                *until_ms = self.now_ms + ADOPTED_REPORT_MS;
            }
        }
        match self.is_restore_held {
            true => self.sessions.hold_restore(self.now_ms),
            false => self.check_restored(),
        }
    }

    /// Registers the sessions of this node with the other ones, if all are known.
    pub(super) fn check_restored(&mut self) {
        let is_own = |succession: &Succession| succession.successor == Successor::ThisNode;
        if self.are_shards_restored()
            && !self.is_restore_held
            && !self.successions.values().any(is_own)
        {
            self.sessions.finish_restore();
        }
    }

    /// What waits for a node that has returned while its sessions were to be adopted is sent to it, if nobody does so and
    /// it has announced the filters of its sessions.
    pub(super) fn resume_returned(&mut self, node: &str) {
        if self.successions.contains_key(node) {
            return;
        }
        let (lost, connected) = self.slots_of(node);
        if let Some(&returned) = connected.first()
            && self.is_slot_complete(returned)
        {
            for slot in lost {
                self.give_up_to(slot, Some(Successor::Returned(returned)));
            }
        }
    }

    /// Whether the node of a slot has announced everything that it wanted when it became reachable.
    fn is_slot_complete(&self, slot: u8) -> bool {
        let mut peers = self.peers.iter().flatten();
        peers.any(|peer| peer.slot == slot && peer.is_complete)
    }

    /// A node has announced everything. What it wants is sent to it from now on, so that it is not sent again if it turns
    /// out that it keeps its sessions.
    pub(super) fn finish_return(&mut self, node: &str) {
        let (lost, _) = self.slots_of(node);
        for slot in lost {
            self.send_batch(slot);
            if let Some(node) = &mut self.nodes[usize::from(slot)]
                && node.returned_after.is_none()
            {
                node.returned_after = Some(node.sent.last());
            }
        }
        self.resume_returned(node);
    }

    /// Whether a node that cannot be reached in its former slot can be reached in another one.
    pub(super) fn has_returned(&self, node: &str) -> bool {
        let mut nodes = self.nodes.iter().flatten();
        nodes.any(|known| *known.name == *node && known.peer.is_some())
    }

    /// The slots of a node that cannot be reached, and of one that can.
    fn slots_of(&self, node: &str) -> (Vec<u8>, Vec<u8>) {
        let slots = |is_lost: bool| {
            let nodes = self.nodes.iter().enumerate();
            let of_node = nodes.filter(move |(_, known)| {
                let is_named = |known: &RemoteNode| *known.name == *node;
                let known = known.as_deref().filter(|known| is_named(known));
                known.is_some_and(|known| known.peer.is_none() == is_lost)
            });
            of_node.map(|(slot, _)| slot as u8).collect()
        };
        (slots(true), slots(false))
    }

    fn report_succession(&mut self, node: &str, state: SuccessionState) {
        let peers = self.peers.iter().enumerate();
        for (position, _) in peers.filter(|(_, peer)| peer.is_some()) {
            let message = node_messages::encode_succession(state, node);
            let to = PeerNodeIx::from_position(position);
            self.outgoing.push((to, message));
        }
    }

    pub(super) fn handle_succession(
        &mut self,
        from: PeerNodeIx,
        state: SuccessionState,
        node: &str,
    ) {
        let successor = Successor::Peer(from);
        if *node == *self.name {
            self.note_adopter(from, state);
        }
        // Two nodes may expect to adopt the sessions. The record decides who does so, and the other one declines.
        let known = self.successions.get(node).map(|known| known.successor);
        let is_own = known == Some(Successor::ThisNode);
        match state {
            SuccessionState::Begun if is_own => {}
            SuccessionState::Begun => {
                // It is reported again and again.
                if known != Some(successor) {
                    self.sessions.begin_adoption(node, Some(from), self.now_ms);
                }
                let reported_ms = self.now_ms;
                let succession = Succession {
                    successor,
                    reported_ms,
                };
                self.successions.insert(node.into(), succession);
            }
            // This one adopts the sessions of a later run.
            SuccessionState::AdoptedBefore if is_own => {}
            SuccessionState::Adopted | SuccessionState::AdoptedBefore => {
                self.successions.remove(node);
                self.sessions.finish_adoption(node, Some(from), self.now_ms);
                self.redirect(node, successor, state == SuccessionState::Adopted);
                if is_own {
                    // Others may learn only now that this node was about to do so.
                    self.report_succession(node, SuccessionState::Cancelled);
                }
                self.check_restored();
            }
            SuccessionState::Standby => {
                self.standbys.insert(node.into(), from);
            }
            SuccessionState::NoStandby => {
                if self.standbys.get(node) == Some(&from) {
                    self.standbys.remove(node);
                }
            }
            SuccessionState::Cancelled => {
                self.sessions.cancel_adoption(node, Some(from));
                if known == Some(successor) || known == Some(Successor::Unreachable) {
                    self.successions.remove(node);
                }
                self.resume_returned(node);
            }
        }
    }

    /// Another node has adopted the sessions of this one. Among them are those that this one had adopted, or was about to adopt,
    /// from a third node.
    fn note_adopter(&mut self, adopter: PeerNodeIx, state: SuccessionState) {
        if matches!(
            state,
            SuccessionState::Adopted | SuccessionState::AdoptedBefore
        ) && let Some(peer) = &self.peers[adopter.position()]
            && let Some(node) = &self.nodes[usize::from(peer.slot)]
            && (self.adopter.as_ref()).is_none_or(|(adopter, _)| *adopter != node.name)
        {
            self.adopter = Some((node.name.clone(), self.now_ms + ADOPTED_REPORT_MS));
            let is_held = self.node.are_sessions_held.load(Relaxed);
            self.forget_filters_with(if is_held { u64::MAX } else { self.sequence });
        }
    }

    /// The nodes that can be reached have forgotten the filters of sessions that another node has adopted when they have applied an
    /// announcement.
    fn forget_filters_with(&mut self, sequence: u64) {
        for peer in self.peers.iter_mut().flatten() {
            if !peer.awaits_completion {
                peer.forgets_with = sequence;
            }
        }
    }

    /// Passes a message of another node on to the one that has adopted the sessions of this one, if it may be for these: the other
    /// node may not know it, or may have learned it too late.
    pub(super) fn pass_to_adopter(
        &mut self,
        slot: u8,
        message: NodeTraffic<'_>,
        touched: &mut BatchRecipients,
    ) {
        if self.adopter.is_none() || message.view.qos == QoS::AtMostOnce {
            return;
        }
        let mut peers = self.peers.iter().flatten();
        if peers.any(|peer| peer.slot == slot && peer.applied < peer.forgets_with) {
            self.push_to_adopter(message, touched);
        }
    }

    /// Sends a message to the node that has adopted the sessions of this one, for these.
    pub(super) fn push_to_adopter(
        &mut self,
        message: NodeTraffic<'_>,
        touched: &mut BatchRecipients,
    ) {
        let Some((adopter, _)) = &self.adopter else {
            return;
        };
        let is_adopter = |node: &Option<Box<RemoteNode>>| {
            node.as_ref().is_some_and(|node| node.name == *adopter)
        };
        if let Some(slot) = self.nodes.iter().position(is_adopter) {
            let name = self.name.clone();
            self.push_for_adopted(slot as u8, message, &name, touched);
        }
    }

    /// A node cannot be reached any more. It may return in time, and say what it has adopted.
    pub(super) fn remove_successor(&mut self, peer: PeerNodeIx) {
        self.standbys.retain(|_, standby| *standby != peer);
        for succession in self.successions.values_mut() {
            if succession.successor == Successor::Peer(peer) {
                succession.successor = Successor::Unreachable;
            }
        }
    }

    /// Tells a node that can be reached again what this one has adopted.
    pub(super) fn report_successions(&mut self, to: PeerNodeIx) {
        let own = self.successions.iter();
        let own = own.filter(|(_, succession)| succession.successor == Successor::ThisNode);
        for (node, _) in own {
            let message = node_messages::encode_succession(SuccessionState::Begun, node);
            self.outgoing.push((to, message));
        }
        for node in &self.standby_for {
            let message = node_messages::encode_succession(SuccessionState::Standby, node);
            self.outgoing.push((to, message));
        }
        for node in self.adopted_nodes.keys() {
            let message = node_messages::encode_succession(SuccessionState::AdoptedBefore, node);
            self.outgoing.push((to, message));
        }
    }

    /// Lets time pass; returns whether there are successions.
    pub(super) fn tick_successions(&mut self) -> bool {
        let now_ms = self.now_ms;
        self.adopted_nodes
            .retain(|_, adoption| now_ms < adoption.ended_ms + ADOPTED_REPORT_MS);
        // The adopter forgets some time later which sessions it has adopted.
        let are_held = self.node.are_sessions_held.load(Relaxed);
        self.adopter
            .take_if(|(_, until_ms)| !are_held && now_ms >= *until_ms);
        let (mut due, mut ended) = (Vec::new(), Vec::new());
        for (node, succession) in &mut self.successions {
            match succession.successor {
                Successor::ThisNode if now_ms >= succession.reported_ms + REPORT_INTERVAL_MS => {
                    succession.reported_ms = now_ms;
                    due.push(node.clone());
                }
                Successor::Unreachable if now_ms >= succession.reported_ms + REPORT_TIMEOUT_MS => {
                    ended.push(node.clone());
                }
                // A node that can be reached says how it ends.
                _ => {}
            }
        }
        for node in ended {
            self.successions.remove(&node);
            self.resume_returned(&node);
        }
        for node in due {
            self.report_succession(&node, SuccessionState::Begun);
        }
        !self.successions.is_empty() || self.adopter.is_some()
    }

    /// Sends what a node has not confirmed to the node that has adopted its sessions. `is_new`: it has done so just now, so
    /// that this concerns the failed node also if it can be reached from here.
    fn redirect(&mut self, node: &str, successor: Successor, is_new: bool) {
        self.await_abandonment(node, is_new);
        let (lost, connected) = self.slots_of(node);
        for &slot in &lost {
            self.give_up_to(slot, Some(successor));
        }
        if is_new {
            // The failed node can be reached from here; what it confirms from now on is not stored by its standby. If it has
            // returned to another slot, its sessions have got what is not for single members by the former one.
            let successor = lost.is_empty().then_some(successor);
            for &slot in &connected {
                self.redirect_unlogged(slot, successor);
            }
        } else if self.abandoning.contains_key(node) {
            for &slot in &connected {
                self.copy_unlogged(slot, successor);
            }
        }
    }

    /// Sends what a node that can be reached has not confirmed also to the one that has adopted its sessions before that could be
    /// reached. The node may be holding its sessions for another reason, and is waited for as well.
    fn copy_unlogged(&mut self, slot: u8, successor: Successor) {
        self.send_batch(slot);
        let Some(node) = &self.nodes[usize::from(slot)] else {
            return;
        };
        let name = node.name.clone();
        let unlogged = node.sent.unlogged();
        let batches: Vec<_> = unlogged
            .filter_map(|message| node_messages::decode_own_batch(message))
            .collect();
        let mut touched = BatchRecipients::default();
        for crossing in batches.iter().flat_map(|batch| batch.iter()) {
            let message = crossing.traffic();
            match &crossing.member {
                Some(member) => self.send_to_member(message, member, &mut touched),
                None if crossing.is_retained_copy => {}
                None => self.send_to_adopted(successor, &name, message, &mut touched),
            }
        }
        let requirement = self.require(touched);
        for waiting in self.requirements() {
            waiting.add_to_node(slot, &requirement);
        }
        for of_shard in &mut self.touched {
            if of_shard.nodes & 1 << slot != 0 {
                of_shard.nodes |= touched.nodes;
                of_shard.shards |= touched.shards;
            }
        }
    }

    /// Another node has adopted the sessions of a node. Messages for a member of a group go to other members until it has ended
    /// them: what it gets for them is lost.
    fn await_abandonment(&mut self, node: &str, is_new: bool) {
        let peer = self.sessions.peer_with_name(node);
        let is_registered = peer.is_some_and(|peer| self.sessions.has_registered(peer));
        // It may have ended them long before this node could reach the one that has adopted them.
        if !is_new && is_registered {
            return;
        }
        let abandonment = Abandonment {
            has_noticed: peer.is_some() && !is_registered,
            since_ms: self.now_ms,
        };
        if self.abandoning.len() < MAX_REMEMBERED_NODES || self.abandoning.contains_key(node) {
            self.abandoning.insert(node.into(), abandonment);
        }
    }

    /// A node can be reached. It says whether it registers its sessions, and may not have noticed yet that they are adopted.
    pub(super) fn await_notice(&mut self, node: &str) {
        if let Some(abandonment) = self.abandoning.get_mut(node) {
            abandonment.has_noticed = false;
            abandonment.since_ms = self.now_ms;
        }
    }

    /// A node that has noticed that its sessions may be at another one registers them when it has ended those that are.
    pub(super) fn note_registration(&mut self, slot: u8, message: &SessionMessage) {
        if self.abandoning.is_empty() {
            return;
        }
        let Some(node) = &self.nodes[usize::from(slot)] else {
            return;
        };
        match message {
            SessionMessage::Restoring => {
                if let Some(abandonment) = self.abandoning.get_mut(&node.name) {
                    abandonment.has_noticed = true;
                }
            }
            SessionMessage::Registered { .. } => {
                let abandonment = self.abandoning.get(&node.name);
                if abandonment.is_some_and(|abandonment| abandonment.has_noticed) {
                    self.abandoning.remove(&node.name);
                }
            }
            _ => {}
        }
    }

    /// Lets time pass; returns whether a node is to notice that its sessions are adopted.
    pub(super) fn tick_abandoning(&mut self) -> bool {
        let (sessions, now_ms) = (&self.sessions, self.now_ms);
        let is_to_notice = |node: &str, abandonment: &Abandonment| {
            !abandonment.has_noticed && sessions.peer_with_name(node).is_some()
        };
        self.abandoning.retain(|node, abandonment| {
            !is_to_notice(node, abandonment) || now_ms < abandonment.since_ms + NOTICE_TIMEOUT_MS
        });
        let mut abandoning = self.abandoning.iter();
        abandoning.any(|(node, abandonment)| is_to_notice(node, abandonment))
    }

    /// Whether the members of groups at a node may be sessions that another node has adopted.
    pub(super) fn is_abandoning(&self, slot: u16) -> bool {
        let node = self.nodes[usize::from(slot)].as_ref();
        !self.abandoning.is_empty()
            && node.is_some_and(|node| self.abandoning.contains_key(&node.name))
    }

    /// A shard may have published a message before it knew of sessions that this node has adopted since, and the message has
    /// waited for the log in the link: the failed node, for which it was, is gone.
    pub(super) fn pass_to_recently_adopted(
        &mut self,
        message: NodeTraffic<'_>,
        touched: &mut BatchRecipients,
    ) {
        if message.id.is_none() || self.adopted_nodes.is_empty() {
            return;
        }
        let adopted = self.adopted_nodes.iter();
        // Which sessions an earlier run has adopted is not known, and the other ones have got the message.
        let since = adopted.filter(|(_, adoption)| {
            !adoption.is_of_earlier_run && message.view.received_ms <= adoption.ended_ms
        });
        let nodes: Vec<Box<str>> = since.map(|(node, _)| node.clone()).collect();
        for node in nodes {
            self.push_to_adopted_here(message, &node, touched);
        }
    }

    /// Sends a message to the adopted sessions of a node.
    pub(super) fn send_to_adopted(
        &mut self,
        successor: Successor,
        node: &str,
        message: NodeTraffic<'_>,
        touched: &mut BatchRecipients,
    ) {
        if message.view.qos == QoS::AtMostOnce {
            self.counts.dropped_behind += 1;
            return;
        }
        match successor {
            Successor::Peer(peer) => {
                let Some(slot) = self.peers[peer.position()].as_ref().map(|peer| peer.slot) else {
                    return;
                };
                self.push_for_adopted(slot, message, node, touched);
            }
            Successor::ThisNode => {
                self.push_to_adopted_here(message, node, touched);
                self.push_to_adopter(message, touched);
            }
            Successor::Returned(slot) => self.push_to_node(slot, message, None, touched),
            Successor::Unreachable => {}
        }
    }
}
