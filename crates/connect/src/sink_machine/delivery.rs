//! Delivery of one batch: attempts continue until the system has it or each remaining row is a dead letter.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use wall_clock::now_ms;

use super::circuit_breaker::{CircuitBreaker, backoff};
use super::dead_letters::{DeadLetter, DeadLetterObserver, DeadLetters};
use super::metrics::SinkCounters;
use super::stop_signal::StopSignal;
use crate::batch::SinkBatch;
use crate::connector::{BoxFuture, ConnectorError, Retryable, SinkWriter, WriteOutcome};
use crate::content::ContentPortCell;
use crate::settings::RetrySettings;

/// Minimum interval between two warnings about dead letters of one sink.
const LOG_LETTERS_EVERY_MS: u64 = 10_000;

/// State shared by all deliveries of one sink.
pub(crate) struct BatchDelivery {
    pub(crate) sink: String,
    pub(crate) writer: Arc<dyn SinkWriter>,
    pub(crate) circuit: Arc<CircuitBreaker>,
    pub(crate) dead_letters: Arc<DeadLetters>,
    pub(crate) metrics: Arc<SinkCounters>,
    pub(crate) retry: RetrySettings,
    pub(crate) timeout: Duration,
    pub(crate) stop: watch::Receiver<StopSignal>,
    pub(crate) dead_letter_observer: Arc<OnceLock<Arc<dyn DeadLetterObserver>>>,
    pub(crate) content_port: ContentPortCell,
}

/// A part of a batch that is still to be written.
struct PendingBatch {
    batch: SinkBatch,
    attempts: u32,
    /// Earliest time of the next attempt for its rows.
    not_before: Option<Instant>,
}

