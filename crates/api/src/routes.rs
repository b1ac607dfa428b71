//! The route table and the router built from it. Every request passes the same checks in the same
//! order.

use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{RawPathParams, Request};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, on};
use hyper::body::{Frame, SizeHint};
use namespaces::NamespaceSelection;

use crate::access::{self, LocalOperator};
use crate::audit;
use crate::call::{ApiCall, ApiCaller, SelectedNamespaces, SharedRequestPermit};
use crate::cluster_calls::{self, CallOutcome};
use crate::cluster_files;
use crate::connection_tracker::ConnectionPermit;
use crate::console_page;
use crate::endpoint::{Endpoint, EndpointScope};
use crate::node_calls::NodeCall;
use crate::objects::{self, ObjectBackend};
use crate::origin_guard::{self, OriginGuard};
use crate::peer_ip::PeerIp;
use crate::problem_details::ProblemDetails;
use crate::query_parameters::QueryParameters;
use crate::resources::{RESOURCES, device_http, tus, upload_body};
use crate::state::ApiState;

/// All routes.
pub(crate) fn route_table(backend: &Arc<dyn ObjectBackend>) -> Vec<Endpoint> {
    let mut table = Vec::new();
    for endpoints in RESOURCES {
        table.extend(endpoints());
    }
    table.extend(audit::endpoints());
    for kind in objects::object_kinds(backend) {
        table.extend(objects::object_endpoints(&kind));
    }
    table
}

pub(crate) fn router(app: &Arc<ApiState>, table: Vec<Endpoint>) -> Router {
    let mut router = Router::new();
    for endpoint in table {
        let filter = MethodFilter::try_from(endpoint.method.clone())
            .expect("the table has only methods that axum knows");
        let path = endpoint.path.clone();
        let (app, endpoint) = (app.clone(), Arc::new(endpoint));
        let handler = move |path: Result<RawPathParams, _>, request: Request| {
            let (app, endpoint) = (app.clone(), endpoint.clone());
            async move {
                let path = path.map_err(
                    |rejection: axum::extract::rejection::RawPathParamsRejection| {
                        ProblemDetails::bad_request(format!("The path: {}.", rejection.body_text()))
                    },
                );
                dispatch(app, &endpoint, path, request).await
            }
        };
        router = router.route(&path, on(filter, handler));
    }
    let live = app.config.clone();
    let site = app.console.clone();
    let config = app.config.clone();
    let gate = OriginGuard {
        loopback_only: app.loopback_only,
    };
    router
        .fallback(async move |method: Method, uri: Uri, headers: HeaderMap| {
            let path = uri.path();
            let is_open = config.get().registration_enabled;
            console_page::respond(&*site, &method, path, &headers, is_open).unwrap_or_else(|| {
                let detail = format!("There is no resource at {path}; see / for an overview.");
                ProblemDetails::not_found(detail).into_response()
            })
        })
        .method_not_allowed_fallback(async || {
            let detail = "The resource does not support this method; see the Allow header.";
            ProblemDetails::new(StatusCode::METHOD_NOT_ALLOWED, detail)
        })
        .layer(middleware::from_fn(move |request, next| {
            limit_request_time(live.request_timeout(), request, next)
        }))
        .layer(middleware::from_fn_with_state(gate, origin_guard::check))
        .layer(middleware::from_fn(tus::add_version))
        .layer(middleware::map_response(add_common_fields))
}

