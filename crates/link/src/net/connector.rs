//! The connecting end, which replaces its carrier when it breaks.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::config::LinkConfig;
use crate::core::LinkCore;
use crate::durable::FileJournal;
use crate::error_code::ErrorCode;
use crate::net::carrier::Carrier;
use crate::net::carrier_task::{CarrierError, LinkEnd, SharedLink, now, run_carrier};
use crate::net::link::Link;
use crate::net::link_journal::JournalRemoval;
use crate::wire::handshake::{Credentials, LinkId};
use crate::wire::reader::FrameReader;

/// The time without a carrier, divided by the pause before the next attempt.
const OUTAGE_TO_PAUSE: u32 = 500;

#[derive(Debug, Clone)]
pub struct ConnectOptions {
    pub config: LinkConfig,
    pub credentials: Credentials,
    /// Pause before a carrier that broke or could not be opened is replaced.
    pub reconnect_pause: Duration,
    /// Longest pause. It grows with the time without a carrier, of which it is 1/500. A long outage causes few
    /// attempts, and the last pause delays the recovery by little.
    pub max_reconnect_pause: Duration,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            config: LinkConfig::default(),
            credentials: Credentials::None,
            reconnect_pause: Duration::from_millis(20),
            max_reconnect_pause: Duration::from_secs(1),
        }
    }
}

impl ConnectOptions {
    /// The pause before the next attempt, after this time without a carrier.
    fn pause_after(&self, outage: Duration) -> Duration {
        let longest = self.max_reconnect_pause.max(self.reconnect_pause);
        (outage / OUTAGE_TO_PAUSE).clamp(self.reconnect_pause, longest)
    }
}

/// Opens a link over the carriers that `open` returns, one at a time. It must be called within a tokio runtime.
///
/// `id` is random and has not been used before. The link tries to connect until it is shut down, or the peer rejects it.
pub fn connect<C, F>(
    id: LinkId,
    options: ConnectOptions,
    open: impl Fn() -> F + Send + 'static,
) -> Link
where
    C: Carrier,
    F: Future<Output = io::Result<C>> + Send,
{
    let core = LinkCore::new(id, options.config.clone());
    run(SharedLink::new(core, None), options, open)
}

/// As [`connect`], for a link that survives the end of the process. The journal contains its id, what was sent and is
/// not acknowledged, and what was received and is not [processed](Link::acknowledge). The peer must keep its state of
/// the link meanwhile; with a [listener with journals](crate::net::LinkListener::with_journals), it survives kills,
/// too.
///
/// The journal is removed when the link has been shut down and all received messages are processed.
pub fn connect_with_journal<C, F>(
    journal: FileJournal,
    options: ConnectOptions,
    open: impl Fn() -> F + Send + 'static,
) -> Link
where
    C: Carrier,
    F: Future<Output = io::Result<C>> + Send,
{
    let config = options.config.clone();
    let shared = SharedLink::restore(journal, config, JournalRemoval::File);
    run(shared, options, open)
}

fn run<C, F>(
    shared: Arc<SharedLink>,
    options: ConnectOptions,
    open: impl Fn() -> F + Send + 'static,
) -> Link
where
    C: Carrier,
    F: Future<Output = io::Result<C>> + Send,
{
    let link = Link {
        shared: shared.clone(),
    };
    tokio::spawn(async move {
        let mut last_connected = now();
        while shared.ended().is_none() {
            if let Ok(carrier) = open().await {
                let credentials = options.credentials.clone();
                let begin = |core: &mut LinkCore| core.connect(credentials, now());
                let Some(number) = shared.begin_carrier(begin) else {
                    return;
                };
                let result = run_carrier(&shared, number, carrier, FrameReader::new()).await;
                if shared.lock().is_connected() {
                    last_connected = now();
                }
                shared.end_carrier(number);
                match result {
                    Ok(()) => {}
                    Err(CarrierError::Rejected { code, text }) if is_permanent(code) => {
                        shared.end(LinkEnd::Rejected { code, text });
                    }
                    Err(_) => shared.changed.notify_waiters(),
                }
            }
            if shared.lock().is_closed() {
                shared.discard_journal();
                shared.end(LinkEnd::ShutDown);
            }
            let outage = now().saturating_duration_since(last_connected);
            tokio::time::sleep(options.pause_after(outage)).await;
        }
    });
    link
}

/// Whether another carrier would be rejected, too.
fn is_permanent(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::UNSUPPORTED_VERSION
            | ErrorCode::NOT_AUTHENTICATED
            | ErrorCode::NOT_PERMITTED
            | ErrorCode::SHUTTING_DOWN
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_with_the_outage() {
        let options = ConnectOptions::default();
        for (outage_ms, expected_ms) in [(0, 20), (5_000, 20), (20_000, 40), (3_600_000, 1_000)] {
            let pause = options.pause_after(Duration::from_millis(outage_ms));
            assert_eq!(pause, Duration::from_millis(expected_ms), "{outage_ms}");
        }
    }
}
