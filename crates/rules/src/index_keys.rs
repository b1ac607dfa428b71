//! Index keys: what the conjuncts of WHERE require of an event, for the index that selects candidate rules.

/// Necessary conditions for an event to pass the rule. A candidate that does not pass only costs time.
/// Missing a rule that would have passed is a bug, so an uncertain condition is omitted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IndexKeys {
    /// The topic equals or matches one of these. `None`: no condition. Empty: no event can pass.
    pub topics: Option<Box<[TopicKey]>>,
    /// The client id is one of these.
    pub client_ids: Option<Box<[Box<str>]>>,
    /// The QoS is one of these: bit 0 for QoS 0, bit 1 for QoS 1, bit 2 for QoS 2.
    pub qos: Option<u8>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TopicKey {
    /// `topic = 't/a'`. The topic of a subscription event is a filter and is compared literally.
    Exact(Box<str>),
    /// `topic =~ 't/+'` with a valid filter.
    Filter(Box<str>),
}

impl TopicKey {
    pub fn text(&self) -> &str {
        match self {
            Self::Exact(text) | Self::Filter(text) => text,
        }
    }
}
