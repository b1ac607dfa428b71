//! The connecting end, which replaces its carrier when it breaks.

use std::future::Future;
use std::io;
use std::time::Duration;

use crate::config::LinkConfig;
use crate::core::LinkCore;
use crate::error_code::ErrorCode;
use crate::net::carrier::Carrier;
use crate::net::carrier_task::{CarrierError, LinkEnd, SharedLink, now, run_carrier};
use crate::net::link::Link;
use crate::wire::handshake::{Credentials, LinkId};
use crate::wire::reader::FrameReader;

#[derive(Debug, Clone)]
pub struct ConnectOptions {
    pub config: LinkConfig,
    pub credentials: Credentials,
    /// Pause before a carrier that broke or could not be opened is replaced.
    pub reconnect_interval: Duration,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            config: LinkConfig::default(),
            credentials: Credentials::None,
            reconnect_interval: Duration::from_millis(50),
        }
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
    let shared = SharedLink::new(LinkCore::new(id, options.config));
    let link = Link {
        shared: shared.clone(),
    };
    let (credentials, interval) = (options.credentials, options.reconnect_interval);
    tokio::spawn(async move {
        while shared.ended().is_none() {
            if let Ok(carrier) = open().await {
                let begin = |core: &mut LinkCore| core.connect(credentials.clone(), now());
                let number = shared.begin_carrier(begin);
                let result = run_carrier(&shared, number, carrier, FrameReader::new()).await;
                shared.end_carrier(number);
                match result {
                    Ok(()) => shared.end(LinkEnd::ShutDown),
                    Err(CarrierError::Rejected { code, text }) if is_permanent(code) => {
                        shared.end(LinkEnd::Rejected { code, text });
                    }
                    Err(_) => shared.changed.notify_waiters(),
                }
            }
            if shared.lock().is_closed() {
                shared.end(LinkEnd::ShutDown);
            }
            tokio::time::sleep(interval).await;
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
