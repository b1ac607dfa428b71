//! Converts a draft to a configuration, with defaults that depend on the machine. Checks need the whole configuration:
//! a listener without an address, two on one port, TLS files that do not match.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use api::{AnonymousRole, HttpConfig};
use broker::config::{BindAddress, ListenerConfig, TlsConfig};
use hooks::UserConfig;

use outbound::target_policy::TargetPolicy;

use super::cluster_settings;
use super::config_draft::ConfigDraft;
use super::config_error::ValueOrigin;
use super::node_config::Config;
use super::object_tables::{self, DeclaredObjects};
use super::runtime_settings::RuntimeSettings;
use super::setting_kind::{BindSetting, NamedChoice as _};
use super::settings_table::{ListenerDraft, ListenerProtocol, QueueStoreKind};
use super::{auth_tables, connector_tables, product_tables, rule_tables, settings_view, tls_files};

/// Longest path of a Unix socket on Linux, without the terminating NUL.
const MAX_SOCKET_PATH_BYTES: usize = 107;

pub(super) fn finish(
    mut draft: ConfigDraft,
    file: Option<PathBuf>,
    home: &DefaultDataDirs,
) -> (Config, ConfigDraft) {
    let mut settings = settings_view::list_settings(&draft);
    let running = RuntimeSettings::new(&draft.node);
    let mut broker = draft.node.broker.clone();
    let max_packet_size = broker.limits.max_packet_size;
    for listener in std::mem::take(&mut draft.listeners) {
        if let Some(listener) = finish_listener(listener, max_packet_size, &mut draft) {
            broker.listeners.push(listener);
        }
    }
    let http = finish_http(&mut draft);
    let http_tls = finish_http_tls(&mut draft);
    if http_tls.is_some()
        && let Some(BindAddress::Unix(_)) = http.as_ref().map(|http| &http.bind)
    {
        let message = "not on a Unix socket, which only this machine reaches; remove the certificate and its key";
        let origin = draft.origin("http.tls.certificate");
        draft.add_error(origin, "http.tls.certificate", message);
    }
    find_shared_addresses(&broker.listeners, http.as_ref(), &mut draft);
    if broker.listeners.is_empty() && draft.errors.is_empty() {
        let origin = draft.origin("listener");
        let message = "no listener is left, so no client could connect; give one a bind address";
        draft.add_error(origin, "listener", message);
    }
    broker.users = finish_users(&mut draft);
    let auth = auth_tables::finish_auth(&mut draft, broker.users.clone());
    let declares_nobody = broker.users.is_empty() && auth.authenticators.is_empty();
    let declared_rules = rule_tables::finish_rules(&mut draft);
    let declared_connectors = DeclaredObjects(connector_tables::finish_connectors(&mut draft));
    let declared_products = product_tables::finish_products(&mut draft);
    let declared_others = object_tables::finish_objects(&mut draft);
    let outbound = &draft.node.outbound;
    let targets = TargetPolicy::parse(&outbound.deny, &outbound.allow).unwrap_or_default();
    let queue = finish_queue(u64::from(max_packet_size), &mut draft);
    let cluster = cluster_settings::finish_cluster(&mut draft);
    check_size_classes(&mut draft);
    let data_dir = draft.node.data_dir.take();
    let data_dir = data_dir.unwrap_or_else(|| home.default_dir());
    settings_view::set_default_value(
        &mut settings,
        "node.data_dir",
        &data_dir.display().to_string(),
    );
    let config = Config {
        data_dir,
        settings,
        running,
        rules: draft.node.rules.clone(),
        devices: draft.node.devices.clone(),
        telemetry: draft.node.telemetry.clone(),
        alarms: draft.node.alarms.clone(),
        commands: draft.node.commands.clone(),
        files: transfer::TransferSettings {
            fsync: draft.node.store.fsync,
            ..draft.node.files.clone()
        },
        link: draft.node.link.clone(),
        firmware: firmware::FirmwareSettings {
            max_packet_bytes: u64::from(max_packet_size),
            node: cluster.as_ref().map(|cluster| cluster.node.clone()),
            ..draft.node.firmware.clone()
        },
        simulations: draft.node.simulations,
        declared_rules,
        declared_connectors,
        declared_products,
        declared_others,
        queue,
        targets,
        on_damage: draft.node.on_damage,
        backup: draft.node.backup.clone(),
        cluster,
        store: draft.node.store_enabled.then(|| draft.node.store.clone()),
        warnings: collect_warnings(
            &broker.listeners,
            declares_nobody,
            http.as_ref().filter(|_| http_tls.is_none()),
        ),
        auth,
        http,
        http_tls,
        log_level: std::mem::take(&mut draft.node.log_level),
        log_format: draft.node.log_format,
        file,
        origins: std::mem::take(&mut draft.origins),
        declared_at: std::mem::take(&mut draft.declared_at),
        broker,
    };
    (config, draft)
}

