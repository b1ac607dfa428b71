//! The lineage of a message that a rule has published.

/// Number of bits of a tag that hold the serial; the bits above hold the depth.
const SERIAL_BITS: u32 = 56;

/// The lineage that a published message carries: the rule, and the number of rules it has passed through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct RuleLineage(pub(crate) u64);

impl RuleLineage {
    /// Lineage of events about a message that a rule has published (delivered, dropped and so on). Nothing is
    /// published because of them; otherwise loops that no message can record would never end.
    pub(crate) const NO_REPUBLISH: Self = Self((u8::MAX as u64) << SERIAL_BITS);

    /// Lineage of a message that rules do not see.
    pub(crate) const IGNORED: Self = Self(u64::MAX);

    pub(crate) fn new(depth: u8, serial: u64) -> Self {
        Self(u64::from(depth) << SERIAL_BITS | serial & ((1 << SERIAL_BITS) - 1))
    }

    /// A lineage of this depth that belongs to no running rule.
    pub(crate) fn with_depth(depth: u8) -> Self {
        Self(u64::from(depth) << SERIAL_BITS)
    }

    pub(crate) fn depth(self) -> u8 {
        (self.0 >> SERIAL_BITS) as u8
    }

    pub(crate) fn serial(self) -> u64 {
        self.0 & ((1 << SERIAL_BITS) - 1)
    }

    /// Whether the rule of this serial published the message.
    pub(crate) fn belongs_to(self, serial: u64) -> bool {
        self.0 != 0 && self.serial() == serial
    }
}
