//! Files over MQTT: a client sends segments in random order, and the node is killed while some of them are on their
//! way. What was acknowledged is there afterwards. Each file that is finished has exactly the bytes that were sent.

use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use ring::digest::{SHA256, digest};
use serde_json::{Value, json};

use crate::support::{Connect, Node, Packet, Publish, Random, Raw, kind, temporary_directory};

const CLIENT: &str = "uploader";
/// Segments on their way at a time; the node permits 32.
const WINDOW: usize = 16;
const MAX_FILE_BYTES: usize = 400_000;
const MAX_SEGMENT_BYTES: usize = 20_000;

/// The file that is being sent.
struct SentFile {
    number: u32,
    content: Vec<u8>,
    is_acknowledged: Vec<bool>,
}

impl SentFile {
    fn new(number: u32, random: &mut Random) -> Self {
        let len = 1 + random.below(MAX_FILE_BYTES);
        let seed = random.next() as u32;
        let bytes = (0..len as u32).map(|n| (n.wrapping_mul(2_654_435_761) ^ seed) >> 11);
        Self {
            number,
            content: bytes.map(|byte| byte as u8).collect(),
            is_acknowledged: vec![false; len],
        }
    }

    fn topic(&self, rest: &str) -> String {
        format!("$file/f{}/{rest}", self.number)
    }

    fn sha256(&self) -> String {
        data_encoding::HEXLOWER.encode(digest(&SHA256, &self.content).as_ref())
    }
}

struct Uploader<'r> {
    raw: Raw,
    random: &'r mut Random,
    packet_id: u16,
}

impl<'r> Uploader<'r> {
    fn connect(node: &Node, random: &'r mut Random) -> Self {
        let mut raw = Raw::connect(node, &Connect::new(5, CLIENT));
        raw.subscribe(&format!("$file-response/{CLIENT}"), 0);
        Self {
            raw,
            random,
            packet_id: 0,
        }
    }

    fn send(&mut self, topic: &str, payload: &[u8]) -> u16 {
        self.packet_id = self.packet_id % 60_000 + 1;
        let publish = Publish::new(topic, payload).qos(1, self.packet_id);
        self.raw.send_publish(&publish);
        self.packet_id
    }

    /// The acknowledgement that comes next; responses are skipped.
    fn next_acknowledgement(&mut self) -> Packet {
        loop {
            let packet = self.raw.recv_packet();
            if packet.kind == kind::PUBACK {
                assert_eq!(packet.reason, 0, "{packet:?}");
                return packet;
            }
        }
    }

    /// Sends a step, and waits for its acknowledgement and its response.
    fn step(&mut self, topic: &str, payload: &[u8]) -> Value {
        let id = self.send(topic, payload);
        let (mut response, mut is_acknowledged) = (None, false);
        while response.is_none() || !is_acknowledged {
            let packet = self.raw.recv_packet();
            match packet.kind {
                kind::PUBACK => {
                    assert_eq!((packet.id(), packet.reason), (id, 0), "{packet:?}");
                    is_acknowledged = true;
                }
                _ => {
                    let body: Value = serde_json::from_slice(&packet.payload).unwrap();
                    response = (body["topic"] == topic).then_some(body).or(response);
                }
            }
        }
        response.unwrap()
    }

    /// Begins or continues the file; returns the ranges that are missing.
    fn resume(&mut self, file: &SentFile) -> Vec<Range<usize>> {
        let name = format!("file-{}", file.number);
        let init = json!({"name": name, "size": file.content.len(), "checksum": file.sha256()});
        self.step(&file.topic("init"), init.to_string().as_bytes());
        let status = self.step(&file.topic("status"), b"");
        let missing = status["missing"].as_array().unwrap().iter();
        let bound = |pair: &Value, at: usize| pair[at].as_u64().unwrap() as usize;
        missing.map(|pair| bound(pair, 0)..bound(pair, 1)).collect()
    }

    /// A random part of what is missing.
    fn pick(&mut self, missing: &[Range<usize>]) -> Range<usize> {
        let gap = &missing[self.random.below(missing.len())];
        let start = gap.start + self.random.below(gap.len());
        let most = (gap.end - start).min(MAX_SEGMENT_BYTES);
        start..start + 1 + self.random.below(most)
    }
}

/// Kills a node `kills` times while files are sent.
pub(crate) fn run(kills: usize) {
    let seed = Random::seed();
    let mut random = Random::new(seed);
    let start = |directory| {
        let mut node = Node::spawn(directory, &["--shards", "2"], "");
        if let Err(why) = node.wait_until_it_listens() {
            panic!("seed {seed}: {why}");
        }
        node
    };
    let mut node = start(temporary_directory());
    let mut file = SentFile::new(0, &mut random);
    let mut segments = 0;
    for _ in 0..kills {
        let mut uploader = Uploader::connect(&node, &mut random);
        let mut missing = uploader.resume(&file);
        for at in missing.iter().flat_map(Clone::clone) {
            assert!(
                !file.is_acknowledged[at],
                "seed {seed}: byte {at} of file {} is lost",
                file.number
            );
        }
        // Until a random moment, or until the file is complete.
        let mut left = uploader.random.below(60);
        while left > 0 && !missing.is_empty() {
            let sent: Vec<(u16, Range<usize>)> = (0..WINDOW)
                .map(|_| {
                    let range = uploader.pick(&missing);
                    let topic = file.topic(&range.start.to_string());
                    (uploader.send(&topic, &file.content[range.clone()]), range)
                })
                .collect();
            let awaited = left.min(sent.len());
            for _ in 0..awaited {
                let id = uploader.next_acknowledgement().id();
                let (_, range) = sent.iter().find(|(sent, _)| *sent == id).unwrap();
                file.is_acknowledged[range.clone()].fill(true);
            }
            segments += awaited;
            left -= awaited;
            if left > 0 {
                missing = uploader.resume(&file);
            }
        }
        let is_complete = missing.is_empty();
        if is_complete {
            let fin = format!("fin/{}/{}", file.content.len(), file.sha256());
            uploader.step(&file.topic(&fin), b"");
        }
        drop(uploader);
        std::thread::sleep(Duration::from_millis(random.below(5) as u64));
        let directory = node.kill();
        if is_complete {
            assert!(
                is_stored(&directory, &file),
                "seed {seed}: file {}",
                file.number
            );
            file = SentFile::new(file.number + 1, &mut random);
        }
        node = start(directory);
    }
    println!(
        "{} files, {segments} segments through {kills} kills, seed {seed}",
        file.number
    );
}

/// Whether a data directory contains the complete file.
fn is_stored(directory: &Path, file: &SentFile) -> bool {
    let mut entries = std::fs::read_dir(directory.join("files")).unwrap();
    entries.any(|entry| {
        let data = std::fs::read(entry.unwrap().path().join("data"));
        data.is_ok_and(|data| data == file.content)
    })
}
