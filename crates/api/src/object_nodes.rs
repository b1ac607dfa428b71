//! The node of the cluster that has an object.
//!
//! A device has its session, commands, attributes, telemetry and alarms at one node, or parts of them at several. Other
//! objects are at one node.

use std::sync::Arc;

use axum::body::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use serde_json::Value;

use crate::blocking::run_blocking;
use crate::cluster_backend::ClusterBackend;
use crate::device_presences::presence_here;
use crate::node_calls::{NodeCall, ask_for_file, execute_everywhere, presences};
use crate::node_files;
use crate::problem_details::ProblemDetails;
use crate::query_parameters::NODE;
use crate::state::ApiState;

/// Checks that a node that a request names is a member.
pub(crate) fn named_node(
    cluster: &dyn ClusterBackend,
    node: &str,
) -> Result<String, ProblemDetails> {
    let is_known =
        node == cluster.node() || cluster.other_nodes().iter().any(|known| known == node);
    match is_known {
        true => Ok(node.to_owned()),
        false => Err(ProblemDetails::invalid_parameter(
            NODE.name,
            format!("node is {node:?}; expected a member of the cluster."),
        )),
    }
}

/// The node at which a device is online, or was last among those that answer. `None`: it was at none.
pub(crate) async fn node_of_device(
    app: &Arc<ApiState>,
    cluster: &dyn ClusterBackend,
    id: &str,
) -> Result<Option<String>, ProblemDetails> {
    let own = presence_here(app.devices.clone(), vec![id.to_owned()]).await;
    let own = own.map_err(ProblemDetails::unavailable)?;
    // Without a record here, no node has the device.
    if own
        .first()
        .is_some_and(|own| own.is_none_or(|own| own.is_online))
    {
        return Ok(None);
    }
    let presences = presences(app, cluster, vec![id.to_owned()]).await?;
    Ok(presences.latest(0).map(|(node, _)| node.to_owned()))
}

/// The other node that has a file or transfer. Ids of files are random, so that nodes have different ones. `None`: this node has
/// it, or no node has.
///
/// # Errors
/// If no node that answers has it, and a node does not answer.
pub(crate) async fn node_of_file(
    app: &ApiState,
    cluster: &dyn ClusterBackend,
    id: &str,
) -> Result<Option<String>, ProblemDetails> {
    let is_here = node_files::has_file(&app.files, id).await;
    if is_here.map_err(ProblemDetails::unavailable)? {
        return Ok(None);
    }
    let others = cluster.other_nodes().into_iter();
    let mut asked: FuturesUnordered<_> = others
        .map(|node| async move {
            let answer = ask_for_file(app, &node, id).await;
            (node, answer)
        })
        .collect();
    let mut missing = Vec::new();
    // The others need not answer when one has it.
    while let Some((node, answer)) = asked.next().await {
        match answer {
            Ok(true) => return Ok(Some(node)),
            Ok(false) => {}
            Err(reason) => {
                tracing::debug!(node, reason, "another node of the cluster did not answer");
                missing.push(node);
            }
        }
    }
    missing.sort();
    match missing.is_empty() {
        true => Ok(None),
        false => Err(not_found_where_answered(&missing)),
    }
}

/// The node that has an alarm. `None`: this one, which has those of all devices. A node that is named is asked if it can be
/// reached, since two nodes may have an alarm about themselves with the same number.
pub(crate) async fn node_of_alarm(
    app: &Arc<ApiState>,
    cluster: &dyn ClusterBackend,
    id: &str,
    named: Option<String>,
    call: &NodeCall,
) -> Result<Option<String>, ProblemDetails> {
    let Ok(number) = id.parse() else {
        return Ok(None);
    };
    let alarms = app.alarms.clone();
    let read = run_blocking(move || alarms.get(number), "The alarms cannot be read now.");
    let own = read
        .await?
        .map_err(|_| ProblemDetails::unavailable("The alarms cannot be read now."))?;
    match (own, named) {
        (Some(own), Some(node)) if own.is_of_node() => Ok(Some(node)),
        (Some(_), _) => Ok(None),
        (None, Some(node)) => Ok(Some(node)),
        (None, None) => {
            let reading = call.reading(format!("/api/v1/alarms/{number}"));
            node_of_object(app, cluster, &reading).await
        }
    }
}

