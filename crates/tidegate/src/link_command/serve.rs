//! `tidegate link serve`: stores what peers send, and sends what they ask for.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use content::{ContentDigest, ContentHasher, DigestAlgorithm};
use link::config::LinkConfig;
use link::error_code::ErrorCode;
use link::message::MessageId;
use link::net::{Link, LinkDecision, LinkError, LinkListener};
use link::priority::Priority;
use link::wire::handshake::{Credentials, Hello};
use link_carriers::{CarrierAddress, CarrierListener};
use link_gateway::exchange::{FileRequest, Publication, PublicationRejection};
use mqtt::ReasonCode;
use tokio::task::JoinSet;

use super::file_path::path_in;
use super::incoming_file::{IncomingFileError, ReceivedFiles};
use super::options::token;
use super::outgoing_file::{FileSending, LocalFile, collect_files};
use super::rate_limit::RateLimit;
use crate::client::ClientError;
use crate::transfer_progress::{TransferProgress, format_bytes};

const MAX_LINKS: usize = 1000;
/// How long a link without a connection is kept.
const LINK_EXPIRY: Duration = Duration::from_secs(60);
/// Files that are received at a time on one link, and requests that are answered.
const MAX_TASKS: usize = 64;
/// Files in the answer to one request.
const MAX_ANNOUNCED_FILES: usize = 100_000;
/// Pause after the system could not accept a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

#[derive(Args)]
pub(crate) struct LinkServeArgs {
    /// Address to listen at: HOST:PORT for TCP, or tcp://, tls://, ws://, wss://, quic:// and unix:// addresses
    #[arg(value_name = "ADDRESS", default_value = "127.0.0.1:7600")]
    address: CarrierAddress,
    /// Directory of the files
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Token that peers must have; others on this machine can see it, so prefer --token-file or the environment variable
    /// TIDEGATE_LINK_TOKEN
    #[arg(long, value_name = "TEXT")]
    token: Option<String>,
    /// Read the token from a file
    #[arg(long, value_name = "FILE", conflicts_with = "token")]
    token_file: Option<PathBuf>,
    /// Accept peers without a token at an address that other machines reach
    #[arg(long)]
    open: bool,
    /// PEM file with the certificate, for tls://, wss:// and quic://
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// PEM file with the private key of the certificate
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
}

