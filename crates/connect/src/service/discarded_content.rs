//! What was sent of a file whose export ended is discarded at the target.

use std::time::Duration;

use super::ConnectorService;
use crate::connector::ConnectorError;

/// Pauses before the attempts to discard what was sent of a file. The first one lets a running attempt end: a part that
/// arrives after the upload was aborted would be kept.
const DISCARD_PAUSES: [Duration; 4] = [
    Duration::from_secs(1),
    Duration::from_secs(5),
    Duration::from_secs(30),
    Duration::from_secs(120),
];

const DISCARD_TIMEOUT: Duration = Duration::from_secs(30);

impl ConnectorService {
    /// Removes from the system of a sink what it has of a file whose export was cancelled. Returns at once; failures are
    /// logged.
    pub fn discard_content(&self, sink: &str, file: &str, position: &str) {
        let service = self.clone();
        let (sink, file, position) = (sink.to_owned(), file.to_owned(), position.to_owned());
        self.inner.runtime.spawn(async move {
            let mut failure = None;
            for pause in DISCARD_PAUSES {
                tokio::time::sleep(pause).await;
                match service.try_discard(&sink, &position).await {
                    Ok(()) => {
                        tracing::info!(sink, file, "parts of a cancelled export discarded");
                        return;
                    }
                    Err(error) => failure = Some(error.to_string()),
                }
            }
            tracing::warn!(
                sink,
                file,
                error = failure,
                "parts of a cancelled export remain in the system of the sink; remove them there"
            );
        });
    }

    async fn try_discard(&self, sink: &str, position: &str) -> Result<(), ConnectorError> {
        let (connector, own) = {
            let control = self.inner.control();
            let sink = control.sinks.get(sink);
            let connector = sink.and_then(|sink| control.connectors.get(&sink.connector()));
            match sink.zip(connector) {
                Some((sink, opened)) => (opened.connector.clone(), sink.own_settings()),
                None => {
                    return Err(ConnectorError::transient(
                        "the sink or its connector is gone",
                    ));
                }
            }
        };
        let writer = connector.writer(own).map_err(ConnectorError::permanent)?;
        let Some(writer) = writer.content_writer() else {
            let what = "the sink no longer exports files";
            return Err(ConnectorError::permanent(what));
        };
        match tokio::time::timeout(DISCARD_TIMEOUT, writer.discard(position)).await {
            Ok(discarded) => discarded,
            Err(_) => Err(ConnectorError::transient("no answer in time")),
        }
    }
}
