//! Several implementations of hooks in a row, as one.

use std::cell::Cell;
use std::sync::Arc;

use mqtt::SubscriptionOptions;

use super::{
    Accepted, AckKind, Action, Authentication, Authorization, Backpressure, Client, Credentials,
    DropReason, Hooks, HooksFactory, Interest, MessageView, Origin, Outgoing, PacketFacts, Peer,
    RefusedConnect, Settled, Verdict,
};
use crate::scram::Credential;

/// Asks its links in their order. Who is to decide: the first that does not answer `Ignore` to an authentication, all
/// together on an authorisation or a message (the first refusal is final, and those behind it are not asked). What
/// only has to be told is told to each. A link that answers an authentication with `Later` has the last word on it.
#[derive(Clone, Default)]
pub struct Chain {
    links: Vec<Arc<dyn HooksFactory>>,
}

impl Chain {
    #[must_use]
    pub fn with(mut self, link: Arc<dyn HooksFactory>) -> Self {
        self.links.push(link);
        self
    }
}

impl HooksFactory for Chain {
    fn hooks_for(&self, shard: u16) -> Box<dyn Hooks> {
        let link = |factory: &Arc<dyn HooksFactory>| Link {
            hooks: factory.hooks_for(shard),
            is_unsettled: false,
            interest: Cell::default(),
        };
        let links = self.links.iter().map(link).collect();
        Box::new(Linked { links })
    }
}

/// Tells when the last link has let it go.
struct AllSettled(Option<Settled>);

impl Drop for AllSettled {
    fn drop(&mut self) {
        if let Some(done) = self.0.take() {
            done();
        }
    }
}

struct Link {
    hooks: Box<dyn Hooks>,
    /// Since the last turn.
    is_unsettled: bool,
    /// As it said when it was asked last.
    interest: Cell<Interest>,
}

struct Linked {
    links: Box<[Link]>,
}

impl Linked {
    /// The links that want a point.
    #[inline]
    fn at(&mut self, point: Interest) -> impl Iterator<Item = &mut dyn Hooks> {
        let wants = move |link: &&mut Link| link.interest.get().contains(point);
        let links = self.links.iter_mut().filter(wants);
        links.map(|link| &mut *link.hooks as &mut dyn Hooks)
    }

    fn first_answer(
        &mut self,
        mut ask: impl FnMut(&mut dyn Hooks) -> Authentication,
    ) -> Authentication {
        for hooks in self.at(Interest::AUTHENTICATE) {
            match ask(hooks) {
                Authentication::Ignore => {}
                decided => return decided,
            }
        }
        Authentication::Ignore
    }
}

impl Hooks for Linked {
    fn interest(&self) -> Interest {
        self.links.iter().fold(Interest::NONE, |all, link| {
            link.interest.set(link.hooks.interest());
            all | link.interest.get()
        })
    }

    fn authenticate(&mut self, credentials: &Credentials<'_>) -> Authentication {
        self.first_answer(|hooks| hooks.authenticate(credentials))
    }

    fn proven(&mut self, credentials: &Credentials<'_>) -> Authentication {
        self.first_answer(|hooks| hooks.proven(credentials))
    }

    fn proof_failed(&mut self, username: &str, peer: Peer) {
        self.at(Interest::AUTHENTICATE)
            .for_each(|hooks| hooks.proof_failed(username, peer));
    }

    fn offers_scram(&self) -> bool {
        let wants = |link: &&Link| link.interest.get().contains(Interest::AUTHENTICATE);
        let mut links = self.links.iter().filter(wants);
        links.any(|link| link.hooks.offers_scram())
    }

    fn scram_credential(&mut self, username: &str) -> Option<Credential> {
        self.at(Interest::AUTHENTICATE)
            .find_map(|hooks| hooks.scram_credential(username))
    }

    fn refused(&mut self, refused: &RefusedConnect<'_>) {
        self.at(Interest::REFUSE)
            .for_each(|hooks| hooks.refused(refused));
    }