impl LinkServeArgs {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let token = token(self.token.clone(), self.token_file.as_ref())?;
        let carriers = self.bind().await?;
        let is_local = carriers
            .local_address()
            .is_none_or(|at| at.ip().is_loopback());
        if token.is_none() && !is_local && !self.open {
            let text = "anybody who reaches this address could read and replace the files; \
                        name a token with --token-file FILE, or permit it with --open";
            return Err(ClientError::Usage(text.into()).into());
        }
        let dir = std::fs::create_dir_all(&self.dir).and_then(|()| self.dir.canonicalize());
        let dir = dir.with_context(|| format!("cannot use --dir {}", self.dir.display()))?;
        let mut address = self.address.clone();
        if let (CarrierAddress::Network { port, .. }, Some(local)) =
            (&mut address, carriers.local_address())
        {
            *port = local.port();
        }
        eprintln!(
            "links are accepted at {address}; files are in {}",
            dir.display()
        );
        let (listener, mut links) =
            LinkListener::new(LinkConfig::default(), MAX_LINKS, LINK_EXPIRY);
        let server = Arc::new(FileServer {
            received: ReceivedFiles::new(dir.clone()),
            dir,
        });
        tokio::spawn(async move {
            while let Some(accepted) = links.recv().await {
                tokio::spawn(server.clone().serve(accepted.link));
            }
        });
        let token = Arc::new(token);
        loop {
            let pending = match carriers.accept().await {
                Ok(pending) => pending,
                Err(error) => {
                    eprintln!("cannot accept a connection: {error}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let (listener, token) = (listener.clone(), token.clone());
            tokio::spawn(async move {
                let peer = pending
                    .peer()
                    .map_or("a local peer".to_owned(), |at| at.to_string());
                match pending.complete().await {
                    Err(error) => eprintln!("{peer}: {error}"),
                    Ok(accepted) => {
                        let decide = |hello: &Hello| decide(hello, token.as_deref());
                        if let Err(error) = listener.serve(accepted.carrier, decide).await {
                            eprintln!("{peer}: {error}");
                        }
                    }
                }
            });
        }
    }

    async fn bind(&self) -> anyhow::Result<CarrierListener> {
        if let CarrierAddress::Unix(path) = &self.address {
            let bound = broker::open_unix(path, 1024)
                .and_then(|socket| tokio::net::UnixListener::from_std(socket.into()));
            let socket = bound.with_context(|| format!("cannot listen at {}", self.address))?;
            return Ok(CarrierListener::from_unix(socket));
        }
        let tls = match (&self.cert, &self.key) {
            (Some(certificate), Some(private_key)) => {
                let files = broker::config::TlsConfig {
                    certificate: certificate.clone(),
                    private_key: private_key.clone(),
                    client_ca: None,
                    require_client_certificate: false,
                    common_name_as_username: false,
                };
                Some(broker::ListenerTls::load(&files)?.server_config())
            }
            _ => None,
        };
        let is_encrypted = matches!(
            &self.address,
            CarrierAddress::Network { transport, .. } if transport.is_encrypted()
        );
        if is_encrypted && tls.is_none() {
            let text = format!("{} needs --cert FILE and --key FILE", self.address);
            return Err(ClientError::Usage(text).into());
        }
        CarrierListener::bind(&self.address, tls.as_ref())
            .await
            .with_context(|| format!("cannot listen at {}", self.address))
    }
}

fn decide(hello: &Hello, token: Option<&str>) -> LinkDecision {
    let is_permitted = match (token, &hello.credentials) {
        (None, _) => true,
        (Some(expected), Credentials::Token(token)) => digest(expected) == digest(token),
        (Some(_), _) => false,
    };
    if is_permitted {
        LinkDecision::Accept {
            principal: String::new(),
        }
    } else {
        LinkDecision::Reject {
            code: ErrorCode::NOT_AUTHENTICATED,
            text: "the token is missing or wrong".to_owned(),
        }
    }
}

/// Digests are compared, so that the time of the comparison does not reveal the token.
fn digest(token: &str) -> ContentDigest {
    let mut hasher = ContentHasher::new(DigestAlgorithm::Blake3);
    hasher.update(token.as_bytes());
    hasher.finish()
}

/// Messages are for nodes, which have topics. If the link ends, nobody waits for the answer.
async fn reject_publication(link: &Link, id: MessageId) {
    let reason = "this end stores files and has no topics; publish to a node".to_owned();
    let code = ReasonCode::IMPLEMENTATION_SPECIFIC_ERROR;
    let rejection = PublicationRejection::message(id, "", code, reason);
    let _ = link.send(Priority::High, rejection).await;
}

struct FileServer {
    dir: PathBuf,
    received: ReceivedFiles,
}

impl FileServer {
    /// Serves a link until it ends.
    async fn serve(self: Arc<Self>, link: Link) {
        let mut tasks = JoinSet::new();
        loop {
            while tasks.len() >= MAX_TASKS {
                tasks.join_next().await;
            }
            tokio::select! {
                stream = link.receive_stream() => {
                    let Ok(stream) = stream else { break };
                    let server = self.clone();
                    tasks.spawn(async move {
                        let (limit, progress) = (RateLimit::new(None), TransferProgress::default());
                        let receiving = server.received.receive(stream, &limit, &progress, false);
                        match receiving.await {
                            Ok(file) => {
                                let digest = file.digest.map(|digest| format!(", {digest:?}"));
                                let digest = digest.unwrap_or_default();
                                let size = format_bytes(file.size);
                                eprintln!("received {} ({size}{digest})", file.name);
                            }
                            // The sender went away, or shows the reason.
                            Err(IncomingFileError::Link(_)) => {}
                            Err(error) => eprintln!("a file was not received: {error}"),
                        }
                    });
                }
                message = link.receive() => {
                    let Ok(message) = message else { break };
                    let (server, link) = (self.clone(), link.clone());
                    tasks.spawn(async move {
                        let id = message.id;
                        let payload = message.payload.into_bytes();
                        if Publication::is_publication(&payload) {
                            reject_publication(&link, id).await;
                        } else if let Ok(request) = serde_json::from_slice(&payload) {
                            // If the link has ended, the answer is not needed.
                            let _ = server.answer(&link, request).await;
                        }
                    });
                }
                Some(_) = tasks.join_next() => {}
            }
        }
    }

    async fn answer(&self, link: &Link, request: FileRequest) -> Result<(), LinkError> {
        let found = tokio::task::block_in_place(|| self.find(&request.names));
        let announced = found.as_ref().map_err(Clone::clone).map(|files| {
            let files = files.iter();
            files.map(LocalFile::announcement).collect()
        });
        link.send(Priority::High, request.answer(announced)).await?;
        let sending = FileSending {
            digest: DigestAlgorithm::Blake3,
            // The receiver decides what it uses of an interrupted transfer.
            is_resume: true,
            request: Some(request.request),
            limit: Arc::new(RateLimit::new(None)),
            progress: Arc::default(),
        };
        for file in found.unwrap_or_default() {
            if let Err(error) = sending.send(link, &file).await {
                eprintln!("{} was not sent: {error}", file.name);
            }
        }
        Ok(())
    }

    fn find(&self, names: &[String]) -> Result<Vec<LocalFile>, String> {
        let mut files = Vec::new();
        for name in names {
            // `.` is everything.
            let (path, name) = match name.as_str() {
                "." => (self.dir.clone(), ""),
                name => (path_in(&self.dir, name)?, name),
            };
            let found = collect_files(&path, name).map_err(|error| format!("{name}: {error}"))?;
            let visible = found
                .into_iter()
                .filter(|file| path_in(&self.dir, &file.name).is_ok());
            files.extend(visible);
            if files.len() > MAX_ANNOUNCED_FILES {
                return Err(format!(
                    "more than {MAX_ANNOUNCED_FILES} files; ask for fewer"
                ));
            }
        }
        Ok(files)
    }
}
