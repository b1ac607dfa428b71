//! The audit log: who changed what, and from which address. Stored, bounded, and without secrets.

use std::net::IpAddr;

use axum::http::Method;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use store::{JournalEntry, Objects, StoreError};
use wall_clock::now_ms;

use crate::access::{AuthenticationMethod, Authority, CallerIdentity, EndpointAccess, Role};
use crate::call::{self, ApiCall, ListPage};
use crate::endpoint::{Endpoint, EndpointScope, get};
use crate::object_store::{run_on_store, store_problem};
use crate::problem_details::{ApiResult, ProblemDetails};
use crate::query_parameters::{PageCursor, Parameter, ParameterType, time_parameter};
use crate::state::ApiState;

const AUDIT_JOURNAL: &str = "audit";
/// A larger object is recorded by its version only, in bytes of JSON.
const MAX_VALUE_BYTES: usize = 16 * 1024;
/// Maximum number of entries read for one page of a filtered list. A page may end early; its `next`
/// continues.
const MAX_SCANNED_ENTRIES: usize = 10_000;

/// How much earlier than its predecessor an entry may be, because the clock was set back.
const MAX_CLOCK_STEP_MS: u64 = 24 * 3_600_000;

/// One change, or one login attempt.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
pub(crate) struct AuditRecord {
    at_ms: u64,
    /// Name of the operator, id of the API key, `local` for the token file, or the name given in a
    /// failed login.
    actor: String,
    /// Authentication method; `null` if the caller was not authenticated.
    authentication: Option<AuthenticationMethod>,
    /// Node-wide role; `null`: none, such as that of a caller with roles in namespaces.
    role: Option<Role>,
    /// Source address of the request.
    address: String,
    /// Action: `operator.put`, `client.disconnect`, `login.failed`.
    action: String,
    /// Subject of the action: an object id, a client id or a topic.
    subject: Option<String>,
    version_before: Option<u64>,
    version_after: Option<u64>,
    /// Object before and after the change, without its secrets; omitted if it is large.
    before: Option<Value>,
    after: Option<Value>,
}

/// An entry as the API returns it.
#[derive(Serialize, JsonSchema)]
struct AuditEntry {
    /// Sequence number of the entry.
    number: u64,
    #[serde(flatten)]
    entry: AuditRecord,
}

/// A change of an object: versions and values without secrets.
pub(crate) struct AuditedChange<'a> {
    pub(crate) kind: &'static str,
    pub(crate) id: &'a str,
    pub(crate) before: Option<(u64, Value)>,
    pub(crate) after: Option<Value>,
}

/// The entry about a change of a configuration object that is about to be made. It is written together with the change.
pub(crate) struct ObjectChangeEntry {
    record: AuditRecord,
    max_entries: u64,
}

impl ObjectChangeEntry {
    pub(crate) fn new(call: &ApiCall, change: AuditedChange<'_>) -> Self {
        Self {
            record: object_change_record(call, change),
            max_entries: call.app.config.get().max_audit_entries,
        }
    }

    /// The entry for the store; `version_after` is the object's new version, unless it is deleted.
    pub(crate) fn journal_entry(&self, version_after: Option<u64>) -> JournalEntry {
        journal_entry(&self.record(version_after), self.max_entries)
    }

    /// The change has been made.
    pub(crate) fn log(&self, version_after: Option<u64>) {
        self.record(version_after).log();
    }

    fn record(&self, version_after: Option<u64>) -> AuditRecord {
        AuditRecord {
            version_after,
            ..self.record.clone()
        }
    }
}

fn object_change_record(call: &ApiCall, change: AuditedChange<'_>) -> AuditRecord {
    let what = match (&change.before, &change.after) {
        (None, _) => "create",
        (Some(_), Some(_)) => "change",
        (Some(_), None) => "delete",
    };
    let bounded = |value: &Value| {
        let is_small = value.to_string().len() <= MAX_VALUE_BYTES;
        is_small.then(|| value.clone())
    };
    AuditRecord {
        version_before: change.before.as_ref().map(|(version, _)| *version),
        before: change.before.as_ref().and_then(|(_, value)| bounded(value)),
        after: change.after.as_ref().and_then(bounded),
        ..entry(call, format!("{}.{what}", change.kind), Some(change.id))
    }
}