impl BatchDelivery {
    /// Writes a batch. Returns the parts that were not written because the sink is giving up.
    pub(crate) async fn deliver(&self, batch: &SinkBatch) -> Vec<SinkBatch> {
        let mut stop = self.stop.clone();
        // A stack: the last element is next.
        let mut parts = vec![PendingBatch {
            batch: batch.clone(),
            attempts: 0,
            not_before: None,
        }];
        while let Some(part) = parts.pop() {
            if let Some(until) = part.not_before {
                tokio::select! {
                    () = tokio::time::sleep_until(until) => {}
                    _ = stop.wait_for(|stop| *stop == StopSignal::GiveUp) => {}
                }
            }
            let pass = tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop == StopSignal::GiveUp) => {
                    parts.push(part);
                    break;
                }
                pass = self.circuit.acquire() => pass,
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
                WriteOutcome::Failed(failure) if failure.retryable != Retryable::BadRows => {
                    let retry_after = failure.retry_after;
                    if self
                        .circuit
                        .record_failure(&pass, &failure.message, retry_after)
                    {
                        tracing::warn!(sink = self.sink, error = %failure, "sink write failed; retrying");
                    }
                    self.schedule_retry(part, &failure, None, &mut parts).await;
                }
                answered => {
                    if self.circuit.record_success(&pass) {
                        tracing::info!(sink = self.sink, "sink writes recovered");
                    }
                    self.handle_outcome(part, answered, &mut parts).await;
                }
            }
        }
        parts.into_iter().rev().map(|part| part.batch).collect()
    }

    async fn write(&self, batch: &SinkBatch) -> WriteOutcome {
        if let Some(writer) = self.writer.content_writer() {
            return self.export(writer, batch).await;
        }
        let writing = CatchUnwindWrite(self.writer.write(batch));
        match tokio::time::timeout(self.timeout, writing).await {
            Ok(Some(written)) => written,
            Ok(None) => WriteOutcome::Failed(ConnectorError::bad_rows(
                "the connector panicked; this is a bug, please report it",
            )),
            Err(_) => {
                let ms = self.timeout.as_millis();
                WriteOutcome::Failed(ConnectorError::transient(format!(
                    "no answer within {ms} ms"
                )))
            }
        }
    }

    /// Handles a result in which the system answered and reported errors of rows.
    async fn handle_outcome(
        &self,
        part: PendingBatch,
        written: WriteOutcome,
        parts: &mut Vec<PendingBatch>,
    ) {
        let sent = |rows: usize| self.metrics.sent.fetch_add(rows as u64, Relaxed);
        match written {
            WriteOutcome::All => drop(sent(part.batch.len())),
            WriteOutcome::Failed(failure) if part.batch.len() == 1 => {
                self.add_dead_letters(part.batch, &failure, part.attempts + 1)
                    .await;
            }
            WriteOutcome::Failed(_) => {
                // One of the halves contains the faulty row.
                let middle = part.batch.len() / 2;
                for half in [middle..part.batch.len(), 0..middle] {
                    parts.push(PendingBatch {
                        batch: part.batch.select_rows(half),
                        attempts: part.attempts,
                        not_before: None,
                    });
                }
            }
            WriteOutcome::Except(failures) => {
                let failures: Vec<_> = failures
                    .into_iter()
                    .filter(|(at, _)| *at < part.batch.len())
                    .collect();
                sent(part.batch.len().saturating_sub(failures.len()));
                let (passing, lasting): (Vec<_>, Vec<_>) = failures
                    .into_iter()
                    .partition(|(_, failure)| failure.retryable == Retryable::Transient);
                for (at, failure) in &lasting {
                    let row = part.batch.select_rows([*at]);
                    self.add_dead_letters(row, failure, part.attempts + 1).await;
                }
                if let Some((_, failure)) = passing.first() {
                    self.circuit.record_row_error(&failure.message);
                    let again = PendingBatch {
                        batch: part.batch.select_rows(passing.iter().map(|(at, _)| *at)),
                        ..part
                    };
                    let wait = backoff(&self.retry, again.attempts + 1)
                        .max(failure.retry_after.unwrap_or_default());
                    self.schedule_retry(again, failure, Some(wait), parts).await;
                }
            }
        }
    }

    async fn schedule_retry(
        &self,
        part: PendingBatch,
        failure: &ConnectorError,
        wait: Option<Duration>,
        parts: &mut Vec<PendingBatch>,
    ) {
        let attempts = part.attempts + 1;
        let is_given_up = match failure.retryable {
            // The circuit breaker has also counted failures of other batches: each of them is equally significant.
            Retryable::Permanent => {
                attempts.max(self.circuit.failures()) >= self.retry.max_permanent_attempts
            }
            Retryable::Transient | Retryable::BadRows => false,
        };
        if is_given_up || self.retry.max_attempts.is_some_and(|max| attempts >= max) {
            self.add_dead_letters(part.batch, failure, attempts).await;
            return;
        }
        parts.push(PendingBatch {
            attempts,
            not_before: wait.map(|wait| Instant::now() + wait),
            ..part
        });
    }

    /// Warns about dead letters at intervals; `rows` is added to those since the last warning.
    fn warn_of_dead_letters(&self, rows: u64, failure: &ConnectorError) {
        let unlogged = self.metrics.dead_letters_unlogged.fetch_add(rows, Relaxed) + rows;
        let (now, logged) = (
            now_ms(),
            self.metrics.dead_letters_logged_at_ms.load(Relaxed),
        );
        if logged == 0 || now.abs_diff(logged) >= LOG_LETTERS_EVERY_MS {
            self.metrics.dead_letters_logged_at_ms.store(now, Relaxed);
            self.metrics
                .dead_letters_unlogged
                .fetch_sub(unlogged, Relaxed);
            tracing::warn!(sink = self.sink, rows = unlogged, error = %failure, "rows became dead letters");
        }
    }

    /// Makes the rows dead letters.
    async fn add_dead_letters(&self, batch: SinkBatch, failure: &ConnectorError, attempts: u32) {
        self.circuit.record_row_error(&failure.message);
        self.warn_of_dead_letters(batch.len() as u64, failure);
        let letters = batch.rows().map(|row| DeadLetter {
            id: 0,
            at_ms: now_ms(),
            error: failure.message.clone(),
            attempts,
            row: row.as_bytes().to_vec(),
        });
        let dropped = self.dead_letters.add(letters.collect()).await;
        self.fail_exports(&batch, &failure.message).await;
        if let Some(observer) = self.dead_letter_observer.get() {
            for row in batch.rows() {
                if let Some(origin) = row.origin() {
                    observer.on_dead_letter(&self.sink, row, origin, &failure.message, attempts);
                }
            }
        }
        self.metrics
            .dead_letters_dropped
            .fetch_add(dropped, Relaxed);
        // Incremented last, so that a caller that waits for the count finds the letters.
        self.metrics.failed.fetch_add(batch.len() as u64, Relaxed);
    }
}

/// A write that returns `None` on a panic.
pub(super) struct CatchUnwindWrite<'a, T>(pub(super) BoxFuture<'a, T>);

impl<T> Future for CatchUnwindWrite<'_, T> {
    type Output = Option<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = catch_unwind(AssertUnwindSafe(|| self.0.as_mut().poll(context)));
        match polled {
            Ok(polled) => polled.map(Some),
            Err(_) => Poll::Ready(None),
        }
    }
}
