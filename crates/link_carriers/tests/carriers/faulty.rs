//! A carrier that breaks, or changes a byte, after some bytes.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use link_carriers::BoxedCarrier;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Writing fails, and so does reading.
    Cut,
    /// A bit of the byte is inverted.
    ChangedByte,
}

pub(crate) struct FaultyCarrier {
    carrier: BoxedCarrier,
    fault: Option<Fault>,
    /// Bytes that are still written without fault.
    remaining: usize,
    is_cut: bool,
}

impl FaultyCarrier {
    pub(crate) fn new(carrier: BoxedCarrier, fault: Option<(Fault, usize)>) -> Self {
        Self {
            carrier,
            fault: fault.map(|(fault, _)| fault),
            remaining: fault.map_or(0, |(_, after)| after),
            is_cut: false,
        }
    }
}

fn cut() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, "the test cut the carrier")
}

impl AsyncRead for FaultyCarrier {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_cut {
            return Poll::Ready(Err(cut()));
        }
        Pin::new(&mut self.carrier).poll_read(cx, buffer)
    }
}

impl AsyncWrite for FaultyCarrier {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        let Some(fault) = this.fault else {
            return Pin::new(&mut this.carrier).poll_write(cx, bytes);
        };
        let result = if this.remaining > 0 {
            let part = &bytes[..bytes.len().min(this.remaining)];
            Pin::new(&mut this.carrier).poll_write(cx, part)
        } else if fault == Fault::Cut {
            this.is_cut = true;
            return Poll::Ready(Err(cut()));
        } else {
            Pin::new(&mut this.carrier).poll_write(cx, &[bytes[0] ^ 0x10])
        };
        if let Poll::Ready(Ok(count)) = result {
            if this.remaining == 0 {
                this.fault = None;
            }
            this.remaining = this.remaining.saturating_sub(count);
        }
        result
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.carrier).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.carrier).poll_shutdown(cx)
    }
}
