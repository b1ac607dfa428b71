//! Signals of the running node: stop (SIGTERM, SIGINT), reload of certificates and configuration (SIGHUP), and the limit of
//! file sizes (SIGXFSZ).

use std::io;

use rustix::process::Signal as SignalName;
use tokio::signal::unix::{Signal, SignalKind, signal};

pub(crate) enum SignalRequest {
    /// Name of the signal.
    Stop(&'static str),
    Reload,
}

pub(crate) struct SignalListener {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl SignalListener {
    /// Registers the handlers; from now on the signals do not end the process. Needs a tokio
    /// runtime.
    pub(crate) fn listen() -> io::Result<Self> {
        // With a handler, a write beyond the limit of file sizes (`ulimit -f`) fails like one to a full disk.
        // Without one, it ends the process. The handler stays when its stream is dropped.
        let _ = signal(SignalKind::from_raw(SignalName::XFSZ.as_raw()))?;
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    pub(crate) async fn next(&mut self) -> SignalRequest {
        tokio::select! {
            _ = self.terminate.recv() => SignalRequest::Stop("SIGTERM"),
            _ = self.interrupt.recv() => SignalRequest::Stop("SIGINT"),
            _ = self.hangup.recv() => SignalRequest::Reload,
        }
    }

    /// Waits for SIGINT, which requests an immediate stop during a graceful one. SIGTERM is ignored
    /// here, because some programs repeat it (`timeout` does at once), and a graceful stop is
    /// bounded in time.
    pub(crate) async fn next_interrupt(&mut self) {
        // `None`: the handler is gone, so no signal will come.
        if self.interrupt.recv().await.is_none() {
            std::future::pending().await
        }
    }
}
