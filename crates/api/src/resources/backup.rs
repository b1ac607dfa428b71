//! Backup and restore of all configuration objects as one file.

use axum::http::{HeaderValue, header};
use axum::response::IntoResponse as _;
use schemars::JsonSchema;
use serde::Serialize;
use store::{ImportError, ImportMode};

use crate::access::{Role, end_all_sessions};
use crate::audit;
use crate::call::{self, ApiCall};
use crate::endpoint::{Endpoint, EndpointScope, get, post};
use crate::object_store::{run_on_store, store_problem};
use crate::problem_details::{ApiResult, ProblemDetails};
use crate::query_parameters::{Parameter, ParameterType};

const MEDIA_TYPE: &str = "application/x-ndjson";
const REPLACE: Parameter = Parameter {
    name: "replace",
    description: "`true`: delete objects that are not in the file; otherwise they are kept.",
    shape: ParameterType::Flag,
};

#[derive(Serialize, JsonSchema)]
struct RestoreSummary {
    /// Number of objects created or replaced.
    written: u64,
    /// Number of objects deleted because the file does not contain them.
    removed: u64,
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        get("/api/v1/backup", "getBackup", backup)
            .role(Role::Admin, EndpointScope::Node)
            .tag("configuration")
            .summary("Back up all configuration objects")
            .description(
                "JSON lines. It contains password hashes, and in plain text the credentials of connectors and \
                 authenticators and the private keys of listeners: protect it accordingly. Messages, sessions and the audit log are not in it.",
            )
            .raw_response(200, "The file.", &[MEDIA_TYPE]),
        post("/api/v1/restore", "restore", restore)
            .role(Role::Admin, EndpointScope::Node)
            .tag("configuration")
            .summary("Restore a backup")
            .description(
                "Restores all lines, or nothing if a line is invalid. Browsers that are logged in have to log in again: sessions that ended since the backup must not be restored.",
            )
            .parameters(&[REPLACE])
            .raw_request_body(&[MEDIA_TYPE])
            .response::<RestoreSummary>(200, "Done."),
    ]
}

fn import_problem(error: ImportError) -> ProblemDetails {
    match error {
        ImportError::Storage(error) => store_problem(&error),
        other => ProblemDetails::unprocessable(format!("{other}.")),
    }
}

async fn backup(call: ApiCall) -> ApiResult {
    let exported = run_on_store(&call.app, |objects| {
        let mut file = Vec::new();
        objects.export_to(&mut file).map(|_| file)
    });
    let file = exported.await?.map_err(import_problem)?;
    audit::record_action(&call, "backup", None, None).await;
    let mut response = call::text_response(MEDIA_TYPE, file).into_response();
    response.headers_mut().insert(
        header::CONTENT_DISPOSITION,
        HeaderValue::from_static("attachment; filename=\"tidegate-backup.ndjson\""),
    );
    Ok(response)
}

async fn restore(mut call: ApiCall) -> ApiResult {
    call.expect_media_type(MEDIA_TYPE)?;
    let file = call
        .body_bytes(call.app.config.get().max_restore_bytes)
        .await?;
    let mode = match call.query.flag_value(REPLACE) {
        Some(true) => ImportMode::Replace,
        _ => ImportMode::Merge,
    };
    let _changing = call.app.changing.lock().await;
    let imported = run_on_store(&call.app, move |objects| {
        objects.import_from(&mut &*file, mode)
    });
    let imported = imported.await?.map_err(import_problem)?;
    call.app.access.with_sessions(end_all_sessions).await?;
    let restored = RestoreSummary {
        written: imported.written,
        removed: imported.removed,
    };
    audit::record_action(&call, "restore", None, serde_json::to_value(&restored).ok()).await;
    call::json_response(restored)
}
