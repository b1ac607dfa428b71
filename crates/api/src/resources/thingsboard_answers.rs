//! The queue of answers of one ThingsBoard WebSocket.
//!
//! Subscriptions take turns: one builds an answer at a time and waits until it fits into the queue.
//! A client that does not read therefore holds the queue, the answer that is written and one more.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit, mpsc};

/// Maximum number of queued answers.
const MAX_QUEUED: usize = 64;
/// Maximum size of all queued answers; a longer answer is queued alone.
const MAX_QUEUED_BYTES: usize = 2 << 20;

/// An answer in the queue; it occupies its bytes until it is dropped.
pub(super) struct QueuedAnswer {
    pub(super) text: String,
    _bytes: OwnedSemaphorePermit,
}

#[derive(Clone)]
pub(super) struct AnswerSender {
    answers: mpsc::Sender<QueuedAnswer>,
    free_bytes: Arc<Semaphore>,
    turn: Arc<Semaphore>,
}

/// The right of one subscription to build answers. Dropped to let the next one build.
pub(super) struct AnswerTurn<'a> {
    sender: &'a AnswerSender,
    _turn: SemaphorePermit<'a>,
}

pub(super) fn answer_queue() -> (AnswerSender, mpsc::Receiver<QueuedAnswer>) {
    let (sender, answers) = mpsc::channel(MAX_QUEUED);
    let sender = AnswerSender {
        answers: sender,
        free_bytes: Arc::new(Semaphore::new(MAX_QUEUED_BYTES)),
        turn: Arc::new(Semaphore::new(1)),
    };
    (sender, answers)
}

impl AnswerSender {
    /// Waits for the turn; in the order of the calls.
    pub(super) async fn turn(&self) -> AnswerTurn<'_> {
        AnswerTurn {
            sender: self,
            _turn: (self.turn.acquire().await).expect("the semaphore is never closed"),
        }
    }
}

impl AnswerTurn<'_> {
    /// Waits until the answer fits into the queue. `false`: the connection has ended.
    pub(super) async fn send(&self, text: String) -> bool {
        let bytes = text.len().min(MAX_QUEUED_BYTES) as u32;
        let free_bytes = self.sender.free_bytes.clone();
        let bytes =
            (free_bytes.acquire_many_owned(bytes).await).expect("the semaphore is never closed");
        let answer = QueuedAnswer {
            text,
            _bytes: bytes,
        };
        self.sender.answers.send(answer).await.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    /// Whether a future completes without waiting.
    fn is_ready(future: impl Future) -> bool {
        let mut future = pin!(future);
        let mut context = Context::from_waker(Waker::noop());
        matches!(future.as_mut().poll(&mut context), Poll::Ready(_))
    }

    #[tokio::test]
    async fn a_full_queue_holds_back_the_next_answer() {
        let (sender, mut queue) = answer_queue();
        let turn = sender.turn().await;
        assert!(!is_ready(sender.turn()), "one turn at a time");
        let half = "x".repeat(MAX_QUEUED_BYTES / 2);
        assert!(turn.send(half.clone()).await && turn.send(half).await);
        assert!(!is_ready(turn.send("one more".to_owned())));
        drop(queue.recv().await);
        assert!(is_ready(turn.send("one more".to_owned())));
        drop((queue.recv().await, queue.recv().await));
        // An answer of any length gets through, alone.
        assert!(turn.send("x".repeat(2 * MAX_QUEUED_BYTES)).await);
        assert!(!is_ready(turn.send("one more".to_owned())));
        drop(turn);
        assert!(is_ready(sender.turn()));
    }
}
