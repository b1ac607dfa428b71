//! What the system may ask of a running node: stop (SIGTERM, SIGINT) and reload certificates (SIGHUP).

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

pub(super) enum SignalRequest {
    /// The name of the signal.
    Stop(&'static str),
    ReloadCertificates,
}

pub(super) struct SignalListener {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl SignalListener {
    /// From here on the signals no longer end the process by themselves. Needs a tokio runtime.
    pub(super) fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    pub(super) async fn next(&mut self) -> SignalRequest {
        tokio::select! {
            _ = self.terminate.recv() => SignalRequest::Stop("SIGTERM"),
            _ = self.interrupt.recv() => SignalRequest::Stop("SIGINT"),
            _ = self.hangup.recv() => SignalRequest::ReloadCertificates,
        }
    }

    /// Waits for SIGINT, by which somebody at the keyboard says that they will not wait. Others repeat SIGTERM
    /// without meaning anything by it (`timeout` does at once), and a stop ends by itself in time.
    pub(super) async fn next_interrupt(&mut self) {
        // `None`: signals cannot be listened for any more, so none will come.
        if self.interrupt.recv().await.is_none() {
            std::future::pending().await
        }
    }
}
