//! The node to control and the credentials. The default is the node of this machine's data
//! directory, whose token file grants the admin role. Otherwise a URL with an API key, a token, or
//! an operator's name and password.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use serde_json::Value;

use super::error::CtlError;
use crate::config::{self, ConfigSources};
use crate::password_command;
use crate::serve::data_dir::TOKEN_FILE;

#[derive(Args, Clone)]
#[command(next_help_heading = "Node and credentials")]
pub(super) struct TargetArgs {
    /// The node's HTTP address, such as `https://node.example` or unix:/run/tidegate/http.sock (or in the environment variable TIDEGATE_API_URL) [default:
    /// the node of the data directory]
    #[arg(long, value_name = "URL", global = true)]
    url: Option<String>,
    /// Data directory of a node on this machine (or in the environment variable TIDEGATE_DATA_DIR) [default: that of
    /// `tidegate serve`]
    #[arg(
        id = "ctl_data_dir",
        long = "data-dir",
        value_name = "DIR",
        global = true
    )]
    data_dir: Option<PathBuf>,
    /// File with an API key as ID:SECRET on one line (or in the environment variable
    /// TIDEGATE_API_KEY)
    #[arg(long, value_name = "FILE", global = true)]
    key_file: Option<PathBuf>,
    /// File with a token (or in the environment variable TIDEGATE_API_TOKEN)
    #[arg(long, value_name = "FILE", global = true)]
    token_file: Option<PathBuf>,
    /// Log in as this operator; the password is prompted for, or read from --login-password-file
    #[arg(long, value_name = "NAME", global = true)]
    login: Option<String>,
    /// File with the password of --login
    #[arg(long, value_name = "FILE", requires = "login", global = true)]
    login_password_file: Option<PathBuf>,
    /// PEM file with the authorities to trust for https:// instead of the system's
    #[arg(long, value_name = "FILE", global = true)]
    cafile: Option<PathBuf>,
}

/// A node and the credentials for it.
pub(super) struct NodeTarget {
    pub(super) is_tls: bool,
    /// The socket of `unix:/path`, instead of host and port.
    pub(super) socket: Option<PathBuf>,
    pub(super) host: String,
    pub(super) port: u16,
    /// Path before `/api`; empty or beginning with a slash.
    pub(super) prefix: String,
    pub(super) cafile: Option<PathBuf>,
    pub(super) proof: ApiCredentials,
}

pub(super) enum ApiCredentials {
    Nothing,
    Token(String),
    /// `ID:SECRET`
    ApiKey(String),
    Login {
        username: String,
        password: String,
    },
}

impl fmt::Display for NodeTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(socket) = &self.socket {
            return write!(f, "unix:{}", socket.display());
        }
        let scheme = if self.is_tls { "https" } else { "http" };
        write!(f, "{scheme}://{}:{}{}", self.host, self.port, self.prefix)
    }
}

impl TargetArgs {
    pub(super) fn resolve(&self) -> anyhow::Result<NodeTarget> {
        let mut proof = self.credentials()?;
        let (url, is_given) = match self
            .url
            .clone()
            .or_else(|| environment_variable("TIDEGATE_API_URL"))
        {
            Some(url) => (url, true),
            None => {
                let data_dir = self.data_dir()?;
                if matches!(proof, ApiCredentials::Nothing) {
                    proof = local_token(&data_dir)?;
                }
                (address_of(&data_dir)?, false)
            }
        };
        // A URL may be combined with a data directory, whose token is then used.
        if is_given && matches!(proof, ApiCredentials::Nothing) && self.data_dir.is_some() {
            proof = local_token(&self.data_dir()?)?;
        }
        let socket = url.strip_prefix("unix:").map(PathBuf::from);
        let (is_tls, host, port, prefix) = match &socket {
            Some(socket) if socket.is_absolute() => {
                (false, "localhost".to_owned(), 80, String::new())
            }
            Some(_) => {
                let detail = format!("--url {url:?}: expected unix: and an absolute path");
                return Err(CtlError::Usage(detail).into());
            }
            None => parse(&url)?,
        };
        Ok(NodeTarget {
            is_tls,
            socket,
            host,
            port,
            prefix,
            cafile: self.cafile.clone(),
            proof,
        })
    }

    fn credentials(&self) -> anyhow::Result<ApiCredentials> {
        if let Some(username) = self.login.clone() {
            let password = match &self.login_password_file {
                Some(file) => password_command::from_file(file)?,
                None => password_command::prompt(&format!("Password of {username}: "))?,
            };
            let password = String::from_utf8(password).context("the password is not UTF-8")?;
            return Ok(ApiCredentials::Login { username, password });
        }
        if let Some(file) = &self.key_file {
            let key = read_one_line(file)?;
            let is_key = (key.split_once(':')).is_some_and(|(id, secret)| {
                !id.is_empty() && !secret.is_empty() && !key.contains(char::is_control)
            });
            if !is_key {
                let shown = file.display();
                let detail = format!(
                    "{shown}: expected one line ID:SECRET, as `ctl api-keys add` prints it"
                );
                return Err(CtlError::Usage(detail).into());
            }
            return Ok(ApiCredentials::ApiKey(key));
        }
        if let Some(file) = &self.token_file {
            return Ok(ApiCredentials::Token(read_one_line(file)?));
        }
        Ok(
            match (
                environment_variable("TIDEGATE_API_KEY"),
                environment_variable("TIDEGATE_API_TOKEN"),
            ) {
                (Some(key), _) => ApiCredentials::ApiKey(key),
                (None, Some(token)) => ApiCredentials::Token(token),
                (None, None) => ApiCredentials::Nothing,
            },
        )
    }

