//! Files of other nodes of the cluster: requests are passed on to the node that has the file, and contents arrive piece by piece.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Extensions, HeaderName, HeaderValue, header};
use axum::response::Response;
use futures_util::stream;
use outbound::url_encoding::url_encode;
use serde_json::Value;

use crate::call::{ApiCall, mark_long_lived};
use crate::cluster_calls::execute_at_node;
use crate::node_calls::{NodeCall, ask_for_piece};
use crate::node_files::FilePart;
use crate::object_nodes::{named_node, node_of_file};
use crate::problem_details::{ApiResult, ProblemDetails};
use crate::query_parameters::NODE;
use crate::state::ApiState;

/// Field of a response between nodes, whose body is the part of a file that it names. The other node asks for it afterwards.
const FILE_PART: HeaderName = HeaderName::from_static("tidegate-file-part");
/// Time for one piece.
const PIECE_TIME: Duration = Duration::from_secs(30);

/// The response to another node, without its body.
pub(crate) fn head_for_node(part: &FilePart) -> Response {
    let mut response = Response::new(Body::empty());
    let part = serde_json::to_string(part).ok();
    // Its id and digest are hexadecimal digits.
    if let Some(value) = part.and_then(|part| HeaderValue::try_from(part).ok()) {
        response.headers_mut().insert(FILE_PART, value);
    }
    response
}

/// Adds the body to the response of another node if it is a part of a file there. `extensions` are those of the request.
pub(crate) fn with_content(
    app: &Arc<ApiState>,
    extensions: &Extensions,
    node: &str,
    mut response: Response,
) -> ApiResult {
    let Some(part) = response.headers_mut().remove(FILE_PART) else {
        return Ok(response);
    };
    let part: FilePart = serde_json::from_slice(part.as_bytes())
        .map_err(|_| ProblemDetails::unavailable("Another node has sent an invalid answer."))?;
    mark_long_lived(extensions);
    let bytes = part.end.saturating_sub(part.start);
    *response.body_mut() = content(app.clone(), node.to_owned(), part);
    (response.headers_mut()).insert(header::CONTENT_LENGTH, bytes.into());
    Ok(response)
}

/// Reads the part piece by piece, as the client takes them. If a piece does not arrive, the response ends with an error.
fn content(app: Arc<ApiState>, node: String, part: FilePart) -> Body {
    let start = part.start;
    let source = Arc::new((app, node, part));
    Body::from_stream(stream::try_unfold(start, move |at| {
        let source = source.clone();
        async move {
            let (app, node, part) = &*source;
            let bytes = part.piece_bytes(at);
            if bytes == 0 {
                return Ok(None);
            }
            let piece = {
                let _permit = app.file_pieces.acquire().await.map_err(io::Error::other)?;
                ask_for_piece(app, node, part.clone(), at, PIECE_TIME).await
            };
            let piece = piece.and_then(|piece| match piece.len() as u64 == bytes {
                true => Ok(piece),
                false => Err(format!("it has sent {} bytes, not {bytes}", piece.len())),
            });
            let piece = piece.map_err(|reason| {
                tracing::warn!(
                    node,
                    file = part.id,
                    at,
                    reason,
                    "the download of a file of another node was aborted; clients may continue it with Range"
                );
                io::Error::other(reason)
            })?;
            io::Result::Ok(Some((piece, at + bytes)))
        }
    }))
}

/// The node that has the file of a request, if it is another one than this.
pub(crate) async fn other_holder(
    call: &ApiCall,
    id: &str,
) -> Result<Option<String>, ProblemDetails> {
    match call.app.program.cluster_backend() {
        Some(cluster) if !call.is_from_node() => node_of_file(&call.app, cluster, id).await,
        _ => Ok(None),
    }
}

/// The other node that the request names with the parameter `node`.
pub(crate) fn other_named_node(call: &ApiCall) -> Result<Option<String>, ProblemDetails> {
    let named = call.query.text_value(NODE.name);
    match (named, call.app.program.cluster_backend()) {
        (Some(named), Some(cluster)) if !call.is_from_node() => {
            let node = named_node(cluster, named)?;
            Ok((node != cluster.node()).then_some(node))
        }
        _ => Ok(None),
    }
}

/// Passes a request on to another node.
pub(crate) async fn pass_on(call: &ApiCall, node: &str) -> ApiResult {
    let request = NodeCall::new(&call.parts, &call.identity, call.client_ip);
    let response = execute_at_node(&call.app, node, &request).await?;
    with_content(&call.app, &call.parts.extensions, node, response)
}

/// Reads the description of a file or transfer of another node, as that node shows it to the caller.
pub(crate) struct FileReader {
    app: Arc<ApiState>,
    request: NodeCall,
    /// The other node that has it.
    node: String,
}

impl FileReader {
    /// `None`: no other node has the file.
    pub(crate) async fn of_other_node(
        call: &ApiCall,
        id: &str,
    ) -> Result<Option<Self>, ProblemDetails> {
        let node = other_holder(call, id).await?;
        Ok(node.map(|node| Self {
            app: call.app.clone(),
            request: NodeCall::new(&call.parts, &call.identity, call.client_ip)
                .reading(format!("/api/v1/files/{}", url_encode(id))),
            node,
        }))
    }

    /// `None`: it no longer exists, or the caller may not see it.
    ///
    /// # Errors
    /// If the node does not answer.
    pub(crate) async fn read(&self) -> Result<Option<Value>, ProblemDetails> {
        let response = execute_at_node(&self.app, &self.node, &self.request).await?;
        if !response.status().is_success() {
            return Ok(None);
        }
        let body = axum::body::to_bytes(response.into_body(), usize::MAX).await;
        Ok(body
            .ok()
            .and_then(|body| serde_json::from_slice(&body).ok()))
    }
}
