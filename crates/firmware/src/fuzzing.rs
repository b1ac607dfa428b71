//! For the fuzzer: the parsers of what devices say about firmware.

use crate::jetlinks::read_message;
use crate::thingsboard::ChunkTopic;

/// The index of the chunk that a topic requests, and the topic of the answer.
#[must_use]
pub fn chunk_response(topic: &str) -> Option<(u64, String)> {
    let parsed = ChunkTopic::parse(topic)?;
    Some((parsed.index, parsed.response()))
}

/// Reads a message of a step of JetLinks' protocol.
pub fn read_jetlinks_message(step: &str, json: &str) {
    let _ = read_message(step, json);
}
