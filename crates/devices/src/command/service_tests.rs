//! Tests commands of registered devices with a real store, simulated clients and a simulated clock.

mod moving;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use store::{ExpectedVersion as Wants, Store, StoreConfig};

use super::downlink::EncodedDownlink;
use super::*;
use crate::protocol::{DeviceReply, ReplyKind};
use crate::{Device, DeviceNo, PRODUCT_KIND, Registry, RegistryConfig, WritePrecondition};

type Filters = Vec<(String, u8)>;

/// Connected clients with their subscriptions and the messages they received.
#[derive(Default)]
struct Clients {
    /// By device: client id, and topic filters with their QoS.
    connected: Mutex<HashMap<DeviceNo, (String, Filters)>>,
    online: Mutex<Vec<DeviceNo>>,
    received: Mutex<Vec<(String, EncodedDownlink)>>,
    acks: Mutex<Vec<Box<dyn FnOnce() + Send>>>,
    /// Called with the next command, before it is reported as sent.
    on_next: Mutex<Option<NextCommandHandler>>,
    /// If set, outcomes wait here instead of being reported at once.
    late_outcomes: Mutex<Option<Vec<DownlinkCompletion>>>,
}

type NextCommandHandler = Box<dyn FnOnce(&EncodedDownlink) + Send>;

impl DownlinkTransport for Clients {
    fn client_of(&self, device: DeviceNo) -> Option<Box<str>> {
        let connected = self.connected.lock().unwrap();
        connected
            .get(&device)
            .map(|(client, _)| client.as_str().into())
    }

    fn is_online(&self, device: DeviceNo) -> bool {
        self.online.lock().unwrap().contains(&device)
    }

    fn send(
        &self,
        client_id: &str,
        encoded: EncodedDownlink,
        done: DownlinkCompletion,
        acked: Box<dyn FnOnce() + Send>,
    ) {
        let connected = self.connected.lock().unwrap();
        let client = connected.values().find(|(client, _)| client == client_id);
        let granted_qos = client.and_then(|(_, filters)| {
            let mut filters = filters.iter();
            let found = filters.find(|(filter, _)| mqtt::filter_matches(filter, &encoded.topic));
            found.map(|(_, qos)| *qos)
        });
        drop(connected);
        match granted_qos.or(encoded.needs_subscription.then_some(1)) {
            None => done.complete(DownlinkOutcome::Unreachable),
            Some(qos) => {
                if let Some(on_next) = self.on_next.lock().unwrap().take() {
                    on_next(&encoded);
                }
                self.received
                    .lock()
                    .unwrap()
                    .push((client_id.to_owned(), encoded));
                self.acks.lock().unwrap().push(acked);
                match &mut *self.late_outcomes.lock().unwrap() {
                    Some(late) => late.push(done),
                    None => done.complete(DownlinkOutcome::Sent {
                        expects_ack: qos == 1,
                    }),
                }
            }
        }
    }
}

struct Setup {
    store: Store,
    registry: Registry,
    clients: Arc<Clients>,
    commands: Commands,
    now_ms: Arc<AtomicU64>,
    directory: Option<tempfile::TempDir>,
}

const START_MS: u64 = 1_000_000;

impl Setup {
    fn new() -> Self {
        Self::with(CommandConfig::default())
    }

