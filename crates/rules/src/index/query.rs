//! The event for which rules are looked up.

use crate::rule_source::EventKind;

/// An event for which rules are looked up.
#[derive(Debug, Clone, Copy)]
pub struct IndexQuery<'a> {
    pub kind: EventKind,
    pub topic: Option<&'a str>,
    pub client_id: Option<&'a str>,
    pub qos: Option<u8>,
}
