//! How all connections of a run reach the broker.

use std::path::Path;

use anyhow::{Context as _, bail};
use load_client::endpoint::{Endpoint, SourceAddresses};
use load_client::transport::{BrokerDialer, TlsFiles, client_config};
use mqtt::Version;
use rustls::pki_types::ServerName;

use crate::definition::TargetDefinition;

const MAX_THREADS: u16 = 64;

#[derive(Clone, Debug)]
pub(crate) struct TargetAccess {
    pub(crate) dialer: BrokerDialer,
    /// As written, for reports.
    pub(crate) broker: String,
    pub(crate) version: Version,
    pub(crate) sources: SourceAddresses,
    pub(crate) connect_timeout_ns: u64,
    pub(crate) threads: usize,
}

impl TargetAccess {
    /// Resolves the broker of a file in `folder`, for so many devices.
    pub(crate) fn new(
        target: &TargetDefinition,
        folder: &Path,
        devices: u64,
    ) -> anyhow::Result<Self> {
        let field_error =
            |field: &str, message: String| anyhow::anyhow!("target.{field}: {message}");
        let endpoint: Endpoint = target
            .broker
            .parse()
            .map_err(|message| field_error("broker", message))?;
        let mut sources = match &target.source_addresses {
            Some(text) => text
                .parse()
                .map_err(|message| field_error("source_addresses", message))?,
            None => SourceAddresses::default(),
        };
        let address = endpoint.resolve(&sources).context("target.broker")?;
        if sources.count() == 0 {
            let devices = usize::try_from(devices).unwrap_or(usize::MAX);
            sources = SourceAddresses::for_connections(address.ip(), devices);
        }
        if !(1..=MAX_THREADS).contains(&target.threads) {
            bail!(
                "target.threads: expected 1 to {MAX_THREADS}, found {}",
                target.threads
            );
        }
        if target.connect_timeout.ns == 0 {
            bail!("target.connect_timeout: must be above 0");
        }
        Ok(Self {
            dialer: BrokerDialer {
                target: address,
                tls: tls(target, &endpoint, folder)?,
                websocket: endpoint
                    .websocket_path
                    .clone()
                    .map(|path| (endpoint.authority(), path)),
            },
            broker: endpoint.to_string(),
            version: target.version.into(),
            sources,
            connect_timeout_ns: target.connect_timeout.ns,
            threads: usize::from(target.threads),
        })
    }
}

type TlsAccess = (std::sync::Arc<rustls::ClientConfig>, ServerName<'static>);

fn tls(
    target: &TargetDefinition,
    endpoint: &Endpoint,
    folder: &Path,
) -> anyhow::Result<Option<TlsAccess>> {
    if !endpoint.tls {
        return Ok(None);
    }
    if target.ca_file.is_none() && !target.insecure {
        bail!(
            "target.broker: {endpoint} uses TLS; set target.ca_file to the certificates of trusted authorities, or \
             target.insecure = true"
        );
    }
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
    let name = target.server_name.as_ref().unwrap_or(&endpoint.host);
    let server = ServerName::try_from(name.clone()).with_context(|| {
        format!("target.server_name: `{name}` cannot be the name in a certificate")
    })?;
    Ok(Some((client_config(&files)?, server)))
}