    fn data_dir(&self) -> anyhow::Result<PathBuf> {
        match &self.data_dir {
            Some(data_dir) => Ok(data_dir.clone()),
            None => Ok(config::load(&ConfigSources::from_process(None))?.data_dir),
        }
    }
}

fn environment_variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn read_one_line(path: &Path) -> anyhow::Result<String> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(text.trim().to_owned())
}

/// The token of a running local node; without one the node may still allow anonymous requests.
fn local_token(data_dir: &Path) -> anyhow::Result<ApiCredentials> {
    let path = data_dir.join(TOKEN_FILE);
    match std::fs::read_to_string(&path) {
        Ok(token) => Ok(ApiCredentials::Token(token.trim().to_owned())),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            let path = path.display();
            Err(CtlError::Usage(format!(
                "{path} belongs to another user; run as the user of the node, or give --login, --key-file or --token-file"
            ))
            .into())
        }
        Err(_) => Ok(ApiCredentials::Nothing),
    }
}

/// The HTTP address of the node of a data directory.
fn address_of(data_dir: &Path) -> anyhow::Result<String> {
    let shown = data_dir.display();
    let text = std::fs::read_to_string(data_dir.join("node.json")).map_err(|_| {
        CtlError::Usage(format!(
            "no node runs with the data directory {shown}. For a node with another one, give --data-dir DIR or set the \
             environment variable TIDEGATE_DATA_DIR; for a node elsewhere, give --url URL"
        ))
    })?;
    let node: Value =
        serde_json::from_str(&text).with_context(|| format!("{shown}/node.json is damaged"))?;
    let mut listeners = node["listeners"].as_array().into_iter().flatten();
    let found = listeners.find_map(|listener| {
        let protocol = listener["protocol"].as_str()?;
        let is_http = ["http", "https"].contains(&protocol);
        is_http.then_some((protocol, listener["address"].as_str()?))
    });
    let (scheme, address) = found.ok_or_else(|| {
        CtlError::Usage(format!(
            "the node with the data directory {shown} does not serve HTTP; it was started with http.bind = \"off\""
        ))
    })?;
    if address.starts_with('/') {
        return Ok(format!("unix:{address}"));
    }
    // A node bound to all addresses also listens on loopback.
    let address = address
        .replace("0.0.0.0:", "127.0.0.1:")
        .replace("[::]:", "[::1]:");
    Ok(format!("{scheme}://{address}"))
}

fn parse(url: &str) -> Result<(bool, String, u16, String), CtlError> {
    let wrong = || {
        CtlError::Usage(format!(
            "--url {url:?}: expected http://HOST:PORT, https://HOST or unix:/PATH"
        ))
    };
    let (is_tls, rest) = match url.split_once("://") {
        Some(("http", rest)) => (false, rest),
        Some(("https", rest)) => (true, rest),
        _ => return Err(wrong()),
    };
    let (authority, prefix) = match rest.find('/') {
        Some(slash) => rest.split_at(slash),
        None => (rest, ""),
    };
    if authority.is_empty() || authority.contains('@') || prefix.contains(['?', '#']) {
        return Err(wrong());
    }
    let has_port = authority
        .rsplit_once(':')
        .filter(|(_, port)| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()));
    let (host, port) = match has_port {
        Some((host, port)) => (host, port.parse().map_err(|_| wrong())?),
        None => (authority, if is_tls { 443 } else { 80 }),
    };
    if host.is_empty() || (host.contains(':') && !host.starts_with('[')) {
        return Err(wrong());
    }
    Ok((
        is_tls,
        host.to_owned(),
        port,
        prefix.trim_end_matches('/').to_owned(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read() {
        let read = |url| parse(url).unwrap();
        let of = |is_tls, host: &str, port, prefix: &str| {
            (is_tls, host.to_owned(), port, prefix.to_owned())
        };
        assert_eq!(
            read("http://127.0.0.1:8080"),
            of(false, "127.0.0.1", 8080, "")
        );
        assert_eq!(
            read("https://node.example/tide/"),
            of(true, "node.example", 443, "/tide")
        );
        assert_eq!(read("http://[::1]:81"), of(false, "[::1]", 81, ""));
        assert_eq!(read("http://[::1]"), of(false, "[::1]", 80, ""));
        for wrong in [
            "node",
            "mqtt://node",
            "http://",
            "http://a:b@c",
            "http://::1:80",
            "http://a/?b",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
