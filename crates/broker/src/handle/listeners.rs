//! Stops, starts, adds and removes listeners while the node runs.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};

use socket2::Socket;
use tokio::sync::oneshot;

use super::{BrokerHandle, OpenedListener};
use crate::config::{BindAddress, ListenerConfig, MAX_ADDED_LISTENERS};
use crate::control::{ListenerError, SHARD_RESPONSE_TIMEOUT};
use crate::info::ListenerInfo;
use crate::net::gateway_listener::GatewayListener;
use crate::net::inbox::InboxItem;
use crate::net::listener::{
    self, ListenerContext, ListenerSocket, listener_address, listener_info,
};
use crate::net::tls::ListenerTls;

impl BrokerHandle {
    /// Every listener of the configuration and every added one, running or not.
    pub fn listeners(&self) -> Vec<ListenerInfo> {
        let opened = self.opened_listeners().into_iter();
        let current = opened.map(|OpenedListener { info, context }| {
            let state = &self.shared.node.listeners[usize::from(context.index)];
            ListenerInfo {
                connections: state.connections.load(Relaxed),
                running: state.is_running.load(Relaxed),
                certificate: context.tls.as_ref().and_then(|tls| tls.certificate()),
                ..info
            }
        });
        current.collect()
    }

    /// The paths of all Unix sockets that are open.
    pub(crate) fn unix_sockets(&self) -> Vec<PathBuf> {
        let opened = self.opened_listeners().into_iter();
        let running = opened.filter(|listener| {
            let index = usize::from(listener.context.index);
            let is_running = &self.shared.node.listeners[index].is_running;
            is_running.load(Relaxed) && !listener.context.config.in_memory
        });
        let paths = running.filter_map(|listener| match &listener.context.config.bind {
            BindAddress::Unix(path) => Some(path.clone()),
            BindAddress::Tcp(_) => None,
        });
        paths.collect()
    }

    fn find_listener(&self, name: &str) -> Result<OpenedListener, ListenerError> {
        let mut listeners = self.opened_listeners().into_iter();
        let found = listeners.find(|listener| listener.info.name == name);
        found.ok_or_else(|| ListenerError::UnknownListener(name.to_owned()))
    }

    /// Opens another listener. It exists until it is removed or the broker stops.
    pub async fn add_listener(&self, config: &ListenerConfig) -> Result<(), ListenerError> {
        let _changing = self.shared.listener_change.lock().await;
        self.check_is_ready()?;
        if self.find_listener(&config.name).is_ok() {
            return Err(ListenerError::NameInUse(config.name.clone()));
        }
        if config.quic || config.link {
            let why = "listeners of QUIC and links have threads that begin with the node; add them to the configuration file";
            return Err(ListenerError::Unsupported(why.to_owned()));
        }
        if config.in_memory {
            let why = "listeners for clients in the process of the node begin with it";
            return Err(ListenerError::Unsupported(why.to_owned()));
        }
        let index = self.free_listener_index()?;
        let tls = config.tls.as_ref().map(ListenerTls::load).transpose();
        let tls = tls.map_err(|error| ListenerError::Failed(error.to_string()))?;
        let tls = tls.map(Arc::new);
        let context = Arc::new(ListenerContext::new(index as u16, config, tls.clone()));
        let address = listener_address(config);
        let sockets = open_sockets_at(config, &address, self.shard_count())?;
        let info = listener_info(config, Some(&sockets[0]));
        if let Some(tls) = tls {
            let watched = self.watch_certificates(tls);
            watched.map_err(|error| ListenerError::Failed(error.to_string()))?;
        }
        let state = &self.shared.node.listeners[index];
        state.replace(config.clone());
        state.is_running.store(true, Relaxed);
        tracing::info!(
            listener = config.name,
            address = info.address,
            "listener added"
        );
        let listener = OpenedListener {
            info,
            context: context.clone(),
        };
        let listeners = self.shared.listeners.write();
        (listeners.unwrap_or_else(PoisonError::into_inner)).push(listener);
        self.listen(&context, sockets);
        Ok(())
    }

