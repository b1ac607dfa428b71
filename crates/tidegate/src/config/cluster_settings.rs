//! The section `cluster`.

use std::path::PathBuf;
use std::time::Duration;

use cluster::NodeName;
use cluster_nats::{ManagedNatsTls, NatsAuth, NatsIdentity, NatsSettings, NatsSync, NatsTls};
use secret::Secret;
use store::Fsync;

use super::cluster_draft::ClusterDraft;
use super::config_draft::ConfigDraft;
use super::standby_use::StandbyUse;

/// Shortest secret of the managed servers, in bytes.
const MIN_SECRET_BYTES: usize = 16;

/// How the node takes part in a cluster.
#[derive(Debug, Clone)]
pub(crate) struct ClusterSettings {
    pub(crate) node: NodeName,
    pub(crate) name: String,
    pub(crate) start_timeout: Duration,
    /// Time for which messages to a node that cannot be reached wait for its return.
    pub(crate) away_timeout: Duration,
    /// Clients that a drain or a rebalancing disconnects per second.
    pub(crate) drain_rate: u32,
    /// Whether another node keeps a copy of the durable sessions of this one.
    pub(crate) standby: StandbyUse,
    /// Where people and programs reach the HTTP API of this node.
    pub(crate) api_url: Option<String>,
    pub(crate) servers: ClusterServers,
}

/// The NATS servers that connect the nodes.
#[derive(Debug, Clone)]
pub(crate) enum ClusterServers {
    External(Box<NatsSettings>),
    Managed(Box<ManagedServer>),
}

/// The NATS server that the node runs itself.
#[derive(Debug, Clone)]
pub(crate) struct ManagedServer {
    pub(crate) program: Option<PathBuf>,
    pub(crate) listen: String,
    pub(crate) advertise: Option<String>,
    pub(crate) peers: Vec<String>,
    pub(crate) secret: Secret,
    pub(crate) tls: Option<ManagedNatsTls>,
    pub(crate) sync: NatsSync,
    pub(crate) max_memory: u64,
    pub(crate) max_disk: u64,
}

/// Settings that concern only external servers, and only managed ones.
const EXTERNAL_KEYS: [&str; 5] = [
    "user",
    "password_file",
    "token_file",
    "credentials_file",
    "tls",
];
const MANAGED_KEYS: [&str; 5] = ["program", "listen", "advertise", "peers", "secret_file"];

/// Checks the section; `None`: the node is alone.
pub(super) fn finish_cluster(draft: &mut ConfigDraft) -> Option<ClusterSettings> {
    let written = draft.node.cluster.clone();
    if !written.managed && written.urls.is_none() {
        written.node.as_ref()?;
        let message = "has no effect without cluster.managed = true, or cluster.urls";
        return add_error(draft, "cluster.node", message);
    }
    if written.managed && written.urls.is_some() {
        let message =
            "not together with cluster.managed, which starts a server; remove one of them";
        return add_error(draft, "cluster.urls", message);
    }
    let (other_keys, why) = match written.managed {
        true => (
            EXTERNAL_KEYS,
            "only for the servers of cluster.urls; remove it",
        ),
        false => (MANAGED_KEYS, "only with cluster.managed = true; remove it"),
    };
    for key in other_keys.map(|key| format!("cluster.{key}")) {
        if draft.origins.contains_key(&key) {
            let _: Option<()> = add_error(draft, &key, why);
        }
    }
    let Some(node) = &written.node else {
        let message = "missing; each node of a cluster needs its own name, such as \"node-1\"";
        return add_error(draft, "cluster.node", message);
    };
    let node = match NodeName::new(node) {
        Ok(node) => node,
        Err(error) => return add_error(draft, "cluster.node", &error.to_string()),
    };
    let identity = match (written.certificate.clone(), written.private_key.clone()) {
        (Some(certificate), Some(key)) => Some(NatsIdentity { certificate, key }),
        (None, None) => None,
        (Some(_), None) => {
            return add_error(
                draft,
                "cluster.private_key",
                "missing; the certificate needs its key",
            );
        }
        (None, Some(_)) => {
            return add_error(
                draft,
                "cluster.certificate",
                "missing; the key needs its certificate",
            );
        }
    };
    let servers = match written.managed {
        true => ClusterServers::Managed(Box::new(managed_server(&written, identity, draft)?)),
        false => ClusterServers::External(Box::new(external_servers(&written, identity, draft)?)),
    };
    Some(ClusterSettings {
        node,
        name: written.name,
        start_timeout: Duration::from_secs(written.start_timeout_s.into()),
        away_timeout: Duration::from_secs(written.away_timeout_s.into()),
        drain_rate: written.drain_rate,
        standby: written.standby,
        api_url: written.api_url,
        servers,
    })
}

