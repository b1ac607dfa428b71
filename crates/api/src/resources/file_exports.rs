//! Exports of files by sinks.

use axum::http::StatusCode;
use axum::response::IntoResponse as _;
use connect::{PushOutcome, SinkRow, SinkValue};
use serde_json::json;
use transfer::{FileInfo, FileState, FileTarget};

use super::files::{file_not_found, find_here};
use super::upload_body::run_on_files;
use crate::access::{Authority, Role};
use crate::audit;
use crate::call::{self, ApiCall};
use crate::endpoint::{Endpoint, EndpointScope, delete, post};
use crate::endpoint_place::EndpointPlace;
use crate::problem_details::{ApiResult, ProblemDetails};

pub(crate) fn endpoints() -> Vec<Endpoint> {
    let one = |endpoint: Endpoint, role: Role| {
        endpoint
            .role(role, EndpointScope::file("id"))
            .tag("files")
            .path_parameter("id", "The file's id.")
            .place(EndpointPlace::File("id"))
    };
    vec![
        one(post("/api/v1/files/{id}/exports/{sink}", "exportFile", export), Role::Operator)
            .path_parameter("sink", "The sink's name, percent-encoded.")
            .summary("Export a file, or repeat a failed export")
            .description(
                "The sink has `format = \"content\"`. A repeated export has the fields that the rule gave the first one; otherwise they \
                 are those of `$events/file/received`. Callers with roles in namespaces can only repeat exports.",
            )
            .response::<FileInfo>(202, "The export is queued.")
            .problem_response(409, "The file is not complete, or its export is waiting or running.")
            .problem_response(422, "The sink exports no files, is disabled, or its queue is full."),
        one(delete("/api/v1/files/{id}/exports/{sink}", "cancelFileExport", cancel_export), Role::Operator)
            .path_parameter("sink", "The sink's name, percent-encoded.")
            .summary("Cancel an export of a file")
            .description("The target may have received a part of the file. An export that has ended is removed from the list.")
            .empty_response(204, "Cancelled."),
    ]
}

async fn export(call: ApiCall) -> ApiResult {
    let (id, sink) = (call.path("id").to_owned(), call.path("sink").to_owned());
    let found = find_here(&call, &id).await?;
    let info = found.ok_or_else(|| file_not_found(&id))?;
    if info.state != FileState::Complete {
        return Err(ProblemDetails::conflict("The file is not complete."));
    }
    let before = info.exports.iter().find(|export| export.sink == sink);
    if before.is_none() && !matches!(call.identity.authority, Authority::Node(_)) {
        let detail = "Exports to other sinks are begun by operators of the node, or by rules.";
        return Err(ProblemDetails::new(StatusCode::FORBIDDEN, detail));
    }
    if before.is_some_and(|export| export.state.is_active()) {
        let detail = format!(
            "The export to {sink:?} is waiting or running; the sink retries it without a request."
        );
        return Err(ProblemDetails::conflict(detail));
    }
    let connectors = &call.app.connectors;
    let to = match (connectors.exports_files(&sink), connectors.sink(&sink)) {
        (Some(true), Some(to)) => to,
        (Some(false), _) => {
            let detail = format!(
                "The sink {sink:?} exports no files; expected one with format = \"content\"."
            );
            return Err(ProblemDetails::unprocessable(detail));
        }
        _ => {
            return Err(ProblemDetails::not_found(format!(
                "There is no sink {sink:?}."
            )));
        }
    };
    let row = call.app.files.export_row(&sink, &id);
    let row = row.unwrap_or_else(|| info.event_fields());
    let fields = row.as_object().cloned().unwrap_or_default();
    discard_dead_letters(&call, &sink, &id).await;
    match connectors.push(to, 0, |out| out.json_fields(&fields)) {
        PushOutcome::Queued | PushOutcome::Blocked => {}
        PushOutcome::Dropped => {
            return Err(ProblemDetails::unprocessable(
                "The queue of the sink is full.",
            ));
        }
        PushOutcome::Unknown => {
            return Err(ProblemDetails::unprocessable(format!(
                "The sink {sink:?} is disabled."
            )));
        }
    }
    let files = call.app.files.clone();
    let wanted = id.clone();
    let stored = run_on_files(&files, move |files| {
        files.store_queued_exports();
        files
            .info(FileTarget::Id(&wanted))
            .map_or_else(|| Ok(info), Ok)
    });
    let info = stored.await?;
    audit::record_action(&call, "file.export", Some(&id), Some(json!({"sink": sink}))).await;
    Ok((StatusCode::ACCEPTED, axum::Json(info)).into_response())
}

/// Removes the dead letters of an export that is repeated.
async fn discard_dead_letters(call: &ApiCall, sink: &str, file: &str) {
    const PAGE: usize = 1000;
    let connectors = &call.app.connectors;
    let mut after = 0;
    let mut ids = Vec::new();
    while let Some(letters) = connectors.dead_letters(sink, after, PAGE)
        && let Some(last) = letters.last()
    {
        after = last.id;
        let of_file = letters.iter().filter(|letter| {
            SinkRow::from_bytes(&letter.row).get("id") == Some(SinkValue::Text(file))
        });
        ids.extend(of_file.map(|letter| letter.id));
        if letters.len() < PAGE {
            break;
        }
    }
    if !ids.is_empty() {
        let _ = connectors.discard(sink, Some(ids)).await;
    }
}

async fn cancel_export(call: ApiCall) -> ApiResult {
    let (id, sink) = (call.path("id").to_owned(), call.path("sink").to_owned());
    let (file, of_sink) = (id.clone(), sink.clone());
    let cancelled = run_on_files(&call.app.files, move |files| {
        files.cancel_export(&of_sink, &file)
    });
    cancelled.await?;
    audit::record_action(
        &call,
        "file.export.cancel",
        Some(&id),
        Some(json!({"sink": sink})),
    )
    .await;
    call::no_content()
}
