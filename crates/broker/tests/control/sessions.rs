//! Subscribing for clients and disconnecting them.

use broker::control::{ControlError, PublishRequest, SubscriptionRequest};
use broker::info::ListQuery;
use mqtt::{QoS, ReasonCode};

use crate::client::{Client, ReceivedPacket};
use crate::{Node, eventually, wait};

fn subscription(filter: &str) -> SubscriptionRequest {
    SubscriptionRequest {
        topic_filter: filter.to_owned(),
        qos: 1,
        ..SubscriptionRequest::default()
    }
}

#[test]
fn a_subscription_on_behalf_of_a_client_delivers_retained_messages() {
    let node = Node::start();
    let handle = node.handle();
    let mut publisher = node.client("publisher");
    publisher.publish("s/kept", b"kept", true);
    let mut client = node.client("client");
    assert_eq!(
        wait(handle.subscribe("client", subscription("s/+"))),
        Some(Ok(1))
    );
    assert_eq!(client.message(), ("s/kept".into(), b"kept".to_vec()));
    publisher.publish("s/new", b"new", false);
    assert_eq!(client.message(), ("s/new".into(), b"new".to_vec()));
    assert!(wait(handle.unsubscribe("client", "s/+")));
    assert!(!wait(handle.unsubscribe("client", "s/+")));
    let published = wait(handle.publish(PublishRequest {
        topic: "s/new".into(),
        ..PublishRequest::default()
    }));
    assert!(!published.unwrap().has_subscribers);
}

#[test]
fn an_offline_client_can_be_subscribed_and_an_unknown_one_cannot() {
    let node = Node::start();
    let handle = node.handle();
    Client::connect(&node.address(), "away", false).drop_connection();
    assert_eq!(
        wait(handle.subscribe("away", subscription("t"))),
        Some(Ok(1))
    );
    node.client("publisher").publish("t", b"1", false);
    let mut back = Client::connect(&node.address(), "away", false);
    assert_eq!(back.message(), ("t".into(), b"1".to_vec()));
    assert_eq!(wait(handle.subscribe("nobody", subscription("t"))), None);
    let rejected = wait(handle.subscribe("away", subscription("a/#/b")));
    assert!(
        matches!(
            rejected,
            Some(Err(ControlError::InvalidField {
                field: "topic_filter",
                ..
            }))
        ),
        "{rejected:?}"
    );
}

#[test]
fn disconnected_clients_get_a_reason_and_keep_their_sessions() {
    let node = Node::start();
    let handle = node.handle();
    let mut one = Client::connect(&node.address(), "one", false);
    let banned = ReasonCode::NOT_AUTHORIZED;
    assert!(wait(handle.disconnect("one", banned, "banned")));
    assert_eq!(one.next(), ReceivedPacket::Disconnect(banned));
    assert_eq!(one.next(), ReceivedPacket::End);
    assert!(!wait(handle.disconnect("one", banned, "banned")));
    assert!(!wait(handle.client("one")).unwrap().connected);

    let mut many: Vec<Client> = (0..20).map(|n| node.client(&format!("many{n}"))).collect();
    let mut other = node.client("other");
    let is_meant = |client: &hooks::Client<'_>| client.client_id.starts_with("many");
    assert_eq!(
        wait(handle.disconnect_matching(is_meant, banned, "banned")),
        20
    );
    for client in &mut many {
        assert_eq!(client.next(), ReceivedPacket::Disconnect(banned));
    }
    other.subscribe("still/here", QoS::AtMostOnce);
    eventually("only those two are left", || {
        let query = ListQuery {
            limit: 100,
            ..ListQuery::default()
        };
        wait(handle.clients(query)).len() == 2
    });
}
