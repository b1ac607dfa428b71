//! Relay connections over sockets: what a client gets if the node fails while it handles a message.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use broker::Broker;
use broker::config::{BindAddress, BrokerConfig, ListenerConfig};
use hooks::relay::{
    RelayAdmission, RelayClient, RelayClose, RelayConnection, RelayEndpoint, RelayLimits,
    RelayPayloadKind, RelayRequest, RelayService, RelayTraffic, RelayVerdict, SlowReceiverPolicy,
};
use hooks::{HookChain, Hooks, HooksFactory, MessageView, MetricValue, NoHooks};
use ws::{
    ClientHandshake, ClientRequest, DecodeStep, Decoder, DecoderEvent, DecoderOptions, Opcode, Role,
};

use crate::{DEADLINE, Node, eventually, wait};

/// A message that the service fails to handle.
const FAULTY: &[u8] = b"faulty";
const MASK: [u8; 4] = [1, 2, 3, 4];

/// One endpoint for all clients.
#[derive(Default)]
struct FaultyService {
    connections: AtomicU64,
    closed: Arc<Mutex<Vec<(&'static str, RelayTraffic)>>>,
}

struct Room;

struct FaultyClient(Arc<Mutex<Vec<(&'static str, RelayTraffic)>>>);

impl RelayService for FaultyService {
    fn admit(
        &self,
        _request: &RelayRequest<'_>,
        _connection: Arc<dyn RelayConnection>,
    ) -> Result<RelayAdmission, RelayClose> {
        Ok(RelayAdmission {
            endpoint: Arc::new(Room),
            client: Box::new(FaultyClient(self.closed.clone())),
            connection_id: self.connections.fetch_add(1, Relaxed).to_string(),
        })
    }

    fn published(&self, _endpoint: &str, _message: &MessageView<'_>) {}
}

impl RelayEndpoint for Room {
    fn topic(&self) -> &'static str {
        "$relay/room"
    }

    fn limits(&self) -> RelayLimits {
        RelayLimits {
            max_message_bytes: 1000,
            max_backlog_bytes: 1000,
            slow_receiver: SlowReceiverPolicy::DropOldest,
            max_messages_per_s: 0,
            max_bytes_per_s: 0,
            ping_interval_s: 60,
        }
    }

    fn encode(&self, message: &MessageView<'_>, payload: &mut Vec<u8>) -> RelayPayloadKind {
        payload.extend_from_slice(message.payload);
        RelayPayloadKind::Text
    }

    fn record_dropped(&self, _messages: u64) {}
}

impl RelayClient for FaultyClient {
    fn opened(&mut self) {}

    fn received(
        &mut self,
        _kind: RelayPayloadKind,
        payload: &[u8],
        _now_ms: u64,
        _replies: &mut Vec<String>,
    ) -> RelayVerdict {
        assert_ne!(payload, FAULTY, "on purpose");
        RelayVerdict::Publish
    }

    fn finish_input(&mut self) {}

    fn take_pause_ms(&mut self) -> u64 {
        0
    }

    fn caught_up(&mut self, _dropped: u64, _now_ms: u64) -> Option<String> {
        None
    }

    fn internal_error(&self, _now_ms: u64) -> RelayClose {
        RelayClose {
            code: ws::close_codes::INTERNAL_ERROR,
            reason: "Internal server error".into(),
            message: Some("it failed".into()),
        }
    }

    fn closed(&mut self, reason: &'static str, traffic: RelayTraffic) {
        self.0.lock().unwrap().push((reason, traffic));
    }
}

struct RelayFactory(Arc<FaultyService>);

impl HooksFactory for RelayFactory {
    fn hooks_for(&self, _shard: u16) -> Box<dyn Hooks> {
        Box::new(NoHooks)
    }

    fn relay_service(&self) -> Option<Arc<dyn RelayService>> {
        Some(self.0.clone())
    }
}

struct RoomClient {
    socket: TcpStream,
    decoder: Decoder,
    received: Vec<u8>,
}

impl RoomClient {
    fn connect(address: &str) -> Self {
        let mut socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(DEADLINE)).unwrap();
        let request = ClientRequest {
            host: address,
            path: "/ws/room",
            subprotocols: &[],
            headers: &[],
        };
        let (mut handshake, request) = ClientHandshake::start(&request).unwrap();
        socket.write_all(&request).unwrap();
        let mut received = Vec::new();
        loop {
            let mut buffer = [0; 4096];
            let count = socket.read(&mut buffer).unwrap();
            assert_ne!(count, 0, "the node accepts the upgrade");
            if let Some(accepted) = handshake.feed(&buffer[..count]).unwrap() {
                received.extend_from_slice(&buffer[accepted.consumed..count]);
                break;
            }
        }
        let options = DecoderOptions {
            role: Role::Client,
            refuse_text: false,
            max_message_bytes: 1000,
            has_compression: false,
        };
        let mut client = Self {
            socket,
            decoder: Decoder::new(options),
            received,
        };
        // The answer comes when the client gets the messages of all others.
        client.send(Opcode::Ping, b"");
        assert_eq!(client.next_frame().as_deref(), Some("pong"));
        client
    }

    fn send(&mut self, opcode: Opcode, payload: &[u8]) {
        let mut frame = Vec::new();
        ws::encode_frame(opcode, payload, Some(MASK), &mut frame);
        self.socket.write_all(&frame).unwrap();
    }

    /// The text of a message, or a word for another frame; `None`: the connection has ended.
    fn next_frame(&mut self) -> Option<String> {
        loop {
            let DecodeStep { event, consumed } = self.decoder.decode(&mut self.received).unwrap();
            let frame = event.map(|event| match event {
                DecoderEvent::Data { chunk, .. } => String::from_utf8(chunk.to_vec()).unwrap(),
                DecoderEvent::Ping(_) => "ping".to_owned(),
                DecoderEvent::Pong(_) => "pong".to_owned(),
                DecoderEvent::Close { code, reason } => format!("close {code:?} {reason}"),
            });
            self.received.drain(..consumed);
            if frame.is_some() {
                return frame;
            }
            let mut buffer = [0; 4096];
            match self.socket.read(&mut buffer).unwrap() {
                0 => return None,
                count => self.received.extend_from_slice(&buffer[..count]),
            }
        }
    }
}

fn start(service: Arc<FaultyService>) -> Node {
    let bind = BindAddress::Tcp(([127, 0, 0, 1], 0).into());
    let mut listener = ListenerConfig::new("ws", bind);
    listener.websocket_path = Some("/mqtt".into());
    listener.relay_path = Some("/ws/".into());
    let config = BrokerConfig {
        shards: 2,
        listeners: vec![listener],
        ..BrokerConfig::default()
    };
    let hooks = HookChain::default().with(Arc::new(RelayFactory(service)));
    Node {
        broker: Some(Broker::start(config, hooks, None).expect("a port is free")),
        store: None,
    }
}

#[test]
fn an_internal_error_closes_the_connection_whose_message_caused_it_with_1011() {
    let service = Arc::new(FaultyService::default());
    let node = start(service.clone());
    let address = node.address();
    let mut sender = RoomClient::connect(&address);
    let mut receiver = RoomClient::connect(&address);
    sender.send(Opcode::Text, b"before");
    assert_eq!(receiver.next_frame().as_deref(), Some("before"));
    // Nothing behind the faulty message is handled.
    let mut frames = Vec::new();
    for payload in [&b"with it"[..], FAULTY, b"behind it"] {
        ws::encode_frame(Opcode::Text, payload, Some(MASK), &mut frames);
    }
    sender.socket.write_all(&frames).unwrap();
    for expected in ["it failed", "close Some(1011) Internal server error"] {
        assert_eq!(sender.next_frame().as_deref(), Some(expected));
    }
    assert_eq!(sender.next_frame(), None);
    assert_eq!(receiver.next_frame().as_deref(), Some("with it"));
    // The service knows that the connection has ended, and the endpoint can still be used.
    let traffic = RelayTraffic {
        messages_in: 3,
        bytes_in: (b"before".len() + b"with it".len() + FAULTY.len()) as u64,
        ..RelayTraffic::default()
    };
    eventually("the service is notified", || {
        *service.closed.lock().unwrap() == [("panic", traffic)]
    });
    RoomClient::connect(&address).send(Opcode::Text, b"after");
    assert_eq!(receiver.next_frame().as_deref(), Some("after"));
    let metrics = wait(node.handle().metrics());
    let panics = metrics
        .iter()
        .find(|it| it.name == "connection_panics_total");
    let samples = panics.expect("a counter").samples.iter();
    let counts = samples.map(|sample| match &sample.value {
        MetricValue::Number(count) => *count as u64,
        _ => panic!("a counter"),
    });
    assert_eq!(counts.sum::<u64>(), 1);
}
