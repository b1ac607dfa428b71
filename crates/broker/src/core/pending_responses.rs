//! Responses to the control plane that wait for the log and for other shards.

/// Bound on responses that wait at once. The control plane sends few requests at a time, but a hanging store may delay
/// their answers.
const MAX_PENDING_RESPONSES: usize = 4096;

/// A response to the control plane that waits for the log of this turn, and for other shards to confirm announcements.
struct PendingResponse {
    turn: u64,
    sequence: u64,
    respond: Box<dyn FnOnce() + Send>,
}

/// Answers of a shard to the control plane that are not sent yet. [`PendingResponses::push`] adds one;
/// [`PendingResponses::send_ready`] is called when a turn is complete or another shard has confirmed announcements.
#[derive(Default)]
pub(crate) struct PendingResponses(Vec<PendingResponse>);

impl PendingResponses {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.0.len() >= MAX_PENDING_RESPONSES
    }

    /// Adds a response that waits for this turn (0: for none) and for the announcements up to this sequence number.
    pub(super) fn push(&mut self, turn: u64, sequence: u64, respond: Box<dyn FnOnce() + Send>) {
        self.0.push(PendingResponse {
            turn,
            sequence,
            respond,
        });
    }

    /// Sends the responses whose turn is complete and whose announcements all shards have applied.
    pub(super) fn send_ready(&mut self, complete_turn: u64, is_applied: impl Fn(u64) -> bool) {
        let done = |response: &mut PendingResponse| {
            response.turn <= complete_turn && is_applied(response.sequence)
        };
        for response in self.0.extract_if(.., done) {
            (response.respond)();
        }
    }
}
