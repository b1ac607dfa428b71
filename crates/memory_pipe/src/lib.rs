//! Byte streams in memory: a pair of ends that behave like the two sockets of a connection, without open files.
//!
//! Each direction has a buffer of limited size. A buffer is allocated with the first byte in it and freed with the last, so that
//! an idle connection takes less than 256 bytes, whatever it has transmitted before. The ends may be used by different threads.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Read as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// One end of a connection. Dropping it ends the connection: the other end reads what is left and then the end of the stream, and
/// its writes fail.
#[derive(Debug)]
pub struct PipeEnd {
    connection: Arc<Mutex<PipeConnection>>,
    side: Side,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    First,
    Second,
}

impl Side {
    fn other(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }
}

/// The state of a connection: there is one for both ends.
#[derive(Debug)]
struct PipeConnection {
    /// What the first and the second end have written.
    directions: [Direction; 2],
    /// Bytes in flight in each direction.
    capacity: u32,
    is_aborted: bool,
}

/// Bytes from one end to the other.
#[derive(Debug, Default)]
struct Direction {
    bytes: VecDeque<u8>,
    /// Woken when there is something to read.
    reader: Option<Waker>,
    /// Woken when there is room.
    writer: Option<Waker>,
    /// The writer has ended the stream.
    is_ended: bool,
    /// The reader is gone.
    is_unread: bool,
}

/// Wakers to call when the connection is no longer locked, because a task that is woken may use the connection at once.
#[must_use]
#[derive(Default)]
struct PendingWakes([Option<Waker>; 4]);

impl PendingWakes {
    fn wake(self) {
        self.0.into_iter().flatten().for_each(Waker::wake);
    }
}

/// Returns the ends of a connection that holds up to `capacity` bytes in each direction.
#[must_use]
pub fn pipe(capacity: u32) -> (PipeEnd, PipeEnd) {
    let connection = Arc::new(Mutex::new(PipeConnection {
        directions: Default::default(),
        capacity,
        is_aborted: false,
    }));
    let end = |side| PipeEnd {
        connection: connection.clone(),
        side,
    };
    (end(Side::First), end(Side::Second))
}

impl PipeConnection {
    fn incoming(&mut self, side: Side) -> &mut Direction {
        &mut self.directions[side.other() as usize]
    }

    fn outgoing(&mut self, side: Side) -> &mut Direction {
        &mut self.directions[side as usize]
    }

