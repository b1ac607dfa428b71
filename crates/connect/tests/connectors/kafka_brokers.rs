//! Situations that one real broker cannot produce: brokers that move leadership, lose answers, forget producers and reject rows.
//! They are small servers that implement the part of Kafka a sink needs.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::bench::{ConnectorFixture, until};

/// A batch received by a broker.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ReceivedBatch {
    broker: usize,
    partition: i32,
    producer: i64,
    sequence: i32,
    count: i32,
    code: i16,
}

/// What to do with the next batch instead of storing it.
#[derive(Debug, Clone, Copy)]
enum BatchFault {
    /// Stored, but the connection is closed before the answer.
    LoseAnswer,
    Reject(i16),
    /// The second row of the batch is rejected.
    RejectSecondRow,
}

#[derive(Default)]
struct FakeBrokersState {
    ports: Vec<u16>,
    /// The partitions of the single topic.
    leaders: Vec<usize>,
    faults: VecDeque<BatchFault>,
    got: Vec<ReceivedBatch>,
    producers: i64,
}

#[derive(Clone)]
struct FakeBrokers(Arc<Mutex<FakeBrokersState>>);

impl FakeBrokers {
    /// Two brokers, the first of which leads this number of partitions.
    fn start(partitions: usize) -> Self {
        let listeners: Vec<_> = (0..2)
            .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
            .collect();
        let ports = listeners.iter().map(|l| l.local_addr().unwrap().port());
        let brokers = Self(Arc::new(Mutex::new(FakeBrokersState {
            ports: ports.collect(),
            leaders: vec![0; partitions],
            ..FakeBrokersState::default()
        })));
        for (broker, listener) in listeners.into_iter().enumerate() {
            let brokers = brokers.clone();
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let brokers = brokers.clone();
                    std::thread::spawn(move || brokers.serve(broker, stream));
                }
            });
        }
        brokers
    }

    fn connector(&self) -> Value {
        let server = format!("127.0.0.1:{}", self.0.lock().unwrap().ports[0]);
        json!({"type": "kafka", "servers": [server], "metadata_max_age_s": 3600})
    }

    fn fault(&self, fault: BatchFault) {
        self.0.lock().unwrap().faults.push_back(fault);
    }

    fn got(&self) -> Vec<ReceivedBatch> {
        self.0.lock().unwrap().got.clone()
    }

    fn serve(&self, broker: usize, mut stream: TcpStream) -> Option<()> {
        loop {
            let mut length = [0; 4];
            stream.read_exact(&mut length).ok()?;
            let mut request = vec![0; u32::from_be_bytes(length) as usize];
            stream.read_exact(&mut request).ok()?;
            let mut take = RequestReader(&request);
            let (api, _version) = (take.i16(), take.i16());
            let number = take.i32();
            take.text();
            let body = match api {
                18 => versions(),
                3 => self.metadata(),
                22 => self.producer_id(),
                0 => self.produce(broker, &mut take)?,
                other => panic!("request {other}"),
            };
            let length = (body.len() + 4) as i32;
            let head = [length.to_be_bytes(), number.to_be_bytes()].concat();
            stream.write_all(&[head, body].concat()).ok()?;
        }
    }

    fn metadata(&self) -> Vec<u8> {
        let state = self.0.lock().unwrap();
        let mut out = ResponseWriter::default();
        out.i32(0).i32(state.ports.len() as i32);
        for (id, port) in state.ports.iter().enumerate() {
            out.i32(id as i32).text("127.0.0.1");
            out.i32((*port).into()).i16(-1);
        }
        // Cluster id, controller, one topic.
        out.text("small").i32(0).i32(1).i16(0).text("t").i8(0);
        out.i32(state.leaders.len() as i32);
        for (partition, leader) in state.leaders.iter().enumerate() {
            out.i16(0).i32(partition as i32).i32(*leader as i32).i32(0);
            out.i32(0).i32(0).i32(0);
        }
        out.i32(0).i32(0);
        out.0
    }

    fn producer_id(&self) -> Vec<u8> {
        let mut state = self.0.lock().unwrap();
        state.producers += 1;
        let mut out = ResponseWriter::default();
        out.i32(0).i16(0).i64(state.producers).i16(0);
        out.0
    }

    /// `None` if the connection is to be closed.
    fn produce(&self, broker: usize, take: &mut RequestReader<'_>) -> Option<Vec<u8>> {
        let mut state = self.0.lock().unwrap();
        take.i16();
        assert_eq!(take.i16(), -1, "acks");
        take.i32();
        assert_eq!(take.i32(), 1, "one topic");
        assert_eq!(take.text(), "t");
        let count = take.i32();
        let mut out = ResponseWriter::default();
        out.i32(1).text("t").i32(count);
        let mut is_lost = false;
        for _ in 0..count {
            let partition = take.i32();
            let length = take.i32() as usize;
            let batch = take.raw(length);
            let mut got = ReceivedBatch {
                broker,
                partition,
                producer: i64::from_be_bytes(batch[43..51].try_into().unwrap()),
                sequence: i32::from_be_bytes(batch[53..57].try_into().unwrap()),
                count: i32::from_be_bytes(batch[57..61].try_into().unwrap()),
                code: 0,
            };
            let mut blamed = None;
            if state.leaders[partition as usize] != broker {
                got.code = 6;
            } else {
                match state.faults.pop_front() {
                    None => {}
                    Some(BatchFault::LoseAnswer) => is_lost = true,
                    Some(BatchFault::Reject(code)) => got.code = code,
                    Some(BatchFault::RejectSecondRow) => (got.code, blamed) = (87, Some(1)),
                }
            }
            out.i32(partition).i16(got.code).i64(0).i64(-1).i64(0);
            match blamed {
                Some(row) => out.i32(1).i32(row).text("bad row").i16(-1),
                None => out.i32(0).i16(-1),
            };
            state.got.push(got);
        }
        out.i32(0);
        (!is_lost).then_some(out.0)
    }
}

