//! Stops and starts listeners while the node runs.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use tokio::sync::oneshot;

use super::BrokerHandle;
use crate::config::BindAddress;
use crate::control::{ListenerError, SHARD_RESPONSE_TIMEOUT};
use crate::info::ListenerInfo;
use crate::net::gateway_listener::GatewayListener;
use crate::net::inbox::InboxItem;
use crate::net::listener::{self, ListenerSocket};

impl BrokerHandle {
    /// Every listener of the configuration, running or not.
    pub fn listeners(&self) -> Vec<ListenerInfo> {
        let mut listeners = self.shared.listeners.clone();
        let states = self.shared.node.listeners.iter();
        let contexts = &self.shared.listener_contexts;
        for ((info, state), context) in listeners.iter_mut().zip(states).zip(contexts) {
            info.connections = state.connections.load(Relaxed);
            info.running = state.is_running.load(Relaxed);
            info.certificate = context.tls.as_ref().and_then(|tls| tls.certificate());
        }
        listeners
    }

    fn listener_index(&self, name: &str) -> Result<usize, ListenerError> {
        let mut infos = self.shared.listeners.iter();
        let found = infos.position(|info| info.name == name);
        found.ok_or_else(|| ListenerError::UnknownListener(name.to_owned()))
    }

    /// Starts a stopped listener on its previous address.
    pub async fn start_listener(&self, name: &str) -> Result<(), ListenerError> {
        let index = self.listener_index(name)?;
        let _changing = self.shared.listener_change.lock().await;
        if !self.is_ready() {
            let why = "the node is starting or stopping";
            return Err(ListenerError::Failed(why.to_owned()));
        }
        let state = &self.shared.node.listeners[index];
        if state.is_running.load(Relaxed) {
            return Err(ListenerError::AlreadyInState("running"));
        }
        let info = &self.shared.listeners[index];
        match self.quic_listener(index) {
            Some(quic) => quic.start(),
            None => self.open_listener(index)?,
        }
        state.is_running.store(true, Relaxed);
        tracing::info!(listener = name, address = info.address, "listener started");
        Ok(())
    }

    /// Opens the sockets of a listener.
    fn open_listener(&self, index: usize) -> Result<(), ListenerError> {
        let context = &self.shared.listener_contexts[index];
        let info = &self.shared.listeners[index];
        let mut config = context.config.clone();
        if let (BindAddress::Tcp(address), Ok(used)) =
            (&mut config.bind, info.address.parse::<SocketAddr>())
        {
            // With port 0 the system has chosen a port, which clients use by now.
            *address = used;
        }
        let failed =
            |error| ListenerError::Failed(format!("cannot listen on {}: {error}", info.address));
        if let Some(gateway) = self.gateway_listener(index) {
            let mut sockets = listener::open_sockets(&config, 1).map_err(failed)?;
            if let Some(socket) = sockets.pop() {
                gateway.start(socket);
            }
            return Ok(());
        }
        let sockets = listener::open_sockets(&config, self.shard_count()).map_err(failed)?;
        for (inbox, socket) in self.shared.inboxes.iter().zip(sockets) {
            let context = context.clone();
            inbox.push(InboxItem::StartListening(Box::new(ListenerSocket {
                context,
                socket,
            })));
        }
        Ok(())
    }

    /// Stops accepting connections on a listener; with `disconnect` its connections are closed, too.
    pub async fn stop_listener(&self, name: &str, disconnect: bool) -> Result<(), ListenerError> {
        let index = self.listener_index(name)?;
        let _changing = self.shared.listener_change.lock().await;
        let state = &self.shared.node.listeners[index];
        let was_running = state.is_running.swap(false, Relaxed);
        if !was_running && !disconnect {
            return Err(ListenerError::AlreadyInState("stopped"));
        }
        if was_running {
            match self.quic_listener(index) {
                Some(quic) => quic.stop(),
                None => self.close_sockets(index as u16).await?,
            }
            if let BindAddress::Unix(path) = &self.shared.listener_contexts[index].config.bind {
                remove_socket(path);
            }
            tracing::info!(listener = name, "listener stopped");
        }
        if disconnect {
            self.disconnect_listener(index as u16).await;
        }
        Ok(())
    }

    /// The listener at this index, if another part of the program accepts its connections.
    fn gateway_listener(&self, index: usize) -> Option<&Arc<GatewayListener>> {
        let mut listeners = self.gateway_listeners().iter();
        listeners.find(|listener| listener.index() == index)
    }

    async fn close_sockets(&self, listener: u16) -> Result<(), ListenerError> {
        if let Some(gateway) = self.gateway_listener(usize::from(listener)) {
            return match gateway.stop(SHARD_RESPONSE_TIMEOUT).await {
                true => Ok(()),
                false => {
                    let why = "connections are still accepted; it will stop listening soon";
                    Err(ListenerError::Failed(why.to_owned()))
                }
            };
        }
        let mut closing = Vec::new();
        for inbox in self.shared.inboxes.iter() {
            let (answer, answered) = oneshot::channel();
            inbox.push(InboxItem::StopListening { listener, answer });
            closing.push(answered);
        }
        for closed in closing {
            let answer = tokio::time::timeout(SHARD_RESPONSE_TIMEOUT, closed).await;
            if !matches!(answer, Ok(Ok(()))) {
                let why = "a shard does not answer; it will stop listening when it does";
                return Err(ListenerError::Failed(why.to_owned()));
            }
        }
        Ok(())
    }
}

fn remove_socket(path: &Path) {
    if let Err(error) = std::fs::remove_file(path) {
        tracing::warn!(path = %path.display(), %error, "cannot remove the socket file; it stays");
    }
}