/// The limits of size classes must not descend.
fn check_size_classes(draft: &mut ConfigDraft) {
    let link = &draft.node.link;
    let limits = [
        ("link.tiny_limit_bytes", link.tiny_limit_bytes),
        ("link.small_limit_bytes", link.small_limit_bytes),
        ("link.medium_limit_bytes", link.medium_limit_bytes),
    ];
    for ((lower_key, lower), (key, limit)) in limits.iter().zip(&limits[1..]) {
        if limit < lower {
            let message = format!("{limit} is less than {lower_key}, which is {lower}");
            // One of them is not the default.
            let origin = match draft.origin(key) {
                ValueOrigin::Default => draft.origin(lower_key),
                origin => origin,
            };
            draft.add_error(origin, *key, message);
        }
    }
}

/// The server that stores session queues, if there is one.
fn finish_queue(
    max_packet_size: u64,
    draft: &mut ConfigDraft,
) -> Option<(offline::QueueBackendKind, offline::QueueBackendOptions)> {
    let queue = &mut draft.node.queue;
    let kind = match queue.kind {
        QueueStoreKind::Embedded => return None,
        QueueStoreKind::Redis => offline::QueueBackendKind::Redis,
        QueueStoreKind::MySql => offline::QueueBackendKind::MySql,
    };
    let url = queue.url.take();
    let seconds = |number: u32| Duration::from_secs(number.into());
    let options = offline::QueueBackendOptions {
        url: url.clone().unwrap_or_default(),
        prefix: queue.prefix.clone(),
        tls_ca: queue.tls_ca.take(),
        connect_timeout: seconds(queue.connect_timeout_s),
        command_timeout: seconds(queue.command_timeout_s),
        // Names and properties are stored with the payload; all come from one packet.
        max_body_bytes: max_packet_size + (64 << 10),
    };
    if url.is_none() {
        let origin = draft.origin("store.queue_backend");
        let message = "store.queue_backend names a server that needs store.queue_url; set it, best as TIDEGATE_STORE__QUEUE_URL";
        draft.add_error(origin, "store.queue_url", message);
        return None;
    }
    if let Err(error) = offline::create_backend(kind, &options) {
        let key = match error.starts_with("prefix") {
            true => "store.queue_prefix",
            false => "store.queue_url",
        };
        let origin = draft.origin(key);
        draft.add_error(origin, key, &error);
        return None;
    }
    Some((kind, options))
}

