//! One batch on its way: tried until the system has it, or each of its rows turned out to be impossible.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::circuit::{Circuit, pause};
use super::dead::{DeadLetters, Letter, Mourner};
use super::metrics::Metrics;
use super::now_ms;
use super::runner::Stop;
use crate::batch::Batch;
use crate::connector::{Doing, Failure, Lasting, Writer, Written};
use crate::settings::Retry;

/// Between two warnings of dead letters of one sink.
const LOG_LETTERS_EVERY_MS: u64 = 10_000;

/// What deliveries of one sink share.
pub(crate) struct Delivery {
    pub(crate) sink: String,
    pub(crate) writer: Arc<dyn Writer>,
    pub(crate) circuit: Arc<Circuit>,
    pub(crate) dead: Arc<DeadLetters>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) retry: Retry,
    pub(crate) timeout: Duration,
    pub(crate) stop: watch::Receiver<Stop>,
    pub(crate) mourner: Arc<OnceLock<Arc<dyn Mourner>>>,
}

/// Rows that belong together in what is still to be tried.
struct Part {
    batch: Batch,
    attempts: u32,
    /// Not before its rows had this pause.
    not_before: Option<Instant>,
}

impl Delivery {
    /// Writes a batch. What comes back was not written because it was told to give up.
    pub(crate) async fn deliver(&self, batch: &Batch) -> Vec<Batch> {
        let mut stop = self.stop.clone();
        // The next one last.
        let mut parts = vec![Part {
            batch: batch.clone(),
            attempts: 0,
            not_before: None,
        }];
        while let Some(part) = parts.pop() {
            if let Some(until) = part.not_before {
                tokio::select! {
                    () = tokio::time::sleep_until(until) => {}
                    _ = stop.wait_for(|stop| *stop == Stop::GiveUp) => {}
                }
            }
            let pass = tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop == Stop::GiveUp) => {
                    parts.push(part);
                    break;
                }
                pass = self.circuit.pass() => pass,
            };
            if part.attempts > 0 {
                self.metrics
                    .retried
                    .fetch_add(part.batch.len() as u64, Relaxed);
            }
            let started = Instant::now();
            let written = self.write(&part.batch).await;
            self.metrics.observe(started.elapsed());
            match written {
                Written::Failed(failure) if failure.lasting != Lasting::Rows => {
                    let retry_after = failure.retry_after;
                    if self.circuit.failed(&pass, &failure.message, retry_after) {
                        tracing::warn!(sink = self.sink, error = %failure, "sink write failed; retrying");
                    }
                    self.try_again(part, &failure, None, &mut parts).await;
                }
                answered => {
                    if self.circuit.succeeded(&pass) {
                        tracing::info!(sink = self.sink, "sink writes again");
                    }
                    self.settle(part, answered, &mut parts).await;
                }
            }
        }
        parts.into_iter().rev().map(|part| part.batch).collect()
    }

    async fn write(&self, batch: &Batch) -> Written {
        let writing = Caught(self.writer.write(batch));
        match tokio::time::timeout(self.timeout, writing).await {
            Ok(Some(written)) => written,
            Ok(None) => Written::Failed(Failure::of_rows(
                "the connector panicked; this is a bug, please report it",
            )),
            Err(_) => {
                let ms = self.timeout.as_millis();
                Written::Failed(Failure::passing(format!("no answer within {ms} ms")))
            }
        }
    }

    /// The system is there and said something about the rows.
    async fn settle(&self, part: Part, written: Written, parts: &mut Vec<Part>) {
        let sent = |rows: usize| self.metrics.sent.fetch_add(rows as u64, Relaxed);
        match written {
            Written::All => drop(sent(part.batch.len())),
            Written::Failed(failure) if part.batch.len() == 1 => {
                self.bury(part.batch, &failure, part.attempts + 1).await;
            }
            Written::Failed(_) => {
                // The row that is to blame is in one of the halves.
                let middle = part.batch.len() / 2;
                for half in [middle..part.batch.len(), 0..middle] {
                    parts.push(Part {
                        batch: part.batch.pick(half),
                        attempts: part.attempts,
                        not_before: None,
                    });
                }
            }
            Written::Except(failures) => {
                let failures: Vec<_> = failures
                    .into_iter()
                    .filter(|(at, _)| *at < part.batch.len())
                    .collect();
                sent(part.batch.len().saturating_sub(failures.len()));
                let (passing, lasting): (Vec<_>, Vec<_>) = failures
                    .into_iter()
                    .partition(|(_, failure)| failure.lasting == Lasting::Passing);
                for (at, failure) in &lasting {
                    let row = part.batch.pick([*at]);
                    self.bury(row, failure, part.attempts + 1).await;
                }
                if let Some((_, failure)) = passing.first() {
                    self.circuit.note(&failure.message);
                    let again = Part {
                        batch: part.batch.pick(passing.iter().map(|(at, _)| *at)),
                        ..part
                    };
                    let wait = pause(&self.retry, again.attempts + 1)
                        .max(failure.retry_after.unwrap_or_default());
                    self.try_again(again, failure, Some(wait), parts).await;
                }
            }
        }
    }

    async fn try_again(
        &self,
        part: Part,
        failure: &Failure,
        wait: Option<Duration>,
        parts: &mut Vec<Part>,
    ) {
        let attempts = part.attempts + 1;
        let is_given_up = match failure.lasting {
            // The circuit has counted those of other batches, too: each of them tells as much.
            Lasting::Permanent => {
                attempts.max(self.circuit.failures()) >= self.retry.max_permanent_attempts
            }
            Lasting::Passing | Lasting::Rows => false,
        };
        if is_given_up || self.retry.max_attempts.is_some_and(|max| attempts >= max) {
            self.bury(part.batch, failure, attempts).await;
            return;
        }
        parts.push(Part {
            attempts,
            not_before: wait.map(|wait| Instant::now() + wait),
            ..part
        });
    }

    /// Warns of dead letters, once in a while; `rows` counts those since the last warning.
    fn log_letters(&self, rows: u64, failure: &Failure) {
        let unlogged = self.metrics.letters_unlogged.fetch_add(rows, Relaxed) + rows;
        let (now, logged) = (now_ms(), self.metrics.letters_logged_ms.load(Relaxed));
        if logged == 0 || now.abs_diff(logged) >= LOG_LETTERS_EVERY_MS {
            self.metrics.letters_logged_ms.store(now, Relaxed);
            self.metrics.letters_unlogged.fetch_sub(unlogged, Relaxed);
            tracing::warn!(sink = self.sink, rows = unlogged, error = %failure, "rows became dead letters");
        }
    }

    /// The rows become dead letters.
    async fn bury(&self, batch: Batch, failure: &Failure, attempts: u32) {
        self.circuit.note(&failure.message);
        self.log_letters(batch.len() as u64, failure);
        let letters = batch.rows().map(|row| Letter {
            id: 0,
            at_ms: now_ms(),
            error: failure.message.clone(),
            attempts,
            row: row.as_bytes().to_vec(),
        });
        let dropped = self.dead.add(letters.collect()).await;
        if let Some(mourner) = self.mourner.get() {
            for row in batch.rows() {
                if let Some(origin) = row.origin() {
                    mourner.failed(&self.sink, row, origin, &failure.message, attempts);
                }
            }
        }
        self.metrics.letters_dropped.fetch_add(dropped, Relaxed);
        // Only now: whoever waits for the count finds the letters.
        self.metrics.failed.fetch_add(batch.len() as u64, Relaxed);
    }
}

/// A write whose panic is an answer: `None`.
struct Caught<'a>(Doing<'a, Written>);

impl Future for Caught<'_> {
    type Output = Option<Written>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = catch_unwind(AssertUnwindSafe(|| self.0.as_mut().poll(context)));
        match polled {
            Ok(polled) => polled.map(Some),
            Err(_) => Poll::Ready(None),
        }
    }
}
