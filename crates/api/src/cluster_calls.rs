//! Executes requests of the API where they belong: here, at the node that has their object, or at all nodes.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use axum::response::Response;
use devices::alarm::NODE_PRODUCT;
use outbound::url_encoding::url_encode;
use serde_json::Value;

use crate::cluster_backend::ClusterBackend;
use crate::endpoint::Endpoint;
use crate::endpoint_place::{EndpointPlace, MergedAnswer};
use crate::merged_answers::NodeAnswer;
use crate::merged_calls::MergedCall;
use crate::node_calls::{NodeCall, NodeCallAnswers, execute_at, execute_everywhere, to_response};
use crate::object_nodes::{
    named_node, node_of_alarm, node_of_campaign, node_of_device, node_of_file, node_of_object,
    not_found_where_answered,
};
use crate::problem_details::ProblemDetails;
use crate::query_parameters::{AFTER, NODE};
use crate::state::ApiState;

/// Maximum size of the body of a request that is passed on. A message between nodes has up to 1 MiB.
const MAX_BODY_BYTES: usize = 900 << 10;

/// What has become of a request.
pub(crate) enum CallOutcome {
    /// It is to be executed here.
    NotExecuted(Body),
    Answered(Response),
    /// By another node. If the response is the content of a file, its body is still to be added.
    AnsweredBy(String, Response),
}

/// Executes a request where it belongs, if that is not this node alone.
pub(crate) async fn execute(
    app: &Arc<ApiState>,
    place: EndpointPlace,
    endpoint: &Endpoint,
    path: &[(String, String)],
    call: NodeCall,
    body: Body,
) -> Result<CallOutcome, ProblemDetails> {
    let Some(cluster) = app.program.cluster_backend() else {
        return Ok(CallOutcome::NotExecuted(body));
    };
    let value_of = |name: &str| {
        let found = path.iter().find(|(known, _)| known == name);
        found.map_or("", |(_, value)| value.as_str())
    };
    let node = match place {
        EndpointPlace::Device(parameter) => {
            node_of_device(app, cluster, value_of(parameter)).await?
        }
        EndpointPlace::Object { path } => {
            let query = call.query(endpoint)?;
            let path = path.replace("{id}", &url_encode(value_of("id")));
            match query.text_value(NODE.name) {
                Some(node) => Some(named_node(cluster, node)?),
                None => node_of_object(app, cluster, &call.reading(path)).await?,
            }
        }
        EndpointPlace::Alarm => {
            let query = call.query(endpoint)?;
            let named = query.text_value(NODE.name);
            let named = named.map(|node| named_node(cluster, node)).transpose()?;
            node_of_alarm(app, cluster, value_of("id"), named, &call).await?
        }
        EndpointPlace::ChosenByHandler => None,
        EndpointPlace::File(parameter) => node_of_file(app, cluster, value_of(parameter)).await?,
        EndpointPlace::LocalFile(parameter) => {
            let id = value_of(parameter);
            match node_of_file(app, cluster, id).await? {
                Some(node) => return Err(misdirected_upload(id, &node)),
                None => None,
            }
        }
        EndpointPlace::FirmwareCampaign(parameter) => {
            let query = call.query(endpoint)?;
            match query.text_value(NODE.name) {
                Some(node) => Some(named_node(cluster, node)?),
                None => node_of_campaign(app, value_of(parameter))?,
            }
        }
        EndpointPlace::AllNodes(answer) => {
            let body = whole_body(body, "all nodes").await?;
            let merged = merge_all(app, cluster, answer, endpoint, &call, body).await?;
            return Ok(CallOutcome::Answered(merged));
        }
    };
    let Some(node) = node.filter(|node| node != cluster.node()) else {
        return Ok(CallOutcome::NotExecuted(body));
    };
    let body = whole_body(body, &format!("the node {node:?}")).await?;
    let answer = execute_at(cluster, &node, &call, &body).await;
    let answer = answer.map_err(|reason| not_confirmed(place, &node, &reason))?;
    Ok(CallOutcome::AnsweredBy(node, to_response(answer)?))
}

fn not_confirmed(place: EndpointPlace, node: &str, reason: &str) -> ProblemDetails {
    let consequence = match place {
        EndpointPlace::FirmwareCampaign(_) => {
            " A campaign continues when its node can be reached again; devices that it has notified meanwhile install their packages."
        }
        _ => "",
    };
    ProblemDetails::unavailable(format!(
        "The node {node:?}, which has the object, has not confirmed the request, which it may have executed: {reason}.{consequence}"
    ))
}