    fn authorize(&mut self, client: &Client<'_>, action: &Action<'_>) -> Authorization {
        self.at(Interest::AUTHORIZE)
            .map(|hooks| hooks.authorize(client, action))
            .find(|answer| *answer != Authorization::Allow)
            .unwrap_or(Authorization::Allow)
    }

    fn authorized(
        &mut self,
        client: &Client<'_>,
        action: &Action<'_>,
        answer: Authorization,
        source: Option<&'static str>,
    ) {
        self.at(Interest::AUTHORIZED)
            .for_each(|hooks| hooks.authorized(client, action, answer, source));
    }

    fn connected(&mut self, client: &Client<'_>, accepted: &Accepted<'_>) {
        self.at(Interest::CONNECT)
            .for_each(|hooks| hooks.connected(client, accepted));
    }

    fn disconnected(&mut self, client: &Client<'_>, reason: &'static str) {
        self.at(Interest::DISCONNECT)
            .for_each(|hooks| hooks.disconnected(client, reason));
    }

    fn session_created(&mut self, client_id: &str) {
        self.at(Interest::SESSION)
            .for_each(|hooks| hooks.session_created(client_id));
    }

    fn session_ended(&mut self, client_id: &str) {
        self.at(Interest::SESSION)
            .for_each(|hooks| hooks.session_ended(client_id));
    }

    fn subscribed(
        &mut self,
        client: &Client<'_>,
        filter: &str,
        options: SubscriptionOptions,
        packet: PacketFacts<'_>,
    ) {
        self.at(Interest::SUBSCRIBE)
            .for_each(|hooks| hooks.subscribed(client, filter, options, packet));
    }

    fn unsubscribed(
        &mut self,
        client: &Client<'_>,
        filter: &str,
        options: SubscriptionOptions,
        packet: PacketFacts<'_>,
    ) {
        self.at(Interest::UNSUBSCRIBE)
            .for_each(|hooks| hooks.unsubscribed(client, filter, options, packet));
    }

    #[inline]
    fn wants_topic(&mut self, topic: &str) -> bool {
        self.at(Interest::PUBLISH)
            .any(|hooks| hooks.wants_topic(topic))
    }

    fn denies(&mut self, message: &MessageView<'_>, origin: &Origin<'_>) -> bool {
        self.at(Interest::GUARD)
            .any(|hooks| hooks.denies(message, origin))
    }

    fn refuses(&mut self, message: &MessageView<'_>, origin: &Origin<'_>) -> bool {
        self.at(Interest::PUBLISH)
            .any(|hooks| hooks.refuses(message, origin))
    }

    fn publish(&mut self, message: &MessageView<'_>, origin: &Origin<'_>) -> Verdict {
        let mut verdict = Verdict::Continue;
        for hooks in self.at(Interest::PUBLISH) {
            match hooks.publish(message, origin) {
                Verdict::Continue => {}
                Verdict::Follow => verdict = Verdict::Follow,
                last @ (Verdict::Stop | Verdict::Refuse | Verdict::Deny) => return last,
            }
        }
        verdict
    }

    fn delivered(&mut self, client: &Client<'_>, message: &MessageView<'_>, packet_id: u16) {
        self.at(Interest::DELIVER)
            .for_each(|hooks| hooks.delivered(client, message, packet_id));
    }

    fn acked(
        &mut self,
        client: &Client<'_>,
        message: &MessageView<'_>,
        packet: PacketFacts<'_>,
        kind: AckKind,
    ) {
        self.at(Interest::ACK)
            .for_each(|hooks| hooks.acked(client, message, packet, kind));
    }

    fn kept(&mut self, client: &Client<'_>, message: &MessageView<'_>) {
        self.at(Interest::KEEP)
            .for_each(|hooks| hooks.kept(client, message));
    }

    fn dropped(
        &mut self,
        client: Option<&Client<'_>>,
        message: &MessageView<'_>,
        origin: &Origin<'_>,
        why: DropReason,
    ) {
        self.at(Interest::DROP)
            .for_each(|hooks| hooks.dropped(client, message, origin, why));
    }

