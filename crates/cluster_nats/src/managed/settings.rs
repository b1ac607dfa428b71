//! Settings of a NATS server that the node starts itself.

use std::path::PathBuf;
use std::time::Duration;

use cluster::NodeName;
use secret::Secret;

use crate::settings::NatsSettingsError;

/// How often JetStream writes what it has acknowledged to disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NatsSync {
    /// Before it acknowledges.
    Always,
    /// A power failure of a majority of the servers loses at most what was acknowledged in this time. What one server loses,
    /// the others have.
    Interval(Duration),
}

/// TLS between the servers. Both sides present a certificate, which the other side verifies.
#[derive(Debug, Clone)]
pub struct ManagedNatsTls {
    /// In PEM. The certificate names the host of this server as the other servers write it.
    pub certificate: PathBuf,
    pub key: PathBuf,
    pub authorities: PathBuf,
}

/// A NATS server with JetStream that the node starts as a child process.
///
/// The node connects to its own server only, on a loopback address and with a password that changes at each start. The servers
/// connect to each other and authenticate with [`secret`](Self::secret).
#[derive(Debug, Clone)]
pub struct ManagedNatsSettings {
    /// The program `nats-server`; `None` stands for the one beside the running program, or else in `PATH`.
    pub program: Option<PathBuf>,
    /// Configuration and files of JetStream. Belongs to this server alone.
    pub directory: PathBuf,
    /// The same on all nodes: 1 to 64 of the characters `a-z`, `A-Z`, `0-9`, `-` and `_`.
    pub cluster_name: String,
    /// The name of this server.
    pub node: NodeName,
    /// Where the node connects to, on 127.0.0.1; 0 stands for a free port.
    pub client_port: u16,
    /// `host:port` where this server accepts connections of the others.
    pub listen: String,
    /// `host:port` where the others reach this server, if that differs from `listen`.
    pub advertise: Option<String>,
    /// `host:port` of the servers of all nodes. This one may be included as in `advertise` or `listen`, so that all nodes can
    /// have the same list. Without others, the server forms no cluster.
    pub peers: Vec<String>,
    /// The same on all nodes, at least 16 bytes.
    pub secret: Secret,
    pub tls: Option<ManagedNatsTls>,
    pub sync: NatsSync,
    /// Limit of JetStream in memory.
    pub max_memory_bytes: u64,
    /// Limit of JetStream on disk. Limits of streams are reserved from it.
    pub max_store_bytes: u64,
    /// Size of the process above which the server collects garbage more often.
    pub memory_limit_bytes: u64,
}

const MAX_NAME_BYTES: usize = 64;
const MAX_PEERS: usize = 64;
const MIN_SECRET_BYTES: usize = 16;
const MIN_MEMORY_BYTES: u64 = 32 << 20;
const MIN_MEMORY_LIMIT_BYTES: u64 = 64 << 20;

impl ManagedNatsSettings {
    /// Settings of a server without others.
    pub fn new(directory: PathBuf, cluster_name: &str, node: NodeName, secret: Secret) -> Self {
        Self {
            program: None,
            directory,
            cluster_name: cluster_name.to_owned(),
            node,
            client_port: 0,
            listen: "0.0.0.0:6222".to_owned(),
            advertise: None,
            peers: Vec::new(),
            secret,
            tls: None,
            sync: NatsSync::Always,
            max_memory_bytes: 256 << 20,
            max_store_bytes: 16 << 30,
            memory_limit_bytes: 1 << 30,
        }
    }

    /// Whether there are other servers.
    pub(crate) fn is_clustered(&self) -> bool {
        self.others().next().is_some()
    }

    /// Addresses of the other servers.
    pub(crate) fn others(&self) -> impl Iterator<Item = &String> {
        self.peers.iter().filter(|peer| !self.is_own(peer))
    }

    /// Number of servers of the cluster, with this one.
    pub(crate) fn servers(&self) -> usize {
        1 + self.others().count()
    }

    fn is_own(&self, peer: &str) -> bool {
        peer == self.listen || self.advertise.as_deref() == Some(peer)
    }