pub(super) fn finish_listener(
    listener: ListenerDraft,
    max_packet_size: u32,
    draft: &mut ConfigDraft,
) -> Option<ListenerConfig> {
    let bind = match &listener.bind {
        Some(BindSetting::Off) => return None,
        Some(BindSetting::At(address)) => address.clone(),
        None => {
            add_missing_bind_error(&listener.rest.name, draft);
            return None;
        }
    };
    check_bind(&listener, &bind, draft);
    let tls = finish_tls(&listener, draft);
    if listener.protocol == ListenerProtocol::Quic {
        reject_inapplicable_keys(&listener.rest.name, "proxy_protocol", draft, || {
            "not for protocol \"quic\": the PROXY protocol is for TCP".to_owned()
        });
    }
    if listener.protocol.has_links() {
        for setting in ["proxy_protocol", "max_partial_packet_bytes_per_shard"] {
            reject_inapplicable_keys(&listener.rest.name, setting, draft, || {
                "not for links; remove it".to_owned()
            });
        }
    }
    let websocket_path = finish_websocket(&listener, draft);
    check_bounds(&listener.rest, max_packet_size, draft);
    let relay_path = finish_relay_path(&listener, websocket_path.as_deref(), draft);
    let allowed_origins = finish_origins(&listener, draft);
    Some(ListenerConfig {
        bind,
        tls,
        quic: listener.protocol == ListenerProtocol::Quic,
        link: listener.protocol.has_links(),
        websocket_path,
        relay_path,
        allowed_origins,
        ..listener.rest
    })
}

fn key_of(listener: &ListenerConfig, setting: &str) -> String {
    format!("listener.{}.{setting}", listener.name)
}

/// Adds an error about a listener without an address; its name may be a typo of another listener's.
fn add_missing_bind_error(name: &str, draft: &mut ConfigDraft) {
    let others = draft.origins.keys().filter_map(|key| {
        let other = key.strip_prefix("listener.")?.split_once('.')?.0;
        (other != name).then_some(other)
    });
    let known = others.chain(["mqtt", "ws"]);
    let guess = rules::nearest_name(name, known)
        .filter(|guess| *guess != name)
        .map_or_else(String::new, |guess| {
            format!("; did you mean the listener `{guess}`?")
        });
    let origin = draft.origin(&format!("listener.{name}"));
    let message = format!("missing; a listener needs an address such as \"0.0.0.0:1883\"{guess}");
    draft.add_missing(origin, format!("listener.{name}.bind"), message);
}

fn check_bind(listener: &ListenerDraft, bind: &BindAddress, draft: &mut ConfigDraft) {
    let key = key_of(&listener.rest, "bind");
    let message = match (bind, listener.protocol) {
        (
            BindAddress::Unix(path),
            ListenerProtocol::Unix | ListenerProtocol::Ws | ListenerProtocol::Link,
        ) => {
            if path.as_os_str().len() <= MAX_SOCKET_PATH_BYTES {
                return;
            }
            "the path of a Unix socket may have at most 107 bytes; choose a shorter one".to_owned()
        }
        (BindAddress::Tcp(_), ListenerProtocol::Unix) => {
            "protocol \"unix\" expects the absolute path of a socket".to_owned()
        }
        (BindAddress::Unix(_), other) => format!(
            "a path, but the protocol is \"{}\"; set protocol = \"unix\", or \"ws\" for WebSocket",
            other.name()
        ),
        (BindAddress::Tcp(_), _) => return,
    };
    draft.add_error(draft.origin(&key), key, message);
}

