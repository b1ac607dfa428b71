//! Benchmarks decoding and encoding of packets, read one after the other from a buffer of some 64 KiB as a
//! connection does. `cargo bench -p tidegate-mqtt`; an argument such as `publish` selects the benchmarks whose
//! names contain it.

use std::hint::black_box;
use std::time::Instant;

use mqtt::{
    Ack, Connect, Direction, Packet, Properties, PropertiesBuf, Property, Publish, QoS, ReasonCode,
    SubscribeBuf, SubscriptionOptions, Version, split_frame,
};

const BUFFER_BYTES: usize = 65_536;
const MAX_PACKET_BYTES: u32 = 1 << 20;
/// 20 bytes.
const TOPIC: &str = "plant/7/line/3/speed";
const PAYLOAD: [u8; 64] = [b'x'; 64];

fn main() {
    // Cargo passes `--bench`.
    let pick = std::env::args().skip(1).find(|arg| !arg.starts_with("--"));
    let bench = CodecBenchmark {
        pick: pick.unwrap_or_default(),
    };
    println!(
        "{:<34} {:>6} {:>10} {:>10}",
        "", "bytes", "decode ns", "encode ns"
    );
    for version in [Version::V311, Version::V5] {
        bench.publish("PUBLISH QoS 0", version, QoS::AtMostOnce, Properties::EMPTY);
        bench.publish(
            "PUBLISH QoS 1",
            version,
            QoS::AtLeastOnce,
            Properties::EMPTY,
        );
    }
    let properties = properties();
    let name = "PUBLISH QoS 1 with 4 properties";
    bench.publish(
        name,
        Version::V5,
        QoS::AtLeastOnce,
        properties.as_properties(),
    );
    for version in [Version::V311, Version::V5] {
        let ack = Ack {
            packet_id: 7,
            reason: ReasonCode::SUCCESS,
            properties: Properties::EMPTY,
        };
        bench.packet("PUBACK", version, Packet::PubAck(ack));
        bench.subscribe(version);
        bench.connect(version);
    }
    bench.split();
}

/// The properties of a request with a response topic.
fn properties() -> PropertiesBuf {
    let mut properties = PropertiesBuf::new();
    properties.push(Property::MessageExpiryInterval(60));
    properties.push(Property::ResponseTopic("plant/7/answers"));
    properties.push(Property::CorrelationData(b"12345678"));
    properties.push(Property::UserProperty("trace", "4bf92f3577b34da6"));
    properties
}

struct CodecBenchmark {
    pick: String,
}

impl CodecBenchmark {
    /// PUBLISH has its own fast path, which bypasses [`Packet::decode`].
    fn publish(&self, name: &str, version: Version, qos: QoS, properties: Properties<'_>) {
        let publish = Publish {
            dup: false,
            qos,
            retain: false,
            topic: TOPIC,
            packet_id: if qos == QoS::AtMostOnce { 0 } else { 7 },
            properties,
            payload: &PAYLOAD,
        };
        let mut one = Vec::new();
        publish.encode(version, &mut one);
        let decode = |buffer: &[u8]| {
            for_each_frame(buffer, |frame| {
                let direction = Direction::FromClient;
                let found = Publish::decode(frame.first_byte, frame.body, version, direction);
                assert!(black_box(&found).is_ok());
            });
        };
        let encode = |out: &mut Vec<u8>| black_box(&publish).encode(version, out);
        self.report(name, version, &one, decode, encode);
    }

    fn packet(&self, name: &str, version: Version, packet: Packet<'_>) {
        let mut one = Vec::new();
        packet.encode(version, &mut one);
        let encode = |out: &mut Vec<u8>| black_box(&packet).encode(version, out);
        self.report(
            name,
            version,
            &one,
            |buffer| decode_all(buffer, version),
            encode,
        );
    }