    pub(crate) fn check(&self) -> Result<(), NatsSettingsError> {
        let wrong = |setting, detail: String| Err(NatsSettingsError::new(setting, detail));
        let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        let name = &self.cluster_name;
        if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.bytes().all(is_valid) {
            let detail = format!(
                "{name:?} is not possible: expected 1 to {MAX_NAME_BYTES} of the characters a-z, A-Z, 0-9, '-' and '_'"
            );
            return wrong("cluster_name", detail);
        }
        check_address("listen", &self.listen)?;
        if let Some(advertise) = &self.advertise {
            check_address("advertise", advertise)?;
        }
        if self.peers.len() > MAX_PEERS {
            let detail = format!(
                "{} servers are given: expected at most {MAX_PEERS}",
                self.peers.len()
            );
            return wrong("peers", detail);
        }
        for peer in &self.peers {
            check_address("peers", peer)?;
        }
        if self.secret.reveal().len() < MIN_SECRET_BYTES {
            let detail = format!(
                "it has {} bytes: expected at least {MIN_SECRET_BYTES}; create one with `openssl rand -hex 32`",
                self.secret.reveal().len()
            );
            return wrong("secret", detail);
        }
        if matches!(self.sync, NatsSync::Interval(interval) if interval.as_millis() == 0) {
            let detail = "0 is not possible: expected at least 1 ms, or always".to_owned();
            return wrong("sync", detail);
        }
        if self.max_memory_bytes < MIN_MEMORY_BYTES {
            let detail = format!(
                "{} is too small: expected at least {MIN_MEMORY_BYTES}",
                self.max_memory_bytes
            );
            return wrong("max_memory_bytes", detail);
        }
        if self.memory_limit_bytes < MIN_MEMORY_LIMIT_BYTES {
            let detail = format!(
                "{} is too small: expected at least {MIN_MEMORY_LIMIT_BYTES}",
                self.memory_limit_bytes
            );
            return wrong("memory_limit_bytes", detail);
        }
        self.check_paths()
    }

    /// The configuration file cannot express all paths.
    fn check_paths(&self) -> Result<(), NatsSettingsError> {
        let mut paths = vec![("directory", &self.directory)];
        if let Some(tls) = &self.tls {
            paths.extend([
                ("tls.certificate", &tls.certificate),
                ("tls.key", &tls.key),
                ("tls.authorities", &tls.authorities),
            ]);
        }
        for (setting, path) in paths {
            let is_usable = path
                .to_str()
                .is_some_and(|text| !text.is_empty() && !text.contains(char::is_control));
            if !is_usable {
                let detail =
                    format!("{path:?} is not possible: expected UTF-8 without control characters");
                return Err(NatsSettingsError::new(setting, detail));
            }
            if setting != "directory"
                && let Err(error) = std::fs::File::open(path)
            {
                let detail = format!("{} cannot be read: {error}", path.display());
                return Err(NatsSettingsError::new(setting, detail));
            }
        }
        Ok(())
    }
}

fn check_address(setting: &'static str, address: &str) -> Result<(), NatsSettingsError> {
    let is_host_byte =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let is_host = |host: &str| match host.strip_prefix('[') {
        Some(rest) => rest
            .strip_suffix(']')
            .is_some_and(|ip| ip.parse::<std::net::Ipv6Addr>().is_ok()),
        None => !host.is_empty() && host.bytes().all(is_host_byte),
    };
    let is_valid = address.rsplit_once(':').is_some_and(|(host, port)| {
        is_host(host) && port.parse::<u16>().is_ok_and(|port| port != 0)
    });
    if is_valid {
        return Ok(());
    }
    let detail = format!("{address:?} is not possible: expected host:port, such as node-1:6222");
    Err(NatsSettingsError::new(setting, detail))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn settings() -> ManagedNatsSettings {
        ManagedNatsSettings::new(
            PathBuf::from("/data/nats"),
            "tidegate",
            NodeName::new("a").unwrap(),
            Secret::from("0123456789abcdef"),
        )
    }

    fn error(change: impl FnOnce(&mut ManagedNatsSettings)) -> String {
        let mut settings = settings();
        change(&mut settings);
        settings.check().unwrap_err().to_string()
    }

    #[test]
    fn errors_name_the_setting_and_what_is_expected() {
        settings().check().unwrap();
        assert_eq!(
            error(|settings| settings.listen = "6222".to_owned()),
            "listen: \"6222\" is not possible: expected host:port, such as node-1:6222"
        );
        for peer in ["a b:1", "a:0", ":6222", "[::1:6222", "a@b:6222", "[x]:1"] {
            let text = error(|settings| settings.peers.push(peer.to_owned()));
            assert!(text.starts_with("peers: "), "{text}");
        }
        let text = error(|settings| settings.secret = Secret::from("short-secret"));
        assert!(text.contains("at least 16"), "{text}");
        assert!(!text.contains("short-secret"), "{text}");
        let text = error(|settings| settings.directory = PathBuf::from("/data\n/x"));
        assert!(text.starts_with("directory: "), "{text}");
        let text = error(|settings| settings.sync = NatsSync::Interval(Duration::ZERO));
        assert!(text.starts_with("sync: "), "{text}");
    }

    #[test]
    fn the_own_address_is_no_other_server() {
        let mut settings = settings();
        assert!(!settings.is_clustered());
        settings.listen = "[::1]:6222".to_owned();
        settings.peers = vec!["[::1]:6222".to_owned()];
        settings.check().unwrap();
        assert!(!settings.is_clustered());
        settings.peers.push("b.example:6222".to_owned());
        settings.check().unwrap();
        assert!(settings.is_clustered());
        assert_eq!(settings.servers(), 2);
    }
}
