//! What waits until messages of rule chains are stored: acknowledgements and mailboxes, and never a publisher's thread
//! or a start.

use std::path::Path;
use std::time::{Duration, Instant};

use hooks::DurableCallback;

use super::*;

/// Publishes nothing: messages of chains are stored when the test says so, or never.
#[derive(Default)]
struct HeldOutputs {
    republished: Mutex<Vec<String>>,
    /// `None`: everything is stored.
    held: Mutex<Option<Vec<DurableCallback>>>,
    is_full: AtomicBool,
}

impl HeldOutputs {
    fn holding() -> Arc<Self> {
        let outputs = Self::default();
        *outputs.held.lock().unwrap() = Some(Vec::new());
        Arc::new(outputs)
    }

    fn republished(&self) -> Vec<String> {
        self.republished.lock().unwrap().clone()
    }

    fn release(&self) {
        let held = self.held.lock().unwrap().take();
        held.into_iter().flatten().for_each(|done| done());
    }

    /// From now on, nothing will be stored any more, as when the node stops.
    fn abandon(&self) {
        *self.held.lock().unwrap() = Some(Vec::new());
    }
}

impl PipelineOutputs for HeldOutputs {
    fn republish(&self, _: &str, payload: &[u8], _: u8, _: bool) {
        let payload = String::from_utf8(payload.to_vec()).unwrap();
        self.republished.lock().unwrap().push(payload);
    }

    fn settle(&self, scope: SettleScope, done: DurableCallback) {
        let mut held = self.held.lock().unwrap();
        match (&mut *held, scope) {
            (Some(held), SettleScope::Published) => held.push(done),
            _ => {
                drop(held);
                done();
            }
        }
    }

    fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }
}

/// Product 0 publishes every row.
fn pipeline(
    config: &PipelineConfig,
    mode: PipelineMode,
    storage: &Arc<MemoryStorage>,
    outputs: &Arc<HeldOutputs>,
) -> Arc<Pipeline> {
    let chain = serde_json::json!({
        "nodes": [
            {"id": "s", "type": "save_telemetry"},
            {"id": "r", "type": "republish", "topic": "relayed", "payload": "${a}"},
        ],
        "relations": [{"from": "s", "to": "r"}],
    });
    let chain = serde_json::from_value(chain).unwrap();
    let profile = ProductProfile {
        mode,
        chain: Arc::new(Chain::compile(&chain).unwrap()),
        ..ProductProfile::permissive(ProductId::new("relay").unwrap())
    };
    let profiles = vec![(ProductNo(0), profile)];
    let resolver = Arc::new(RecordingOutputs::default());
    Pipeline::open(config, profiles, storage.clone(), resolver, outputs.clone()).unwrap()
}

fn submit(pipeline: &Pipeline, processor: &mut TelemetryProcessor, value: u32, padding: usize) {
    let device = device_handle(0);
    let payload = format!(r#"{{"a":{value},"b":"{}"}}"#, "x".repeat(padding));
    let message = DeviceMessage {
        sender: device.as_device_ref(),
        topic: TELEMETRY,
        payload: payload.as_bytes(),
        received_ms: value.into(),
    };
    assert_eq!(
        pipeline.submit(processor, &message),
        SubmitOutcome::Accepted
    );
}

fn config(directory: &Path, mailboxes: usize) -> PipelineConfig {
    PipelineConfig {
        directory: Some(directory.to_owned()),
        mailboxes,
        mailbox_bytes: 8 << 10,
        ..PipelineConfig::default()
    }
}

fn eventually(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::yield_now();
    }
}

fn waiting_messages(directory: &Path) -> u64 {
    check_mailboxes(directory).unwrap().0
}

/// Whether everything submitted so far is safe, when it is.
fn settlement(pipeline: &Pipeline, scope: SettleScope) -> Arc<AtomicBool> {
    let is_safe = Arc::<AtomicBool>::default();
    let done = is_safe.clone();
    pipeline.settle(scope, Box::new(move || done.store(true, Ordering::Relaxed)));
    is_safe
}

#[test]
fn an_acknowledgement_waits_for_messages_of_chains() {
    let outputs = HeldOutputs::holding();
    let config = PipelineConfig::default();
    let pipeline = pipeline(&config, PipelineMode::Sync, &Arc::default(), &outputs);
    let mut processor = pipeline.processor();
    submit(&pipeline, &mut processor, 1, 0);
    assert_eq!(processor.take_unsettled(), Some(SettleScope::Published));
    let is_safe = settlement(&pipeline, SettleScope::Published);
    assert!(!is_safe.load(Ordering::Relaxed));
    outputs.release();
    assert!(is_safe.load(Ordering::Relaxed));
    // A product without such a chain waits for nothing.
    let plain = ProductProfile::permissive(ProductId::new("plain").unwrap());
    pipeline.set_profile(ProductNo(0), Some(plain));
    submit(&pipeline, &mut processor, 2, 0);
    assert_eq!(processor.take_unsettled(), None);
}