    fn subscribe(&self, version: Version) {
        let mut subscribe = SubscribeBuf::new(7);
        subscribe.push(
            "plant/7/+/3/speed",
            SubscriptionOptions::new(QoS::AtLeastOnce),
        );
        subscribe.push(
            "plant/7/alarms/#",
            SubscriptionOptions::new(QoS::AtMostOnce),
        );
        let mut one = Vec::new();
        subscribe.encode(Properties::EMPTY, version, &mut one);
        let encode =
            |out: &mut Vec<u8>| black_box(&subscribe).encode(Properties::EMPTY, version, out);
        let name = "SUBSCRIBE 2 filters";
        self.report(
            name,
            version,
            &one,
            |buffer| decode_all(buffer, version),
            encode,
        );
    }

    fn connect(&self, version: Version) {
        let mut properties = PropertiesBuf::new();
        if version == Version::V5 {
            properties.push(Property::SessionExpiryInterval(3600));
            properties.push(Property::ReceiveMaximum(100));
        }
        let connect = Connect {
            version,
            clean_start: false,
            keep_alive_s: 60,
            client_id: "plant-7-line-3-controller",
            username: Some("controller"),
            password: Some(b"a good password"),
            will: None,
            properties: properties.as_properties(),
            is_bridge: false,
        };
        self.packet("CONNECT", version, Packet::Connect(connect));
    }

    /// Splitting of frames without decoding.
    fn split(&self) {
        for payload_bytes in [0, 64, 1024] {
            let payload = vec![b'x'; payload_bytes];
            let publish = Publish {
                dup: false,
                qos: QoS::AtMostOnce,
                retain: false,
                topic: TOPIC,
                packet_id: 0,
                properties: Properties::EMPTY,
                payload: &payload,
            };
            let mut one = Vec::new();
            publish.encode(Version::V311, &mut one);
            let decode = |buffer: &[u8]| {
                for_each_frame(buffer, |frame| {
                    black_box(frame);
                });
            };
            let name = format!("split_frame, payload {payload_bytes} B");
            self.report(&name, Version::V311, &one, decode, |_| {});
        }
    }

    fn report(
        &self,
        name: &str,
        version: Version,
        one: &[u8],
        decode: impl Fn(&[u8]),
        encode: impl Fn(&mut Vec<u8>),
    ) {
        let name = format!("{name}, {}", version.as_str());
        if !name.to_lowercase().contains(&self.pick.to_lowercase()) {
            return;
        }
        let count = BUFFER_BYTES / one.len();
        let buffer = one.repeat(count);
        let decode_ns = best_ns(count, || decode(black_box(&buffer)));
        let mut out = Vec::with_capacity(2 * BUFFER_BYTES);
        let encode_ns = best_ns(count, || {
            out.clear();
            for _ in 0..count {
                encode(&mut out);
            }
            black_box(&out);
        });
        println!(
            "{name:<34} {:>6} {decode_ns:>10.1} {encode_ns:>10.1}",
            one.len()
        );
    }
}

fn for_each_frame(mut buffer: &[u8], mut each: impl FnMut(mqtt::Frame<'_>)) {
    while let Some(frame) = split_frame(buffer, MAX_PACKET_BYTES).expect("what we encoded is valid")
    {
        buffer = &buffer[frame.len..];
        each(frame);
    }
}

fn decode_all(buffer: &[u8], version: Version) {
    for_each_frame(buffer, |frame| {
        let found = Packet::decode(frame, version, Direction::FromClient);
        assert!(black_box(&found).is_ok());
    });
}

/// The best time per packet over many rounds of some milliseconds each, for `count` packets per round.
fn best_ns(count: usize, mut work: impl FnMut()) -> f64 {
    const ROUNDS: usize = 30;
    let calls = (200_000 / count).max(1);
    let rounds = (0..ROUNDS).map(|_| {
        let start = Instant::now();
        for _ in 0..calls {
            work();
        }
        start.elapsed().as_nanos() as f64 / (calls * count) as f64
    });
    rounds.fold(f64::INFINITY, f64::min)
}
