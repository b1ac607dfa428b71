//! Backups of configuration, devices, telemetry and files, which the node makes while it runs.

use std::io;

use super::jobs::accepted;
use crate::access::Role;
use crate::audit;
use crate::blocking::run_blocking;
use crate::call::{self, ApiCall};
use crate::endpoint::{Endpoint, EndpointScope, delete, get, post};
use crate::file_body;
use crate::jobs::{JobHandle, JobView, NewJob};
use crate::node_backend::{BackupInfo, ProgramBackend};
use crate::problem_details::{ApiResult, ProblemDetails};

const MEDIA_TYPE: &str = "application/octet-stream";
const CREATION: &str = "backup";
const VERIFICATION: &str = "backup_verification";
const PANICKED: &str = "The backups cannot be read now.";

pub(crate) fn endpoints() -> Vec<Endpoint> {
    let about = "The backup's id.";
    vec![
        get("/api/v1/backups", "listBackups", list)
            .role(Role::Admin, EndpointScope::Node)
            .tag("configuration")
            .summary("List backups on the node")
            .unpaged::<BackupInfo>(),
        post("/api/v1/backups", "createBackup", create)
            .role(Role::Admin, EndpointScope::Node)
            .tag("configuration")
            .summary("Back up configuration, devices, telemetry and files")
            .description(
                "Starts a job whose `subject` is the id of the backup, and whose progress is in bytes of telemetry and files. The node keeps \
                 accepting messages; the backup contains all telemetry stored before the request. It is in the list when it is complete. It contains password hashes, \
                 and credentials of connectors in plain text. `tidegate store restore` restores it to a stopped node. It also contains complete files, retained messages and \
                 the audit log. Sessions, their queues, and transfers that are not complete are not in it.",
            )
            .response::<JobView>(202, "The job has begun.")
            .with_location()
            .problem_response(409, "Another backup is running, or too many jobs are."),
        get("/api/v1/backups/{id}/content", "getBackupContent", content)
            .role(Role::Admin, EndpointScope::Node)
            .tag("configuration")
            .summary("Download a backup")
            .path_parameter("id", about)
            .raw_response(200, "The file.", &[MEDIA_TYPE])
            .problem_response(404, "There is no such backup."),
        post("/api/v1/backups/{id}/verify", "verifyBackup", verify)
            .role(Role::Admin, EndpointScope::Node)
            .tag("configuration")
            .summary("Verify a backup")
            .description("Starts a job that reads the whole file and compares its checksums. It fails if the file is damaged.")
            .path_parameter("id", about)
            .response::<JobView>(202, "The job has begun.")
            .with_location()
            .problem_response(404, "There is no such backup.")
            .problem_response(409, "Too many jobs are running."),
        delete("/api/v1/backups/{id}", "deleteBackup", remove)
            .role(Role::Admin, EndpointScope::Node)
            .tag("configuration")
            .summary("Delete a backup")
            .path_parameter("id", about)
            .empty_response(204, "Deleted.")
            .problem_response(404, "There is no such backup."),
    ]
}

fn disk_problem(error: &io::Error) -> ProblemDetails {
    ProblemDetails::unavailable(format!("The backups cannot be read or changed: {error}."))
}

fn backup_not_found(id: &str) -> ProblemDetails {
    ProblemDetails::not_found(format!("There is no backup {id:?}."))
}

async fn list(call: ApiCall) -> ApiResult {
    let program = call.app.program.clone();
    let backups = run_blocking(move || program.backups(), PANICKED).await?;
    call::unpaged_list(backups.map_err(|error| disk_problem(&error))?)
}

/// Starts a job that works on a backup.
async fn start(
    call: &ApiCall,
    (kind, action): (&'static str, &str),
    id: String,
    work: fn(&dyn ProgramBackend, &str, &JobHandle) -> Result<(), String>,
) -> ApiResult {
    let job = call.app.jobs.start(NewJob {
        kind,
        subject: id.clone(),
        namespace: None,
        created_by: call.identity.name.clone(),
    });
    let job = job.map_err(|error| ProblemDetails::conflict(format!("{error}.")))?;
    let view = job.view();
    audit::record_action(call, action, Some(&id), None).await;
    let program = call.app.program.clone();
    tokio::task::spawn_blocking(move || {
        let outcome = work(&*program, &id, &job);
        match outcome {
            Err(_) if job.is_cancelled() => job.end(Ok(())),
            outcome => job.end(outcome),
        }
    });
    Ok(accepted(&view))
}

async fn create(call: ApiCall) -> ApiResult {
    if call.app.jobs.is_running(CREATION) {
        let detail = "Another backup is running; wait for its job, or cancel it.";
        return Err(ProblemDetails::conflict(detail));
    }
    let id = format!("backup-{}", wall_clock::now_ms());
    let work =
        |program: &dyn ProgramBackend, id: &str, job: &JobHandle| program.create_backup(id, job);
    start(&call, (CREATION, "backup.create"), id, work).await
}

async fn find(call: &ApiCall) -> Result<std::path::PathBuf, ProblemDetails> {
    let id = call.path("id").to_owned();
    let (program, wanted) = (call.app.program.clone(), id.clone());
    let found = run_blocking(move || program.backup_file(&wanted), PANICKED).await?;
    found.ok_or_else(|| backup_not_found(&id))
}

async fn verify(call: ApiCall) -> ApiResult {
    find(&call).await?;
    let id = call.path("id").to_owned();
    let work =
        |program: &dyn ProgramBackend, id: &str, job: &JobHandle| program.verify_backup(id, job);
    start(&call, (VERIFICATION, "backup.verify"), id, work).await
}

async fn content(call: ApiCall) -> ApiResult {
    let path = find(&call).await?;
    let id = call.path("id").to_owned();
    audit::record_action(&call, "backup.download", Some(&id), None).await;
    file_body::download(&call, path, MEDIA_TYPE, &format!("{id}.tgbackup")).await
}

async fn remove(call: ApiCall) -> ApiResult {
    let id = call.path("id").to_owned();
    let (program, deleted) = (call.app.program.clone(), id.clone());
    let deleted = run_blocking(move || program.delete_backup(&deleted), PANICKED).await?;
    if !deleted.map_err(|error| disk_problem(&error))? {
        return Err(backup_not_found(&id));
    }
    audit::record_action(&call, "backup.delete", Some(&id), None).await;
    call::no_content()
}
