//! Clients in the process of the node, whose connections are pipes in memory.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::task::{Context, Poll, Wake};
use std::thread::Thread;
use std::time::Instant;

use broker::MemoryListener;
use broker::config::ListenerConfig;
use memory_pipe::PipeEnd;
use mqtt::{QoS, ReasonCode};

use crate::client::{Client, ReceivedPacket};
use crate::{DEADLINE, Node, eventually, wait};

/// A pipe whose calls wait, as those of a socket do.
struct BlockingPipe(PipeEnd);

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<T>(mut call: impl FnMut(&mut Context<'_>) -> Poll<T>) -> T {
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut context = Context::from_waker(&waker);
    let end = Instant::now() + DEADLINE;
    loop {
        match call(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => {
                let left = end.saturating_duration_since(Instant::now());
                assert!(!left.is_zero(), "the broker does not go on");
                std::thread::park_timeout(left);
            }
        }
    }
}

impl Read for BlockingPipe {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        block_on(|context| self.0.poll_read(context, buffer))
    }
}

impl Write for BlockingPipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        block_on(|context| self.0.poll_writable(context));
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A node of `shards` shards with a listener in memory besides its listener with sockets.
fn node(shards: usize, change: impl FnOnce(&mut ListenerConfig)) -> Node {
    Node::start_with(|config| {
        config.shards = shards;
        let mut listener = ListenerConfig::in_memory("memory");
        change(&mut listener);
        config.listeners.push(listener);
    })
}

fn listener(node: &Node) -> Arc<MemoryListener> {
    node.handle().memory_listeners()[0].clone()
}

fn connect(node: &Node, client_id: &str, clean: bool) -> Client {
    let pipe = listener(node).connect().unwrap();
    let mut client = Client::open_on(BlockingPipe(pipe), client_id, clean);
    assert_eq!(client.next(), ReceivedPacket::Other("CONNACK"));
    client
}

fn connections(node: &Node) -> u64 {
    node.handle().listeners()[1].connections
}

#[test]
fn clients_in_memory_and_with_sockets_exchange_messages() {
    for shards in [1, 3] {
        let node = node(shards, |_| {});
        let mut socket = node.client("socket");
        socket.subscribe("to/socket", QoS::AtLeastOnce);
        // One for each shard and more.
        let mut clients: Vec<_> = (0..7)
            .map(|n| connect(&node, &format!("memory-{n}"), true))
            .collect();
        for (n, client) in clients.iter_mut().enumerate() {
            client.subscribe(&format!("to/{n}"), QoS::AtLeastOnce);
        }
        for (n, client) in clients.iter_mut().enumerate() {
            client.publish("to/socket", b"from memory", false);
            assert_eq!(socket.message().1, b"from memory");
            socket.publish(&format!("to/{n}"), b"from socket", false);
            assert_eq!(client.message().1, b"from socket");
        }
        let listeners = node.handle().listeners();
        assert_eq!(
            (&*listeners[1].name, listeners[1].protocol),
            ("memory", "memory")
        );
        assert_eq!((listeners[1].connections, listeners[0].connections), (7, 1));
        let info = wait(node.handle().client("memory-3")).unwrap();
        assert_eq!(info.listener.as_deref(), Some("memory"));
        assert_eq!(info.peer_address.as_deref(), Some("memory"));
        drop(clients);
        eventually("the connections are gone", || connections(&node) == 0);
    }
}

/// A connection arrives at any shard, and moves to that of its session. [MQTT-3.1.2-5]
#[test]
fn a_connection_in_memory_moves_to_the_shard_of_its_session() {
    let node = node(3, |_| {});
    let mut publisher = node.client("publisher");
    let mut client = connect(&node, "stays", false);
    client.subscribe("to/stays", QoS::AtLeastOnce);
    let shard = wait(node.handle().client("stays")).unwrap().shard;
    for n in 0..6_u8 {
        client.drop_connection();
        eventually("the connection is gone", || connections(&node) == 0);
        publisher.publish("to/stays", &[n], false);
        client = connect(&node, "stays", false);
        assert_eq!(client.message(), ("to/stays".to_owned(), vec![n]));
        let info = wait(node.handle().client("stays")).unwrap();
        assert_eq!((info.connected, info.shard), (true, shard));
    }
}