fn add_error<T>(draft: &mut ConfigDraft, key: &str, message: &str) -> Option<T> {
    let origin = draft.origin(key);
    draft.add_error(origin, key, message);
    None
}

fn split(list: Option<&str>) -> Vec<String> {
    let entries = list.unwrap_or_default().split(',');
    let entries = entries.map(str::trim).filter(|entry| !entry.is_empty());
    entries.map(str::to_owned).collect()
}

fn external_servers(
    written: &ClusterDraft,
    identity: Option<NatsIdentity>,
    draft: &mut ConfigDraft,
) -> Option<NatsSettings> {
    let password = read_secret("password", written.password_file.as_ref(), draft)?;
    let token = read_secret("token", written.token_file.as_ref(), draft)?;
    let auth = match (&written.user, password, token, &written.credentials_file) {
        (None, None, None, None) => NatsAuth::None,
        (Some(user), Some(password), None, None) => NatsAuth::Password {
            user: user.clone(),
            password,
        },
        (None, None, Some(token), None) => NatsAuth::Token(token),
        (None, None, None, Some(file)) => NatsAuth::CredentialsFile(file.clone()),
        _ => {
            let message = "expected one of: user and password_file, token_file, credentials_file";
            return add_error(draft, "cluster.user", message);
        }
    };
    let settings = NatsSettings {
        prefix: written.name.clone(),
        auth,
        tls: NatsTls {
            is_required: written.tls,
            authorities: written.authorities.clone(),
            identity,
        },
        ..NatsSettings::new(split(written.urls.as_deref()))
    };
    match settings.check() {
        Ok(_) => Some(settings),
        Err(error) => {
            let key = match error.setting {
                "urls" => "cluster.urls",
                "prefix" => "cluster.name",
                other => return add_error(draft, "cluster", &format!("{other}: {}", error.detail)),
            };
            add_error(draft, key, &error.detail)
        }
    }
}

/// The secret in a file, `Some(None)` without one, `None` after an error.
fn read_secret(
    name: &str,
    file: Option<&PathBuf>,
    draft: &mut ConfigDraft,
) -> Option<Option<Secret>> {
    match Secret::from_setting(&format!("cluster.{name}"), None, file) {
        Ok(secret) => Some(secret),
        Err(error) => add_error(draft, &error.field, &error.detail),
    }
}

fn managed_server(
    written: &ClusterDraft,
    identity: Option<NatsIdentity>,
    draft: &mut ConfigDraft,
) -> Option<ManagedServer> {
    let peers = split(written.peers.as_deref());
    let secret = read_secret("secret", written.secret_file.as_ref(), draft)?;
    let Some(secret) = secret else {
        let message = "missing; the servers of all nodes authenticate each other with the same secret: \
                       openssl rand -hex 32 > cluster.secret";
        return add_error(draft, "cluster.secret_file", message);
    };
    if secret.reveal().len() < MIN_SECRET_BYTES {
        let message =
            format!("contains less than {MIN_SECRET_BYTES} bytes; choose a longer secret");
        return add_error(draft, "cluster.secret_file", &message);
    }
    let tls = match (identity, &written.authorities) {
        (Some(identity), Some(authorities)) => Some(ManagedNatsTls {
            certificate: identity.certificate,
            key: identity.key,
            authorities: authorities.clone(),
        }),
        (None, None) => None,
        _ => {
            let message = "TLS between the nodes needs cluster.certificate, cluster.private_key and cluster.authorities";
            return add_error(draft, "cluster.authorities", message);
        }
    };
    Some(ManagedServer {
        program: written.program.clone(),
        listen: written.listen.clone(),
        advertise: written.advertise.clone(),
        peers,
        secret,
        tls,
        // Objects of the cluster are as safe as those of the node.
        sync: match draft.node.store.fsync {
            Fsync::Always => NatsSync::Always,
            Fsync::Every(interval) => NatsSync::Interval(interval),
            Fsync::Never => NatsSync::Interval(Duration::from_secs(60)),
        },
        max_memory: written.max_memory,
        max_disk: written.max_disk,
    })
}
