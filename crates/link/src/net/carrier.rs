//! What a link runs over.

use tokio::io::{AsyncRead, AsyncWrite};

/// A byte stream in both directions: a TCP or Unix connection, TLS, or one in memory.
pub trait Carrier: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Carrier for T {}