fn finish_tls(listener: &ListenerDraft, draft: &mut ConfigDraft) -> Option<TlsConfig> {
    let ListenerDraft { protocol, tls, .. } = listener;
    let name = &listener.rest.name;
    if !protocol.has_tls() {
        reject_inapplicable_keys(name, "tls.", draft, || {
            format!(
                "not for protocol \"{}\", which has no TLS; set protocol = \"mqtts\", \"wss\", \"quic\" or \"links\"",
                protocol.name()
            )
        });
        return None;
    }
    for (setting, value) in [
        ("tls.certificate", &tls.certificate),
        ("tls.private_key", &tls.private_key),
    ] {
        if value.is_none() {
            let origin = draft.origin(&format!("listener.{name}"));
            let key = key_of(&listener.rest, setting);
            let message = format!(
                "missing; protocol \"{}\" needs a PEM file here (or --set {key}=FILE)",
                protocol.name()
            );
            draft.add_missing(origin, key, message);
        }
    }
    for (setting, is_set) in [
        (
            "tls.require_client_certificate",
            tls.require_client_certificate,
        ),
        ("tls.common_name_as_username", tls.common_name_as_username),
    ] {
        if is_set && tls.client_ca.is_none() {
            let key = key_of(&listener.rest, setting);
            let message = "needs tls.client_ca, the authorities that sign client certificates";
            draft.add_error(draft.origin(&key), key, message);
        }
    }
    let files = TlsConfig {
        certificate: tls.certificate.clone()?,
        private_key: tls.private_key.clone()?,
        client_ca: tls.client_ca.clone(),
        require_client_certificate: tls.require_client_certificate,
        common_name_as_username: tls.common_name_as_username,
    };
    for (setting, message) in tls_files::check_tls_files(&files) {
        let key = key_of(&listener.rest, setting);
        draft.add_error(draft.origin(&key), key, message);
    }
    Some(files)
}

fn finish_websocket(listener: &ListenerDraft, draft: &mut ConfigDraft) -> Option<String> {
    if !listener.protocol.has_websocket() {
        for setting in [
            "websocket_path",
            "relay_path",
            "allowed_origins",
            "compression",
        ] {
            reject_inapplicable_keys(&listener.rest.name, setting, draft, || {
                format!(
                    "not for protocol \"{}\"; use \"ws\" or \"wss\"",
                    listener.protocol.name()
                )
            });
        }
        return None;
    }
    let path = listener.websocket_path.clone();
    let path = path.unwrap_or_else(|| "/mqtt".to_owned());
    if !is_url_path(&path) {
        let key = key_of(&listener.rest, "websocket_path");
        let message = format!("expected a path such as \"/mqtt\", found {path:?}");
        draft.add_error(draft.origin(&key), key, message);
    }
    Some(path)
}

fn is_url_path(path: &str) -> bool {
    let is_path_byte = |b: u8| b.is_ascii_graphic() && !b"?#\"".contains(&b);
    path.starts_with('/') && path.bytes().all(is_path_byte)
}

/// The prefix of relay endpoints; `None`: the listener has none.
fn finish_relay_path(
    listener: &ListenerDraft,
    websocket_path: Option<&str>,
    draft: &mut ConfigDraft,
) -> Option<String> {
    let websocket_path = websocket_path?;
    let path = listener.relay_path.as_deref().unwrap_or("/ws/");
    if path == "off" {
        return None;
    }
    let key = key_of(&listener.rest, "relay_path");
    let is_valid = is_url_path(path) && path.len() > 1 && path.ends_with('/');
    if !is_valid {
        let message = format!("expected a path such as \"/ws/\", or \"off\", found {path:?}");
        draft.add_error(draft.origin(&key), key, message);
    } else if websocket_path.starts_with(path) && listener.relay_path.is_some() {
        let message = format!("the path of MQTT clients, {websocket_path:?}, is below it");
        draft.add_error(draft.origin(&key), key, message);
    }
    Some(path.to_owned())
}

fn finish_origins(listener: &ListenerDraft, draft: &mut ConfigDraft) -> Vec<String> {
    let origins = listener.allowed_origins.as_deref().unwrap_or_default();
    let origins = origins
        .split(',')
        .map(str::trim)
        .filter(|it| !it.is_empty());
    let origins: Vec<String> = origins.map(str::to_owned).collect();
    for origin in &origins {
        if !ws::is_origin(origin) {
            let key = key_of(&listener.rest, "allowed_origins");
            let message = format!(
                "expected origins such as \"https://example.org\", without a path, found {origin:?}"
            );
            draft.add_error(draft.origin(&key), key, message);
        }
    }
    origins
}

