//! All configuration objects as one file, and back.

use axum::http::{HeaderValue, header};
use axum::response::IntoResponse as _;
use schemars::JsonSchema;
use serde::Serialize;
use store::{ImportError, ImportMode};

use crate::access::Role;
use crate::audit;
use crate::call::{self, Call};
use crate::endpoint::{Endpoint, Outcome, get, post};
use crate::objects::{blocking, store_problem};
use crate::parameters::{Parameter, Shape};
use crate::problem::Problem;

const MEDIA_TYPE: &str = "application/x-ndjson";
const REPLACE: Parameter = Parameter {
    name: "replace",
    about: "`true`: objects that are not in the file go; otherwise they stay.",
    shape: Shape::Flag,
};

#[derive(Serialize, JsonSchema)]
struct Restored {
    /// Objects made or replaced.
    written: u64,
    /// Objects that went since they are not in the file.
    removed: u64,
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        get("/api/v1/backup", "getBackup", backup)
            .role(Role::Admin)
            .tag("configuration")
            .summary("All configuration objects as one file")
            .description(
                "JSON lines. It holds the hashes of passwords and what authenticators need to reach their databases: keep \
                 it as you keep those. Messages, sessions and the audit log are not in it.",
            )
            .answers_raw(200, "The file.", &[MEDIA_TYPE]),
        post("/api/v1/restore", "restore", restore)
            .role(Role::Admin)
            .tag("configuration")
            .summary("Restore a backup")
            .description("All of it or, if a line is not right, nothing.")
            .parameters(&[REPLACE])
            .raw_body(&[MEDIA_TYPE])
            .answers::<Restored>(200, "Done."),
    ]
}

fn refused(error: ImportError) -> Problem {
    match error {
        ImportError::Storage(error) => store_problem(&error),
        other => Problem::unprocessable(format!("{other}.")),
    }
}

async fn backup(call: Call) -> Outcome {
    let exported = blocking(&call.app, |objects| {
        let mut file = Vec::new();
        objects.export_to(&mut file).map(|_| file)
    });
    let file = exported.await?.map_err(refused)?;
    audit::action(&call, "backup", None, None).await;
    let mut response = call::text(MEDIA_TYPE, file).into_response();
    response.headers_mut().insert(
        header::CONTENT_DISPOSITION,
        HeaderValue::from_static("attachment; filename=\"tidegate-backup.ndjson\""),
    );
    Ok(response)
}

async fn restore(mut call: Call) -> Outcome {
    call.expect_media_type(MEDIA_TYPE)?;
    let file = call.bytes(call.app.config.get().max_restore_bytes).await?;
    let mode = match call.query.flag(REPLACE) {
        Some(true) => ImportMode::Replace,
        _ => ImportMode::Merge,
    };
    let _changing = call.app.changing.lock().await;
    let imported = blocking(&call.app, move |objects| {
        objects.import_from(&mut &*file, mode)
    });
    let imported = imported.await?.map_err(refused)?;
    let restored = Restored {
        written: imported.written,
        removed: imported.removed,
    };
    audit::action(&call, "restore", None, serde_json::to_value(&restored).ok()).await;
    call::ok(restored)
}
