//! Reads many small ranges of the log with few calls: ranges close to each other form one span, which is read once.

use std::io;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::file_system::LogFile;

/// Ranges this close are read with one call: copying that much costs about as much as a call.
const MAX_GAP_BYTES: u64 = 4096;
const MAX_SPAN_BYTES: u64 = 1 << 20;

/// A range of bytes in a segment.
pub(super) struct SegmentRange<'a> {
    pub(super) file: &'a Arc<dyn LogFile>,
    pub(super) segment: u32,
    pub(super) start: u32,
    pub(super) len: u32,
}

impl SegmentRange<'_> {
    fn end(&self) -> u64 {
        u64::from(self.start) + u64::from(self.len)
    }
}

/// Returns the bytes of all ranges, in their order; empty where they cannot be read, which is reported to `failed` with offset
/// and length. An unreadable span is read range by range, so a bad block affects only the ranges within it.
pub(super) fn read_ranges(
    places: &[SegmentRange<'_>],
    failed: &mut dyn FnMut(u64, usize, &io::Error),
) -> Vec<Bytes> {
    let mut found = vec![Bytes::new(); places.len()];
    let mut order: Vec<usize> = (0..places.len())
        .filter(|&place| places[place].len > 0)
        .collect();
    order.sort_unstable_by_key(|&place| (places[place].segment, places[place].start));
    let mut rest = &order[..];
    while let Some((&first, _)) = rest.split_first() {
        let (count, end) = first_span(places, rest);
        let (members, others) = rest.split_at(count);
        rest = others;
        let start = u64::from(places[first].start);
        match read_at(&places[first], start, (end - start) as usize) {
            Ok(buffer) => {
                for &member in members {
                    let place = &places[member];
                    let at = (u64::from(place.start) - start) as usize;
                    found[member] = buffer.slice(at..at + place.len as usize);
                }
            }
            Err(_) => {
                for &member in members {
                    let place = &places[member];
                    let (start, len) = (u64::from(place.start), place.len as usize);
                    match read_at(place, start, len) {
                        Ok(buffer) => found[member] = buffer,
                        Err(error) => failed(start, len, &error),
                    }
                }
            }
        }
    }
    found
}

fn read_at(place: &SegmentRange<'_>, start: u64, len: usize) -> io::Result<Bytes> {
    let mut buffer = BytesMut::zeroed(len);
    if place.file.read_at(&mut buffer, start)? < len {
        return Err(io::Error::other("the file ends within the range"));
    }
    Ok(buffer.freeze())
}

/// Number of ranges, sorted by position, that form the first span, and where it ends.
fn first_span(places: &[SegmentRange<'_>], order: &[usize]) -> (usize, u64) {
    let first = &places[order[0]];
    let mut end = first.end();
    let mut count = 1;
    for &next in &order[1..] {
        let next = &places[next];
        let wide_end = end.max(next.end());
        let is_close = next.segment == first.segment
            && u64::from(next.start) <= end + MAX_GAP_BYTES
            && wide_end - u64::from(first.start)
                <= MAX_SPAN_BYTES.max(end - u64::from(first.start));
        if !is_close {
            break;
        }
        end = wide_end;
        count += 1;
    }
    (count, end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// A file whose bytes encode their offset.
    struct OffsetFile {
        len: u64,
        reads: Mutex<Vec<(u64, usize)>>,
    }

    impl LogFile for OffsetFile {
        fn write_at(&self, _bytes: &[u8], _offset: u64) -> io::Result<()> {
            unreachable!("only read")
        }

        fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
            self.reads.lock().unwrap().push((offset, buffer.len()));
            let end = self.len.min(offset + buffer.len() as u64);
            for (nth, byte) in (offset..end).zip(buffer.iter_mut()) {
                *byte = (nth % 251) as u8;
            }
            Ok(end.saturating_sub(offset) as usize)
        }

        fn sync(&self) -> io::Result<()> {
            unreachable!("only read")
        }

        fn truncate(&self, _len: u64) -> io::Result<()> {
            unreachable!("only read")
        }

        fn len(&self) -> io::Result<u64> {
            Ok(self.len)
        }
    }

    #[test]
    fn close_places_are_read_together_and_far_ones_apart() {
        let offset_file = Arc::new(OffsetFile {
            len: 200_000,
            reads: Mutex::default(),
        });
        let file: Arc<dyn LogFile> = offset_file.clone();
        let place = |segment, start, len| SegmentRange {
            file: &file,
            segment,
            start,
            len,
        };
        let places = [
            place(1, 5000, 10),
            place(1, 100, 20),
            place(1, 0, 0),
            place(1, 110, 50),
            place(1, 100_000, 4),
            place(2, 101, 3),
            place(1, 199_999, 2),
            place(1, 199_998, 1),
        ];
        let mut errors = Vec::new();
        let found = read_ranges(&places, &mut |offset, len, _| errors.push((offset, len)));
        let expected = |start: u64, len: u64| -> Vec<u8> {
            (start..start + len).map(|at| (at % 251) as u8).collect()
        };
        for (nth, place) in places[..6].iter().enumerate() {
            assert_eq!(
                found[nth],
                expected(place.start.into(), place.len.into()),
                "{nth}"
            );
        }
        assert!(found[6].is_empty(), "its second byte is not there");
        assert_eq!(
            found[7],
            expected(199_998, 1),
            "though a neighbour cannot be read"
        );
        assert_eq!(errors, [(199_999, 2)]);
        let reads = offset_file.reads.lock().unwrap().clone();
        let together = [(100, 60), (5000, 10), (100_000, 4)];
        let then_apart = [(199_998, 3), (199_998, 1), (199_999, 2), (101, 3)];
        assert_eq!(reads, [&together[..], &then_apart].concat());
    }
}