/// Executes a request without a body at another node.
pub(crate) async fn execute_at_node(
    app: &ApiState,
    node: &str,
    call: &NodeCall,
) -> Result<Response, ProblemDetails> {
    let cluster = app.program.cluster_backend();
    let cluster = cluster.ok_or_else(|| {
        ProblemDetails::unavailable("This node is no longer a member of a cluster.")
    })?;
    let answer = execute_at(cluster, node, call, &Bytes::new()).await;
    to_response(
        answer.map_err(|reason| not_confirmed(EndpointPlace::ChosenByHandler, node, &reason))?,
    )
}

/// The problem of a request that continues an upload at another node.
fn misdirected_upload(id: &str, node: &str) -> ProblemDetails {
    ProblemDetails::new(
        StatusCode::MISDIRECTED_REQUEST,
        format!(
            "The upload {id:?} was started at the node {node:?}. Continue it at that node, or start a new upload."
        ),
    )
}

/// The body of a request that is passed on to other nodes.
async fn whole_body(body: Body, recipient: &str) -> Result<Bytes, ProblemDetails> {
    let body = axum::body::to_bytes(body, MAX_BODY_BYTES).await;
    body.map_err(|_| {
        let detail = format!(
            "The request body is incomplete or larger than {MAX_BODY_BYTES} bytes, the limit for requests that this node forwards to {recipient}."
        );
        ProblemDetails::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
    })
}

/// The answers of all nodes as one.
async fn merge_all(
    app: &Arc<ApiState>,
    cluster: &dyn ClusterBackend,
    merged: MergedAnswer,
    endpoint: &Endpoint,
    call: &NodeCall,
    body: Bytes,
) -> Result<Response, ProblemDetails> {
    let merged = MergedCall::new(merged, call.query(endpoint)?)?;
    let call_of = |node: &str| {
        let mut call = match merged.pages() {
            Some(pages) => call.with_query_parameter(AFTER.name, pages.cursor_of(node)?.as_deref()),
            None => call.clone(),
        };
        if node != cluster.node() {
            if !merged.needs_other_nodes() {
                return None;
            }
            if merged.is_about_nodes() {
                call = call.with_query_parameter("product", Some(NODE_PRODUCT));
            }
        }
        Some(call)
    };
    let all = execute_everywhere(app, cluster, &body, call_of).await;
    if merged.is_of_one_node() {
        return answer_of_owner(all);
    }
    let mut answers = Vec::new();
    let mut missing_nodes = Vec::new();
    let mut executed = None;
    let is_change = merged.is_change();
    for (node, answer) in all {
        let is_own = node == cluster.node();
        match answer {
            Ok((answer, body)) if answer.status == 200 && !is_change => {
                match serde_json::from_slice::<Value>(&body) {
                    Ok(body) if merged.is_form_of(&body) => answers.push(NodeAnswer { node, body }),
                    Ok(_) | Err(_) => missing_nodes.push(node),
                }
            }
            Ok(answer) if is_own && !(200..300).contains(&answer.0.status) => {
                // The request is wrong, or not permitted.
                return to_response(answer);
            }
            Ok(answer) if is_own => executed = Some(answer),
            Ok((answer, _)) if is_change && (200..300).contains(&answer.status) => {}
            Err(reason) if is_own => return Err(ProblemDetails::unavailable(reason)),
            Ok(_) | Err(_) => missing_nodes.push(node),
        }
    }
    if let Some(executed) = executed {
        return match missing_nodes.is_empty() {
            true => to_response(executed),
            false => Err(ProblemDetails::unavailable(format!(
                "These nodes have not confirmed the request: {}. Repeat the request when they can be reached.",
                missing_nodes.join(", ")
            ))),
        };
    }
    merged.respond(answers, missing_nodes)
}

/// The answer of the node that has an object; the others do not find it.
fn answer_of_owner(all: NodeCallAnswers) -> Result<Response, ProblemDetails> {
    let mut missing = Vec::new();
    let mut not_found = None;
    for (node, answer) in all {
        match answer {
            Ok(answer) if answer.0.status == 404 => not_found = not_found.or(Some(answer)),
            Ok(answer) => return to_response(answer),
            Err(_) => missing.push(node),
        }
    }
    match not_found {
        Some(answer) if missing.is_empty() => to_response(answer),
        _ => Err(not_found_where_answered(&missing)),
    }
}
