//! The sink of a writer of files.

use crate::batch::SinkBatch;
use crate::connector::{BoxFuture, ConnectorError, ContentWriter, SinkWriter, WriteOutcome};

/// A sink that exports files.
pub(crate) struct ContentSink<W>(pub(crate) W);

impl<W: ContentWriter> SinkWriter for ContentSink<W> {
    fn write<'a>(&'a self, _: &'a SinkBatch) -> BoxFuture<'a, WriteOutcome> {
        let what = "this sink sends files and no rows";
        Box::pin(std::future::ready(WriteOutcome::Failed(
            ConnectorError::permanent(what),
        )))
    }

    fn content_writer(&self) -> Option<&dyn ContentWriter> {
        Some(&self.0)
    }
}