fn journal_entry(record: &AuditRecord, max_entries: u64) -> JournalEntry {
    JournalEntry {
        journal: AUDIT_JOURNAL,
        value: serde_json::to_value(record).expect("its fields are plain"),
        max_entries,
    }
}

/// Records any other action.
pub(crate) async fn record_action(
    call: &ApiCall,
    action: &str,
    subject: Option<&str>,
    after: Option<Value>,
) {
    let entry = AuditRecord {
        after,
        ..entry(call, action.to_owned(), subject)
    };
    append(&call.app, entry).await;
}

/// Records a login attempt under a name.
pub(crate) async fn record_login(call: &ApiCall, username: &str, authority: Option<&Authority>) {
    let action = match authority {
        Some(_) => "login",
        None => "login.failed",
    };
    let entry = AuditRecord {
        actor: username.chars().take(64).collect(),
        authentication: None,
        role: authority.and_then(Authority::node_role),
        ..entry(call, action.to_owned(), None)
    };
    append(&call.app, entry).await;
}

fn entry(call: &ApiCall, action: String, subject: Option<&str>) -> AuditRecord {
    let CallerIdentity {
        name,
        authentication,
        authority,
        ..
    } = call.identity.clone();
    AuditRecord {
        at_ms: now_ms(),
        actor: name,
        authentication: Some(authentication),
        role: authority.node_role(),
        address: call.client_ip.to_canonical().to_string(),
        action,
        subject: subject.map(str::to_owned),
        version_before: None,
        version_after: None,
        before: None,
        after: None,
    }
}

/// An action without an API request, such as the registration of a device.
#[derive(Debug, Clone)]
pub struct NodeAction<'a> {
    /// The proven identity, such as the product whose provisioning key was used.
    pub actor: &'a str,
    pub address: Option<IpAddr>,
    /// The action, such as `device.provision`.
    pub action: &'a str,
    pub subject: &'a str,
    /// The object after the action, without secrets.
    pub after: Value,
}

/// Appends an entry to the audit log. Blocks on the store.
pub fn append_node_action(objects: &Objects, max_entries: u64, action: NodeAction<'_>) {
    let address = action
        .address
        .map(|address| address.to_canonical().to_string());
    let entry = AuditRecord {
        at_ms: now_ms(),
        actor: action.actor.to_owned(),
        authentication: None,
        role: None,
        address: address.unwrap_or_default(),
        action: action.action.to_owned(),
        subject: Some(action.subject.to_owned()),
        version_before: None,
        version_after: None,
        before: None,
        after: Some(action.after),
    };
    entry.log();
    if let Err(error) = objects.append_journal_entry(&journal_entry(&entry, max_entries)) {
        tracing::error!(%error, "audit log write failed; an entry is missing");
    }
}

impl AuditRecord {
    fn log(&self) {
        tracing::info!(
            target: "audit",
            actor = self.actor,
            address = self.address,
            subject = self.subject,
            version = self.version_after,
            "{}",
            self.action
        );
    }
}

async fn append(app: &ApiState, entry: AuditRecord) {
    entry.log();
    let unwritten = app.unwritten_audit_entries.clone();
    unwritten.push(journal_entry(&entry, app.config.get().max_audit_entries));
    let written = run_on_store(app, move |objects| unwritten.write(objects)).await;
    match written {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::error!(%error, "audit log write failed; keeping the entry and rejecting changes");
        }
        Err(_) => {
            tracing::error!("audit log write failed; keeping the entry and rejecting changes")
        }
    }
}