fn versions() -> Vec<u8> {
    let apis = [0, 3, 18, 22];
    let mut out = ResponseWriter::default();
    out.i16(0).i32(apis.len() as i32);
    for api in apis {
        out.i16(api).i16(0).i16(20);
    }
    out.0
}

#[derive(Default)]
struct ResponseWriter(Vec<u8>);

impl ResponseWriter {
    fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }
    fn i8(&mut self, value: i8) -> &mut Self {
        self.raw(&value.to_be_bytes())
    }
    fn i16(&mut self, value: i16) -> &mut Self {
        self.raw(&value.to_be_bytes())
    }
    fn i32(&mut self, value: i32) -> &mut Self {
        self.raw(&value.to_be_bytes())
    }
    fn i64(&mut self, value: i64) -> &mut Self {
        self.raw(&value.to_be_bytes())
    }
    fn text(&mut self, text: &str) -> &mut Self {
        self.i16(text.len() as i16).raw(text.as_bytes())
    }
}

struct RequestReader<'a>(&'a [u8]);

impl<'a> RequestReader<'a> {
    fn raw(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count);
        self.0 = rest;
        taken
    }
    fn i16(&mut self) -> i16 {
        i16::from_be_bytes(self.raw(2).try_into().unwrap())
    }
    fn i32(&mut self) -> i32 {
        i32::from_be_bytes(self.raw(4).try_into().unwrap())
    }
    fn text(&mut self) -> &'a str {
        let length = self.i16() as usize;
        std::str::from_utf8(self.raw(length)).unwrap()
    }
}

fn bench(brokers: &FakeBrokers) -> ConnectorFixture {
    // Full batches, so that the content of each is known.
    let batch = json!({"max_rows": 10, "max_wait_ms": 60_000});
    let sink = json!({"topic": "t", "partition": "${p}", "order": "all", "batch": batch});
    ConnectorFixture::new(brokers.connector(), sink)
}

/// Ten rows for these partitions in turn.
fn push_ten(bench: &ConnectorFixture, partitions: &[i32]) {
    let turns = partitions.iter().cycle().take(10);
    turns.for_each(|p| bench.push(json!({"p": p})));
}

