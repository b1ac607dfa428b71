//! A chain of several hook implementations that acts as one.

use std::cell::Cell;
use std::sync::Arc;

use mqtt::SubscriptionOptions;
use scram::ScramCredential;

use crate::authentication::{Authentication, Credentials};
use crate::authorization::{Authorization, ClientAction};
use crate::client::{AcceptedConnect, Client, PeerAddress, RejectedConnect};
use crate::hooks::{BackpressureCheck, DurableCallback, Hooks, HooksFactory};
use crate::interest::Interest;
use crate::message::{
    AckKind, DropReason, MessageOrigin, MessageView, PacketFacts, PublishVerdict,
};
use crate::outgoing_messages::OutgoingMessages;
use crate::relay::RelayService;

/// Calls its links in order. An authentication is decided by the first link that does not answer `Ignore`; a link that
/// answers `Pending` decides finally. An authorization or a message is decided by all links: the first rejection is
/// final, and later links are not called. Notifications go to every link.
#[derive(Clone, Default)]
pub struct HookChain {
    links: Vec<Arc<dyn HooksFactory>>,
}

impl HookChain {
    #[must_use]
    pub fn with(mut self, link: Arc<dyn HooksFactory>) -> Self {
        self.links.push(link);
        self
    }
}

impl HooksFactory for HookChain {
    fn hooks_for(&self, shard: u16) -> Box<dyn Hooks> {
        let link = |factory: &Arc<dyn HooksFactory>| ChainLink {
            hooks: factory.hooks_for(shard),
            is_unsettled: false,
            interest: Cell::default(),
        };
        let links = self.links.iter().map(link).collect();
        Box::new(ChainedHooks { links })
    }

    fn relay_service(&self) -> Option<Arc<dyn RelayService>> {
        self.links.iter().find_map(|link| link.relay_service())
    }
}

/// Calls `done` when the last link has dropped its reference.
struct SharedDurableCallback(Option<DurableCallback>);

impl Drop for SharedDurableCallback {
    fn drop(&mut self) {
        if let Some(done) = self.0.take() {
            done();
        }
    }
}

struct ChainLink {
    hooks: Box<dyn Hooks>,
    /// Whether a link has reported unsettled work since the last turn.
    is_unsettled: bool,
    /// The interest returned by its last call.
    interest: Cell<Interest>,
}

struct ChainedHooks {
    links: Box<[ChainLink]>,
}

impl ChainedHooks {
    /// The links that want a point.
    #[inline]
    fn interested_links(&mut self, point: Interest) -> impl Iterator<Item = &mut dyn Hooks> {
        let wants = move |link: &&mut ChainLink| link.interest.get().contains(point);
        let links = self.links.iter_mut().filter(wants);
        links.map(|link| &mut *link.hooks as &mut dyn Hooks)
    }

    /// The links that may want messages on a topic.
    #[inline]
    fn publish_links(&mut self, topic: &str) -> impl Iterator<Item = &mut dyn Hooks> {
        let wants = move |link: &&mut ChainLink| link.interest.get().may_want_topic(topic);
        let links = self.links.iter_mut().filter(wants);
        links.map(|link| &mut *link.hooks as &mut dyn Hooks)
    }

    fn first_answer(
        &mut self,
        mut ask: impl FnMut(&mut dyn Hooks) -> Authentication,
    ) -> Authentication {
        for hooks in self.interested_links(Interest::AUTHENTICATE) {
            match ask(hooks) {
                Authentication::Ignore => {}
                decided => return decided,
            }
        }
        Authentication::Ignore
    }
}

impl Hooks for ChainedHooks {
    fn interest(&self) -> Interest {
        self.links.iter().fold(Interest::NONE, |all, link| {
            link.interest.set(link.hooks.interest());
            all | link.interest.get()
        })
    }

    fn authenticate(&mut self, credentials: &Credentials<'_>) -> Authentication {
        self.first_answer(|hooks| hooks.authenticate(credentials))
    }