/// The node of a firmware campaign. `None`: no node that this one has met has it.
pub(crate) fn node_of_campaign(app: &ApiState, id: &str) -> Result<Option<String>, ProblemDetails> {
    let nodes = id.parse().map(|id| app.firmware.campaign_nodes(id));
    match &nodes.unwrap_or_default()[..] {
        [] => Ok(None),
        [node] => Ok(Some(node.clone())),
        several => Err(several_objects(several)),
    }
}

fn several_objects(nodes: &[String]) -> ProblemDetails {
    ProblemDetails::conflict(format!(
        "Several nodes have an object with this number: {}. Select one of these nodes with the query parameter node.",
        nodes.join(", ")
    ))
}

/// The node that has an object, which `reading` reads. `None`: no node has it.
///
/// # Errors
/// If several nodes have one with this number, or no node that answers has it and a node does not answer.
pub(crate) async fn node_of_object(
    app: &Arc<ApiState>,
    cluster: &dyn ClusterBackend,
    reading: &NodeCall,
) -> Result<Option<String>, ProblemDetails> {
    let (mut holders, mut missing) = (Vec::new(), Vec::new());
    let mut bodies = Vec::new();
    let call_of = |_: &str| Some(reading.clone());
    for (node, answer) in execute_everywhere(app, cluster, &Bytes::new(), call_of).await {
        match answer {
            Ok((answer, body)) if answer.status == 200 => {
                holders.push(node);
                bodies.push(body);
            }
            Ok(_) => {}
            Err(_) => missing.push(node),
        }
    }
    match &holders[..] {
        [holder] => Ok(Some(holder.clone())),
        [] if missing.is_empty() => Ok(None),
        [] => Err(not_found_where_answered(&missing)),
        several if let Some(holder) = holder_of_moving_command(several, &bodies) => {
            Ok(Some(holder))
        }
        several => Err(several_objects(several)),
    }
}

/// A command that moves from one node to another is at both for a moment. Returns the node that has done more with it, or
/// `None` if the nodes have different objects.
fn holder_of_moving_command(holders: &[String], bodies: &[Bytes]) -> Option<String> {
    let bodies: Option<Vec<Value>> = bodies
        .iter()
        .map(|body| serde_json::from_slice(body).ok())
        .collect();
    let bodies = bodies?;
    let identity = |body: &Value| {
        Some((
            body.get("device")?.clone(),
            body.get("created_at_ms")?.clone(),
        ))
    };
    let first = identity(bodies.first()?)?;
    let is_same = bodies
        .iter()
        .all(|body| identity(body).as_ref() == Some(&first));
    let with_holders = bodies.iter().zip(holders);
    let latest = with_holders.max_by_key(|(body, _)| body["attempts"].as_u64());
    latest.filter(|_| is_same).map(|(_, holder)| holder.clone())
}

/// The nodes that answered do not have the object; a missing one may have it.
pub(crate) fn not_found_where_answered(missing: &[String]) -> ProblemDetails {
    ProblemDetails::unavailable(format!(
        "No node that answered has this object. These nodes did not answer: {}.",
        missing.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_moves_is_at_one_node() {
        let body = |device: &str, created_at_ms: u64, attempts: u32| {
            let body = serde_json::json!({"device": device, "created_at_ms": created_at_ms, "attempts": attempts});
            Bytes::from(body.to_string())
        };
        let holders = ["a".to_owned(), "b".to_owned()];
        let of = |one, other| holder_of_moving_command(&holders, &[one, other]);
        assert_eq!(of(body("d", 1, 1), body("d", 1, 0)).as_deref(), Some("a"));
        assert_eq!(of(body("d", 1, 0), body("d", 1, 1)).as_deref(), Some("b"));
        assert_eq!(of(body("d", 1, 0), body("e", 1, 0)), None);
        assert_eq!(of(body("d", 1, 0), body("d", 2, 0)), None);
        // Alarms have no such fields.
        assert_eq!(of(Bytes::from("{}"), Bytes::from("{}")), None);
    }
}
