//! The threads of all QUIC listeners. They decrypt and encrypt, so that shards do not.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use super::listener::QuicListener;
use crate::core::node::NodeState;
use crate::net::inbox::ShardInbox;
use crate::net::listener::ListenerSocket;
use crate::start_error::StartError;

/// How long a stopping node waits until clients have received what was sent last.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);

/// The threads, and the listeners whose sockets they serve. Without listeners there are no threads.
pub(crate) struct QuicThreads {
    runtime: Option<Runtime>,
    pub(crate) listeners: Vec<Arc<QuicListener>>,
}

impl QuicThreads {
    /// At most this many threads, if there are listeners.
    pub(crate) fn new(listeners: usize, threads: usize) -> io::Result<Self> {
        let build = || {
            Builder::new_multi_thread()
                .worker_threads(threads)
                .thread_name("quic")
                .enable_all()
                .build()
        };
        Ok(Self {
            runtime: (listeners > 0).then(build).transpose()?,
            listeners: Vec::new(),
        })
    }

    /// Adds a listener on this UDP socket, which accepts nothing yet.
    pub(crate) fn add_listener(
        &mut self,
        socket: ListenerSocket,
        node: Arc<NodeState>,
        inboxes: Arc<[ShardInbox]>,
    ) -> Result<(), StartError> {
        let name = socket.context.config.name.clone();
        let runtime = self.runtime.as_ref().map(Runtime::handle);
        let added = match runtime {
            Some(runtime) => QuicListener::new(socket, runtime.clone(), node, inboxes),
            None => Err(io::Error::other("no threads")),
        };
        self.listeners
            .push(added.map_err(|source| StartError::Quic {
                listener: name,
                source,
            })?);
        Ok(())
    }

    pub(crate) fn start_accepting(&self) {
        for listener in &self.listeners {
            listener.start();
        }
    }

    pub(crate) fn stop_accepting(&self) {
        for listener in &self.listeners {
            listener.stop();
        }
    }

    /// Waits until the clients have received what the shards have sent, and ends the threads.
    pub(crate) fn stop(mut self) {
        let Some(runtime) = self.runtime.take() else {
            return;
        };
        runtime.block_on(async {
            let idle = async {
                for listener in &self.listeners {
                    listener.wait_until_idle().await;
                }
            };
            // Clients that do not answer are abandoned.
            let _ = tokio::time::timeout(STOP_TIMEOUT, idle).await;
        });
        runtime.shutdown_background();
    }
}

impl Drop for QuicThreads {
    /// A runtime must not wait for its threads in an asynchronous caller.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