    fn with(config: CommandConfig) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let now_ms = Arc::new(AtomicU64::new(START_MS));
        let setup = Self::open(directory, now_ms, config);
        let objects = setup.store.objects();
        for (id, product) in [
            ("meter", json!({})),
            ("hub", json!({"gateway": true})),
            ("jet", json!({"protocols": ["jetlinks"]})),
        ] {
            objects.put(PRODUCT_KIND, id, product, Wants::Any).unwrap();
        }
        setup
    }

    fn open(directory: tempfile::TempDir, now_ms: Arc<AtomicU64>, config: CommandConfig) -> Self {
        let (store, _) = Store::open(directory.path(), StoreConfig::default()).unwrap();
        let registry = Registry::open(store.objects(), RegistryConfig::default()).unwrap();
        let clients = Arc::<Clients>::default();
        let clock = Arc::clone(&now_ms);
        let commands = Commands::with_clock(
            store.objects().tables(),
            registry.clone(),
            clients.clone(),
            config,
            Box::new(move || clock.load(Ordering::Relaxed)),
        );
        Self {
            commands: commands.unwrap(),
            store,
            registry,
            clients,
            now_ms,
            directory: Some(directory),
        }
    }

    /// Restarts the node as after a crash.
    fn restarted(mut self) -> Self {
        let directory = self.directory.take().unwrap();
        let now_ms = Arc::clone(&self.now_ms);
        self.store.close();
        drop(self);
        Self::open(directory, now_ms, CommandConfig::default())
    }

    fn device(&self, device: Value) -> Arc<Device> {
        let device = serde_json::from_value(device).unwrap();
        self.registry
            .put(device, WritePrecondition::Any)
            .unwrap()
            .device
    }

    fn connect(&self, device: &Device, filters: &[(&str, u8)]) {
        let filters = filters
            .iter()
            .map(|(filter, qos)| ((*filter).to_owned(), *qos));
        let client = (format!("client-{}", device.id), filters.collect());
        self.clients
            .connected
            .lock()
            .unwrap()
            .insert(device.no, client);
        self.commands.resume_device(device.no);
        self.commands.inner.process_jobs();
    }

    fn disconnect(&self, device: &Device) {
        self.clients.connected.lock().unwrap().remove(&device.no);
    }

    fn call(&self, device: &Device, method: &str) -> CommandId {
        self.request(device, request(method)).unwrap()
    }

    fn request(&self, device: &Device, request: NewCommand) -> Result<CommandId, CommandError> {
        let taken = self.commands.request(device, request, false)?;
        self.commands.inner.process_jobs();
        Ok(taken.command.id)
    }

    fn pass(&self, ms: u64) {
        self.now_ms.fetch_add(ms, Ordering::Relaxed);
        self.commands.inner.process_jobs();
    }

    fn state(&self, id: CommandId) -> CommandState {
        self.commands
            .get(id)
            .unwrap()
            .expect("the command exists")
            .state
    }

    fn answer(&self, device: &Device, to: ReplyKind, id: Option<&str>, is_success: bool) {
        let replied = DeviceReply {
            to,
            id,
            is_success,
            body_json: Some("{\"v\":1}"),
            code: None,
            message: None,
        };
        let now_ms = self.now_ms.load(Ordering::Relaxed);
        self.commands.submit_reply(device.no, &replied, now_ms);
        self.commands.inner.process_jobs();
    }

    fn take_received(&self) -> Vec<String> {
        let received = std::mem::take(&mut *self.clients.received.lock().unwrap());
        received
            .into_iter()
            .map(|(client, encoded)| format!("{client} < {} {}", encoded.topic, encoded.payload))
            .collect()
    }
}

fn request(method: &str) -> NewCommand {
    NewCommand {
        action: CommandAction::Call {
            method: method.to_owned(),
            params: Value::Null,
        },
        one_way: false,
        timeout_ms: None,
        expires_in_s: None,
        retries: 0,
        created_by: "test".to_owned(),
        batch: None,
    }
}

const RPC: &str = "v1/devices/me/rpc/request/+";

#[test]
fn a_returning_device_receives_pending_commands_in_order_across_a_restart() {
    let setup = Setup::new();
    let device = setup.device(json!({"id": "d", "product": "meter"}));
    let first = setup.call(&device, "one");
    setup.call(&device, "two");
    // The device is connected and has not subscribed yet.
    setup.connect(&device, &[]);
    setup.call(&device, "three");
    assert_eq!(setup.state(first), CommandState::Pending);
    let setup = setup.restarted();
    let device = setup.registry.device("d").unwrap().unwrap();
    assert_eq!(setup.commands.stats().open, 3);
    setup.connect(&device, &[(RPC, 1)]);
    assert_eq!(
        setup.take_received(),
        [
            r#"client-d < v1/devices/me/rpc/request/1 {"method":"one","params":null}"#,
            r#"client-d < v1/devices/me/rpc/request/2 {"method":"two","params":null}"#,
            r#"client-d < v1/devices/me/rpc/request/3 {"method":"three","params":null}"#,
        ]
    );
    assert_eq!(setup.state(first), CommandState::Sent);
    // A sent command waits for its reply across a restart, too.
    let setup = setup.restarted();
    setup.answer(&device, ReplyKind::Rpc, Some("1"), true);
    let done = setup.commands.get(first).unwrap().unwrap();
    assert_eq!(done.state, CommandState::Success);
    assert_eq!(done.result, Some(json!({"v": 1})));
    setup.pass(5_000);
    assert_eq!(setup.state(CommandId(2)), CommandState::Timeout);
    assert_eq!(
        setup.call(&device, "four"),
        CommandId(4),
        "numbers are not reused"
    );
    setup.commands.close();
}

