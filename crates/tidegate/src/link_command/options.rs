//! Options of the commands that connect, and the link that they open.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::Args;
use link::config::{AckPolicy, LinkConfig};
use link::durable::FileJournal;
use link::net::{ConnectOptions, Link, LinkError, connect, connect_with_journal};
use link::size_class::SizeClassTable;
use link::wire::handshake::{Credentials, LinkId};
use link_carriers::{CarrierAddress, CarrierConnector};
use tokio::time::Instant;

use super::rate_limit::RateLimit;
use crate::client::{ClientError, TlsTrustArgs, tls_client_config};
use crate::config::parse_size;
use crate::password_command;

/// How often a command examines whether its link has a carrier.
const WATCH_INTERVAL: Duration = Duration::from_millis(200);

#[derive(Args)]
pub(super) struct LinkConnectArgs {
    /// Address of the peer: HOST[:PORT] for TCP, or tcp://, tls://, ws://, wss://, quic:// and unix:// addresses
    #[arg(value_name = "ADDRESS", index = 1)]
    address: CarrierAddress,
    /// Time limit for the first connection, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    connect_timeout: u32,
    /// Give up when the connection has been lost for this time, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    give_up_after: u32,
    /// First sizes of messages of the classes small, medium, large and huge, such as 1KiB,16KiB,128KiB,1MiB, which is the
    /// default
    #[arg(long, value_name = "BYTES,BYTES,BYTES,BYTES", value_parser = parse_size_classes)]
    size_classes: Option<SizeClassTable>,
    #[command(flatten)]
    credentials: LinkCredentialArgs,
    #[command(flatten)]
    tls: TlsTrustArgs,
}

#[derive(Args)]
#[command(next_help_heading = "Credentials")]
struct LinkCredentialArgs {
    /// Token; others on this machine can see it, so prefer --token-file or the environment variable TIDEGATE_LINK_TOKEN
    #[arg(long, value_name = "TEXT")]
    token: Option<String>,
    /// Read the token from a file
    #[arg(long, value_name = "FILE", conflicts_with = "token")]
    token_file: Option<PathBuf>,
    /// User name, with the password in --password-file or the environment variable TIDEGATE_PASSWORD
    #[arg(long, value_name = "NAME", conflicts_with_all = ["token", "token_file"])]
    username: Option<String>,
    /// Read the password from a file
    #[arg(long, value_name = "FILE", requires = "username")]
    password_file: Option<PathBuf>,
    /// Client id at a node; a transfer that another command continues needs it unless the client is a device
    /// [default: a new one; with a journal, one derived from the journal]
    #[arg(long, value_name = "ID", default_value = "", hide_default_value = true)]
    client_id: String,
}

/// How files are transferred.
#[derive(Args)]
#[command(next_help_heading = "Transfer")]
pub(super) struct TransferArgs {
    /// Continue an interrupted transfer of the same files
    #[arg(long)]
    pub(super) resume: bool,
    /// Maximum rate in bytes per second, such as 500kB or 10MiB [default: no limit]
    #[arg(long, value_name = "BYTES", value_parser = parse_rate)]
    limit_rate: Option<u64>,
    /// Show no progress
    #[arg(long, short)]
    pub(super) quiet: bool,
}

impl TransferArgs {
    pub(super) fn rate_limit(&self) -> Arc<RateLimit> {
        Arc::new(RateLimit::new(self.limit_rate))
    }
}

fn parse_rate(text: &str) -> Result<u64, String> {
    parse_size(text)
        .filter(|rate| *rate > 0)
        .ok_or_else(|| "expected bytes per second, such as 500kB or 10MiB".to_owned())
}

