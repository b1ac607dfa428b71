//! Bytes that wait to be written, for vectored writes.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes};

#[derive(Debug, Default)]
pub(crate) struct SliceQueue {
    pub(crate) slices: VecDeque<Bytes>,
}

impl Buf for SliceQueue {
    fn remaining(&self) -> usize {
        self.slices.iter().map(Bytes::len).sum()
    }

    fn chunk(&self) -> &[u8] {
        self.slices.front().map_or(&[], |front| &front[..])
    }

    fn chunks_vectored<'a>(&'a self, out: &mut [IoSlice<'a>]) -> usize {
        let count = out.len().min(self.slices.len());
        for (out, slice) in out.iter_mut().zip(&self.slices) {
            *out = IoSlice::new(slice);
        }
        count
    }

    fn advance(&mut self, mut count: usize) {
        while let Some(front) = self.slices.front_mut() {
            if count < front.len() {
                front.advance(count);
                return;
            }
            count -= front.len();
            self.slices.pop_front();
        }
    }
}