async fn dispatch(
    app: Arc<ApiState>,
    endpoint: &Endpoint,
    path: Result<RawPathParams, ProblemDetails>,
    request: Request<Body>,
) -> Result<Response, ProblemDetails> {
    let (parts, body) = request.into_parts();
    let from = parts.extensions.get::<PeerIp>();
    let from = from.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |from| from.0);
    let revocations = app.access.revocations();
    let operator = parts.extensions.get::<LocalOperator>();
    let who = match operator {
        Some(operator) => operator.identity(),
        None => access::authenticate(&app, endpoint.access, &parts.headers, from).await?,
    };
    let is_from_node = operator.is_some_and(|operator| operator.is_from_node);
    let path = path?;
    let path = path
        .iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
    let path: Vec<_> = path.collect();
    if let Some((name, _)) = path.iter().find(|(_, value)| value.contains('\0')) {
        let detail = format!("{name} in the path must not contain NUL.");
        return Err(ProblemDetails::invalid_parameter(name, detail));
    }
    // Callers that fail authentication do not take permits of the authenticated classes.
    let share = match parts.extensions.get::<Arc<ConnectionPermit>>() {
        Some(place) => SharedRequestPermit::new_for(place.begin_request(endpoint.class(), from)?),
        None => SharedRequestPermit::default(),
    };
    let body = match endpoint.place.filter(|_| !is_from_node) {
        None => body,
        Some(place) => {
            let request = NodeCall::new(&parts, &who, from);
            match cluster_calls::execute(&app, place, endpoint, &path, request, body).await? {
                CallOutcome::NotExecuted(body) => body,
                CallOutcome::Answered(response) => return Ok(hold_permit(response, share)),
                CallOutcome::AnsweredBy(node, response) => {
                    let extensions = &parts.extensions;
                    let response = cluster_files::with_content(&app, extensions, &node, response)?;
                    return Ok(hold_permit(response, share));
                }
            }
        }
    };
    let required = (endpoint.access, &endpoint.scope);
    let namespaces = access::authorize(&app, &who, required, &path).await?;
    let query = QueryParameters::read(&parts.uri, &endpoint.parameters)?;
    // A handler of a selected scope must ask which namespaces it may show.
    let is_restricted =
        matches!(endpoint.scope, EndpointScope::Selected) && namespaces != NamespaceSelection::All;
    let selection = SelectedNamespaces::new(namespaces);
    let caller = ApiCaller {
        identity: who,
        namespaces: selection.clone(),
        client_ip: from,
        access: endpoint.access,
        revocations,
    };
    audit::check_writable(&app, endpoint).await?;
    let call = ApiCall::new(app, caller, share.clone(), query, path, (parts, body));
    let response = (endpoint.handler)(call).await?;
    if is_restricted && !selection.was_read() {
        tracing::error!(
            operation = endpoint.id,
            "a handler ignored the namespaces of its caller; this is a bug"
        );
        let detail = "This request is only possible with a node-wide role.";
        return Err(ProblemDetails::new(StatusCode::FORBIDDEN, detail));
    }
    Ok(hold_permit(response, share))
}

/// Holds the request's permit until the response has been sent.
fn hold_permit(response: Response, share: SharedRequestPermit) -> Response {
    response.map(|body| {
        Body::new(TrackedBody {
            body,
            _share: share,
        })
    })
}

/// A response body that holds the request's permit until it has been sent.
struct TrackedBody {
    body: Body,
    _share: SharedRequestPermit,
}

impl hyper::body::Body for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

async fn limit_request_time(limit: Duration, request: Request, next: Next) -> Response {
    if upload_body::is_upload(&request) {
        // It may take hours; each part of the body has a limit of its own.
        return next.run(request).await;
    }
    let limit = limit + device_http::long_poll_timeout(&request).unwrap_or_default();
    tokio::time::timeout(limit, next.run(request))
        .await
        .unwrap_or_else(|_| {
            let detail = format!("The node did not answer within {} s.", limit.as_secs());
            ProblemDetails::unavailable(detail).into_response()
        })
}

async fn add_common_fields(mut response: Response) -> Response {
    let fields = response.headers_mut();
    // Files of the console may be cached, and its page has a policy of its own.
    fields
        .entry(header::CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
    fields.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    fields
        .entry(header::CONTENT_SECURITY_POLICY)
        .or_insert(HeaderValue::from_static(
            "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
        ));
    response
}