fn parse_size_classes(text: &str) -> Result<SizeClassTable, String> {
    let limits: Option<Vec<u64>> = text.split(',').map(parse_size).collect();
    let limits = limits.and_then(|limits| <[u64; 4]>::try_from(limits).ok());
    let [tiny, small, medium, large] = limits
        .ok_or("expected four sizes, such as 1KiB,16KiB,128KiB,1MiB")?
        .map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let table = SizeClassTable {
        tiny_limit_bytes: tiny,
        small_limit_bytes: small,
        medium_limit_bytes: medium,
        large_limit_bytes: large,
    };
    table.validate().map_err(|error| error.to_string())
}

/// A token from an argument, a file or the environment.
pub(super) fn token(
    text: Option<String>,
    file: Option<&PathBuf>,
) -> Result<Option<String>, ClientError> {
    let token = match (text, file) {
        (Some(text), _) => Some(text),
        (None, Some(file)) => Some(read_secret(file)?),
        (None, None) => std::env::var("TIDEGATE_LINK_TOKEN").ok(),
    };
    Ok(token.filter(|token| !token.is_empty()))
}

fn read_secret(file: &Path) -> Result<String, ClientError> {
    let bytes = password_command::from_file(file)
        .map_err(|error| ClientError::Usage(format!("{error:#}")))?;
    let not_text = |_| ClientError::Usage(format!("{} is not UTF-8 text", file.display()));
    String::from_utf8(bytes).map_err(not_text)
}

impl LinkCredentialArgs {
    fn resolve(self) -> Result<Credentials, ClientError> {
        if let Some(user) = self.username {
            let password = match &self.password_file {
                Some(file) => read_secret(file)?,
                None => std::env::var("TIDEGATE_PASSWORD").unwrap_or_default(),
            };
            return Ok(Credentials::UserPassword { user, password });
        }
        let token = token(self.token, self.token_file.as_ref())?;
        Ok(token.map_or(Credentials::None, Credentials::Token))
    }
}

/// An open link of a command.
pub(super) struct CommandLink {
    pub(super) link: Link,
    address: String,
    connect_timeout: Duration,
    give_up_after: Duration,
    last_error: LastError,
}

/// Why the last attempt to connect failed.
type LastError = Arc<Mutex<Option<String>>>;

impl LinkConnectArgs {
    /// Connects, and waits for the first connection.
    pub(super) async fn open(self) -> Result<CommandLink, ClientError> {
        self.open_with(AckPolicy::OnReceipt).await
    }

    /// As [`open`](Self::open); messages are acknowledged by this policy.
    pub(super) async fn open_with(self, ack_policy: AckPolicy) -> Result<CommandLink, ClientError> {
        let link = self.start(ack_policy, None)?;
        link.wait_connected().await?;
        Ok(link)
    }

    /// Begins to connect. What is sent and not acknowledged is stored in this directory, and what an earlier command has
    /// left there is sent.
    pub(super) fn open_with_journal(self, dir: &Path) -> Result<CommandLink, ClientError> {
        let failed = |error| ClientError::Local {
            what: format!("cannot open the journal {}", dir.display()),
            error,
        };
        std::fs::create_dir_all(dir).map_err(failed)?;
        let journal = FileJournal::open(dir, LinkId(random_bytes())).map_err(failed)?;
        self.start(AckPolicy::OnReceipt, Some(journal))
    }

