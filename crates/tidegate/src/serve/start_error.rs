//! Start errors, with the setting to change and the remedy.

use std::io::{Error, ErrorKind};

use broker::{StartError, TlsError};

use crate::config::{Config, ValueOrigin};

pub(super) fn http_error(error: &api::HttpServerError, config: &Config) -> anyhow::Error {
    match error {
        api::HttpServerError::Bind { address, source } => {
            let cause = listen_error("http", &address.to_string(), "http.bind", source, config);
            anyhow::Error::msg(cause)
        }
        other => anyhow::Error::msg(other.to_string()),
    }
}

pub(super) fn http_tls_error(error: &TlsError) -> anyhow::Error {
    anyhow::anyhow!("http.tls: {error}; `tidegate config check` checks the files")
}

pub(super) fn broker_error(error: &StartError, config: &Config) -> anyhow::Error {
    match error {
        StartError::Listen {
            listener,
            address,
            source,
        } => {
            let key = format!("listener.{listener}.bind");
            anyhow::Error::msg(listen_error(listener, address, &key, source, config))
        }
        StartError::Tls { listener, source } => {
            let key = format!("listener.{listener}.tls");
            anyhow::anyhow!("{key}: {source}; `tidegate config check` checks the files")
        }
        other => anyhow::Error::msg(other.to_string()),
    }
}

/// An error of something that was valid when the configuration was read, such as a deleted file.
pub(super) fn auth_error(errors: &[auth::AuthSettingsError]) -> anyhow::Error {
    let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
    anyhow::Error::msg(errors.join("\n"))
}

/// Names the listener, the address, the key, its origin and the remedy.
fn listen_error(
    listener: &str,
    address: &str,
    key: &str,
    error: &Error,
    config: &Config,
) -> String {
    let is_socket = address.starts_with('/');
    let flag = match listener {
        "mqtt" | "mqtts" | "ws" | "http" => format!("--{listener} ADDR"),
        _ => format!("--set {key}=ADDR"),
    };
    let (what, to_do) = match error.kind() {
        ErrorKind::AddrInUse => (
            "the address is in use by another program".to_owned(),
            format!("stop that program, or listen elsewhere with {flag}"),
        ),
        ErrorKind::AddrNotAvailable => (
            "this machine does not have this address".to_owned(),
            format!("choose one it has with {flag}"),
        ),
        ErrorKind::PermissionDenied if is_socket => (
            error.to_string(),
            format!("choose a writable directory with {flag}"),
        ),
        ErrorKind::PermissionDenied => (
            error.to_string(),
            format!("ports below 1024 need CAP_NET_BIND_SERVICE; choose another with {flag}"),
        ),
        _ => (error.to_string(), format!("choose another with {flag}")),
    };
    let origin = match config.origin(key) {
        ValueOrigin::Default => "the default".to_owned(),
        origin => format!("from {origin}"),
    };
    format!("listener `{listener}` cannot listen on {address}: {what}; {to_do} ({key}, {origin})")
}

/// Rule errors of the configuration; the configuration itself has been checked before.
pub(super) fn rules_error(problems: &[(usize, engine::RuleDefinitionError)]) -> anyhow::Error {
    let lines = problems
        .iter()
        .map(|(n, problem)| format!("[[rule]] {}: {problem}", n + 1));
    anyhow::anyhow!("{}", lines.collect::<Vec<_>>().join("\n"))
}
