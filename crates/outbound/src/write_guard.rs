//! Guard of a write to a connection that several callers use: an abandoned write closes the connection.

/// Closes a connection if it is dropped before [`disarm`](Self::disarm), as when the future of a write is dropped. The
/// peer would read what follows as the rest of the partial message.
pub struct WriteGuard<F: FnOnce(&str)>(Option<F>);

impl<F: FnOnce(&str)> WriteGuard<F> {
    /// `close` receives the reason.
    pub fn arm(close: F) -> Self {
        Self(Some(close))
    }

    /// The write is complete, or has failed and its error is handled.
    pub fn disarm(mut self) {
        self.0 = None;
    }
}

impl<F: FnOnce(&str)> Drop for WriteGuard<F> {
    fn drop(&mut self) {
        if let Some(close) = self.0.take() {
            close("a write was interrupted");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_abandoned_write_closes_the_connection() {
        let mut reasons = Vec::new();
        WriteGuard::arm(|why| reasons.push(why.to_owned())).disarm();
        assert!(reasons.is_empty());
        drop(WriteGuard::arm(|why| reasons.push(why.to_owned())));
        assert_eq!(reasons, ["a write was interrupted"]);
    }
}
