//! A worker that is driven by hand against a broker that only accepts connections.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use super::*;
use crate::definition::SourceDocument;

const DEADLINE: Duration = Duration::from_secs(30);
const SECOND_NS: u64 = 1_000_000_000;

/// A broker for one device; yields the bytes of each read after CONNECT.
fn start_broker() -> (String, Receiver<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (sender, reads) = channel();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut buffer = vec![0; 1 << 20];
        assert!(stream.read(&mut buffer).unwrap() > 0);
        stream.write_all(&[0x20, 2, 0, 0]).unwrap();
        while let Ok(length) = stream.read(&mut buffer)
            && length > 0
            && sender.send(buffer[..length].to_vec()).is_ok()
        {}
    });
    (address, reads)
}

/// Lets a device connect, then calls `test` in a phase with a load of 0, which is followed by one with a burst of 50.
fn with_connected_device(send: &str, test: impl FnOnce(&mut Worker<'_>, &Receiver<Vec<u8>>)) {
    with_script(send, "", test);
}

/// The same with a script.
fn with_script(send: &str, script: &str, test: impl FnOnce(&mut Worker<'_>, &Receiver<Vec<u8>>)) {
    let (address, reads) = start_broker();
    let text = format!(
        r#"
target.broker = "mqtt://{address}"
[fleet.devices]
count = 1
id = "d{{index}}"
keep_alive = "0s"
send = [{{ topic = "t", payload = "{{message}}", {send} }}]
{script}
[[phase]]
name = "connect"
load = 0.0
[[phase]]
name = "burst"
duration = "1h"
burst = 50
[[phase]]
name = "hasty"
duration = "1h"
reconnect = {{ delay = "0s", backoff = false }}
"#
    );
    with_worker(&text, |worker| {
        worker.shared.start_phase(0, now_ns());
        let deadline = std::time::Instant::now() + DEADLINE;
        while worker.connected == 0 {
            assert!(std::time::Instant::now() < deadline);
            worker.turn().unwrap();
        }
        test(worker, &reads);
    });
}

/// Calls `test` with the only worker of a file, before its first phase.
fn with_worker(text: &str, test: impl FnOnce(&mut Worker<'_>)) {
    let document = SourceDocument::parse(Path::new("a.toml"), text).unwrap();
    let (definition, plan) =
        crate::plan_compiler::compile(&document, Path::new(""), Default::default()).unwrap();
    let access = TargetAccess::new(&definition.target, Path::new(""), &plan).unwrap();
    let shared = RunShared::new(1, false, None);
    test(&mut Worker::new(&plan, &access, &shared, 0).unwrap());
}

#[test]
fn messages_that_are_due_together_are_written_together() {
    with_connected_device("every = \"1h\"", |worker, reads| {
        worker.begin_phase(1, now_ns());
        let first = reads.recv_timeout(DEADLINE).unwrap();
        let mut messages = 0;
        let mut rest = &first[..];
        while let Some((&[0x30, length], _)) = rest.split_first_chunk() {
            messages += 1;
            rest = &rest[2 + usize::from(length)..];
        }
        assert_eq!((messages, rest), (50, &[][..]));
        assert_eq!(worker.counts().sent, 50);
        // Buffers of outboxes are kept for later turns.
        assert!(worker.unwritten.is_empty() && worker.devices[0].outbox.is_empty());
        assert_eq!(worker.free_outboxes.len(), 1);
    });
}

#[test]
fn a_late_worker_makes_up_for_a_second_and_counts_what_it_misses() {
    with_connected_device("every = \"10ms\", start = \"together\"", |worker, _| {
        worker.load = 1.0;
        let due_ns = worker.schedule.next_ns().expect("a message is scheduled");
        worker.now_ns = due_ns + SECOND_NS / 2;
        worker.send_due();
        let counts = worker.counts();
        assert_eq!((counts.sent, counts.missed), (51, 0));
        // The next message was due 10 ms later. What would be sent more than a second late is missed.
        worker.now_ns += 5 * SECOND_NS;
        worker.send_due();
        let counts = worker.counts();
        assert_eq!((counts.sent, counts.missed), (52, 498));
        assert_eq!(
            worker.schedule.next_ns(),
            Some(worker.now_ns + SECOND_NS / 100)
        );
    });
}

#[test]
fn scripts_publish_subscribe_and_change_messages() {
    let script = r#"
[fleet.devices.script]
timer = "1ms"
text = '''
let ticks = 0;
function beforeConnect(device, options) { return { username: device.id }; }
function onConnected(device) {
  device.subscribe('commands', 1);
  device.publish('state', 'connected', 1);
  device.publish('not/#', 'refused', 0);
}
function onSend(device, message) {
  if (message.payload === '1') throw new Error('no');
  return message.payload === '2' ? false : { payload: 'changed ' + message.payload };
}
function onMessage(device, message) { device.publish('echo', message.payload); }
function onTimer(device) { if (ticks++ === 0) device.publish('tick', 'tack'); }
'''
"#;
    with_script("every = \"1h\"", script, |worker, reads| {
        worker.call_message(0, "c", b"open").unwrap();
        worker.now_ns += SECOND_NS;
        worker.call_timers();
        worker.begin_phase(1, now_ns());
        let mut written = Vec::new();
        let has = |written: &[u8], text: &str| {
            written
                .windows(text.len())
                .any(|part| part == text.as_bytes())
        };
        while !has(&written, "changed 50") {
            written.extend(reads.recv_timeout(DEADLINE).unwrap());
        }
        for text in ["commands", "connected", "open", "tack", "changed 3"] {
            assert!(has(&written, text), "{text}");
        }
        assert!(!has(&written, "refused"));
        let counts = worker.counts();
        assert_eq!((counts.sent, counts.script_errors), (48, 1));
        let error = "d0: fleet.devices.script:9: onSend: Error: no";
        assert_eq!(counts.failures.first, [error]);
    });
}

#[test]
fn an_outage_lasts_into_the_next_phase() {
    with_connected_device("every = \"1h\"", |worker, _| {
        worker.update_time();
        let until_ns = worker.now_ns + 60 * SECOND_NS;
        worker.close(0);
        worker.stay_away(0, until_ns);
        worker.begin_phase(1, worker.now_ns);
        worker.open_connections();
        assert_eq!(worker.devices[0].stage, ConnectionStage::Offline);
        // The phase waits for the device.
        assert_eq!(worker.unsettled, 1);
        worker.now_ns = until_ns + 10 * SECOND_NS;
        worker.open_connections();
        assert_eq!(worker.devices[0].stage, ConnectionStage::Dialing);
        worker.on_connack(0).unwrap();
        assert_eq!(worker.unsettled, 0);
        // From the end of the outage.
        let reconnect = worker.counts().reconnect.max();
        assert!((9 * SECOND_NS..12 * SECOND_NS).contains(&reconnect));
    });
}

#[test]
fn a_device_that_does_not_reconnect_stays_away_in_the_next_phase() {
    let lines = "reconnect = { enabled = false }";
    with_script("every = \"1h\"", lines, |worker, _| {
        worker.update_time();
        worker.fail(0, &ClientError::TimedOut);
        worker.begin_phase(1, worker.now_ns);
        assert!(worker.waiting.is_empty());
        assert_eq!(worker.unsettled, 0);
    });
}

#[test]
fn random_devices_send_whichever_device_connects_first() {
    let text = r#"
[fleet.devices]
count = 2
send = [{ every = "1s", random_devices = 3, topic = "t", payload = "" }]
[[phase]]
name = "steady"
duration = "1h"
"#;
    with_worker(text, |worker| {
        worker.update_time();
        worker.begin_phase(0, worker.now_ns);
        worker.schedule_sends(1);
        worker.schedule_sends(0);
        worker.send_due();
        // No device is connected; the next messages are due a second later.
        assert_eq!(worker.counts().offline, 3);
        assert_eq!(worker.schedule.next_ns(), Some(worker.now_ns + SECOND_NS));
    });
}

#[test]
fn a_phase_decides_how_devices_return() {
    let lines = "reconnect = { delay = \"1h\" }";
    with_script("every = \"1h\"", lines, |worker, _| {
        for (phase, delay_ns) in [(1, 3600 * SECOND_NS), (2, 0)] {
            worker.begin_phase(phase, worker.now_ns);
            worker.devices[0].attempts = 4;
            worker.devices[0].is_wanted = true;
            worker.plan_return(0, SECOND_NS);
            let Reverse((at_ns, _)) = worker.returning.pop().unwrap();
            // The longest delay is a minute, but the first one is never shorter than as configured.
            assert_eq!(at_ns, SECOND_NS + delay_ns, "{phase}");
        }
    });
}