    fn enhanced_auth_succeeded(&mut self, credentials: &Credentials<'_>) -> Authentication {
        self.first_answer(|hooks| hooks.enhanced_auth_succeeded(credentials))
    }

    fn enhanced_auth_failed(&mut self, username: &str, peer: PeerAddress) {
        self.interested_links(Interest::AUTHENTICATE)
            .for_each(|hooks| hooks.enhanced_auth_failed(username, peer));
    }

    fn offers_scram(&self) -> bool {
        let wants = |link: &&ChainLink| link.interest.get().contains(Interest::AUTHENTICATE);
        let mut links = self.links.iter().filter(wants);
        links.any(|link| link.hooks.offers_scram())
    }

    fn scram_credential(&mut self, username: &str) -> Option<ScramCredential> {
        self.interested_links(Interest::AUTHENTICATE)
            .find_map(|hooks| hooks.scram_credential(username))
    }

    fn connect_rejected(&mut self, rejected: &RejectedConnect<'_>) {
        self.interested_links(Interest::CONNECT_REJECTED)
            .for_each(|hooks| hooks.connect_rejected(rejected));
    }

    fn authorize(&mut self, client: &Client<'_>, action: &ClientAction<'_>) -> Authorization {
        self.interested_links(Interest::AUTHORIZE)
            .map(|hooks| hooks.authorize(client, action))
            .find(|answer| *answer != Authorization::Allow)
            .unwrap_or(Authorization::Allow)
    }

    fn authorized(
        &mut self,
        client: &Client<'_>,
        action: &ClientAction<'_>,
        answer: Authorization,
        source: Option<&'static str>,
    ) {
        self.interested_links(Interest::AUTHORIZATION_DECIDED)
            .for_each(|hooks| hooks.authorized(client, action, answer, source));
    }

    fn connected(&mut self, client: &Client<'_>, accepted: &AcceptedConnect<'_>) {
        self.interested_links(Interest::CONNECT)
            .for_each(|hooks| hooks.connected(client, accepted));
    }

    fn disconnected(&mut self, client: &Client<'_>, reason: &'static str) {
        self.interested_links(Interest::DISCONNECT)
            .for_each(|hooks| hooks.disconnected(client, reason));
    }

    fn session_created(&mut self, client_id: &str) {
        self.interested_links(Interest::SESSION)
            .for_each(|hooks| hooks.session_created(client_id));
    }

    fn session_ended(&mut self, client_id: &str) {
        self.interested_links(Interest::SESSION)
            .for_each(|hooks| hooks.session_ended(client_id));
    }

    fn subscribed(
        &mut self,
        client: &Client<'_>,
        filter: &str,
        options: SubscriptionOptions,
        packet: PacketFacts<'_>,
    ) {
        self.interested_links(Interest::SUBSCRIBE)
            .for_each(|hooks| hooks.subscribed(client, filter, options, packet));
    }

    fn unsubscribed(
        &mut self,
        client: &Client<'_>,
        filter: &str,
        options: SubscriptionOptions,
        packet: PacketFacts<'_>,
    ) {
        self.interested_links(Interest::UNSUBSCRIBE)
            .for_each(|hooks| hooks.unsubscribed(client, filter, options, packet));
    }

    #[inline]
    fn wants_topic(&mut self, topic: &str) -> bool {
        self.publish_links(topic)
            .any(|hooks| hooks.wants_topic(topic))
    }

    fn denies_publish(&mut self, message: &MessageView<'_>, origin: &MessageOrigin<'_>) -> bool {
        self.interested_links(Interest::PUBLISH_GUARD)
            .any(|hooks| hooks.denies_publish(message, origin))
    }

    fn rejects_publish(&mut self, message: &MessageView<'_>, origin: &MessageOrigin<'_>) -> bool {
        self.publish_links(message.topic)
            .any(|hooks| hooks.rejects_publish(message, origin))
    }

