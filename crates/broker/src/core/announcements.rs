//! Announces the filters and group members of this shard to the others, and handles what other shards send.

use super::filter_key::FilterKey;
use super::shard::Shard;
use super::shard_messages::ShardMessage;
use super::shared_subscription::RemoteMembers;
use super::tables::{FilterId, GroupId, NO_GROUP, SessionIx};

impl Shard {
    pub(super) fn announce_filter(&mut self, filter: FilterId, wanted: bool) {
        if self.shards == 1 && self.node_router.is_none() {
            return;
        }
        let text = self.tree.filter(filter).text.clone();
        let sequence = self
            .shard_queues
            .broadcast(|sequence| ShardMessage::FilterInterest {
                filter: (&*text).into(),
                wanted,
                sequence,
            });
        self.tree.filter_mut(filter).announced_sequence = sequence;
    }

    pub(super) fn announce_members(&mut self, group_id: GroupId) {
        if self.shards == 1 && self.node_router.is_none() {
            return;
        }
        let group = self.tree.group(group_id);
        let (online, total) = (group.local_online() as u32, group.local_len() as u32);
        let text = self.tree.filter(group.filter).text.clone();
        let name = group.name.clone();
        let sequence = self
            .shard_queues
            .broadcast(|sequence| ShardMessage::GroupMembers {
                filter: (&*text).into(),
                group: (&*name).into(),
                online,
                total,
                sequence,
            });
        self.tree.group_mut(group_id).announced_sequence = sequence;
    }

    /// A session went online or offline: its groups prefer online members.
    pub(crate) fn set_group_presence(&mut self, session: SessionIx, online: bool) {
        let groups: Vec<GroupId> = self.delivery.sessions[session]
            .subscriptions
            .iter()
            .filter_map(|&(_, group)| (group != NO_GROUP).then_some(group))
            .collect();
        for group in groups {
            self.tree.group_mut(group).set_online(session, online);
            self.announce_members(group);
        }
    }

    /// Handles messages from another shard.
    pub(crate) fn handle_shard_messages(&mut self, from: u16, messages: Vec<ShardMessage>) {
        let mut to_confirm = 0;
        for message in messages {
            match message {
                ShardMessage::Messages(batch) => {
                    self.deliver_batch(from, &batch);
                    self.shard_queues.recycle_buffer(batch.into_buffer());
                }
                ShardMessage::FilterInterest {
                    filter,
                    wanted,
                    sequence,
                } => {
                    to_confirm = sequence;
                    self.set_filter_interest(from, &filter, wanted);
                }
                ShardMessage::RouterFiltersRemoved { removed, sequence } => {
                    to_confirm = sequence;
                    self.tree
                        .change_remote_filters(|filters| filters.remove_all(&removed));
                }
                ShardMessage::GroupMembers {
                    filter,
                    group,
                    online,
                    total,
                    sequence,
                } => {
                    to_confirm = sequence;
                    let filter = self.tree.find_or_insert(&filter);
                    let group = self.tree.find_or_insert_group(filter, &group);
                    let members = RemoteMembers {
                        shard: from,
                        online,
                        total,
                    };
                    self.tree.group_mut(group).set_remote(members);
                    self.tree.remove_group_if_unused(group);
                }
                ShardMessage::SequenceApplied { sequence } => self.handle_applied(from, sequence),
                ShardMessage::TurnMarker { turn } => {
                    if let Some(journal) = &mut self.delivery.journal {
                        journal.record_turn_marker(from, turn);
                    }
                }
                ShardMessage::TurnLogged { turn } => {
                    if let Some(journal) = &mut self.delivery.journal {
                        journal.mark_confirmed(from, turn);
                    }
                    self.release_complete_turns();
                }
                ShardMessage::SessionClaimed { client_id, outcome } => {
                    self.handle_session_claimed(&client_id, outcome);
                }
                ShardMessage::EndSession {
                    client_id,
                    keep,
                    is_conflict,
                    request,
                } => {
                    let kept = self.end_session_for_cluster(&client_id, keep, is_conflict);
                    let answer = ShardMessage::SessionEndAnswer { request, kept };
                    self.shard_queues.send(from, answer);
                }
                ShardMessage::ExclusiveClaimed {
                    topic,
                    client_id,
                    outcome,
                } => self.handle_exclusive_claimed(&topic, &client_id, outcome),
                ShardMessage::EndExclusive { topic, client_id } => {
                    self.end_exclusive(&topic, &client_id);
                }
                ShardMessage::StoreRejects(rejects) => self.has_rejecting_node = rejects,
                ShardMessage::TunnelData { tunnel, bytes } => {
                    self.handle_tunnel_output(tunnel, &bytes);
                }
                ShardMessage::TunnelCredit { tunnel, bytes } => {
                    self.handle_tunnel_credit(tunnel, bytes);
                }
                ShardMessage::TunnelClosed { tunnel } => {
                    self.handle_tunnel_closed(tunnel);
                    self.close_pending_connections();
                }
                // Only shards send these, and only to the node router.
                ShardMessage::ClaimSession { .. }
                | ShardMessage::WithdrawClaim { .. }
                | ShardMessage::SessionStarted { .. }
                | ShardMessage::SessionsRestored
                | ShardMessage::SessionEnded { .. }
                | ShardMessage::SessionEndAnswer { .. }
                | ShardMessage::ClaimExclusive { .. }
                | ShardMessage::ExclusiveRestored { .. }
                | ShardMessage::ExclusiveReleased { .. }
                | ShardMessage::OpenTunnel { .. } => {}
            }
        }
        if to_confirm > 0 {
            self.shard_queues.send(
                from,
                ShardMessage::SequenceApplied {
                    sequence: to_confirm,
                },
            );
        }
    }

    fn set_filter_interest(&mut self, from: u16, text: &str, wanted: bool) {
        if self.node_router == Some(from) && self.set_router_filter(from, text, wanted) {
            return;
        }
        if wanted {
            let filter = self.tree.find_or_insert(text);
            self.tree.set_remote(filter, from, true);
        } else if let Some(filter) = self.tree.find(text) {
            self.tree.set_remote(filter, from, false);
            self.tree.remove_if_unused(filter);
        }
    }

    /// Returns false if the filter belongs into the tree.
    fn set_router_filter(&mut self, router: u16, text: &str, wanted: bool) -> bool {
        if self.tree.remote_shards_in_tree(text) & 1 << router != 0 {
            return false;
        }
        let key = FilterKey::of(text);
        self.tree
            .change_remote_filter(text, |filters| filters.set(router, &key, wanted))
    }

    /// Another shard has confirmed announcements up to `sequence`.
    pub(crate) fn handle_applied(&mut self, shard: u16, sequence: u64) {
        self.shard_queues.record_applied(shard, sequence);
        while let Some(confirmed) = self
            .pending_subacks
            .pop_confirmed(|sequence| self.shard_queues.is_applied_by_all(sequence))
        {
            self.send_pending_suback(confirmed);
        }
        self.send_ready_responses();
    }
}
