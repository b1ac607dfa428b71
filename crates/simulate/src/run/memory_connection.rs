//! The connection of a device to a node in this process: a pipe in memory.

use std::io;
use std::task::{Context, Waker};

use load_client::transport::{ReceiveOutcome, TransportError};
use memory_pipe::PipeEnd;

/// An end of a pipe, written and read like a socket that does not block.
#[derive(Debug)]
pub(super) struct MemoryConnection {
    pipe: PipeEnd,
    /// Reports that the pipe can be read or written again.
    waker: Waker,
    /// Bytes that the pipe did not take.
    unsent: Vec<u8>,
}

impl MemoryConnection {
    pub(super) fn new(pipe: PipeEnd, waker: Waker) -> Self {
        Self {
            pipe,
            waker,
            unsent: Vec::new(),
        }
    }

    pub(super) fn send(&mut self, bytes: &[u8]) -> Result<(), TransportError> {
        if self.has_backlog() {
            self.unsent.extend_from_slice(bytes);
            return self.flush();
        }
        let written = self.write_some(bytes)?;
        if written < bytes.len() {
            self.unsent.extend_from_slice(&bytes[written..]);
        }
        Ok(())
    }

    pub(super) fn flush(&mut self) -> Result<(), TransportError> {
        if self.has_backlog() {
            let written = self.write_some(&self.unsent)?;
            self.unsent.drain(..written);
            if self.unsent.is_empty() {
                self.unsent = Vec::new();
            }
        }
        Ok(())
    }

    pub(super) fn has_backlog(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Writes until the pipe is full. It is then watched until there is room.
    fn write_some(&self, bytes: &[u8]) -> Result<usize, TransportError> {
        let mut written = 0;
        while written < bytes.len() {
            match self.pipe.write(&bytes[written..]) {
                Ok(taken) => written += taken,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let mut context = Context::from_waker(&self.waker);
                    if self.pipe.poll_writable(&mut context).is_pending() {
                        break;
                    }
                }
                // The node has closed the connection; what it sent last can still be read, and is followed by the end.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(bytes.len()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(written)
    }

    /// Reads once. Without input, the pipe is watched until there is some.
    pub(super) fn receive(&self, buffer: &mut [u8]) -> Result<ReceiveOutcome, TransportError> {
        let mut context = Context::from_waker(&self.waker);
        match self.pipe.poll_read(&mut context, buffer) {
            std::task::Poll::Pending => Ok(ReceiveOutcome::default()),
            std::task::Poll::Ready(Ok(0)) => Err(TransportError::Closed),
            std::task::Poll::Ready(Ok(bytes)) => Ok(ReceiveOutcome { bytes, more: true }),
            std::task::Poll::Ready(Err(error)) => Err(error.into()),
        }
    }

    /// Ends the connection without what is in flight.
    pub(super) fn abort(&self) {
        self.pipe.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(end: &PipeEnd, most: usize) -> Vec<u8> {
        let mut buffer = vec![0; most];
        let mut context = Context::from_waker(Waker::noop());
        match end.poll_read(&mut context, &mut buffer) {
            std::task::Poll::Ready(Ok(filled)) => buffer[..filled].to_vec(),
            other => panic!("expected bytes, got {other:?}"),
        }
    }

    #[test]
    fn what_does_not_fit_waits_and_goes_on_in_order() {
        let (own, node) = memory_pipe::pipe(4);
        let mut connection = MemoryConnection::new(own, Waker::noop().clone());
        connection.send(b"012345").expect("open");
        assert!(connection.has_backlog());
        connection.send(b"67").expect("open");
        assert_eq!(read(&node, 10), b"0123");
        connection.flush().expect("open");
        assert!(!connection.has_backlog());
        assert_eq!(read(&node, 10), b"4567");
    }

    #[test]
    fn the_last_packet_of_the_node_is_read_before_the_end() {
        let (own, node) = memory_pipe::pipe(100);
        let mut connection = MemoryConnection::new(own, Waker::noop().clone());
        let mut buffer = [0; 10];
        let received = connection.receive(&mut buffer).expect("open");
        assert_eq!((received.bytes, received.more), (0, false));
        node.write(b"bye").expect("open");
        drop(node);
        connection
            .send(b"nobody reads it")
            .expect("its end is read");
        assert_eq!(connection.receive(&mut buffer).expect("open").bytes, 3);
        let end = connection.receive(&mut buffer);
        assert!(matches!(end, Err(TransportError::Closed)), "{end:?}");
    }
}
