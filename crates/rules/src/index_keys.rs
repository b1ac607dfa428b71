//! What the conjuncts of WHERE say about the events that can pass, for the index that chooses the rules to ask.

/// What an event must have for the rule to be worth asking. A rule that is asked needlessly only costs time; one that is
/// not asked although it would have passed is wrong, so that in doubt nothing is said here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IndexKeys {
    /// The topic is, or matches, one of these. `None`: any topic, or none. Empty: no event can pass.
    pub topics: Option<Box<[TopicKey]>>,
    /// The client id is one of these.
    pub client_ids: Option<Box<[Box<str>]>>,
    /// The QoS is one of these: bit 0 for QoS 0, bit 1 for QoS 1, bit 2 for QoS 2.
    pub qos: Option<u8>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TopicKey {
    /// `topic = 't/a'`. The topic of a subscription is a filter, and is compared as it stands.
    Exact(Box<str>),
    /// `topic =~ 't/+'`, a valid filter.
    Filter(Box<str>),
}

impl TopicKey {
    pub fn text(&self) -> &str {
        match self {
            Self::Exact(text) | Self::Filter(text) => text,
        }
    }
}