    fn ping(&mut self, client: &Client<'_>) {
        self.at(Interest::PING).for_each(|hooks| hooks.ping(client));
    }

    fn outgoing(&mut self) -> Option<Outgoing> {
        let mut links = self.links.iter_mut();
        links.find_map(|link| link.hooks.outgoing())
    }

    fn published(&mut self, outgoing: Outgoing) {
        // Whose it was does not matter: it is an empty buffer.
        if let Some(last) = self.links.last_mut() {
            last.hooks.published(outgoing);
        }
    }

    fn is_unsettled(&mut self) -> bool {
        // Each is asked: what it said before is not said again.
        let mut is_unsettled = false;
        for link in &mut self.links {
            link.is_unsettled |= link.hooks.is_unsettled();
            is_unsettled |= link.is_unsettled;
        }
        is_unsettled
    }

    fn settle(&mut self, done: Settled) {
        let all = Arc::new(AllSettled(Some(done)));
        for link in &mut self.links {
            if std::mem::take(&mut link.is_unsettled) {
                let one = all.clone();
                link.hooks.settle(Box::new(move || drop(one)));
            }
        }
    }

    fn take_backpressure(&mut self) -> Option<Backpressure> {
        let links = self.links.iter_mut();
        let all = links.filter_map(|link| link.hooks.take_backpressure());
        all.reduce(|one, other| Box::new(move || one() || other()))
    }

    fn discarded(&mut self, topic: &str, tag: u64) {
        for link in &mut self.links {
            link.hooks.discarded(topic, tag);
        }
    }

    fn housekeeping(&mut self) {
        let each = |link: &mut Link| link.hooks.housekeeping();
        self.links.iter_mut().for_each(each);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mqtt::{QoS, ReasonCode, Version};

    /// Wants some points, gives the same answers always, and counts what it was asked.
    struct Fixed {
        interest: Interest,
        authorization: Authorization,
        denies: bool,
        asked: Arc<std::sync::atomic::AtomicU32>,
    }

    impl Hooks for Fixed {
        fn interest(&self) -> Interest {
            self.interest
        }

        fn authenticate(&mut self, _: &Credentials<'_>) -> Authentication {
            match self.denies {
                true => Authentication::Deny(ReasonCode::BANNED),
                false => Authentication::Ignore,
            }
        }

        fn authorize(&mut self, _: &Client<'_>, _: &Action<'_>) -> Authorization {
            self.asked
                .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            self.authorization
        }
    }

    struct Make<F>(F);

    impl<F: Fn() -> Fixed + Send + Sync> HooksFactory for Make<F> {
        fn hooks_for(&self, _shard: u16) -> Box<dyn Hooks> {
            Box::new((self.0)())
        }
    }

    #[test]
    fn links_are_asked_in_order_until_one_refuses_and_only_for_what_they_want() {
        let asked = Arc::<std::sync::atomic::AtomicU32>::default();
        let link = |interest, authorization, denies| {
            let asked = asked.clone();
            Arc::new(Make(move || Fixed {
                interest,
                authorization,
                denies,
                asked: asked.clone(),
            }))
        };
        let chain = Chain::default()
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
            local: None,
            version: Version::V5,
            connection: crate::hooks::ConnectionFacts::default(),
        };
        let action = Action::Publish {
            topic: "t",
            qos: QoS::AtMostOnce,
            retain: false,
        };
        assert_eq!(hooks.authorize(&client, &action), Authorization::Disconnect);
        assert_eq!(asked.load(std::sync::atomic::Ordering::Relaxed), 2);
        let credentials = Credentials {
            client,
            password: None,
            certificate: None,
            method: None,
            listener: "mqtt",
            lets_anonymous_in: true,
            common_name_as_username: false,
            keep_alive_s: 0,
            clean_start: true,
        };
        assert!(matches!(
            hooks.authenticate(&credentials),
            Authentication::Deny(ReasonCode::BANNED)
        ));
    }
}