fn check_bounds(listener: &ListenerConfig, max_packet_size: u32, draft: &mut ConfigDraft) {
    if listener.max_packet_size > max_packet_size {
        let key = key_of(listener, "max_packet_size");
        let message = format!("more than limits.max_packet_size, which is {max_packet_size}");
        draft.add_error(draft.origin(&key), key, message);
    }
    let (min, max) = (listener.min_keep_alive_s, listener.max_keep_alive_s);
    if max != 0 && min > max {
        let key = key_of(listener, "min_keep_alive_s");
        let message = format!("more than max_keep_alive_s, which is {max}");
        draft.add_error(draft.origin(&key), key, message);
    }
}

/// Adds an error for each explicitly set key of the listener with this prefix.
fn reject_inapplicable_keys(
    name: &str,
    prefix: &str,
    draft: &mut ConfigDraft,
    message: impl Fn() -> String,
) {
    let prefix = format!("listener.{name}.{prefix}");
    let mut origins: Vec<_> = draft
        .origins
        .iter()
        .filter(|(key, _)| key.starts_with(&prefix))
        .map(|(key, origin)| (key.clone(), origin.clone()))
        .collect();
    origins.sort_by(|a, b| a.0.cmp(&b.0));
    for (key, origin) in origins {
        draft.add_error(origin, key, message());
    }
}

fn finish_http(draft: &mut ConfigDraft) -> Option<HttpConfig> {
    let bind = match draft.node.http_bind.take() {
        Some(BindSetting::At(bind)) => bind,
        Some(BindSetting::Off) | None => return None,
    };
    if let BindAddress::Unix(path) = &bind
        && path.as_os_str().len() > MAX_SOCKET_PATH_BYTES
    {
        let message = format!("longer than {MAX_SOCKET_PATH_BYTES} bytes; choose a shorter path");
        draft.add_error(draft.origin("http.bind"), "http.bind", message);
    }
    let http = HttpConfig {
        bind,
        ..draft.node.http.clone()
    };
    if http.anonymous_role != AnonymousRole::None && !http.bind.is_local() {
        let message = format!(
            "only with http.bind on a loopback address such as 127.0.0.1, and other machines can reach {}",
            http.bind
        );
        draft.add_error(
            draft.origin("http.anonymous_role"),
            "http.anonymous_role",
            message,
        );
    }
    Some(http)
}

fn finish_http_tls(draft: &mut ConfigDraft) -> Option<TlsConfig> {
    const CERTIFICATE: &str = "http.tls.certificate";
    const PRIVATE_KEY: &str = "http.tls.private_key";
    let node = &mut draft.node;
    let given = (node.http_certificate.take(), node.http_private_key.take());
    let (certificate, private_key) = match given {
        (None, None) => return None,
        (Some(certificate), Some(private_key)) => (certificate, private_key),
        (certificate, _) => {
            let (missing, given) = match certificate {
                None => (CERTIFICATE, PRIVATE_KEY),
                Some(_) => (PRIVATE_KEY, CERTIFICATE),
            };
            let message = format!("missing; {given} is set, and TLS needs both files");
            draft.add_missing(draft.origin(given), missing.to_owned(), message);
            return None;
        }
    };
    let files = TlsConfig {
        certificate,
        private_key,
        client_ca: None,
        require_client_certificate: false,
        common_name_as_username: false,
    };
    for (setting, message) in tls_files::check_tls_files(&files) {
        let key = format!("http.{setting}");
        draft.add_error(draft.origin(&key), key, message);
    }
    Some(files)
}

