//! The wire format, described byte by byte in `docs/internals/link.md`.

pub mod control;
pub mod entries;
pub mod handshake;
pub mod header;
pub mod payload;
pub mod reader;
pub mod writer;