#[test]
fn a_client_in_memory_that_does_not_read_gets_all_messages_later() {
    let node = node(2, |_| {});
    let mut client = connect(&node, "slow", true);
    client.subscribe("large", QoS::AtLeastOnce);
    let mut publisher = connect(&node, "publisher", true);
    let payload = |n: u8| vec![n; 300_000];
    for n in 0..20 {
        publisher.publish("large", &payload(n), false);
    }
    for n in 0..20 {
        assert_eq!(client.message().1, payload(n));
    }
}

#[test]
fn connections_in_memory_count_for_the_limit_of_their_listener() {
    let node = node(2, |listener| listener.max_connections = 2);
    let first = connect(&node, "first", true);
    let _second = connect(&node, "second", true);
    let refused = listener(&node).connect().unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    let text = "the listener memory accepts no more connections: max_connections";
    assert_eq!(refused.to_string(), text);
    // Others have limits of their own.
    node.client("socket");
    drop(first);
    eventually("there is a place again", || connections(&node) == 1);
    connect(&node, "third", true);
}

#[test]
fn clients_in_memory_log_in_like_others() {
    let node = node(2, |listener| listener.allow_anonymous = Some(false));
    let pipe = listener(&node).connect().unwrap();
    let mut client = Client::open_on(BlockingPipe(pipe), "anonymous", true);
    assert_eq!(client.next(), ReceivedPacket::Other("CONNACK"));
    assert_eq!(client.next(), ReceivedPacket::End);
    assert!(wait(node.handle().client("anonymous")).is_none());
    eventually("the connection is gone", || connections(&node) == 0);
}

#[test]
fn an_aborted_connection_ends() {
    let node = node(2, |_| {});
    let pipe = listener(&node).connect().unwrap();
    eventually("the connection is there", || connections(&node) == 1);
    pipe.abort();
    eventually("the connection is gone", || connections(&node) == 0);
}

#[test]
fn a_listener_in_memory_stops_and_starts_like_others() {
    let node = node(2, |_| {});
    let handle = node.handle();
    let mut client = connect(&node, "c", true);
    assert_eq!(wait(handle.stop_listener("memory", false)), Ok(()));
    assert!(!handle.listeners()[1].running);
    let refused = listener(&node).connect().unwrap_err().to_string();
    assert_eq!(refused, "the listener memory is stopped");
    client.subscribe("still/works", QoS::AtMostOnce);
    assert_eq!(wait(handle.start_listener("memory")), Ok(()));
    connect(&node, "d", true);
    assert_eq!(wait(handle.stop_listener("memory", true)), Ok(()));
    let disconnected = ReceivedPacket::Disconnect(ReasonCode::ADMINISTRATIVE_ACTION);
    assert_eq!(client.next(), disconnected);
    assert_eq!(client.next(), ReceivedPacket::End);
}

#[test]
fn a_stopped_node_disconnects_its_clients_in_memory() {
    let node = node(2, |_| {});
    let mut client = connect(&node, "c", true);
    drop(node);
    let disconnected = ReceivedPacket::Disconnect(ReasonCode::SERVER_SHUTTING_DOWN);
    assert_eq!(client.next(), disconnected);
    assert_eq!(client.next(), ReceivedPacket::End);
}

#[test]
fn connections_in_memory_exclude_layers_of_sockets() {
    let mut listener = ListenerConfig::in_memory("memory");
    listener.websocket_path = Some("/mqtt".to_owned());
    let config = broker::config::BrokerConfig {
        shards: 1,
        listeners: vec![listener],
        ..Default::default()
    };
    let started = broker::Broker::start(config, hooks::HookChain::default(), None);
    let error = started.err().expect("an error").to_string();
    assert!(
        error.contains("listener memory") && error.contains("WebSocket"),
        "{error}"
    );
}