fn written(got: &[ReceivedBatch], partition: i32) -> Vec<(usize, i64, i32, i32)> {
    let good = got
        .iter()
        .filter(|g| g.partition == partition && g.code == 0);
    good.map(|g| (g.broker, g.producer, g.sequence, g.count))
        .collect()
}

#[test]
fn a_partition_that_moves_is_followed_and_others_are_not_written_again() {
    let brokers = FakeBrokers::start(2);
    let bench = bench(&brokers);
    push_ten(&bench, &[0, 1]);
    bench.until_settled(10);
    brokers.0.lock().unwrap().leaders[1] = 1;
    push_ten(&bench, &[0, 1]);
    assert_eq!(bench.until_settled(20).failed, 0);
    let got = brokers.got();
    assert_eq!(written(&got, 0), [(0, 1, 0, 5), (0, 1, 5, 5)]);
    assert_eq!(written(&got, 1), [(0, 1, 0, 5), (1, 1, 5, 5)]);
    assert!(got.iter().any(|g| g.code == 6), "{got:?}");
    bench.stop();
}

#[test]
fn a_batch_whose_answer_is_lost_goes_again_as_it_was() {
    let brokers = FakeBrokers::start(1);
    let bench = bench(&brokers);
    push_ten(&bench, &[0]);
    bench.until_settled(10);
    brokers.fault(BatchFault::LoseAnswer);
    brokers.fault(BatchFault::LoseAnswer);
    push_ten(&bench, &[0]);
    push_ten(&bench, &[0]);
    assert_eq!(bench.until_settled(30).failed, 0);
    let lost = (0, 1, 10, 10);
    let expected = [(0, 1, 0, 10), lost, lost, lost, (0, 1, 20, 10)];
    assert_eq!(written(&brokers.got(), 0), expected);
    bench.stop();
}

#[test]
fn a_producer_that_is_forgotten_begins_anew() {
    let brokers = FakeBrokers::start(1);
    let bench = bench(&brokers);
    push_ten(&bench, &[0]);
    bench.until_settled(10);
    brokers.fault(BatchFault::Reject(45));
    push_ten(&bench, &[0]);
    push_ten(&bench, &[0]);
    assert_eq!(bench.until_settled(30).failed, 0);
    let expected = [(0, 1, 0, 10), (0, 2, 0, 10), (0, 2, 10, 10)];
    assert_eq!(written(&brokers.got(), 0), expected);
    bench.stop();
}

#[test]
fn rows_that_are_rejected_take_no_sequence_numbers() {
    let brokers = FakeBrokers::start(1);
    let bench = bench(&brokers);
    brokers.fault(BatchFault::RejectSecondRow);
    push_ten(&bench, &[0]);
    let metrics = bench.until_settled(10);
    assert_eq!((metrics.sent, metrics.failed), (9, 1));
    assert!(bench.letters()[0].0.ends_with(": bad row"));
    // If the faulty row is not named, the batch is halved until it is found.
    (0..5).for_each(|_| brokers.fault(BatchFault::Reject(10)));
    push_ten(&bench, &[0]);
    let metrics = bench.until_settled(20);
    assert_eq!((metrics.sent, metrics.failed), (18, 2));
    // No sequence number is skipped or used twice.
    let got = written(&brokers.got(), 0);
    let mut next = 0;
    for (_, _, sequence, count) in &got {
        assert_eq!(*sequence, next, "{got:?}");
        next += count;
    }
    assert_eq!((next, got[0]), (18, (0, 1, 0, 9)));
    bench.stop();
}

#[test]
fn too_few_replicas_are_waited_for() {
    let brokers = FakeBrokers::start(1);
    let bench = bench(&brokers);
    brokers.fault(BatchFault::Reject(19));
    push_ten(&bench, &[0]);
    until("it says why", || (!brokers.got().is_empty()).then_some(())).unwrap();
    assert_eq!(bench.until_settled(10).failed, 0);
    assert_eq!(written(&brokers.got(), 0), [(0, 1, 0, 10)]);
    bench.stop();
}