    /// Bytes that `side` can write now.
    fn room(&mut self, side: Side) -> io::Result<usize> {
        if self.is_aborted {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let capacity = self.capacity as usize;
        let direction = self.outgoing(side);
        if direction.is_unread || direction.is_ended {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        Ok(capacity.saturating_sub(direction.bytes.len()))
    }
}

impl Direction {
    fn discard(&mut self) {
        self.bytes = VecDeque::new();
    }
}

/// Stores a waker, and returns the one that it replaces.
fn register(slot: &mut Option<Waker>, context: &Context<'_>) -> Option<Waker> {
    match slot {
        Some(known) if known.will_wake(context.waker()) => None,
        slot => slot.replace(context.waker().clone()),
    }
}

impl PipeEnd {
    fn lock(&self) -> MutexGuard<'_, PipeConnection> {
        // No call panics while it holds the lock.
        let connection = self.connection.lock();
        connection.unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads what has arrived; 0 bytes mean the end of the stream. `Pending`: the task is woken when there is something to read.
    ///
    /// # Errors
    /// `ConnectionReset` after an abort.
    pub fn poll_read(
        &self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut connection = self.lock();
        if connection.is_aborted {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let direction = connection.incoming(self.side);
        if direction.bytes.is_empty() {
            if direction.is_ended {
                return Poll::Ready(Ok(0));
            }
            let replaced = register(&mut direction.reader, context);
            drop(connection);
            drop(replaced);
            return Poll::Pending;
        }
        let mut filled = 0;
        // The content may wrap around the end of its buffer.
        while filled < buffer.len() && !direction.bytes.is_empty() {
            filled += direction.bytes.read(&mut buffer[filled..])?;
        }
        if direction.bytes.is_empty() {
            direction.discard();
        }
        let wakes = PendingWakes([direction.writer.take(), None, None, None]);
        drop(connection);
        wakes.wake();
        Poll::Ready(Ok(filled))
    }

    /// Writes as much as there is room for.
    ///
    /// # Errors
    /// `WouldBlock` if there is no room, `BrokenPipe` if nobody reads the bytes, `ConnectionReset` after an abort.
    pub fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    /// As [`PipeEnd::write`], from several slices one after the other.
    ///
    /// # Errors
    /// As [`PipeEnd::write`].
    pub fn write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut connection = self.lock();
        let mut room = connection.room(self.side)?;
        if room == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let direction = connection.outgoing(self.side);
        let offered = slices.iter().map(|slice| slice.len()).sum::<usize>();
        let written = offered.min(room);
        direction.bytes.reserve(written);
        for slice in slices {
            let taken = slice.len().min(room);
            direction.bytes.extend(&slice[..taken]);
            room -= taken;
        }
        let wakes = match written {
            0 => PendingWakes::default(),
            _ => PendingWakes([direction.reader.take(), None, None, None]),
        };
        drop(connection);
        wakes.wake();
        Ok(written)
    }

    /// Waits until a write does not return `WouldBlock`.
    pub fn poll_writable(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut connection = self.lock();
        if !matches!(connection.room(self.side), Ok(0)) {
            return Poll::Ready(());
        }
        let replaced = register(&mut connection.outgoing(self.side).writer, context);
        drop(connection);
        drop(replaced);
        Poll::Pending
    }

    /// Ends the stream of this end: the other one reads what is left, then the end. Reading goes on.
    pub fn shutdown_write(&self) {
        let mut connection = self.lock();
        let direction = connection.outgoing(self.side);
        direction.is_ended = true;
        let wakes = PendingWakes([direction.reader.take(), None, None, None]);
        drop(connection);
        wakes.wake();
    }

    /// Ends the connection at once, and discards what is in flight: all further calls at both ends fail with `ConnectionReset`.
    pub fn abort(&self) {
        let mut connection = self.lock();
        connection.is_aborted = true;
        let mut wakes = PendingWakes::default();
        let waiting = (connection.directions.iter_mut()).flat_map(|direction| {
            direction.discard();
            [direction.reader.take(), direction.writer.take()]
        });
        for (slot, waker) in wakes.0.iter_mut().zip(waiting) {
            *slot = waker;
        }
        drop(connection);
        wakes.wake();
    }
}

impl Drop for PipeEnd {
    fn drop(&mut self) {
        let mut connection = self.lock();
        let outgoing = connection.outgoing(self.side);
        outgoing.is_ended = true;
        let (own_writer, reader) = (outgoing.writer.take(), outgoing.reader.take());
        let incoming = connection.incoming(self.side);
        incoming.is_unread = true;
        incoming.discard();
        let (own_reader, writer) = (incoming.reader.take(), incoming.writer.take());
        drop(connection);
        // The last reference to a task may be in its waker.
        drop((own_writer, own_reader));
        PendingWakes([reader, writer, None, None]).wake();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;
    use std::thread::Thread;

    use super::*;

    /// Counts how often it is woken.
    #[derive(Default)]
    struct WakeCount(AtomicUsize);

    impl Wake for WakeCount {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    struct Task {
        count: Arc<WakeCount>,
        waker: Waker,
    }

    impl Task {
        fn new() -> Self {
            let count = Arc::new(WakeCount::default());
            let waker = count.clone().into();
            Self { count, waker }
        }

        fn wakes(&self) -> usize {
            self.count.0.load(Ordering::Relaxed)
        }

        fn read(&self, end: &PipeEnd, most: usize) -> Poll<io::Result<Vec<u8>>> {
            let mut buffer = vec![0; most];
            let polled = end.poll_read(&mut Context::from_waker(&self.waker), &mut buffer);
            polled.map_ok(|filled| buffer[..filled].to_vec())
        }

        fn is_writable(&self, end: &PipeEnd) -> bool {
            end.poll_writable(&mut Context::from_waker(&self.waker))
                .is_ready()
        }
    }

    fn bytes(polled: Poll<io::Result<Vec<u8>>>) -> Vec<u8> {
        match polled {
            Poll::Ready(Ok(bytes)) => bytes,
            other => panic!("expected bytes, got {other:?}"),
        }
    }

    fn read_error(polled: Poll<io::Result<Vec<u8>>>) -> io::ErrorKind {
        match polled {
            Poll::Ready(Err(error)) => error.kind(),
            other => panic!("expected an error, got {other:?}"),
        }
    }

    fn write_error(end: &PipeEnd) -> io::ErrorKind {
        end.write(b"x").expect_err("no error").kind()
    }

    #[test]
    fn bytes_pass_in_both_directions_and_wake_their_reader() {
        let (a, b) = pipe(100);
        let (of_a, of_b) = (Task::new(), Task::new());
        assert!(of_a.read(&a, 10).is_pending());
        assert!(of_b.read(&b, 10).is_pending());
        assert_eq!(a.write(b"question").ok(), Some(8));
        assert_eq!((of_a.wakes(), of_b.wakes()), (0, 1));
        assert_eq!(bytes(of_b.read(&b, 10)), b"question");
        let slices = [
            IoSlice::new(b"ans"),
            IoSlice::new(b""),
            IoSlice::new(b"wer"),
        ];
        assert_eq!(b.write_vectored(&slices).ok(), Some(6));
        assert_eq!((of_a.wakes(), of_b.wakes()), (1, 1));
        assert_eq!(bytes(of_a.read(&a, 4)), b"answ");
        assert_eq!(bytes(of_a.read(&a, 4)), b"er");
        // Nobody waits, so nobody is woken.
        assert_eq!(b.write(b"more").ok(), Some(4));
        assert_eq!(of_a.wakes(), 1);
    }

    #[test]
    fn a_full_direction_blocks_its_writer_until_the_reader_makes_room() {
        let (a, b) = pipe(10);
        let (writer, reader) = (Task::new(), Task::new());
        assert!(writer.is_writable(&a));
        assert_eq!(a.write(b"0123456").ok(), Some(7));
        let slices = [IoSlice::new(b"78"), IoSlice::new(b"9ab")];
        assert_eq!(a.write_vectored(&slices).ok(), Some(3));
        assert_eq!(write_error(&a), io::ErrorKind::WouldBlock);
        assert!(!writer.is_writable(&a));
        // The other direction has room of its own.
        assert_eq!(b.write(b"free").ok(), Some(4));
        assert_eq!(writer.wakes(), 0);
        assert_eq!(bytes(reader.read(&b, 4)), b"0123");
        assert_eq!(writer.wakes(), 1);
        assert!(writer.is_writable(&a));
        // Wraps around the end of the buffer.
        assert_eq!(a.write(b"abcdef").ok(), Some(4));
        assert_eq!(bytes(reader.read(&b, 100)), b"456789abcd");
    }

    #[test]
    fn a_shutdown_ends_one_direction_after_what_is_in_flight() {
        let (a, b) = pipe(100);
        let (of_a, of_b) = (Task::new(), Task::new());
        a.write(b"last").expect("there is room");
        a.shutdown_write();
        assert_eq!(bytes(of_b.read(&b, 10)), b"last");
        assert_eq!(bytes(of_b.read(&b, 10)), b"");
        assert_eq!(write_error(&a), io::ErrorKind::BrokenPipe);
        assert!(of_a.read(&a, 10).is_pending());
        assert_eq!(b.write(b"answer").ok(), Some(6));
        assert_eq!(bytes(of_a.read(&a, 10)), b"answer");
        assert!(of_a.read(&a, 10).is_pending());
        b.shutdown_write();
        assert_eq!(of_a.wakes(), 2, "once by the answer, once by its end");
        assert_eq!(bytes(of_a.read(&a, 10)), b"");
    }

    #[test]
    fn a_dropped_end_can_be_read_to_its_end_and_no_longer_written() {
        let (a, b) = pipe(4);
        let task = Task::new();
        b.write(b"full").expect("there is room");
        a.write(b"rest").expect("there is room");
        assert!(!task.is_writable(&b));
        drop(a);
        assert_eq!(task.wakes(), 1, "the blocked writer is woken");
        assert!(task.is_writable(&b), "so that it sees the error");
        assert_eq!(write_error(&b), io::ErrorKind::BrokenPipe);
        assert_eq!(bytes(task.read(&b, 10)), b"rest");
        assert_eq!(bytes(task.read(&b, 10)), b"");
    }

    #[test]
    fn a_dropped_end_wakes_the_reader_and_forgets_its_own_tasks() {
        let (a, b) = pipe(4);
        let (of_a, of_b) = (Task::new(), Task::new());
        assert!(of_a.read(&a, 10).is_pending());
        assert!(of_b.read(&b, 10).is_pending());
        drop(a);
        assert_eq!((of_a.wakes(), of_b.wakes()), (0, 1));
        assert_eq!(Arc::strong_count(&of_a.count), 2, "the test and its waker");
    }

    #[test]
    fn an_abort_discards_what_is_in_flight_and_wakes_everyone() {
        let (a, b) = pipe(4);
        let (of_a, of_b) = (Task::new(), Task::new());
        a.write(b"full").expect("there is room");
        assert!(!of_a.is_writable(&a));
        assert!(of_a.read(&a, 10).is_pending());
        b.abort();
        assert_eq!(of_a.wakes(), 2);
        let reset = io::ErrorKind::ConnectionReset;
        for end in [&a, &b] {
            assert_eq!(read_error(of_b.read(end, 10)), reset);
            assert!(of_a.is_writable(end));
            assert_eq!(write_error(end), reset);
        }
    }

    #[test]
    fn only_the_last_task_that_waits_is_woken() {
        let (a, b) = pipe(4);
        let (before, after) = (Task::new(), Task::new());
        assert!(before.read(&b, 1).is_pending());
        // The connection has moved to another thread.
        assert!(after.read(&b, 1).is_pending());
        a.write(b"x").expect("there is room");
        assert_eq!((before.wakes(), after.wakes()), (0, 1));
    }

    #[test]
    fn an_idle_connection_has_no_buffers() {
        // The counts of the Arc, and the lock.
        let bytes_of_both_ends = size_of::<Mutex<PipeConnection>>() + 2 * size_of::<usize>();
        assert!(bytes_of_both_ends <= 192, "{bytes_of_both_ends}");
        let (a, b) = pipe(1 << 16);
        let task = Task::new();
        a.write(&[7; 50_000]).expect("there is room");
        assert_eq!(bytes(task.read(&b, 1 << 16)).len(), 50_000);
        let connection = a.lock();
        assert!(
            connection
                .directions
                .iter()
                .all(|it| it.bytes.capacity() == 0)
        );
    }

    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    /// Calls until it is ready, and sleeps meanwhile.
    fn block_on<T>(mut call: impl FnMut(&mut Context<'_>) -> Poll<T>) -> T {
        let waker = Arc::new(Unpark(std::thread::current())).into();
        let mut context = Context::from_waker(&waker);
        loop {
            match call(&mut context) {
                Poll::Ready(value) => return value,
                Poll::Pending => std::thread::park(),
            }
        }
    }

    /// A missed wake-up lets the test hang.
    #[test]
    fn two_threads_exchange_more_than_fits() {
        const BYTES: usize = 3_000_000;
        let (a, b) = pipe(997);
        let content = |at: usize| (at % 251) as u8;
        let writer = std::thread::spawn(move || {
            let all: Vec<u8> = (0..BYTES).map(content).collect();
            let mut at = 0;
            while at < BYTES {
                let piece = &all[at..BYTES.min(at + 1 + at % 1500)];
                match a.write(piece) {
                    Ok(written) => at += written,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        block_on(|context| a.poll_writable(context));
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        });
        let mut received = 0;
        let mut buffer = [0; 1013];
        loop {
            let filled = block_on(|context| b.poll_read(context, &mut buffer));
            let filled = filled.expect("no abort");
            if filled == 0 {
                break;
            }
            for (at, byte) in (received..).zip(&buffer[..filled]) {
                assert_eq!(*byte, content(at));
            }
            received += filled;
        }
        writer.join().expect("no panic");
        assert_eq!(received, BYTES);
    }
}
