//! Publishing, subscribing for clients, sending clients away, listening to what happens.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use mqtt::ReasonCode;
use tokio::sync::{broadcast, oneshot};

use super::{ANSWER_WITHIN, Handle};
use crate::config::Limits;
use crate::control::{Event, NewSubscription, Publication, Published, Refusal, Told};
use crate::core::shard::Shard;
use crate::core::steer::{Publisher, SendAway, Whom};
use crate::hooks::{Client, Outgoing};
use crate::net::inbox::Parcel;

impl Handle {
    /// Asks one shard to do something; the answer comes when it is in the log and, as far as the question says with the
    /// number of an announcement, known to all shards.
    pub(super) async fn ask_safely<T: Send + 'static>(
        &self,
        shard: u16,
        question: impl FnOnce(&mut Shard) -> (T, u64) + Send + 'static,
    ) -> Option<T> {
        let (answer, answered) = oneshot::channel();
        let ask = move |shard: &mut Shard| {
            let (value, sequence) = question(shard);
            // Nobody may be waiting any more.
            let give = move || drop(answer.send(value));
            shard.answer_when_safe(sequence, Box::new(give));
        };
        self.shared.inboxes[usize::from(shard)].push(Parcel::Ask(Box::new(ask)));
        tokio::time::timeout(ANSWER_WITHIN, answered)
            .await
            .ok()?
            .ok()
    }

    /// The shard that publishes to a topic for the control plane, so that its messages keep their order.
    pub(super) fn shard_for(&self, topic: &str) -> u16 {
        let mut hasher = DefaultHasher::new();
        topic.hash(&mut hasher);
        (hasher.finish() % self.shared.inboxes.len() as u64) as u16
    }

    /// Publishes in the broker's own name; the answer comes when the message is safe.
    pub async fn publish(&self, publication: Publication) -> Result<Published, Refusal> {
        self.publish_from(publication, "", "").await
    }

    /// Publishes under a name: the client id and user name that hooks and those who look at queues see.
    pub async fn publish_from(
        &self,
        publication: Publication,
        client_id: &str,
        username: &str,
    ) -> Result<Published, Refusal> {
        if self.is_stopping() {
            return Err(Refusal::Unavailable);
        }
        let shard = self.shard_for(&publication.topic);
        let from = Publisher {
            client_id: client_id.to_owned(),
            username: username.to_owned(),
        };
        let publish = move |shard: &mut Shard| (shard.publish_for_node(&publication, &from), 0);
        let answer = self.ask_safely(shard, publish).await;
        answer.unwrap_or(Err(Refusal::Unavailable))
    }

    /// Sends a message to one client alone, as far as it has subscribed to the topic: `false` if it has not, or has no session.
    /// Whoever else subscribes does not get it. The answer comes when the message is safe.
    pub async fn tell(&self, client_id: &str, publication: Publication) -> Result<bool, Refusal> {
        let Some(shard) = self.shared.node.directory.holder(client_id) else {
            return Ok(false);
        };
        let client_id = client_id.to_owned();
        let tell = move |shard: &mut Shard| (shard.tell_for_node(&client_id, &publication), 0);
        let answer = self.ask_safely(shard, tell).await;
        answer.unwrap_or(Err(Refusal::Unavailable))
    }

    /// As [`Handle::tell`], for those who cannot wait, such as hooks; `done` is called on the client's shard with what came of it, or
    /// dropped if there is no such session.
    pub fn tell_soon(
        &self,
        client_id: &str,
        publication: Publication,
        done: impl FnOnce(Result<bool, Refusal>) + Send + 'static,
    ) {
        let Some(shard) = self.shared.node.directory.holder(client_id) else {
            return;
        };
        let client_id = client_id.to_owned();
        let tell = move |shard: &mut Shard| done(shard.tell_for_node(&client_id, &publication));
        self.shared.inboxes[usize::from(shard)].push(Parcel::Ask(Box::new(tell)));
    }

    /// Sends a message to one client that is connected and has subscribed to the topic. `done` is called on its shard: `None` if it is
    /// not or has not, and nothing is kept for it then. `acked` is called there when the client has acknowledged the message; it is
    /// dropped when that cannot be any more, with the session or because nothing was sent.
    pub fn tell_watched(
        &self,
        client_id: &str,
        publication: Publication,
        done: impl FnOnce(Result<Option<Told>, Refusal>) + Send + 'static,
        acked: impl FnOnce() + Send + 'static,
    ) {
        let Some(shard) = self.shared.node.directory.holder(client_id) else {
            return done(Ok(None));
        };
        let client_id = client_id.to_owned();
        let tell = move |shard: &mut Shard| {
            done(shard.tell_connected(&client_id, &publication, Box::new(acked)));
        };
        self.shared.inboxes[usize::from(shard)].push(Parcel::Ask(Box::new(tell)));
    }

    /// Lets a shard publish messages that a hook has made elsewhere, as it does with those of [`Hooks::outgoing`]; then it
    /// calls `done`. A node that stops calls nothing.
    ///
    /// [`Hooks::outgoing`]: crate::hooks::Hooks::outgoing
    pub fn publish_all(
        &self,
        shard: u16,
        outgoing: Outgoing,
        done: impl FnOnce() + Send + 'static,
    ) {
        let publish = move |shard: &mut Shard| {
            shard.publish_outgoing(&outgoing);
            shard.close_doomed();
            done();
        };
        self.shared.inboxes[usize::from(shard)].push(Parcel::Ask(Box::new(publish)));
    }

    /// Subscribes on behalf of a client that has a session, connected or not, as far as the client itself may: the
    /// granted QoS. Like a SUBACK, the answer comes when every shard knows of it. `None`: no session.
    pub async fn subscribe(
        &self,
        client_id: &str,
        subscription: NewSubscription,
    ) -> Option<Result<u8, Refusal>> {
        let shard = self.shared.node.directory.holder(client_id)?;
        let client_id = client_id.to_owned();
        let subscribe = move |shard: &mut Shard| {
            let outcome = shard.subscribe_for_node(&client_id, &subscription);
            let sequence = match &outcome {
                Some(Ok((_, sequence))) => *sequence,
                _ => 0,
            };
            (outcome, sequence)
        };
        match self.ask_safely(shard, subscribe).await {
            Some(outcome) => outcome.map(|outcome| outcome.map(|(qos, _)| qos)),
            None => Some(Err(Refusal::Unavailable)),
        }
    }

    /// False if the session has no such subscription. The answer comes when every shard knows of it.
    pub async fn unsubscribe(&self, client_id: &str, topic_filter: &str) -> bool {
        let Some(shard) = self.shared.node.directory.holder(client_id) else {
            return false;
        };
        let (client_id, filter) = (client_id.to_owned(), topic_filter.to_owned());
        let unsubscribe = move |shard: &mut Shard| shard.unsubscribe_for_node(&client_id, &filter);
        self.ask_safely(shard, unsubscribe).await.unwrap_or(false)
    }

    /// Ends the connection of a client, with a reason code for it and a short word for hooks, events and the log; its
    /// session goes on. False if it has no connection.
    pub async fn disconnect(&self, client_id: &str, code: ReasonCode, why: &'static str) -> bool {
        let Some(shard) = self.shared.node.directory.holder(client_id) else {
            return false;
        };
        let client_id = client_id.to_owned();
        self.ask(shard, move |shard| shard.send_away(&client_id, code, why))
            .await
            .unwrap_or(false)
    }

    /// Ends the connections of all clients that `is_meant` says (of a user name, of an address), like
    /// [`Handle::disconnect`]; how many there were. It is asked on the shards, some thousand times in one turn.
    pub async fn disconnect_all(
        &self,
        is_meant: impl Fn(&Client<'_>) -> bool + Clone + Send + 'static,
        code: ReasonCode,
        why: &'static str,
    ) -> u64 {
        let away = || SendAway::new(Whom::Clients(is_meant.clone()), code, why);
        self.walk_all(away).await.into_iter().sum()
    }

    pub(super) async fn disconnect_listener(&self, listener: u16) {
        let away = || {
            let whom: Whom<fn(&Client<'_>) -> bool> = Whom::OfListener(listener);
            SendAway::new(whom, ReasonCode::ADMINISTRATIVE_ACTION, "listener_stopped")
        };
        self.walk_all(away).await;
    }

    /// Other limits for the whole node. Each shard takes them up with its next turn, for what comes from then on: nobody
    /// is sent away, and a queue that is over a new bound is cut with the next message. What CONNACK tells (`max_packet_size`, `max_qos`,
    /// `receive_maximum`, `topic_alias_maximum`, what is available) and the bounds on topics have to stay as they are.
    pub fn set_limits(&self, limits: Limits) {
        let node = &self.shared.node;
        node.max_connections.store(limits.max_connections, Relaxed);
        let limits = Arc::new(limits);
        for inbox in self.shared.inboxes.iter() {
            let limits = limits.clone();
            inbox.push(Parcel::Ask(Box::new(move |shard| shard.set_limits(limits))));
        }
    }

    /// What happens from now on. A receiver that is too slow is told how many events it has missed. The shards tell
    /// nothing while nobody listens.
    pub fn events(&self) -> broadcast::Receiver<Arc<Event>> {
        let receiver = self.shared.node.events.listen();
        // They would find out by themselves, but not before they have done what is asked of them next.
        self.renew_interest();
        receiver
    }

    /// Lets the shards ask their hooks anew which points they want, before they do what is asked of them next.
    pub fn renew_interest(&self) {
        for inbox in self.shared.inboxes.iter() {
            inbox.push(Parcel::Ask(Box::new(Shard::renew_interest)));
        }
    }
}