    fn publish(&mut self, message: &MessageView<'_>, origin: &MessageOrigin<'_>) -> PublishVerdict {
        let mut verdict = PublishVerdict::Continue;
        for hooks in self.publish_links(message.topic) {
            match hooks.publish(message, origin) {
                PublishVerdict::Continue => {}
                PublishVerdict::ContinueAndCollect => verdict = PublishVerdict::ContinueAndCollect,
                last @ (PublishVerdict::Stop
                | PublishVerdict::Defer
                | PublishVerdict::Reject
                | PublishVerdict::Deny) => return last,
            }
        }
        verdict
    }

    fn has_consumed(&mut self, message: &MessageView<'_>) -> bool {
        self.publish_links(message.topic)
            .any(|hooks| hooks.has_consumed(message))
    }

    fn delivered(&mut self, client: &Client<'_>, message: &MessageView<'_>, packet_id: u16) {
        self.interested_links(Interest::DELIVER)
            .for_each(|hooks| hooks.delivered(client, message, packet_id));
    }

    fn acked(
        &mut self,
        client: &Client<'_>,
        message: &MessageView<'_>,
        packet: PacketFacts<'_>,
        kind: AckKind,
    ) {
        self.interested_links(Interest::ACK)
            .for_each(|hooks| hooks.acked(client, message, packet, kind));
    }

    fn queued(&mut self, client: &Client<'_>, message: &MessageView<'_>) {
        self.interested_links(Interest::QUEUE)
            .for_each(|hooks| hooks.queued(client, message));
    }

    fn dropped(
        &mut self,
        client: Option<&Client<'_>>,
        message: &MessageView<'_>,
        origin: &MessageOrigin<'_>,
        why: DropReason,
    ) {
        self.interested_links(Interest::DROP)
            .for_each(|hooks| hooks.dropped(client, message, origin, why));
    }

    fn ping(&mut self, client: &Client<'_>) {
        self.interested_links(Interest::PING)
            .for_each(|hooks| hooks.ping(client));
    }

    fn take_outgoing(&mut self) -> Option<OutgoingMessages> {
        let mut links = self.links.iter_mut();
        links.find_map(|link| link.hooks.take_outgoing())
    }

    fn recycle_outgoing(&mut self, outgoing: OutgoingMessages) {
        // The buffer is empty, so any link may reuse it.
        if let Some(last) = self.links.last_mut() {
            last.hooks.recycle_outgoing(outgoing);
        }
    }

    fn has_unsettled_work(&mut self) -> bool {
        // Every link is called, because each reports its unsettled work only once.
        let mut is_unsettled = false;
        for link in &mut self.links {
            link.is_unsettled |= link.hooks.has_unsettled_work();
            is_unsettled |= link.is_unsettled;
        }
        is_unsettled
    }

    fn notify_when_durable(&mut self, done: DurableCallback) {
        let all = Arc::new(SharedDurableCallback(Some(done)));
        for link in &mut self.links {
            if std::mem::take(&mut link.is_unsettled) {
                let one = all.clone();
                link.hooks.notify_when_durable(Box::new(move || drop(one)));
            }
        }
    }

    fn take_backpressure(&mut self) -> Option<BackpressureCheck> {
        let links = self.links.iter_mut();
        let all = links.filter_map(|link| link.hooks.take_backpressure());
        all.reduce(|one, other| Box::new(move || one() || other()))
    }

    fn outgoing_dropped(&mut self, topic: &str, tag: u64) {
        for link in &mut self.links {
            link.hooks.outgoing_dropped(topic, tag);
        }
    }

