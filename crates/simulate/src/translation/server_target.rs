//! A server that translators connect to over TCP or TLS.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use link_carriers::BoxedCarrier;
use load_client::endpoint::{Endpoint, SourceAddresses};
use load_client::transport::{TlsFiles, client_config};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpSocket;
use tokio_rustls::TlsConnector;

use crate::definition::TargetDefinition;

/// Local ports tried for one connection.
const MAX_PORT_ATTEMPTS: usize = 100;

/// An address, and TLS if its URL asks for it.
#[derive(Debug)]
pub(crate) struct ServerTarget {
    address: SocketAddr,
    /// Those of the file. The addresses for many connections to a loopback address are chosen by the caller.
    sources: SourceAddresses,
    /// `HOST:PORT`.
    pub(super) authority: String,
    /// Path of the URL without a slash at its end.
    pub(super) path: String,
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
}

impl ServerTarget {
    /// Resolves `http://`, `https://`, `ws://` and `wss://` URLs.
    pub(super) fn new(url: &str, target: &TargetDefinition, folder: &Path) -> anyhow::Result<Self> {
        let expected = || format!("`{url}`: expected http, https, ws or wss, with HOST:PORT");
        let (scheme, rest) = url.split_once("://").with_context(expected)?;
        let scheme = match scheme {
            "http" | "ws" => "ws",
            "https" | "wss" => "wss",
            _ => bail!(expected()),
        };
        let (_, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let endpoint: Endpoint = format!("{scheme}://{rest}")
            .parse()
            .map_err(anyhow::Error::msg)?;
        let sources = source_addresses(target)?;
        Ok(Self {
            address: endpoint.resolve(&sources)?,
            sources,
            authority: endpoint.authority(),
            path: path.trim_end_matches('/').to_owned(),
            tls: match endpoint.tls {
                true => Some(tls(&endpoint.host, target, folder)?),
                false => None,
            },
        })
    }

    /// Where so many connections to this server come from.
    pub(super) fn sources_for(&self, connections: usize) -> SourceAddresses {
        match self.sources.count() {
            0 => SourceAddresses::for_connections(self.address.ip(), connections),
            _ => self.sources.clone(),
        }
    }

    /// Opens a connection, from `source` if the port is free.
    pub(super) async fn connect(&self, source: Option<SocketAddr>) -> io::Result<BoxedCarrier> {
        let mut attempt = 0;
        let stream = loop {
            let socket = match self.address {
                SocketAddr::V4(_) => TcpSocket::new_v4()?,
                SocketAddr::V6(_) => TcpSocket::new_v6()?,
            };
            socket.set_nodelay(true)?;
            if let Some(source) = source {
                socket.set_reuseaddr(true)?;
                // The first connection of a device has the port that was chosen; the system chooses for others.
                let port = if attempt == 0 { source.port() } else { 0 };
                socket.bind(SocketAddr::new(source.ip(), port))?;
            }
            match socket.connect(self.address).await {
                Err(error)
                    if source.is_some()
                        && attempt < MAX_PORT_ATTEMPTS
                        && is_port_in_use(&error) =>
                {
                    attempt += 1;
                }
                connected => break connected?,
            }
        };
        Ok(match &self.tls {
            None => Box::new(stream),
            Some((config, name)) => {
                let connector = TlsConnector::from(config.clone());
                Box::new(connector.connect(name.clone(), stream).await?)
            }
        })
    }
}

fn is_port_in_use(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable
    )
}

/// The source addresses of the file.
pub(super) fn source_addresses(target: &TargetDefinition) -> anyhow::Result<SourceAddresses> {
    match &target.source_addresses {
        Some(text) => text.parse().map_err(anyhow::Error::msg),
        None => Ok(SourceAddresses::default()),
    }
}

/// TLS for a server, with the files of the target.
pub(super) fn tls(
    host: &str,
    target: &TargetDefinition,
    folder: &Path,
) -> anyhow::Result<(Arc<ClientConfig>, ServerName<'static>)> {
    let identity = match (&target.certificate, &target.private_key) {
        (Some(certificate), Some(key)) => Some((folder.join(certificate), folder.join(key))),
        (None, None) => None,
        _ => bail!("target.certificate and target.private_key belong together"),
    };
    let files = TlsFiles {
        authorities: target.ca_file.as_ref().map(|file| folder.join(file)),
        identity,
        insecure: target.insecure,
    };
    let name = target.server_name.as_deref().unwrap_or(host);
    let server = ServerName::try_from(name.to_owned()).with_context(|| {
        format!("target.server_name: `{name}` cannot be the name in a certificate")
    })?;
    Ok((client_config(&files)?, server))
}

/// What a failed connection is reported as: without addresses, so that equal failures are counted together.
pub(super) fn describe(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => "connection reset".to_owned(),
        io::ErrorKind::UnexpectedEof => "closed by the server".to_owned(),
        io::ErrorKind::TimedOut => "timed out".to_owned(),
        _ => error.to_string(),
    }
}