fn find_shared_addresses(
    listeners: &[ListenerConfig],
    http: Option<&HttpConfig>,
    draft: &mut ConfigDraft,
) {
    let mut taken: HashMap<String, String> = HashMap::new();
    let binds = listeners.iter().map(|listener| {
        let address = match &listener.bind {
            BindAddress::Tcp(address) => (address.port() != 0).then(|| address.to_string()),
            BindAddress::Unix(path) => Some(path.display().to_string()),
        };
        // TCP and UDP have ports of their own.
        let address = match listener.quic {
            true => address.map(|address| format!("UDP {address}")),
            false => address,
        };
        (format!("listener.{}.bind", listener.name), address)
    });
    let is_chosen = |bind: &BindAddress| matches!(bind, BindAddress::Tcp(at) if at.port() == 0);
    let http = http.filter(|http| !is_chosen(&http.bind));
    let http = http.map(|http| ("http.bind".to_owned(), Some(http.bind.to_string())));
    for (key, address) in binds.chain(http) {
        let Some(address) = address else { continue };
        if let Some(other) = taken.get(&address) {
            let message = format!("{address} is the address of `{other}` too; choose another port");
            draft.add_error(draft.origin(&key), key, message);
        } else {
            taken.insert(address, key);
        }
    }
}

fn finish_users(draft: &mut ConfigDraft) -> Vec<UserConfig> {
    let users = std::mem::take(&mut draft.users);
    let mut complete = Vec::with_capacity(users.len());
    for user in users {
        let key = format!("user.{}.credential", user.username);
        if user.credential.is_empty() {
            let origin = draft.origin(&format!("user.{}", user.username));
            draft.add_missing(origin, key, "missing; `tidegate password` prints one");
        }
        complete.push(UserConfig {
            username: user.username,
            credential: user.credential,
        });
    }
    complete
}

/// Warnings about settings that are valid but probably unintended.
fn collect_warnings(
    listeners: &[ListenerConfig],
    declares_nobody: bool,
    plain_http: Option<&HttpConfig>,
) -> Vec<String> {
    let mut warnings = Vec::new();
    for listener in listeners {
        let name = &listener.name;
        let by_certificate = listener
            .tls
            .as_ref()
            .is_some_and(|tls| tls.common_name_as_username);
        if declares_nobody && !listener.allows_anonymous() && !by_certificate {
            warnings.push(format!(
                "listener `{name}` accepts only users and devices that are created at run time: the \
                 configuration has no [[user]] and no [[auth.authenticator]], and clients without a user \
                 name are rejected; create a user with `tidegate ctl users add`, or set \
                 listener.{name}.allow_anonymous"
            ));
        }
        let is_public = matches!(&listener.bind, BindAddress::Tcp(at) if !at.ip().is_loopback());
        if is_public && listener.allow_anonymous == Some(true) {
            warnings.push(format!(
                "listener `{name}` accepts every client that can reach it (listener.{name}.allow_anonymous)"
            ));
        }
    }
    if let Some(http) = plain_http.filter(|http| !http.bind.is_local()) {
        warnings.push(format!(
            "the HTTP API on {} is not encrypted: passwords and tokens can be read on the way there; put a proxy \
             with TLS in front, or set http.tls.certificate and http.tls.private_key",
            http.bind
        ));
    }
    warnings
}

/// The default data directory of a node.
pub(super) struct DefaultDataDirs {
    pub(super) is_root: bool,
    pub(super) xdg_data_home: Option<PathBuf>,
    pub(super) home: Option<PathBuf>,
}

impl DefaultDataDirs {
    /// `/var/lib/tidegate` for root, otherwise in the user's home directory.
    fn default_dir(&self) -> PathBuf {
        if self.is_root {
            return "/var/lib/tidegate".into();
        }
        let absolute = |path: &&PathBuf| path.is_absolute();
        match (
            self.xdg_data_home.as_ref().filter(absolute),
            self.home.as_ref().filter(absolute),
        ) {
            (Some(data_home), _) => data_home.join("tidegate"),
            (None, Some(home)) => home.join(".local/share/tidegate"),
            (None, None) => std::env::temp_dir().join("tidegate"),
        }
    }
}