/// Rejects a request that would be recorded while the audit log cannot be written.
pub(crate) async fn check_writable(
    app: &ApiState,
    endpoint: &Endpoint,
) -> Result<(), ProblemDetails> {
    let is_recorded = endpoint.method != Method::GET
        && matches!(
            endpoint.access,
            EndpointAccess::Role(_) | EndpointAccess::Account
        );
    let unwritten = app.unwritten_audit_entries.clone();
    if !is_recorded || unwritten.is_empty() {
        return Ok(());
    }
    let written = run_on_store(app, move |objects| unwritten.write(objects)).await?;
    written.map_err(|error| {
        let detail = format!(
            "The audit log cannot be written ({error}), and changes are not made without it; free space on the disk."
        );
        ProblemDetails::unavailable(detail)
    })
}

const ACTOR: Parameter = Parameter {
    name: "actor",
    description: "Operator name, API key id, or `local`; exact match.",
    shape: ParameterType::Text,
};
const ACTION: Parameter = Parameter {
    name: "action",
    description: "Prefix of the action: `operator.`, `login`.",
    shape: ParameterType::Text,
};
const SUBJECT: Parameter = Parameter {
    name: "subject",
    description: "Object id, client id or topic; exact match.",
    shape: ParameterType::Text,
};

const FROM_MS: Parameter = time_parameter("from_ms", "Start of the time range.");
const TO_MS: Parameter = time_parameter("to_ms", "End of the time range, exclusive; default: now.");

pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        get("/api/v1/audit-log", "listAudit", list)
            .role(Role::Admin, EndpointScope::Node)
            .tag("access")
            .summary("List audit log entries, newest first")
            .description("Every change made over this API and every login attempt. The oldest entries are deleted at the limit.")
            .parameters(&[ACTOR, ACTION, SUBJECT, FROM_MS, TO_MS])
            .paged::<AuditEntry>(),
    ]
}

async fn list(call: ApiCall) -> ApiResult {
    let limit = call.query.limit();
    let (actor, action, subject) = (
        call.query.owned_text(ACTOR),
        call.query.owned_text(ACTION),
        call.query.owned_text(SUBJECT),
    );
    let from_ms = call.query.number_value(FROM_MS).unwrap_or(0);
    let to_ms = call.query.number_value(TO_MS).unwrap_or(u64::MAX);
    if from_ms > to_ms {
        let detail = format!("to_ms is {to_ms}; expected {from_ms} or more, which is from_ms.");
        return Err(ProblemDetails::invalid_parameter("to_ms", detail));
    }
    let mut before = match call.query.after() {
        None => None,
        Some(cursor) => Some(cursor.first.parse::<u64>().map_err(|_| {
            ProblemDetails::invalid_parameter(
                "after",
                "after must be the value of next in an earlier response.",
            )
        })?),
    };
    let (rows, next) = run_on_store(&call.app, move |objects| {
        let mut rows = Vec::new();
        let mut looked_at = 0;
        loop {
            let found = objects.list_journal_entries(AUDIT_JOURNAL, before, limit + 1)?;
            let is_end = found.len() <= limit;
            for (number, value) in found {
                if rows.len() == limit || looked_at == MAX_SCANNED_ENTRIES {
                    return Ok((rows, before));
                }
                looked_at += 1;
                before = Some(number);
                let Ok(entry) = serde_json::from_value::<AuditRecord>(value) else {
                    continue;
                };
                // All older entries are before the time range, too.
                if entry.at_ms.saturating_add(MAX_CLOCK_STEP_MS) < from_ms {
                    return Ok((rows, None));
                }
                let fits = actor.as_ref().is_none_or(|actor| *actor == entry.actor)
                    && action
                        .as_ref()
                        .is_none_or(|start| entry.action.starts_with(start))
                    && (subject.is_none() || subject == entry.subject)
                    && (from_ms..to_ms).contains(&entry.at_ms);
                if fits {
                    rows.push(AuditEntry { number, entry });
                }
            }
            if is_end {
                return Ok((rows, None));
            }
        }
    })
    .await?
    .map_err(|error: StoreError| store_problem(&error))?;
    call::json_response(ListPage {
        data: rows,
        next: next.map(|number| PageCursor::new(&number.to_string(), "").encode()),
    })
}