    fn housekeeping(&mut self) {
        let each = |link: &mut ChainLink| link.hooks.housekeeping();
        self.links.iter_mut().for_each(each);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mqtt::{QoS, ReasonCode, Version};

    /// Wants some points, always gives the same answers, and counts its calls.
    struct FixedHooks {
        interest: Interest,
        authorization: Authorization,
        denies: bool,
        calls: Arc<std::sync::atomic::AtomicU32>,
    }

    impl Hooks for FixedHooks {
        fn interest(&self) -> Interest {
            self.interest
        }

        fn authenticate(&mut self, _: &Credentials<'_>) -> Authentication {
            match self.denies {
                true => Authentication::Deny(ReasonCode::BANNED),
                false => Authentication::Ignore,
            }
        }

        fn authorize(&mut self, _: &Client<'_>, _: &ClientAction<'_>) -> Authorization {
            self.calls
                .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            self.authorization
        }

        fn publish(&mut self, _: &MessageView<'_>, _: &MessageOrigin<'_>) -> PublishVerdict {
            self.calls
                .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            PublishVerdict::Continue
        }
    }

    struct Make<F>(F);

    impl<F: Fn() -> FixedHooks + Send + Sync> HooksFactory for Make<F> {
        fn hooks_for(&self, _shard: u16) -> Box<dyn Hooks> {
            Box::new((self.0)())
        }
    }

    #[test]
    fn hook_links_are_called_in_order_until_one_rejects() {
        let calls = Arc::<std::sync::atomic::AtomicU32>::default();
        let link = |interest, authorization, denies| {
            let calls = calls.clone();
            Arc::new(Make(move || FixedHooks {
                interest,
                authorization,
                denies,
                calls: calls.clone(),
            }))
        };
        let chain = HookChain::default()
            .with(link(Interest::AUTHENTICATE, Authorization::Deny, false))
            .with(link(Interest::AUTHORIZE, Authorization::Allow, true))
            .with(link(
                Interest::AUTHORIZE | Interest::AUTHENTICATE,
                Authorization::Disconnect,
                true,
            ))
            .with(link(Interest::AUTHORIZE, Authorization::Deny, false));
        let mut hooks = chain.hooks_for(0);
        assert_eq!(
            hooks.interest(),
            Interest::AUTHENTICATE | Interest::AUTHORIZE
        );
        let client = Client {
            client_id: "c",
            username: None,
            peer: None,
            last_address: None,
            local_address: None,
            version: Version::V5,
            connection: crate::client::ConnectionInfo::default(),
        };
        let action = ClientAction::Publish {
            topic: "t",
            qos: QoS::AtMostOnce,
            retain: false,
        };
        assert_eq!(hooks.authorize(&client, &action), Authorization::Disconnect);
        assert_eq!(calls.load(std::sync::atomic::Ordering::Relaxed), 2);
        let credentials = Credentials {
            client,
            password: None,
            certificate: None,
            method: None,
            listener: "mqtt",
            allows_anonymous: true,
            common_name_as_username: false,
            keep_alive_s: 0,
            clean_start: true,
        };
        assert!(matches!(
            hooks.authenticate(&credentials),
            Authentication::Deny(ReasonCode::BANNED)
        ));
    }

    #[test]
    fn links_get_messages_on_their_topics_only() {
        let calls = Arc::<std::sync::atomic::AtomicU32>::default();
        let link = |interest| {
            let calls = calls.clone();
            Arc::new(Make(move || FixedHooks {
                interest,
                authorization: Authorization::Allow,
                denies: false,
                calls: calls.clone(),
            }))
        };
        let chain = HookChain::default()
            .with(link(Interest::publish_on(b"$")))
            .with(link(Interest::CONNECT));
        let mut hooks = chain.hooks_for(0);
        let interest = hooks.interest();
        assert!(interest.may_want_topic("$file/x") && !interest.may_want_topic("x"));
        assert!(hooks.wants_topic("$file/x") && !hooks.wants_topic("x"));
        let all = HookChain::default()
            .with(link(Interest::publish_on(b"$")))
            .with(link(Interest::PUBLISH));
        let mut hooks = all.hooks_for(0);
        assert!(hooks.interest().may_want_topic("x") && hooks.wants_topic("x"));
        for topic in ["x", "$file/x"] {
            let message = MessageView::from_client("c", topic, b"", 0);
            hooks.publish(&message, &MessageOrigin::default());
        }
        let counted = calls.load(std::sync::atomic::Ordering::Relaxed);
        assert_eq!(counted, 3, "only one link gets the message on x");
    }
}
