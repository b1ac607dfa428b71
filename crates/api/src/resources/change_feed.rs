//! A stream of the states of one object: its present state, and then each change, at most one a second.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Interval, MissedTickBehavior, interval};
use wall_clock::now_ms;

use super::events;
use super::stream_connection::{ItemStream, StreamConnection, StreamItem};
use crate::blocking::run_blocking;
use crate::call::ApiCall;
use crate::problem_details::ApiResult;

const INTERVAL: Duration = Duration::from_secs(1);

/// The present state of an object; `None`: the object no longer exists, or cannot be read.
pub(super) type StateFuture = Pin<Box<dyn Future<Output = Option<Value>> + Send>>;

struct ChangeFeed<R> {
    listener: StreamConnection,
    ticks: Interval,
    /// Name of the events, and of the field with the state.
    name: &'static str,
    read: R,
    last: Value,
}

impl<R: Fn() -> StateFuture + Send + Sync + 'static> ItemStream for ChangeFeed<R> {
    fn next(&mut self) -> impl Future<Output = Option<StreamItem>> + Send {
        self.next_item()
    }
}

impl<R: Fn() -> StateFuture + Send + Sync + 'static> ChangeFeed<R> {
    async fn next_item(&mut self) -> Option<StreamItem> {
        loop {
            let is_silent = tokio::select! {
                biased;
                silence = self.listener.wait_for_keep_alive() => {
                    silence?;
                    true
                }
                _ = self.ticks.tick() => false,
            };
            if is_silent {
                return self.listener.check_and_keep_alive().await;
            }
            let state = (self.read)().await?;
            if state != self.last {
                self.last = state.clone();
                let event = json!({"event": self.name, "at_ms": now_ms(), self.name: state});
                return Some(StreamItem::Event(self.name.to_owned(), event.to_string()));
            }
        }
    }
}

/// Streams the states that `read` returns until it returns `None`. It may block.
pub(super) fn stream_changes(
    call: ApiCall,
    name: &'static str,
    read: impl Fn() -> Option<Value> + Clone + Send + Sync + 'static,
) -> ApiResult {
    stream_states(call, name, move || {
        let read = read.clone();
        Box::pin(async move {
            let state = run_blocking(read, "The state cannot be read now.").await;
            state.ok().flatten()
        })
    })
}

/// The same with states that need not be read on a thread that may block.
pub(super) fn stream_states(
    mut call: ApiCall,
    name: &'static str,
    read: impl Fn() -> StateFuture + Send + Sync + 'static,
) -> ApiResult {
    let place = events::begin_stream(&call)?;
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let feed = ChangeFeed {
        listener: StreamConnection::new(&call, place),
        ticks,
        name,
        read,
        last: Value::Null,
    };
    events::stream_response(&mut call, feed)
}
