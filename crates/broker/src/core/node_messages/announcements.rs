//! Announcements: the filters and group members of a node.

use bytes::{BufMut, Bytes, BytesMut};

use super::fields::{ANNOUNCEMENTS, NodeMessageError, NodeMessageReader, put_text};

/// Bytes of announcements in one message, except that one announcement may be larger.
const ANNOUNCEMENTS_BYTES: usize = 64 << 10;

const FILTER_GONE: u8 = 0;
const FILTER_WANTED: u8 = 1;
const MEMBERS: u8 = 2;

/// What a node wants, or no longer wants, from the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Announcement {
    /// The node has, or no longer has, non-shared subscribers to a filter.
    Filter { filter: Box<str>, wanted: bool },
    /// The number of the node's members in a group.
    Members {
        filter: Box<str>,
        group: Box<str>,
        online: u32,
        total: u32,
    },
}

impl Announcement {
    fn size_bytes(&self) -> usize {
        match self {
            Announcement::Filter { filter, .. } => 8 + filter.len(),
            Announcement::Members { filter, group, .. } => 24 + filter.len() + group.len(),
        }
    }
}

/// Splits announcements into messages of bounded size. They have the number of the last announcement, so that the
/// receiver's confirmation of the first one confirms too much. Therefore all but the last have the number before.
pub(crate) fn encode_announcements(
    announcements: &[Announcement],
    sequence_before: u64,
    sequence: u64,
    mut send: impl FnMut(Bytes),
) {
    let mut rest = announcements;
    while !rest.is_empty() {
        let mut bytes = 0;
        let count = rest
            .iter()
            .take_while(|announcement| {
                bytes += announcement.size_bytes();
                bytes <= ANNOUNCEMENTS_BYTES
            })
            .count()
            .max(1);
        let (now, later) = rest.split_at(count);
        rest = later;
        let number = match rest.is_empty() {
            true => sequence,
            false => sequence_before,
        };
        let mut out = BytesMut::with_capacity(bytes + 16);
        out.put_u8(ANNOUNCEMENTS);
        out.put_u64_le(number);
        out.put_u32_le(now.len() as u32);
        for announcement in now {
            encode_announcement(announcement, &mut out);
        }
        send(out.freeze());
    }
}

fn encode_announcement(announcement: &Announcement, out: &mut BytesMut) {
    match announcement {
        Announcement::Filter { filter, wanted } => {
            out.put_u8(if *wanted { FILTER_WANTED } else { FILTER_GONE });
            put_text(out, filter);
        }
        Announcement::Members {
            filter,
            group,
            online,
            total,
        } => {
            out.put_u8(MEMBERS);
            put_text(out, filter);
            put_text(out, group);
            out.put_u32_le(*online);
            out.put_u32_le(*total);
        }
    }
}

impl NodeMessageReader<'_> {
    pub(super) fn announcements(&mut self) -> Result<Vec<Announcement>, NodeMessageError> {
        let count = self.u32()?;
        let mut announcements = Vec::new();
        for _ in 0..count {
            announcements.push(match self.u8()? {
                kind @ (FILTER_GONE | FILTER_WANTED) => Announcement::Filter {
                    filter: self.filter()?,
                    wanted: kind == FILTER_WANTED,
                },
                MEMBERS => Announcement::Members {
                    filter: self.filter()?,
                    group: self.text(NodeMessageError::Filter)?.into(),
                    online: self.u32()?,
                    total: self.u32()?,
                },
                other => return Err(NodeMessageError::Kind(other)),
            });
        }
        Ok(announcements)
    }
}
