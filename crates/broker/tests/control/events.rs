//! The event stream.

use std::sync::Arc;

use broker::BrokerHandle;
use broker::control::{BrokerEvent, BrokerEventKind};
use broker::info::ListQuery;
use mqtt::QoS;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::TryRecvError;

use crate::client::Client;
use crate::{Node, eventually, wait};

/// Subscribes to events; the shards know of it when this returns.
fn listen(handle: &BrokerHandle) -> Receiver<Arc<BrokerEvent>> {
    let events = handle.subscribe_events();
    wait(handle.clients(ListQuery::default()));
    events
}

/// Returns the texts of the events up to one with the text `last`.
fn events_until(events: &mut Receiver<Arc<BrokerEvent>>, last: &str) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    eventually(last, || {
        while let Ok(event) = events.try_recv() {
            all.push(in_words(&event.kind));
        }
        all.iter().any(|words| words == last)
    });
    all
}

fn in_words(kind: &BrokerEventKind) -> String {
    let id = kind.client_id().unwrap_or("-");
    match kind {
        BrokerEventKind::Connected {
            session_present, ..
        } => format!("{id} connected {session_present}"),
        BrokerEventKind::Disconnected { reason, .. } => format!("{id} disconnected {reason}"),
        BrokerEventKind::AuthenticationFailed { reason_code, .. } => {
            format!("{id} not let in {reason_code}")
        }
        BrokerEventKind::SessionCreated { .. } => format!("{id} created"),
        BrokerEventKind::SessionEnded { .. } => format!("{id} ended"),
        BrokerEventKind::Subscribed {
            topic_filter, qos, ..
        } => format!("{id} subscribed {topic_filter} {qos}"),
        BrokerEventKind::Unsubscribed { topic_filter, .. } => {
            format!("{id} unsubscribed {topic_filter}")
        }
        BrokerEventKind::Dropped {
            topic,
            reason,
            count,
            ..
        } => format!("{id} dropped {topic} {reason} {count}"),
        BrokerEventKind::AlarmRaised { .. } | BrokerEventKind::AlarmCleared { .. } => {
            "alarm".to_owned()
        }
    }
}

#[test]
fn events_of_a_client_are_emitted_in_order() {
    let node = Node::start();
    let handle = node.handle();
    let mut events = listen(&handle);
    let mut client = Client::connect(&node.address(), "ann", false);
    client.subscribe("$share/g/a/#", QoS::AtLeastOnce);
    wait(handle.unsubscribe("ann", "$share/g/a/#"));
    client.publish("nobody/wants/it", b"x", false);
    client.drop_connection();
    eventually("she has gone", || {
        !wait(handle.client("ann")).unwrap().connected
    });
    let mut back = Client::connect(&node.address(), "ann", false);
    back.subscribe("b", QoS::AtMostOnce);
    assert!(wait(handle.terminate_client("ann")));
    assert_eq!(
        events_until(&mut events, "ann ended"),
        [
            "ann created",
            "ann connected false",
            "ann subscribed $share/g/a/# 1",
            "ann unsubscribed $share/g/a/#",
            "- dropped nobody/wants/it no_subscribers 1",
            "ann disconnected closed_by_client",
            "ann connected true",
            "ann subscribed b 0",
            "ann disconnected kicked",
            "ann ended",
        ]
    );
}

#[test]
fn rejected_clients_are_reported() {
    let node = Node::start_with(|config| config.listeners[0].allow_anonymous = Some(false));
    let mut events = listen(&node.handle());
    Client::open(&node.address(), "stranger", true).next();
    assert_eq!(
        events_until(&mut events, "stranger not let in 135"),
        ["stranger not let in 135"]
    );
}

#[test]
fn a_slow_event_subscriber_learns_how_many_events_it_missed() {
    let node = Node::start();
    let handle = node.handle();
    let mut slow = listen(&handle);
    let mut client = node.client("c");
    for n in 0..5_000 {
        client.subscribe(&format!("t/{n}"), QoS::AtMostOnce);
    }
    assert!(matches!(slow.try_recv(), Err(TryRecvError::Lagged(missed)) if missed > 900));
}
