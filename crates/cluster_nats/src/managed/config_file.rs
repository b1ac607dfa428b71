//! The configuration file of a NATS server, in JSON, which the server reads as its own format.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use data_encoding::HEXLOWER;
use ring::hmac;
use secret::Secret;
use serde_json::{Value, json};

use super::settings::{ManagedNatsSettings, NatsSync};

pub(super) const CLIENT_USER: &str = "tidegate";
pub(super) const SYSTEM_USER: &str = "system";
const ROUTE_USER: &str = "tidegate-route";
const ACCOUNT: &str = "TIDEGATE";
const SYSTEM_ACCOUNT: &str = "SYS";
/// Above the largest object with its headers, and records of partitions.
const MAX_PAYLOAD_BYTES: u64 = 8 << 20;
/// A server that does not answer to two of these is disconnected by the others.
const ROUTE_PING_INTERVAL: Duration = Duration::from_secs(2);

/// The password of the node at its server, and of the system account.
pub(super) struct ClientCredentials {
    pub(super) port: u16,
    pub(super) password: Secret,
    pub(super) system_password: Secret,
}

pub(super) fn config_path(directory: &Path) -> PathBuf {
    directory.join("nats.conf")
}

pub(super) fn pid_path(directory: &Path) -> PathBuf {
    directory.join("nats.pid")
}

/// The files of JetStream. A server that forms a cluster removes what it finds of one that did not, so that each has files of
/// its own.
fn store_path(settings: &ManagedNatsSettings) -> PathBuf {
    let name = match settings.is_clustered() {
        true => "cluster",
        false => "single",
    };
    settings.directory.join(name)
}

/// Writes the configuration, which contains passwords and is readable for its owner only.
pub(super) fn write(
    settings: &ManagedNatsSettings,
    credentials: &ClientCredentials,
) -> io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&settings.directory)?;
    let text = serde_json::to_vec_pretty(&config(settings, credentials))?;
    let path = config_path(&settings.directory);
    let new = settings.directory.join("nats.conf.new");
    let _ = fs::remove_file(&new);
    let mut file = fs::File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&new)?;
    file.write_all(&text)?;
    fs::rename(&new, &path)
}

fn config(settings: &ManagedNatsSettings, credentials: &ClientCredentials) -> Value {
    let mut config = json!({
        "server_name": settings.node.as_str(),
        "host": "127.0.0.1",
        "port": credentials.port,
        "pid_file": text(&pid_path(&settings.directory)),
        // The program that reads the log adds the time.
        "logtime": false,
        // Attempts to reach a server that was lost, one each second. Each would be a line in the log.
        "reconnect_error_reports": 60,
        "max_payload": MAX_PAYLOAD_BYTES,
        "accounts": {
            ACCOUNT: {
                "jetstream": "enabled",
                "users": [{"user": CLIENT_USER, "password": credentials.password.reveal()}],
            },
            SYSTEM_ACCOUNT: {
                "users": [{"user": SYSTEM_USER, "password": credentials.system_password.reveal()}],
            },
        },
        "system_account": SYSTEM_ACCOUNT,
        "jetstream": {
            "store_dir": text(&store_path(settings)),
            "max_memory_store": settings.max_memory_bytes,
            "max_file_store": settings.max_store_bytes,
            "sync_interval": match settings.sync {
                NatsSync::Always => "always".to_owned(),
                NatsSync::Interval(interval) => format!("{}ms", interval.as_millis()),
            },
        },
    });
    if settings.is_clustered() {
        config["cluster"] = cluster_config(settings);
    }
    config
}

fn cluster_config(settings: &ManagedNatsSettings) -> Value {
    let password = route_password(&settings.secret);
    // Not to itself: the number of routes is the number of servers that have to be there before JetStream can be used for
    // the first time, so that one of three may be started later.
    let routes: Vec<String> = settings
        .others()
        .map(|peer| format!("nats-route://{ROUTE_USER}:{password}@{peer}"))
        .collect();
    let mut cluster = json!({
        "name": settings.cluster_name,
        "listen": settings.listen,
        "routes": routes,
        "authorization": {"user": ROUTE_USER, "password": password, "timeout": 5},
        // Addresses of clients are loopback addresses.
        "no_advertise": true,
        "ping_interval": format!("{}ms", ROUTE_PING_INTERVAL.as_millis()),
        "ping_max": 2,
    });
    if let Some(advertise) = &settings.advertise {
        cluster["advertise"] = json!(advertise);
    }
    if let Some(tls) = &settings.tls {
        cluster["tls"] = json!({
            "cert_file": text(&tls.certificate),
            "key_file": text(&tls.key),
            "ca_file": text(&tls.authorities),
            "verify": true,
            "timeout": 5,
        });
    }
    cluster
}

/// A password without characters that have a meaning in URLs, and from which the secret cannot be computed.
pub(super) fn route_password(secret: &Secret) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.reveal().as_bytes());
    HEXLOWER.encode(hmac::sign(&key, b"tidegate nats route").as_ref())
}

fn text(path: &Path) -> &str {
    path.to_str()
        .expect("paths of the settings are checked to be UTF-8")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use cluster::NodeName;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_file_is_private_and_the_secret_is_not_in_it() {
        let directory = tempfile::tempdir().unwrap();
        let mut settings = ManagedNatsSettings::new(
            directory.path().join("a \"quoted\" folder"),
            "tidegate",
            NodeName::new("a").unwrap(),
            Secret::from("the-secret-of-all"),
        );
        let credentials = ClientCredentials {
            port: 4222,
            password: Secret::from("one"),
            system_password: Secret::from("two"),
        };
        write(&settings, &credentials).unwrap();
        let path = config_path(&settings.directory);
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        let read = |path: &Path| -> Value {
            let text = fs::read_to_string(path).unwrap();
            assert!(!text.contains("the-secret-of-all"), "{text}");
            serde_json::from_str(&text).unwrap()
        };
        let config = read(&path);
        assert_eq!(config["cluster"], Value::Null);
        assert!(
            config["jetstream"]["store_dir"]
                .as_str()
                .unwrap()
                .ends_with("/single")
        );

        settings.peers = vec![settings.listen.clone(), "b:6222".to_owned()];
        settings.sync = NatsSync::Interval(Duration::from_millis(100));
        write(&settings, &credentials).unwrap();
        let config = read(&path);
        let route = config["cluster"]["routes"][0].as_str().unwrap();
        assert!(
            route.starts_with("nats-route://tidegate-route:") && route.ends_with("@b:6222"),
            "{route}"
        );
        assert_eq!(config["jetstream"]["sync_interval"], "100ms");
    }
}
