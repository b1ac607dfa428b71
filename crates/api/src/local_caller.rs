//! Requests of the program itself to the API, without a connection.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request, header};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tower_service::Service as _;

use crate::access::LocalOperator;
use crate::peer_ip::PeerIp;
use crate::simulation_backend::NodeCaller;
use crate::state::ApiState;

/// Maximum size of a response.
const MAX_RESPONSE_BYTES: usize = 16 << 20;

/// Sends requests as a node-wide operator. Requests fail when the API stops.
pub(crate) struct LocalCaller {
    router: Router,
    runtime: Handle,
    operator: LocalOperator,
    stopping: watch::Receiver<bool>,
}

impl LocalCaller {
    /// `name` is that of the operator in the audit log. Must be called within the runtime of the API.
    pub(crate) fn new(app: &Arc<ApiState>, name: &str) -> Self {
        Self {
            router: (app.local_router)(app),
            runtime: Handle::current(),
            operator: LocalOperator::new(name),
            stopping: app.stopping.clone(),
        }
    }
}

impl NodeCaller for LocalCaller {
    fn send(
        &self,
        method: &str,
        path: &str,
        body: Option<(&str, &str)>,
        is_creation: bool,
    ) -> Result<(u16, String), String> {
        if *self.stopping.borrow() {
            return Err("the node is stopping".to_owned());
        }
        let method = Method::from_bytes(method.as_bytes()).map_err(|error| error.to_string())?;
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, "localhost");
        if is_creation {
            request = request.header(header::IF_NONE_MATCH, "*");
        }
        let content = match body {
            Some((media_type, content)) => {
                request = request.header(header::CONTENT_TYPE, media_type);
                Body::from(content.to_owned())
            }
            None => Body::empty(),
        };
        let mut request = request.body(content).map_err(|error| error.to_string())?;
        let extensions = request.extensions_mut();
        extensions.insert(PeerIp(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        extensions.insert(self.operator.clone());
        let mut router = self.router.clone();
        let mut stopping = self.stopping.clone();
        let exchange = async move {
            let Ok(response) = router.call(request).await;
            let status = response.status().as_u16();
            let content = axum::body::to_bytes(response.into_body(), MAX_RESPONSE_BYTES).await;
            let content = content.map_err(|error| error.to_string())?;
            Ok((status, String::from_utf8_lossy(&content).into_owned()))
        };
        self.runtime.block_on(async move {
            tokio::select! {
                answer = exchange => answer,
                _ = stopping.wait_for(|stopping| *stopping) => Err("the node is stopping".to_owned()),
            }
        })
    }
}
