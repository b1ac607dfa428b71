//! Exclusive subscriptions of a shard. Outside a cluster the directory of the node decides at once who has one. In a
//! cluster, [`ExclusiveDirectory`](super::exclusive_directory::ExclusiveDirectory) does, so that a SUBSCRIBE waits for its
//! answers before it is processed.

use hooks::{Authorization, ClientAction, PacketFacts};
use mqtt::{Direction, Packet, ReasonCode, Subscribe, SubscribeFilter, SubscriptionFilter};

use super::connection::{CloseReason, ConnectionPhase};
use super::pending_exclusives::{ExclusiveContinuation, PendingExclusives};
use super::shard::Shard;
use super::shard_messages::{ExclusiveOutcome, ShardMessage};
use super::subscription_tree::{EXCLUSIVE_GROUP, filter_and_group};
use super::tables::{ConnectionIx, SessionIx};

impl Shard {
    /// The topics of the exclusive subscriptions among these filters that the session may have, has not yet, and has to claim
    /// from the cluster.
    pub(super) fn exclusive_topics_to_claim<'a>(
        &mut self,
        session: SessionIx,
        filters: impl Iterator<Item = SubscribeFilter<'a>>,
    ) -> Vec<Box<str>> {
        let mut topics = Vec::new();
        if self.node_router.is_none() {
            return topics;
        }
        for filter in filters {
            if let Some(topic) = self.exclusive_topic_to_claim(session, &filter)
                && !topics.contains(&topic)
            {
                topics.push(topic);
            }
        }
        topics
    }

    /// Claims exclusive subscriptions. `continuation` is called when all claims are answered.
    pub(super) fn claim_exclusives(
        &mut self,
        session: SessionIx,
        topics: Vec<Box<str>>,
        continuation: ExclusiveContinuation<Shard>,
    ) {
        let Some(router) = self.node_router else {
            return;
        };
        let client_id = self.delivery.sessions[session].client_id.clone();
        for topic in &topics {
            let message = ShardMessage::ClaimExclusive {
                topic: topic.clone(),
                client_id: (&*client_id).into(),
            };
            self.shard_queues.send(router, message);
        }
        self.pending_exclusives.push(PendingExclusives {
            client_id,
            claims: topics.into_iter().map(|topic| (topic, None)).collect(),
            continuation,
        });
    }

    /// The topic of an exclusive subscription that the session may have and has not yet. What is not permitted is not claimed,
    /// so that nobody else is rejected because of it.
    fn exclusive_topic_to_claim(
        &mut self,
        session: SessionIx,
        filter: &SubscribeFilter<'_>,
    ) -> Option<Box<str>> {
        if !self.limits.exclusive_subscription_available {
            return None;
        }
        let kind = mqtt::parse_filter(filter.filter, &self.topic_limits()).ok()?;
        let SubscriptionFilter::Exclusive { topic } = kind else {
            return None;
        };
        let (text, group) = filter_and_group(&kind);
        if self.has_subscription(session, text, group)
            || self
                .check_subscription_quota(session, text, group)
                .is_some()
        {
            return None;
        }
        let action = ClientAction::Subscribe {
            filter: filter.filter,
            options: filter.options,
        };
        (self.authorize(session, &action) == Authorization::Allow).then(|| topic.into())
    }

    /// The continuation for the SUBSCRIBE of a connection.
    pub(super) fn continue_subscribe(
        &self,
        at: ConnectionIx,
        subscribe: &Subscribe<'_>,
    ) -> ExclusiveContinuation<Shard> {
        let connection = &self.delivery.connections[at];
        let mut packet = Vec::new();
        subscribe.encode(connection.version, &mut packet);
        ExclusiveContinuation::Packet {
            connection: at,
            serial: connection.serial,
            packet,
        }
    }

    /// Whether a SUBSCRIBE of this connection waits for answers.
    pub(super) fn has_pending_exclusives(&self, at: ConnectionIx, of_serial: u32) -> bool {
        let is_of_connection = |pending: &PendingExclusives<Self>| match pending.continuation {
            ExclusiveContinuation::Packet {
                connection, serial, ..
            } => (connection, serial) == (at, of_serial),
            ExclusiveContinuation::Request(_) => false,
        };
        self.pending_exclusives.iter().any(is_of_connection)
    }

    pub(super) fn handle_exclusive_claimed(
        &mut self,
        topic: &str,
        client_id: &str,
        outcome: ExclusiveOutcome,
    ) {
        let is_open = |(claimed, answer): &(Box<str>, Option<ExclusiveOutcome>)| {
            **claimed == *topic && answer.is_none()
        };
        let pending = self.pending_exclusives.iter().position(|pending| {
            *pending.client_id == *client_id && pending.claims.iter().any(is_open)
        });
        let Some(index) = pending else { return };
        let claims = &mut self.pending_exclusives[index].claims;
        if let Some((_, answer)) = claims.iter_mut().find(|claim| is_open(claim)) {
            *answer = Some(outcome);
        }
        if claims.iter().any(|(_, answer)| answer.is_none()) {
            return;
        }
        let pending = self.pending_exclusives.remove(index);
        let answered = pending.claims.into_iter();
        self.exclusive_answers = answered
            .filter_map(|(topic, answer)| Some((topic, answer?)))
            .collect();
        match pending.continuation {
            ExclusiveContinuation::Packet {
                connection,
                serial,
                packet,
            } => self.resume_subscribe(connection, serial, &packet),
            ExclusiveContinuation::Request(request) => request(self),
        }
        for (topic, answer) in std::mem::take(&mut self.exclusive_answers) {
            // The client has gone meanwhile, or its permission.
            if answer == ExclusiveOutcome::Granted {
                self.release_exclusive(&topic, &pending.client_id);
            }
        }
        self.close_pending_connections();
    }

    fn resume_subscribe(&mut self, at: ConnectionIx, serial: u32, packet: &[u8]) {
        let Some(connection) = self.delivery.connections.get(at) else {
            return;
        };
        if connection.serial != serial || connection.phase != ConnectionPhase::Connected {
            return;
        }
        let version = connection.version;
        let frame = mqtt::split_frame(packet, u32::MAX).ok().flatten();
        let decoded =
            frame.and_then(|frame| Packet::decode(frame, version, Direction::FromClient).ok());
        let Some(Packet::Subscribe(subscribe)) = decoded else {
            return;
        };
        if let Err(closing) = self.process_subscribe(at, &subscribe) {
            self.close_on_error(at, closing, packet);
        }
    }

    /// Takes the exclusive subscription of a topic for a session, or says why it cannot have it.
    pub(super) fn take_exclusive(
        &mut self,
        session: SessionIx,
        topic: &str,
    ) -> Result<(), (ReasonCode, &'static str)> {
        let held = (
            ReasonCode::QUOTA_EXCEEDED,
            "another client holds the exclusive subscription",
        );
        if self.node_router.is_none() {
            let client_id = &self.delivery.sessions[session].client_id;
            return match self.node.directory.claim_exclusive(topic, client_id) {
                true => Ok(()),
                false => Err(held),
            };
        }
        if self.has_subscription(session, topic, Some(EXCLUSIVE_GROUP)) {
            return Ok(());
        }
        let mut answers = self.exclusive_answers.iter();
        let index = answers.position(|(answered, _)| **answered == *topic);
        let outcome = index.map(|index| self.exclusive_answers.swap_remove(index).1);
        match outcome {
            Some(ExclusiveOutcome::Granted) => Ok(()),
            Some(ExclusiveOutcome::Held) => Err(held),
            // Without an answer: its permission or the limits have changed since the claims of the request.
            Some(ExclusiveOutcome::Undecided) | None => Err((
                ReasonCode::IMPLEMENTATION_SPECIFIC_ERROR,
                "the nodes of the cluster have not agreed on who holds the exclusive subscription, try again later",
            )),
        }
    }

    /// A restored session has the exclusive subscription of a topic.
    pub(super) fn restore_exclusive(&mut self, session: SessionIx, topic: &str) {
        let session = &self.delivery.sessions[session];
        match self.node_router {
            None => {
                self.node
                    .directory
                    .claim_exclusive(topic, &session.client_id);
            }
            Some(router) => {
                let message = ShardMessage::ExclusiveRestored {
                    topic: topic.into(),
                    client_id: (&*session.client_id).into(),
                    // The time of the subscription is not stored.
                    since_ms: session.created_ms,
                };
                self.shard_queues.send(router, message);
            }
        }
    }

    /// A client has the exclusive subscription of a topic no longer.
    pub(super) fn release_exclusive(&mut self, topic: &str, client_id: &str) {
        match self.node_router {
            None => self.node.directory.release_exclusive(topic, client_id),
            Some(router) => {
                let message = ShardMessage::ExclusiveReleased {
                    topic: topic.into(),
                    client_id: client_id.into(),
                };
                self.shard_queues.send(router, message);
            }
        }
    }

    /// Ends an exclusive subscription, because a client of another node had it earlier. MQTT has no packet that ends a single
    /// subscription for a client, so that the client is disconnected: it learns of it when it subscribes again.
    pub(super) fn end_exclusive(&mut self, topic: &str, client_id: &str) {
        let Some(&session) = self.by_client_id.get(client_id) else {
            return;
        };
        if !self.has_subscription(session, topic, Some(EXCLUSIVE_GROUP)) {
            return;
        }
        tracing::warn!(
            client_id,
            topic,
            "two nodes had an exclusive subscription of the same topic; the later one ends"
        );
        self.unsubscribe_one(session, &format!("$exclusive/{topic}"), PacketFacts::NONE);
        if let Some(at) = self.delivery.sessions[session].connection {
            let why = CloseReason::new(ReasonCode::QUOTA_EXCEEDED, "exclusive_subscription_lost");
            let detail = format!(
                "another client of the cluster had the exclusive subscription of {topic} earlier"
            );
            self.close(at, why.with_detail(detail));
        }
        self.close_pending_connections();
    }
}
