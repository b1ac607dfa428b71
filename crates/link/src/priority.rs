//! Priorities of messages and streams.

/// Number of priorities, each of which is a lane with its own numbering of messages.
pub const LANES: usize = 4;

/// Share of the bandwidth under load. A priority that has been idle goes first, whichever it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Priority {
    Urgent = 0,
    High = 1,
    #[default]
    Normal = 2,
    Bulk = 3,
}

impl Priority {
    pub const ALL: [Self; LANES] = [Self::Urgent, Self::High, Self::Normal, Self::Bulk];

    /// Relative share of the bandwidth while several priorities have something to send.
    pub const fn weight(self) -> u64 {
        match self {
            Self::Urgent => 8,
            Self::High => 4,
            Self::Normal => 2,
            Self::Bulk => 1,
        }
    }

    /// The lower two bits of the flags of a frame.
    pub(crate) const fn from_flags(flags: u8) -> Self {
        Self::ALL[(flags & 3) as usize]
    }

    pub(crate) const fn index(self) -> usize {
        self as usize
    }
}