    /// Closes an added listener, disconnects its clients and forgets it.
    pub async fn remove_listener(&self, name: &str) -> Result<(), ListenerError> {
        let found = self.find_listener(name)?;
        let index = usize::from(found.context.index);
        if index < self.first_added_listener() {
            let why = "the listener belongs to the configuration; stop it, or remove it from the configuration file";
            return Err(ListenerError::Unsupported(why.to_owned()));
        }
        match self.stop_listener(name, true).await {
            Ok(()) | Err(ListenerError::AlreadyInState(_)) => {}
            Err(error) => return Err(error),
        }
        let _changing = self.shared.listener_change.lock().await;
        if let Some(tls) = &found.context.tls {
            let all = self.shared.tls.lock();
            let mut all = all.unwrap_or_else(PoisonError::into_inner);
            all.retain(|other| !Arc::ptr_eq(other, tls));
        }
        let listeners = self.shared.listeners.write();
        let mut listeners = listeners.unwrap_or_else(PoisonError::into_inner);
        listeners.retain(|listener| usize::from(listener.context.index) != index);
        tracing::info!(listener = name, "listener removed");
        Ok(())
    }

    fn first_added_listener(&self) -> usize {
        self.shared.node.listeners.len() - MAX_ADDED_LISTENERS
    }

    /// A place that no listener has, and no connection of a removed one.
    fn free_listener_index(&self) -> Result<usize, ListenerError> {
        let opened = self.opened_listeners();
        let is_free = |&index: &usize| {
            let has_index =
                |listener: &OpenedListener| usize::from(listener.context.index) == index;
            let connections = &self.shared.node.listeners[index].connections;
            !opened.iter().any(has_index) && connections.load(Relaxed) == 0
        };
        let mut added = self.first_added_listener()..self.shared.node.listeners.len();
        added.find(is_free).ok_or_else(|| {
            ListenerError::Unsupported(format!(
                "at most {MAX_ADDED_LISTENERS} listeners can be added; remove one of them"
            ))
        })
    }

    fn check_is_ready(&self) -> Result<(), ListenerError> {
        if self.is_ready() {
            return Ok(());
        }
        let why = "the node is starting or stopping";
        Err(ListenerError::Failed(why.to_owned()))
    }

    /// Starts a stopped listener on its previous address.
    pub async fn start_listener(&self, name: &str) -> Result<(), ListenerError> {
        let _changing = self.shared.listener_change.lock().await;
        let OpenedListener { info, context } = self.find_listener(name)?;
        let index = usize::from(context.index);
        self.check_is_ready()?;
        let state = &self.shared.node.listeners[index];
        if state.is_running.load(Relaxed) {
            return Err(ListenerError::AlreadyInState("running"));
        }
        match self.quic_listener(index) {
            Some(quic) => quic.start(),
            // It accepts again as soon as it is running.
            None if context.config.in_memory => {}
            None => {
                let mut config = context.config.clone();
                if let (BindAddress::Tcp(address), Ok(used)) =
                    (&mut config.bind, info.address.parse::<SocketAddr>())
                {
                    // With port 0 the system has chosen a port, which clients use by now.
                    *address = used;
                }
                let gateway = self.gateway_listener(index);
                let count = gateway.map_or(self.shard_count(), |_| 1);
                let mut sockets = open_sockets_at(&config, &info.address, count)?;
                match (gateway, sockets.pop()) {
                    (Some(gateway), Some(socket)) => gateway.start(socket),
                    (_, last) => {
                        sockets.extend(last);
                        self.listen(&context, sockets);
                    }
                }
            }
        }
        state.is_running.store(true, Relaxed);
        tracing::info!(listener = name, address = info.address, "listener started");
        Ok(())
    }

    /// Lets the shards accept connections on these sockets.
    fn listen(&self, context: &Arc<ListenerContext>, sockets: Vec<Socket>) {
        for (inbox, socket) in self.shared.inboxes.iter().zip(sockets) {
            let context = context.clone();
            inbox.push(InboxItem::StartListening(Box::new(ListenerSocket {
                context,
                socket,
            })));
        }
    }

    /// Stops accepting connections on a listener; with `disconnect` its connections are closed, too.
    pub async fn stop_listener(&self, name: &str, disconnect: bool) -> Result<(), ListenerError> {
        let _changing = self.shared.listener_change.lock().await;
        let OpenedListener { context, .. } = self.find_listener(name)?;
        let index = usize::from(context.index);
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
            if let BindAddress::Unix(path) = &context.config.bind
                && !context.config.in_memory
            {
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

fn open_sockets_at(
    config: &ListenerConfig,
    address: &str,
    shards: usize,
) -> Result<Vec<Socket>, ListenerError> {
    let opened = listener::open_sockets(config, shards);
    opened.map_err(|error| ListenerError::Failed(format!("cannot listen on {address}: {error}")))
}

fn remove_socket(path: &Path) {
    if let Err(error) = std::fs::remove_file(path) {
        tracing::warn!(path = %path.display(), %error, "cannot remove the socket file; it stays");
    }
}