#[test]
fn a_mailbox_keeps_messages_until_those_of_chains_are_stored() {
    let directory = tempfile::tempdir().unwrap();
    let (outputs, storage) = (HeldOutputs::holding(), Arc::default());
    let config = config(directory.path(), 1);
    let open = || pipeline(&config, PipelineMode::Actor, &storage, &outputs);
    let running = open();
    submit(&running, &mut running.processor(), 1, 0);
    eventually("it is published", || outputs.republished() == ["1"]);
    assert_eq!(waiting_messages(directory.path()), 1);
    // A node that stops before that publishes the message again with the next start, which waits for nothing.
    outputs.abandon();
    drop(running);
    assert_eq!(waiting_messages(directory.path()), 1);
    let running = open();
    assert_eq!(outputs.republished(), ["1", "1"]);
    assert_eq!(waiting_messages(directory.path()), 1);
    outputs.release();
    let is_empty = || waiting_messages(directory.path()) == 0;
    eventually("the mailbox is cleared", is_empty);
    submit(&running, &mut running.processor(), 2, 0);
    running.flush();
    assert_eq!(outputs.republished(), ["1", "1", "2"]);
    assert!(is_empty());
}

#[test]
fn a_mailbox_that_is_not_used_any_more_is_removed_when_messages_of_chains_are_stored() {
    let directory = tempfile::tempdir().unwrap();
    let (outputs, storage) = (HeldOutputs::holding(), Arc::default());
    let two = config(directory.path(), 2);
    let path = directory.path().join("mailbox-1a");
    drop(pipeline(&two, PipelineMode::Actor, &storage, &outputs));
    let device = device_handle(0);
    let message = DeviceMessage {
        sender: device.as_device_ref(),
        topic: TELEMETRY,
        payload: br#"{"a":7}"#,
        received_ms: 1,
    };
    let (guard, _) = marks::MarkFile::open(directory.path(), 2).unwrap();
    let mark = Some(guard.mark(2));
    let opened = mailbox_segment::MailboxSegment::open(&path, 4 << 10, None, mark);
    assert!(opened.unwrap().0.push(&message, 5));
    drop(guard);
    let one = config(directory.path(), 1);
    let running = pipeline(&one, PipelineMode::Actor, &storage, &outputs);
    assert_eq!(outputs.republished(), ["7"]);
    assert!(path.exists());
    outputs.release();
    eventually("the file is removed", || !path.exists());
    drop(running);
}

/// The worker waits for a shard while its mailbox is full. The shard must not wait for the worker in turn.
#[test]
fn a_full_mailbox_blocks_nobody_and_keeps_the_order() {
    const MESSAGES: u32 = 400;
    let directory = tempfile::tempdir().unwrap();
    let (outputs, storage) = (HeldOutputs::holding(), Arc::<MemoryStorage>::default());
    let config = config(directory.path(), 1);
    let running = pipeline(&config, PipelineMode::Actor, &storage, &outputs);
    let mut processor = running.processor();
    for value in 0..MESSAGES {
        // Some are larger than a half.
        submit(
            &running,
            &mut processor,
            value,
            usize::from(value % 100 == 99) * (6 << 10),
        );
    }
    assert!(running.is_saturated(), "publishers are paused");
    assert_eq!(
        processor.take_unsettled(),
        Some(SettleScope::Published),
        "their acknowledgement waits"
    );
    let is_safe = settlement(&running, SettleScope::Published);
    assert!(!is_safe.load(Ordering::Relaxed));
    outputs.release();
    eventually("all are safe", || is_safe.load(Ordering::Relaxed));
    running.flush();
    let expected: Vec<_> = (0..MESSAGES).map(|value| value.to_string()).collect();
    assert_eq!(outputs.republished(), expected);
    assert_eq!(storage.rows(0).len(), expected.len());
    submit(&running, &mut processor, MESSAGES, 0);
    assert_eq!(processor.take_unsettled(), None, "it is in its mailbox");
}

#[test]
fn a_thread_waits_for_room_in_a_mailbox() {
    let directory = tempfile::tempdir().unwrap();
    let (outputs, storage) = (HeldOutputs::holding(), Arc::default());
    let config = config(directory.path(), 1);
    let running = pipeline(&config, PipelineMode::Actor, &storage, &outputs);
    let mut processor = running.processor();
    for value in 0..400 {
        submit(&running, &mut processor, value, 0);
    }
    running.wait_for_room(Duration::from_millis(1));
    assert!(running.is_saturated(), "the worker is stuck");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| running.wait_for_room(Duration::from_secs(600)));
        outputs.release();
        waiting.join().unwrap();
    });
    assert!(!running.is_saturated());
    running.flush();
}

/// Before the broker runs, messages of chains wait in memory: a start replays only as many as there is room for.
#[test]
fn a_replay_continues_when_there_is_room_for_messages_of_chains() {
    let directory = tempfile::tempdir().unwrap();
    let (outputs, storage) = (HeldOutputs::holding(), Arc::default());
    let config = config(directory.path(), 1);
    let open = || pipeline(&config, PipelineMode::Actor, &storage, &outputs);
    let running = open();
    for value in 0..3 {
        submit(&running, &mut running.processor(), value, 0);
    }
    eventually("they are processed", || !outputs.republished().is_empty());
    outputs.abandon();
    drop(running);
    outputs.republished.lock().unwrap().clear();
    outputs.is_full.store(true, Ordering::Relaxed);
    let running = open();
    assert!(outputs.republished().is_empty());
    // Behind the others.
    let mut processor = running.processor();
    submit(&running, &mut processor, 3, 0);
    assert_eq!(processor.take_unsettled(), Some(SettleScope::Published));
    outputs.release();
    outputs.is_full.store(false, Ordering::Relaxed);
    running.flush();
    assert_eq!(outputs.republished(), ["0", "1", "2", "3"]);
}
