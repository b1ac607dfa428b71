//! The packet ids of a client's QoS 2 messages.

/// Packet ids of QoS 2 messages that were received and are not yet released: 16 pages of 4,096 bits, allocated while
/// used.
#[derive(Default)]
pub(crate) struct PacketIdSet {
    pages: [Option<Box<[u64; 64]>>; 16],
    len: u32,
    /// Packet ids that a start found in the store, until their message is repeated or released.
    restored: Vec<u16>,
}

impl PacketIdSet {
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    fn position(packet_id: u16) -> (usize, usize, u64) {
        let id = usize::from(packet_id);
        (id >> 12, (id & 0xfff) >> 6, 1 << (id & 63))
    }

    pub(crate) fn contains(&self, packet_id: u16) -> bool {
        let (page, word, bit) = Self::position(packet_id);
        self.pages[page]
            .as_ref()
            .is_some_and(|page| page[word] & bit != 0)
    }

    /// Returns whether it is new.
    pub(crate) fn insert(&mut self, packet_id: u16) -> bool {
        let (page, word, bit) = Self::position(packet_id);
        let word = &mut self.pages[page].get_or_insert_with(|| Box::new([0; 64]))[word];
        let is_new = *word & bit == 0;
        *word |= bit;
        self.len += u32::from(is_new);
        is_new
    }

    /// Like [`insert`](Self::insert), for a packet id that a start found in the store.
    pub(crate) fn restore(&mut self, packet_id: u16) {
        if self.insert(packet_id) {
            self.restored.push(packet_id);
        }
    }

    /// Whether a packet id dates from before the start; returns true once for each.
    pub(crate) fn take_restored(&mut self, packet_id: u16) -> bool {
        let at = self.restored.iter().position(|&other| other == packet_id);
        at.map(|at| self.restored.swap_remove(at)).is_some()
    }

    /// Reverts [`take_restored`](Self::take_restored).
    pub(crate) fn undo_take_restored(&mut self, packet_id: u16) {
        self.restored.push(packet_id);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u16> {
        (0..=u16::MAX).filter(|&packet_id| self.contains(packet_id))
    }

    /// Returns whether it was present.
    pub(crate) fn remove(&mut self, packet_id: u16) -> bool {
        self.take_restored(packet_id);
        let (page, word, bit) = Self::position(packet_id);
        let Some(page) = &mut self.pages[page] else {
            return false;
        };
        let was_there = page[word] & bit != 0;
        page[word] &= !bit;
        self.len -= u32::from(was_there);
        was_there
    }
}
