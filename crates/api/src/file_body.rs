//! Files of the node as the bodies of responses.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use futures_util::stream;

use crate::blocking::run_blocking;
use crate::call::ApiCall;
use crate::problem_details::{ApiResult, ProblemDetails};

const PIECE_BYTES: u64 = 256 << 10;
const UNREADABLE: &str = "The file cannot be read now.";

/// Sends a complete file, whose name consists of ASCII letters, digits, `-` and `.`.
pub(crate) async fn download(
    call: &ApiCall,
    path: PathBuf,
    media_type: &'static str,
    name: &str,
) -> ApiResult {
    let opened = run_blocking(
        move || {
            let file = File::open(path)?;
            let bytes = file.metadata()?.len();
            io::Result::Ok((file, bytes))
        },
        UNREADABLE,
    );
    let (file, bytes) = opened.await?.map_err(|error| {
        ProblemDetails::unavailable(format!("The file cannot be read: {error}."))
    })?;
    call.mark_long_lived();
    let mut response = Response::new(stream_file(file, 0..bytes, |_| ()));
    let fields = response.headers_mut();
    fields.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    fields.insert(header::CONTENT_LENGTH, bytes.into());
    if let Ok(value) = HeaderValue::try_from(format!("attachment; filename=\"{name}\"")) {
        fields.insert(header::CONTENT_DISPOSITION, value);
    }
    Ok(response)
}

/// Reads a part of a file piece by piece, as the client takes them; `count_sent` gets the length of each piece.
pub(crate) fn stream_file(
    file: File,
    Range { start, end }: Range<u64>,
    count_sent: impl Fn(u64) + Clone + Send + 'static,
) -> Body {
    let file = Arc::new(file);
    Body::from_stream(stream::try_unfold(start, move |at| {
        let (file, count_sent) = (file.clone(), count_sent.clone());
        async move {
            if at >= end {
                return Ok(None);
            }
            let read = move || -> io::Result<Bytes> {
                let mut piece = vec![0; PIECE_BYTES.min(end - at) as usize];
                file.read_exact_at(&mut piece, at)?;
                Ok(piece.into())
            };
            let piece = tokio::task::spawn_blocking(read).await;
            let piece = piece.map_err(io::Error::other)??;
            count_sent(piece.len() as u64);
            let next = at + piece.len() as u64;
            io::Result::Ok(Some((piece, next)))
        }
    }))
}
