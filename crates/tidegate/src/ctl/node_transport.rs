//! The API of a node for simulations, with the addresses and credentials of `tidegate ctl`.

use hyper::body::Bytes;
use hyper::{Method, header};
use serde_json::json;
use simulate::{NodeRequest, NodeTransport};
use tokio::runtime::Runtime;

use super::error::CtlError;
use super::http::ApiClient;

/// Statuses after which a simulation continues.
const EXPECTED_REJECTIONS: [u16; 3] = [404, 409, 412];

pub(super) struct CtlNodeTransport {
    client: ApiClient,
    runtime: Runtime,
}

impl CtlNodeTransport {
    /// `runtime` has threads of its own, since several threads send requests.
    pub(super) fn new(client: ApiClient, runtime: Runtime) -> Self {
        Self { client, runtime }
    }
}

impl NodeTransport for CtlNodeTransport {
    fn send(&self, request: &NodeRequest<'_>) -> anyhow::Result<(u16, String)> {
        let method = Method::from_bytes(request.method.as_bytes())?;
        let body = request.body;
        let body =
            body.map(|(media_type, body)| (media_type, Bytes::copy_from_slice(body.as_bytes())));
        let fields = match request.is_creation {
            true => vec![(header::IF_NONE_MATCH, "*")],
            false => Vec::new(),
        };
        let answer = self
            .client
            .request_text(method, request.path, body, &fields);
        match self.runtime.block_on(answer) {
            Err(CtlError::Rejected { status, detail }) if EXPECTED_REJECTIONS.contains(&status) => {
                Ok((status, json!({"detail": detail}).to_string()))
            }
            answer => Ok(answer?),
        }
    }

    fn address(&self) -> String {
        self.client.url_of("")
    }
}
