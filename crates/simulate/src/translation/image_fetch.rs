//! Downloads of images by URL, as JetLinks' devices do it: digested while they arrive, and not stored.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::http1::handshake;
use hyper::{Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use tokio::sync::Semaphore;

use super::server_target::{ServerTarget, describe};
use crate::definition::TargetDefinition;
use crate::image_digest::ImageDigest;

/// Servers whose addresses are remembered.
const MAX_SERVERS: usize = 100;
/// Time for the next bytes of a download.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// An image to download.
#[derive(Debug)]
pub(crate) struct ImageRequest {
    /// A URL, or a path of the HTTP API of the node.
    pub(crate) url: String,
    pub(crate) size: u64,
    pub(crate) digest: ImageDigest,
    /// What the digest must be, in hexadecimal.
    pub(crate) expected_digest: String,
}

/// Why an image was not downloaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ImageFailure {
    /// Its size or digest is wrong.
    Damaged,
    Unavailable(String),
}

/// The servers of images, with a limit of simultaneous downloads.
#[derive(Debug)]
pub(super) struct ImageServers {
    target: TargetDefinition,
    folder: PathBuf,
    permits: Semaphore,
    /// By scheme and authority.
    servers: Mutex<HashMap<String, Arc<ServerTarget>>>,
}

impl ImageServers {
    pub(super) fn new(target: &TargetDefinition, folder: PathBuf) -> Self {
        Self {
            target: target.clone(),
            folder,
            permits: Semaphore::new(target.downloads as usize),
            servers: Mutex::default(),
        }
    }

    /// Downloads and verifies an image; returns its size.
    pub(super) async fn fetch(self: &Arc<Self>, image: ImageRequest) -> Result<u64, ImageFailure> {
        // The semaphore is never closed.
        let _permit = self.permits.acquire().await;
        let unavailable = ImageFailure::Unavailable;
        let (origin, path) = self.split(&image.url).map_err(unavailable)?;
        let server = self.server(origin).await.map_err(unavailable)?;
        let stream = server.connect(None).await;
        let stream = stream.map_err(|error| unavailable(describe(&error)))?;
        let failed = |error: hyper::Error| ImageFailure::Unavailable(error.to_string());
        let (mut sender, connection) = handshake(TokioIo::new(stream)).await.map_err(failed)?;
        let connection = tokio::spawn(async move { drop(connection.await) });
        let request = Request::get(path)
            .header(header::HOST, &server.authority)
            .body(Empty::<bytes::Bytes>::new());
        let request = request.map_err(|error| unavailable(error.to_string()))?;
        let response = tokio::time::timeout(READ_TIMEOUT, sender.send_request(request)).await;
        let response = response.map_err(|_| unavailable("timed out".to_owned()))?;
        let response = response.map_err(failed)?;
        if response.status() != StatusCode::OK {
            let status = response.status().as_u16();
            return Err(unavailable(format!("HTTP {status}")));
        }
        let (mut body, mut digest, mut received) = (response.into_body(), image.digest, 0);
        loop {
            let frame = tokio::time::timeout(READ_TIMEOUT, body.frame()).await;
            let frame = frame.map_err(|_| unavailable("timed out".to_owned()))?;
            let Some(frame) = frame.transpose().map_err(failed)? else {
                break;
            };
            if let Ok(bytes) = frame.into_data() {
                digest.update(&bytes);
                received += bytes.len() as u64;
            }
            if received > image.size {
                return Err(ImageFailure::Damaged);
            }
        }
        connection.abort();
        match received == image.size && digest.matches(&image.expected_digest) {
            true => Ok(received),
            false => Err(ImageFailure::Damaged),
        }
    }

    /// Scheme and authority of a URL, and its path with the query.
    fn split<'u>(&self, url: &'u str) -> Result<(String, &'u str), String> {
        if url.starts_with('/') {
            return Ok((self.target.http.trim_end_matches('/').to_owned(), url));
        }
        let after_scheme = url.find("://").map(|at| at + 3);
        let after_scheme = after_scheme.ok_or("the URL of the image has no scheme")?;
        let path_at = url[after_scheme..].find('/');
        let path_at = path_at.ok_or("the URL of the image has no path")?;
        let (origin, path) = url.split_at(after_scheme + path_at);
        Ok((origin.to_owned(), path))
    }

    async fn server(self: &Arc<Self>, origin: String) -> Result<Arc<ServerTarget>, String> {
        if let Some(known) = self.lock().get(&origin) {
            return Ok(known.clone());
        }
        let (own, url) = (self.clone(), origin.clone());
        let resolving =
            tokio::task::spawn_blocking(move || ServerTarget::new(&url, &own.target, &own.folder));
        let server = resolving.await.map_err(|error| error.to_string())?;
        let server = Arc::new(server.map_err(|error| format!("{error:#}"))?);
        let mut servers = self.lock();
        if servers.len() >= MAX_SERVERS {
            servers.clear();
        }
        servers.insert(origin, server.clone());
        Ok(server)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Arc<ServerTarget>>> {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