    fn start(
        self,
        ack_policy: AckPolicy,
        journal: Option<FileJournal>,
    ) -> Result<CommandLink, ClientError> {
        let address = self.address.to_string();
        let is_encrypted = matches!(
            &self.address,
            CarrierAddress::Network { transport, .. } if transport.is_encrypted()
        );
        let tls = match is_encrypted {
            true => Some(tls_client_config(&self.tls)?),
            false => None,
        };
        let server_name = self.tls.tls_server_name.clone();
        let connector = CarrierConnector::new(self.address, tls.as_ref(), server_name)
            .map_err(|error| ClientError::Usage(error.to_string()))?;
        let connector = Arc::new(connector);
        let client_id = match (&*self.credentials.client_id, &journal) {
            // A node remembers for a named client which messages it has published, also when it is killed.
            ("", Some(journal)) => format!("link-{}", journal.link_id()),
            (own, _) => own.to_owned(),
        };
        let options = ConnectOptions {
            config: LinkConfig {
                client_id,
                ack_policy,
                size_classes: self.size_classes.unwrap_or_default(),
                ..LinkConfig::default()
            },
            credentials: self.credentials.resolve()?,
            ..ConnectOptions::default()
        };
        let limit = Duration::from_secs(self.connect_timeout.into());
        let last_error = LastError::default();
        let open = {
            let last_error = last_error.clone();
            move || {
                let (connector, last_error) = (connector.clone(), last_error.clone());
                async move {
                    let opened = tokio::time::timeout(limit, connector.open()).await;
                    let opened =
                        opened.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()));
                    let error = opened
                        .as_ref()
                        .err()
                        .map(crate::client::describe_connection_error);
                    *last_error.lock().unwrap_or_else(PoisonError::into_inner) = error;
                    opened
                }
            }
        };
        let link = match journal {
            None => connect(LinkId(random_bytes()), options, open),
            Some(journal) => connect_with_journal(journal, options, open),
        };
        Ok(CommandLink {
            link,
            address,
            connect_timeout: limit,
            give_up_after: Duration::from_secs(self.give_up_after.into()),
            last_error,
        })
    }
}

impl CommandLink {
    /// Waits for the first connection.
    pub(super) async fn wait_connected(&self) -> Result<(), ClientError> {
        match tokio::time::timeout(self.connect_timeout, self.link.connected()).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(self.error(error)),
            Err(_) => Err(ClientError::Unreachable {
                endpoint: self.address.clone(),
                reason: self.reason(),
                hint: "; does `tidegate link serve`, or a node with a link listener, run there?",
            }),
        }
    }

    fn reason(&self) -> String {
        let error = self
            .last_error
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let late = || "the peer does not answer in time".to_owned();
        error.clone().unwrap_or_else(late)
    }

    /// The error of a link for the exit status of the command.
    pub(super) fn error(&self, error: LinkError) -> ClientError {
        match error {
            LinkError::Rejected { code, text } => ClientError::Rejected {
                what: format!("the link ({code})"),
                reason: text,
                is_passing: false,
            },
            LinkError::Stream { code, text } => ClientError::Rejected {
                what: format!("the file ({code})"),
                reason: text,
                is_passing: false,
            },
            error => ClientError::Lost(error.to_string()),
        }
    }

    /// Runs `work` until it ends, or until the link has had no carrier for too long.
    pub(super) async fn run<T>(
        &self,
        work: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, ClientError> {
        tokio::select! {
            result = work => result,
            lost = self.watch() => Err(lost),
        }
    }

    async fn watch(&self) -> ClientError {
        let mut connected = Instant::now();
        loop {
            tokio::time::sleep(WATCH_INTERVAL).await;
            if self.link.is_connected() {
                connected = Instant::now();
            } else if connected.elapsed() >= self.give_up_after {
                return ClientError::Lost(format!(
                    "no connection to {} for {} seconds: {}; continue with --resume",
                    self.address,
                    self.give_up_after.as_secs(),
                    self.reason()
                ));
            }
        }
    }
}

/// Random bytes, different with each call.
pub(super) fn random_bytes() -> [u8; 16] {
    ring::rand::generate(&ring::rand::SystemRandom::new())
        .expect("the system gives random bytes")
        .expose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_classes_are_four_sizes_that_ascend() {
        assert_eq!(
            parse_size_classes("1KiB,16KiB,128KiB,1MiB"),
            Ok(SizeClassTable::default())
        );
        for (wrong, expected) in [
            ("1KiB,16KiB", "four sizes"),
            ("1,2,3,x", "four sizes"),
            ("2,1,3,4", "do not descend"),
            ("1,2,200KiB,1MiB", "131072"),
        ] {
            let error = parse_size_classes(wrong).expect_err(wrong);
            assert!(error.contains(expected), "{error}");
        }
    }
}
