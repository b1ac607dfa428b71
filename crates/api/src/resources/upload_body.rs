//! The body of an upload: read piece by piece, written to the disk, never in memory as a whole.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{Method, StatusCode};
use bytes::BytesMut;
use http_body_util::BodyExt as _;
use ring::digest::{Algorithm, Context};
use tokio::time::{sleep, timeout};
use transfer::{FileOwner, FileService, FileTarget, TransferError, TransferErrorKind};
use wall_clock::now_ms;

use crate::blocking::run_blocking;
use crate::call::ApiCall;
use crate::problem_details::ProblemDetails;

/// Bytes that are written at once.
const PIECE_BYTES: usize = 1 << 20;
const UNAVAILABLE: &str = "The file cannot be written now.";

/// Whether a request carries a file as its body.
pub(crate) fn is_upload(request: &axum::extract::Request) -> bool {
    let (method, path) = (request.method(), request.uri().path());
    let Some(rest) = path.strip_prefix("/api/v1/") else {
        return false;
    };
    // Of a device: `{token}/uploads/{name}`.
    let is_of_device = || rest.split('/').nth(1) == Some("uploads");
    match rest.starts_with("tus") {
        _ if rest == "imports" => method == Method::POST,
        true => method == Method::PATCH || method == Method::POST,
        false => method == Method::PUT && (rest.starts_with("uploads/") || is_of_device()),
    }
}

pub(super) fn to_problem(error: TransferError) -> ProblemDetails {
    let detail = format!("{}.", error.detail);
    match error.kind {
        TransferErrorKind::InvalidFileCommand | TransferErrorKind::InvalidRequest => {
            ProblemDetails::bad_request(detail)
        }
        TransferErrorKind::NotFound => ProblemDetails::not_found(detail),
        TransferErrorKind::Conflict
        | TransferErrorKind::Incomplete
        | TransferErrorKind::QuotaExceeded => ProblemDetails::conflict(detail),
        TransferErrorKind::ChecksumMismatch => ProblemDetails::unprocessable(detail),
        TransferErrorKind::TooLarge => ProblemDetails::new(StatusCode::PAYLOAD_TOO_LARGE, detail),
        TransferErrorKind::DiskFull => ProblemDetails::storage_full(detail),
        TransferErrorKind::Disabled => ProblemDetails::new(StatusCode::FORBIDDEN, detail),
        TransferErrorKind::Paused => ProblemDetails::new(StatusCode::LOCKED, detail),
        TransferErrorKind::Busy | TransferErrorKind::Storage => ProblemDetails::unavailable(detail),
    }
}

/// Runs a call of the engine, which may wait for the disk.
pub(super) async fn run_on_files<T: Send + 'static>(
    files: &FileService,
    work: impl FnOnce(&FileService) -> Result<T, TransferError> + Send + 'static,
) -> Result<T, ProblemDetails> {
    let files = files.clone();
    let done = run_blocking(move || work(&files), UNAVAILABLE).await?;
    done.map_err(to_problem)
}

/// Where an upload is written.
pub(super) struct UploadTarget {
    pub(super) id: String,
    pub(super) owner: FileOwner,
    pub(super) offset: u64,
    /// Bytes that may arrive at most; `None`: no limit but those of the node.
    pub(super) max_bytes: Option<u64>,
}

/// What became of the body of an upload.
pub(super) struct ReceivedBody {
    /// Bytes that were written.
    pub(super) bytes: u64,
    /// The digest of all of them, if one was requested.
    pub(super) digest: Option<Vec<u8>>,
    /// Why the rest did not arrive.
    pub(super) failure: Option<ProblemDetails>,
}

struct PieceReader {
    body: Body,
    within: Duration,
    failure: Option<ProblemDetails>,
}

impl PieceReader {
    /// The next bytes; empty: the body has ended or failed.
    async fn next_piece(&mut self) -> Bytes {
        let mut piece = BytesMut::new();
        while piece.len() < PIECE_BYTES && self.failure.is_none() {
            let frame = match timeout(self.within, self.body.frame()).await {
                Ok(None) => break,
                Ok(Some(Ok(frame))) => frame,
                Ok(Some(Err(_))) => {
                    let detail = "The request body is incomplete.";
                    self.failure = Some(ProblemDetails::bad_request(detail));
                    break;
                }
                Err(_) => {
                    let seconds = self.within.as_secs();
                    let detail = format!("Nothing of the body arrived within {seconds} s.");
                    self.failure = Some(ProblemDetails::new(StatusCode::REQUEST_TIMEOUT, detail));
                    break;
                }
            };
            if let Ok(data) = frame.into_data() {
                piece.extend_from_slice(&data);
            }
        }
        piece.freeze()
    }
}

/// Writes the body of a request to a transfer. With `digest` the bytes are only staged, and count when the caller records
/// them; otherwise each piece counts at once.
pub(super) async fn receive_body(
    call: &mut ApiCall,
    target: UploadTarget,
    digest: Option<&'static Algorithm>,
) -> ReceivedBody {
    let app = call.app.clone();
    let mut reader = PieceReader {
        body: call.take_body(),
        within: app.config.body_timeout(),
        failure: None,
    };
    let mut context = digest.map(Context::new);
    let mut bytes = 0;
    loop {
        let piece = reader.next_piece().await;
        let len = piece.len() as u64;
        if len == 0 {
            break;
        }
        if target.max_bytes.is_some_and(|most| bytes + len > most) {
            let most = target.max_bytes.unwrap_or_default();
            let detail = format!("The body has more than the {most} bytes that are missing.");
            let too_large = ProblemDetails::new(StatusCode::PAYLOAD_TOO_LARGE, detail);
            reader.failure = Some(too_large);
            break;
        }
        if let Some(context) = &mut context {
            context.update(&piece);
        }
        let (id, offset, is_staged) = (target.id.clone(), target.offset + bytes, digest.is_some());
        let written = run_on_files(&app.files, move |files| {
            if is_staged {
                return files.stage(&id, offset, &piece);
            }
            let written = files.write(FileTarget::Id(&id), offset, &piece, None)?;
            files.commit(&written)
        });
        if let Err(problem) = written.await {
            reader.failure = Some(problem);
            break;
        }
        bytes += len;
        let paused_until_ms = app.files.charge_rate(&target.owner, len);
        let pause_ms = paused_until_ms.saturating_sub(now_ms());
        if pause_ms > 0 {
            sleep(Duration::from_millis(pause_ms)).await;
        }
    }
    ReceivedBody {
        bytes,
        digest: context.map(|context| context.finish().as_ref().to_vec()),
        failure: reader.failure,
    }
}
