//! Test bench: a connector service with one connector and one sink.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use connect::connector::{BoxFuture, ConnectorContext, SourceMessage, SourcePort};
use connect::{
    ConnectorService, ConnectorServiceOptions, PushOutcome, SinkId, SinkMetrics, SourceReader,
};
use serde_json::{Map, Value, json};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::http::HttpServer;

/// Generous, because the machine may be compiling at the same time.
const LIMIT: Duration = Duration::from_secs(60);

pub(crate) struct ConnectorFixture {
    pub(crate) runtime: Runtime,
    pub(crate) service: ConnectorService,
    sink: SinkId,
}

impl ConnectorFixture {
    /// `sink` without the name of its connector.
    pub(crate) fn new(connector: Value, mut sink: Value) -> Self {
        let runtime = Runtime::new().unwrap();
        let options = ConnectorServiceOptions {
            directory: None,
            shards: 1,
        };
        let service = ConnectorService::new(runtime.handle().clone(), options);
        service.set_connector("c", &connector).unwrap();
        sink["connector"] = "c".into();
        if sink.get("retry").is_none() {
            sink["retry"] = json!({"initial_delay_ms": 5, "max_delay_ms": 200});
        }
        service.check_sink(&sink).unwrap();
        let sink = service.set_sink("s", &sink).unwrap();
        Self {
            runtime,
            service,
            sink,
        }
    }

    /// Pushes a row; waits while the queue is full.
    pub(crate) fn push(&self, row: Value) {
        let pushed = self.service.push(self.sink, 0, |out| {
            out.json_fields(row.as_object().unwrap());
        });
        match pushed {
            PushOutcome::Queued => {}
            PushOutcome::Blocked => self.runtime.block_on(self.service.wait_for_room(self.sink)),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn push_numbers(&self, numbers: std::ops::Range<u64>) {
        for n in numbers {
            self.push(json!({"n": n, "key": n % 5, "topic": format!("t/{}", n % 5)}));
        }
    }

    /// Pushes the rows 0 to 2999, of which the last 1000 during an outage of the server, until this number of rows was
    /// retried. Waits until all rows are written.
    pub(crate) fn push_during_outage(&self, server: &HttpServer, retried: u64) {
        self.push_numbers(0..2000);
        until("some rows are written", || {
            (self.metrics().sent > 300).then_some(())
        })
        .unwrap();
        server.set_down(true);
        self.push_numbers(2000..3000);
        until("rows are retried", || {
            (self.metrics().retried > retried).then_some(())
        })
        .unwrap();
        server.set_down(false);
        assert_eq!(self.until_settled(3000).failed, 0);
    }

    pub(crate) fn metrics(&self) -> SinkMetrics {
        self.service.sink_status("s").unwrap().metrics
    }

    /// Waits until a number of rows were written or are dead letters.
    pub(crate) fn until_settled(&self, rows: u64) -> SinkMetrics {
        until("all rows are settled", || {
            let metrics = self.metrics();
            (metrics.sent + metrics.failed >= rows).then_some(metrics)
        })
        .unwrap_or_else(|| panic!("{:#?}", self.service.sink_status("s")))
    }

    /// Errors and rows of the dead letters.
    pub(crate) fn letters(&self) -> Vec<(String, Value)> {
        let letters = self.service.dead_letters("s", 0, 1000).unwrap();
        let read = |row: &[u8]| connect::SinkRow::from_bytes(row).to_json();
        letters
            .into_iter()
            .map(|l| (l.error, read(&l.row)))
            .collect()
    }

    /// The sink's last error.
    pub(crate) fn problem(&self) -> String {
        format!("{:?}", self.service.sink_status("s").unwrap().health)
    }

    pub(crate) fn test(&self) -> Result<String, String> {
        let answer = self.runtime.block_on(self.service.test_connector("c"));
        answer.unwrap().map_err(|failure| failure.message)
    }

    pub(crate) fn stop(self) {
        self.runtime
            .block_on(self.service.stop(Duration::from_secs(10)));
    }
}

/// Polls until there is a result; `None` after a minute.
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(found) = look() {
            return Some(found);
        }
        if Instant::now() > deadline {
            eprintln!("not within {LIMIT:?}: {what}");
            return None;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Messages that a source received.
#[derive(Default)]
pub(crate) struct ReceivedMessages(pub(crate) Mutex<Vec<SourceMessage>>);

impl SourcePort for ReceivedMessages {
    fn accept<'a>(&'a self, message: SourceMessage) -> BoxFuture<'a, ()> {
        self.0.lock().unwrap().push(message);
        Box::pin(std::future::ready(()))
    }
}

/// A source that is restarted after failures, as in a node.
pub(crate) struct RunningSource {
    runtime: Runtime,
    task: JoinHandle<()>,
    pub(crate) received: Arc<ReceivedMessages>,
    pub(crate) failures: Arc<Mutex<Vec<String>>>,
}

impl RunningSource {
    pub(crate) fn start(connector: Value, source: Value) -> Self {
        let runtime = Runtime::new().unwrap();
        let reader = reader(&runtime, connector, source);
        let received = Arc::new(ReceivedMessages::default());
        let failures = Arc::new(Mutex::new(Vec::new()));
        let (port, messages) = (received.clone(), failures.clone());
        let task = runtime.spawn(async move {
            loop {
                let failure = reader.read(&*port).await;
                messages.lock().unwrap().push(failure.message);
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        Self {
            runtime,
            task,
            received,
            failures,
        }
    }

    /// Ends the source as a running node does, so that it can leave properly. Returns the received messages.
    pub(crate) fn stop(self) -> Vec<SourceMessage> {
        self.task.abort();
        let metrics = self.runtime.metrics();
        until("it has ended", || {
            (metrics.num_alive_tasks() == 0).then_some(())
        })
        .expect("a source that is dropped ends");
        std::mem::take(&mut *self.received.0.lock().unwrap())
    }

    pub(crate) fn count(&self) -> usize {
        self.received.0.lock().unwrap().len()
    }
}

fn reader(runtime: &Runtime, mut connector: Value, source: Value) -> Arc<dyn SourceReader> {
    let fields: &mut Map<String, Value> = connector.as_object_mut().unwrap();
    let Some(Value::String(name)) = fields.remove("type") else {
        panic!("a connector has a type");
    };
    let kind = connect::find_kind(&name).unwrap();
    let _runtime = runtime.enter();
    let opened = (kind.open)(fields.clone(), &ConnectorContext::default()).unwrap();
    opened.reader(source.as_object().unwrap().clone()).unwrap()
}