#[test]
fn messages_use_the_protocol_that_the_device_subscribes_to() {
    let setup = Setup::new();
    let own = setup.device(json!({"id": "o", "product": "meter"}));
    setup.connect(&own, &[("tg/o/down/#", 0)]);
    setup.call(&own, "go");
    let jet = setup.device(json!({"id": "j", "product": "jet"}));
    // The device subscribes to nothing, as JetLinks devices may do.
    setup.connect(&jet, &[]);
    let read = NewCommand {
        action: CommandAction::Read {
            keys: vec!["t".to_owned()],
        },
        ..request("")
    };
    let id = setup.request(&jet, read).unwrap();
    let gateway = setup.device(json!({"id": "g", "product": "hub"}));
    let child = setup.device(json!({"id": "c", "product": "meter", "parent": "g"}));
    setup.connect(&gateway, &[("v1/gateway/rpc", 1)]);
    let below = setup.call(&child, "go");
    assert_eq!(
        setup.state(below),
        CommandState::Pending,
        "the device is offline"
    );
    setup.clients.online.lock().unwrap().push(child.no);
    setup.commands.resume_children(gateway.no);
    setup.commands.inner.process_jobs();
    let received = setup.take_received().join("\n");
    insta::assert_snapshot!(received, @r#"
    client-o < tg/o/down/command/1 {"method":"go","params":null}
    client-j < /jet/j/properties/read {"timestamp":1000000,"messageId":"2","deviceId":"j","properties":["t"]}
    client-g < v1/gateway/rpc {"device":"c","data":{"id":3,"method":"go","params":null}}
    "#);
    setup.answer(&jet, ReplyKind::Invoke, None, true);
    assert_eq!(
        setup.state(id),
        CommandState::Sent,
        "the reply is not for a read"
    );
    setup.answer(&jet, ReplyKind::Read, None, true);
    assert_eq!(setup.state(id), CommandState::Success);
    setup.answer(&gateway, ReplyKind::Rpc, Some("3"), true);
    assert_eq!(
        setup.state(below),
        CommandState::Sent,
        "the command belongs to the child"
    );
    setup.answer(&child, ReplyKind::Rpc, Some("3"), true);
    assert_eq!(setup.state(below), CommandState::Success);
    assert_eq!(setup.commands.stats().unmatched, 2);
}

#[test]
fn a_reply_counts_that_arrives_before_the_command_is_reported_as_sent() {
    let setup = Setup::new();
    let device = setup.device(json!({"id": "d", "product": "meter"}));
    setup.connect(&device, &[(RPC, 0)]);
    let (commands, no) = (setup.commands.clone(), device.no);
    let reply = move |encoded: &EncodedDownlink| {
        let replied = DeviceReply {
            to: ReplyKind::Rpc,
            id: encoded.topic.rsplit('/').next(),
            is_success: true,
            body_json: Some("7"),
            code: None,
            message: None,
        };
        commands.submit_reply(no, &replied, START_MS);
    };
    *setup.clients.on_next.lock().unwrap() = Some(Box::new(reply));
    let first = setup.call(&device, "one");
    assert_eq!(setup.state(first), CommandState::Success);
    assert_eq!(setup.commands.get(first).unwrap().unwrap().attempts, 1);
    // The next one is sent as usual.
    let second = setup.call(&device, "two");
    assert_eq!(setup.state(second), CommandState::Sent);
    assert_eq!(setup.take_received().len(), 2);
    // A command that was not sent cannot be answered.
    setup.disconnect(&device);
    let third = setup.call(&device, "three");
    setup.answer(&device, ReplyKind::Rpc, Some(&third.0.to_string()), true);
    assert_eq!(setup.state(third), CommandState::Pending);
}

#[test]
fn a_device_may_reply_before_its_shard_reports_that_the_command_was_sent() {
    let setup = Setup::new();
    let device = setup.device(json!({"id": "d", "product": "meter"}));
    setup.connect(&device, &[(RPC, 1)]);
    *setup.clients.late_outcomes.lock().unwrap() = Some(Vec::new());
    for reply_id in [Some("1"), None] {
        let id = setup.call(&device, "go");
        assert_eq!(setup.state(id), CommandState::Pending);
        setup.answer(&device, ReplyKind::Rpc, reply_id, true);
        assert_eq!(setup.state(id), CommandState::Success, "{reply_id:?}");
        let late = std::mem::take(
            setup
                .clients
                .late_outcomes
                .lock()
                .unwrap()
                .as_mut()
                .unwrap(),
        );
        for done in late {
            done.complete(DownlinkOutcome::Sent { expects_ack: true });
        }
        setup.commands.inner.process_jobs();
        assert_eq!(setup.state(id), CommandState::Success);
    }
    let acknowledged = setup.call(&device, "go");
    let acks = std::mem::take(&mut *setup.clients.acks.lock().unwrap());
    acks.into_iter().for_each(|acked| acked());
    setup.commands.inner.process_jobs();
    assert_eq!(setup.state(acknowledged), CommandState::Acknowledged);
    assert_eq!(setup.commands.stats().unmatched, 0);
    setup.commands.close();
}

#[test]
fn a_reply_without_an_id_matches_the_newest_recent_command() {
    let setup = Setup::new();
    let device = setup.device(json!({"id": "d", "product": "meter"}));
    setup.connect(&device, &[(RPC, 0)]);
    let slow = NewCommand {
        timeout_ms: Some(60_000),
        ..request("slow")
    };
    let old = setup.request(&device, slow).unwrap();
    setup.pass(5_001);
    setup.answer(&device, ReplyKind::Rpc, None, true);
    assert_eq!(setup.state(old), CommandState::Sent);
    let ids = ["a", "b"].map(|method| setup.call(&device, method));
    setup.answer(&device, ReplyKind::Rpc, None, false);
    assert_eq!(setup.state(ids[1]), CommandState::Failed);
    setup.answer(&device, ReplyKind::Rpc, None, true);
    assert_eq!(setup.state(ids[0]), CommandState::Success);
    setup.answer(&device, ReplyKind::Rpc, None, true);
    assert_eq!(setup.state(old), CommandState::Sent);
}

#[test]
fn cancelled_and_expired_commands_are_not_sent() {
    let setup = Setup::new();
    let device = setup.device(json!({"id": "d", "product": "meter"}));
    let short = NewCommand {
        expires_in_s: Some(60),
        ..request("late")
    };
    let late = setup.request(&device, short).unwrap();
    let now_or_never = NewCommand {
        expires_in_s: Some(0),
        ..request("now")
    };
    let now_or_never = setup.request(&device, now_or_never).unwrap();
    setup.commands.inner.process_jobs();
    assert_eq!(setup.state(now_or_never), CommandState::Expired);
    let unwanted = setup.call(&device, "unwanted");
    setup.commands.cancel(unwanted, "anna").unwrap();
    let again = setup.commands.cancel(unwanted, "anna");
    assert!(matches!(again, Err(CommandError::Ended(_))));
    assert!(matches!(
        setup.commands.cancel(CommandId(99), "anna"),
        Err(CommandError::NotFound(_))
    ));
    setup.pass(60_000);
    assert_eq!(setup.state(late), CommandState::Expired);
    let cancelled = setup.commands.get(unwanted).unwrap().unwrap();
    assert_eq!(cancelled.message.as_deref(), Some("cancelled by anna"));
    setup.connect(&device, &[(RPC, 1)]);
    assert!(setup.take_received().is_empty());
    setup.disconnect(&device);
    let gone = setup.call(&device, "gone");
    setup.registry.remove("d", WritePrecondition::Any).unwrap();
    setup.commands.inner.process_jobs();
    assert_eq!(setup.state(gone), CommandState::Cancelled);
    assert_eq!(setup.commands.stats().open, 0);
}

#[test]
fn one_way_commands_end_on_acknowledgement() {
    let setup = Setup::new();
    let device = setup.device(json!({"id": "d", "product": "meter"}));
    let one_way = || NewCommand {
        one_way: true,
        ..request("beep")
    };
    setup.connect(&device, &[(RPC, 0)]);
    let id = setup.request(&device, one_way()).unwrap();
    assert_eq!(setup.state(id), CommandState::Success);
    setup.connect(&device, &[(RPC, 1)]);
    setup.clients.acks.lock().unwrap().clear();
    let id = setup.request(&device, one_way()).unwrap();
    assert_eq!(setup.state(id), CommandState::Sent);
    let ack = setup.clients.acks.lock().unwrap().pop().unwrap();
    ack();
    setup.commands.inner.process_jobs();
    assert_eq!(setup.state(id), CommandState::Success);
}

#[test]
fn limits_hold_and_errors_state_them() {
    let setup = Setup::with(CommandConfig {
        max_open_per_device: 2,
        max_open: 3,
        max_waiting_requests: 1,
        max_finished: 2,
        ..CommandConfig::default()
    });
    let device = setup.device(json!({"id": "d", "product": "meter"}));
    let other = setup.device(json!({"id": "e", "product": "meter"}));
    let ids = ["a", "b"].map(|method| setup.call(&device, method));
    let full = setup.request(&device, request("c")).unwrap_err();
    assert_eq!(
        full.to_string(),
        "2 commands are open for this device, which is the maximum; retry after one has ended"
    );
    let waits = |device: &Device| setup.commands.request(device, request("c"), true);
    let taken = waits(&other).unwrap();
    assert!(
        waits(&other)
            .unwrap_err()
            .to_string()
            .starts_with("1 callers already wait")
    );
    drop(taken);
    assert!(setup.request(&other, request("d")).is_err(), "3 are open");
    let too_long = NewCommand {
        timeout_ms: Some(10_000_000),
        ..request("x")
    };
    let rejected = setup.request(&device, too_long).unwrap_err();
    assert_eq!(rejected.to_string(), "timeout_ms: expected at most 600000");
    for id in ids {
        setup.commands.cancel(id, "x").unwrap();
    }
    setup.commands.cancel(CommandId(3), "x").unwrap();
    setup.pass(60_001);
    assert_eq!(setup.commands.stats().finished, 2);
    assert!(
        setup.commands.get(ids[0]).unwrap().is_none(),
        "the oldest was removed"
    );
    let filter = CommandFilter {
        device: Some(device.no),
        ..CommandFilter::default()
    };
    let page = setup.commands.list(&filter, None, 10).unwrap();
    assert_eq!(page.commands.len(), 1);
}

#[test]
fn lists_are_newest_first_and_continue_page_by_page() {
    let setup = Setup::new();
    let device = setup.device(json!({"id": "d", "product": "meter"}));
    let other = setup.device(json!({"id": "e", "product": "meter"}));
    for number in 0..6 {
        setup.call(if number % 2 == 0 { &device } else { &other }, "m");
    }
    setup.commands.cancel(CommandId(5), "x").unwrap();
    let list = |device: Option<DeviceNo>, states: &[CommandState], before, limit| {
        let filter = CommandFilter {
            device,
            states: states.to_vec(),
            ..CommandFilter::default()
        };
        let page = setup.commands.list(&filter, before, limit).unwrap();
        let ids: Vec<_> = page.commands.iter().map(|command| command.id.0).collect();
        (ids, page.next)
    };
    assert_eq!(list(None, &[], None, 10).0, [6, 5, 4, 3, 2, 1]);
    let (ids, next) = list(Some(device.no), &[], None, 2);
    assert_eq!(ids, [5, 3]);
    assert_eq!(list(Some(device.no), &[], next, 2).0, [1]);
    assert_eq!(list(None, &[CommandState::Cancelled], None, 10).0, [5]);
}

#[test]
fn a_device_may_poll_for_its_commands() {
    let setup = Setup::new();
    let device = setup.device(json!({"id": "d", "product": "meter"}));
    assert!(setup.commands.take_next(device.no).unwrap().is_none());
    let ids = ["a", "b"].map(|method| setup.call(&device, method));
    let given = setup.commands.take_next(device.no).unwrap().unwrap();
    assert_eq!((given.id, given.state), (ids[0], CommandState::Sent));
    setup.answer(&device, ReplyKind::Rpc, Some("1"), true);
    assert_eq!(setup.state(ids[0]), CommandState::Success);
    assert_eq!(
        setup.commands.take_next(device.no).unwrap().unwrap().id,
        ids[1]
    );
    assert!(setup.commands.take_next(device.no).unwrap().is_none());
}

#[test]
fn waiters_receive_the_final_state_and_observers_every_change() {
    let setup = Setup::new();
    let device = setup.device(json!({"id": "d", "product": "meter"}));
    let states = Arc::<Mutex<Vec<_>>>::default();
    let observed = Arc::clone(&states);
    setup.commands.add_observer(Box::new(move |command| {
        observed.lock().unwrap().push(command.state.as_str());
    }));
    setup.connect(&device, &[(RPC, 1)]);
    let taken = setup.commands.request(&device, request("m"), true).unwrap();
    setup.commands.inner.process_jobs();
    setup.answer(&device, ReplyKind::Rpc, Some("1"), true);
    let mut waiting = taken.waiter.expect("a waiter");
    let mut end = std::pin::pin!(waiting.end());
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let std::task::Poll::Ready(Some(ended)) = end.as_mut().poll(&mut context) else {
        panic!("expected the final state");
    };
    assert_eq!(ended.state, CommandState::Success);
    assert_eq!(*states.lock().unwrap(), ["pending", "sent", "success"]);
}

/// The acknowledgement of a reply waits for this.
#[test]
fn a_reply_is_settled_when_it_is_stored() {
    let setup = Setup::new();
    let device = setup.device(json!({"id": "d", "product": "meter"}));
    setup.connect(&device, &[(RPC, 1)]);
    let taken = setup.commands.request(&device, request("m"), false);
    let id = taken.unwrap().command.id;
    setup.commands.inner.process_jobs();
    let settled = || {
        let settled = Arc::<AtomicU64>::default();
        let done = settled.clone();
        let done = move || done.store(1, Ordering::Relaxed);
        setup.commands.settle(Box::new(done));
        settled
    };
    assert_eq!(settled().load(Ordering::Relaxed), 1, "nothing is pending");
    let reply = DeviceReply {
        to: ReplyKind::Rpc,
        id: Some("1"),
        is_success: true,
        body_json: Some("5"),
        code: None,
        message: None,
    };
    setup.commands.submit_reply(device.no, &reply, START_MS + 1);
    let settled = settled();
    assert_eq!(settled.load(Ordering::Relaxed), 0);
    setup.commands.inner.process_jobs();
    assert_eq!(settled.load(Ordering::Relaxed), 1);
    let setup = setup.restarted();
    assert_eq!(setup.state(id), CommandState::Success);
}

#[test]
fn changes_of_shared_attributes_are_pushed() {
    let setup = Setup::new();
    let device = setup.device(json!({"id": "d", "product": "meter"}));
    push_shared_attributes(&setup.registry, setup.clients.clone());
    setup.connect(&device, &[("v1/devices/me/attributes", 1)]);
    let set = |scope, values: Value| {
        let Value::Object(values) = values else {
            panic!("an object")
        };
        let values = values.into_iter().collect();
        setup
            .registry
            .set_attributes(&device, scope, values)
            .unwrap();
    };
    set(crate::AttributeScope::Shared, json!({"rate": 5}));
    set(crate::AttributeScope::Server, json!({"secret": 5}));
    set(crate::AttributeScope::Shared, json!({"rate": null}));
    assert_eq!(
        setup.take_received(),
        [
            r#"client-d < v1/devices/me/attributes {"rate":5}"#,
            r#"client-d < v1/devices/me/attributes {"deleted":["rate"]}"#,
        ]
    );
}
