//! Everything needed to connect a client, worked out once from the options.

use std::net::SocketAddr;

use anyhow::{Context, ensure};
use rustls::pki_types::ServerName;

use crate::args::{ClientArgs, TargetArgs};
use crate::endpoint::{Endpoint, SourceAddresses};
use crate::packets::ConnectTemplate;
use crate::transport::{BrokerDialer, TlsFiles, client_config};

/// Before the client identifier of the publisher in topics that rules publish to.
pub(crate) const OUTPUT_TOPICS: &str = "bench/out";

/// How clients of one run reach one broker.
#[derive(Clone, Debug)]
pub(crate) struct BrokerAccess {
    pub(crate) dialer: BrokerDialer,
    /// Where subscribers connect to, if not there.
    pub(crate) subscriber_dialer: Option<BrokerDialer>,
    pub(crate) greeting: ConnectTemplate,
    pub(crate) sources: SourceAddresses,
    pub(crate) client_prefix: String,
    /// Subscribers' sessions outlive their connections.
    pub(crate) lasting_sessions: bool,
    pub(crate) concurrency: usize,
    pub(crate) connect_timeout_ns: u64,
    pub(crate) threads: usize,
    /// In topics, client identifiers and payloads, so that runs do not meet.
    pub(crate) run: u32,
}

impl BrokerAccess {
    /// For clients with these options, and a broker without authentication.
    pub(crate) fn without_authentication(
        clients: &ClientArgs,
        target: SocketAddr,
    ) -> anyhow::Result<Self> {
        let keep_alive_s = clients.keep_alive.as_secs();
        ensure!(
            keep_alive_s <= u64::from(u16::MAX),
            "--keep-alive {keep_alive_s}s is more than MQTT's 65535 s"
        );
        Ok(Self {
            dialer: BrokerDialer {
                target,
                tls: None,
                websocket: None,
            },
            subscriber_dialer: None,
            greeting: ConnectTemplate {
                version: clients.version.codec(),
                keep_alive_s: keep_alive_s as u16,
                username: None,
                password: None,
            },
            sources: SourceAddresses::default(),
            client_prefix: clients.client_prefix.clone(),
            lasting_sessions: clients.lasting_sessions,
            concurrency: clients.concurrency.unwrap_or(100) as usize,
            connect_timeout_ns: clients.connect_timeout.as_nanos() as u64,
            threads: clients.threads as usize,
            run: random_u32(),
        })
    }

    /// For one of the brokers that `target` names.
    pub(crate) fn new(
        clients: &ClientArgs,
        target: &TargetArgs,
        endpoint: &Endpoint,
    ) -> anyhow::Result<Self> {
        let sources = target.source_addresses.clone().unwrap_or_default();
        let dialer = dialer(target, endpoint, &sources)?;
        let mut access = Self::without_authentication(clients, dialer.target)?;
        access.dialer = dialer;
        access.sources = sources;
        access.greeting.username = target.username.clone();
        access.greeting.password = target.password.clone();
        Ok(access)
    }

    /// Lets subscribers connect to another node of the same cluster.
    pub(crate) fn with_subscribers_at(
        mut self,
        target: &TargetArgs,
        endpoint: &Endpoint,
    ) -> anyhow::Result<Self> {
        self.subscriber_dialer = Some(dialer(target, endpoint, &self.sources)?);
        Ok(self)
    }

    /// A client's identifier: `kind` is one letter, `number` counts over all threads.
    pub(crate) fn client_id(&self, kind: char, number: usize) -> String {
        format!("{}-{:08x}-{kind}{number}", self.client_prefix, self.run)
    }

    /// Where rules put what comes of the messages of a publisher.
    pub(crate) fn output_topic(&self, publisher: usize) -> String {
        format!("{OUTPUT_TOPICS}/{}", self.client_id('p', publisher))
    }

    /// The same broker, for so many connections, with names that no other round has used.
    pub(crate) fn for_next_round(&self, connections: usize) -> Self {
        let mut access = self.clone();
        access.run = random_u32();
        if access.sources.count() == 0 {
            access.sources = SourceAddresses::for_connections(self.dialer.target.ip(), connections);
        }
        access
    }
}

fn dialer(
    target: &TargetArgs,
    endpoint: &Endpoint,
    sources: &SourceAddresses,
) -> anyhow::Result<BrokerDialer> {
    let websocket = endpoint.websocket_path.clone();
    let mut dialer = BrokerDialer {
        target: endpoint.resolve(sources)?,
        tls: None,
        websocket: websocket.map(|path| (endpoint.authority(), path)),
    };
    if endpoint.tls {
        let files = TlsFiles {
            authorities: target.cafile.clone(),
            identity: target.cert.clone().zip(target.key.clone()),
            insecure: target.insecure,
        };
        let name = target.server_name.as_ref().unwrap_or(&endpoint.host);
        let server = ServerName::try_from(name.clone())
            .with_context(|| format!("`{name}` cannot be the name in a certificate"))?;
        dialer.tls = Some((client_config(&files)?, server));
    }
    Ok(dialer)
}

/// A number that two runs at the same time will hardly share.
pub(crate) fn random_u32() -> u32 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(crate::host::now_ns()) as u32
}
