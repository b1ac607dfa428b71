//! The one place where the scope of a route is checked against the roles of its caller.

use axum::http::StatusCode;
use namespaces::NamespaceSelection;

use super::caller_identity::CallerIdentity;
use super::endpoint_access::EndpointAccess;
use super::role::Role;
use crate::blocking::run_blocking;
use crate::endpoint_scope::{AddressedKind, AddressedObject, EndpointScope};
use crate::object_store::get_object;
use crate::problem_details::ProblemDetails;
use crate::state::ApiState;

/// Checks that an authenticated caller may use a route for the object in its path. Returns the
/// namespaces that the request may read and change.
pub(crate) async fn authorize(
    app: &ApiState,
    who: &CallerIdentity,
    (access, scope): (EndpointAccess, &EndpointScope),
    path: &[(String, String)],
) -> Result<NamespaceSelection, ProblemDetails> {
    let Some(needed) = access.required_role(app) else {
        return Ok(NamespaceSelection::none());
    };
    if let Some(role) = who.authority.node_role() {
        return match role >= needed {
            true => Ok(NamespaceSelection::All),
            false => Err(forbidden(format!(
                "This request needs the role {}; {} is {}.",
                needed.name(),
                who.name,
                role.name()
            ))),
        };
    }
    match scope {
        EndpointScope::Caller => Ok(NamespaceSelection::none()),
        EndpointScope::Node => Err(forbidden(format!(
            "This request needs the node-wide role {}; {} is {}.",
            needed.name(),
            who.name,
            who.authority.describe()
        ))),
        EndpointScope::Selected => selection(app, who, needed),
        EndpointScope::Object(addressed) => {
            let selection = selection(app, who, needed)?;
            let id = path.iter().find(|(name, _)| name == addressed.parameter);
            let id = id.map_or("", |(_, id)| id.as_str());
            match owner_of_addressed(app, addressed, id).await? {
                AddressedOwner::Namespace(namespace) if selection.contains(&namespace) => {
                    Ok(selection.within(&namespace))
                }
                AddressedOwner::Namespace(namespace) if who.authority.has_role_in(&namespace) => {
                    Err(insufficient(app, who, needed, Some(&namespace)))
                }
                AddressedOwner::Absent if addressed.may_be_new => Ok(selection),
                // Objects of the node and of other namespaces are answered like absent ones.
                AddressedOwner::Absent | AddressedOwner::Node | AddressedOwner::Namespace(_) => {
                    Err(ProblemDetails::not_found(format!(
                        "There is no {} {id:?}.",
                        addressed.kind.noun()
                    )))
                }
            }
        }
    }
}

/// The namespaces in which the caller has the role; an error if there is none.
fn selection(
    app: &ApiState,
    who: &CallerIdentity,
    needed: Role,
) -> Result<NamespaceSelection, ProblemDetails> {
    let selection = who.authority.selection(needed, &app.namespaces);
    match selection == NamespaceSelection::none() {
        true => Err(insufficient(app, who, needed, None)),
        false => Ok(selection),
    }
}

fn forbidden(detail: String) -> ProblemDetails {
    ProblemDetails::new(StatusCode::FORBIDDEN, detail)
}

/// Why the caller's roles do not suffice: a namespace is disabled, or the role is too low.
fn insufficient(
    app: &ApiState,
    who: &CallerIdentity,
    needed: Role,
    namespace: Option<&str>,
) -> ProblemDetails {
    let grants = who.authority.grants().into_iter();
    let mut grants = grants.filter(|grant| namespace.is_none_or(|only| only == grant.namespace));
    let disabled = grants.find_map(|grant| {
        let limits = app.namespaces.get(&grant.namespace)?;
        let reason = limits.disabled_reason.clone()?;
        Some((grant.namespace, reason))
    });
    if let Some((namespace, reason)) = disabled {
        return forbidden(format!("The namespace {namespace:?} is disabled: {reason}"));
    }
    let role = match needed {
        Role::Viewer => "viewer",
        Role::Operator => "operator",
        Role::Admin => "owner",
    };
    forbidden(format!(
        "This request needs the role {role} in a namespace; {} is {}.",
        who.name,
        who.authority.describe()
    ))
}

/// To whom an addressed object belongs.
enum AddressedOwner {
    /// There is no such object.
    Absent,
    /// The node as a whole.
    Node,
    Namespace(String),
}

impl From<Option<String>> for AddressedOwner {
    /// Of an object that belongs to a namespace if it exists.
    fn from(namespace: Option<String>) -> Self {
        namespace.map_or(Self::Absent, Self::Namespace)
    }
}

async fn owner_of_addressed(
    app: &ApiState,
    addressed: &AddressedObject,
    id: &str,
) -> Result<AddressedOwner, ProblemDetails> {
    const UNREADABLE: &str = "The object cannot be read now.";
    let unavailable =
        |error: &dyn std::fmt::Display| ProblemDetails::unavailable(format!("{error}."));
    match &addressed.kind {
        AddressedKind::Device => {
            let (devices, id) = (app.devices.clone(), id.to_owned());
            let found = run_blocking(move || devices.registry().device(&id), UNREADABLE).await?;
            let device = found.map_err(|error| unavailable(&error))?;
            let namespace = device.map(|device| device.product.get().namespace().to_owned());
            Ok(namespace.into())
        }
        AddressedKind::Command => {
            let Ok(id) = id.parse() else {
                return Ok(AddressedOwner::Absent);
            };
            let commands = app.commands.clone();
            let found = run_blocking(move || commands.get(id), UNREADABLE).await?;
            let command = found
                .map_err(|_| ProblemDetails::unavailable("The commands cannot be read now."))?;
            Ok(command.map(|command| command.namespace).into())
        }
        AddressedKind::File => {
            let (files, id) = (app.files.clone(), id.to_owned());
            let find = move || files.info(transfer::FileTarget::Id(&id));
            let file = run_blocking(find, UNREADABLE).await?;
            Ok(file.map(|file| file.owner.namespace).into())
        }
        AddressedKind::FirmwareCampaign => {
            let campaign = id
                .parse()
                .ok()
                .and_then(|id| app.firmware.known_campaign(id));
            Ok(campaign
                .map(|campaign| campaign.definition.namespace)
                .into())
        }
        AddressedKind::Alarm => {
            let Ok(id) = id.parse() else {
                return Ok(AddressedOwner::Absent);
            };
            let alarms = app.alarms.clone();
            let found = run_blocking(move || alarms.get(id), UNREADABLE).await?;
            let alarm =
                found.map_err(|_| ProblemDetails::unavailable("The alarms cannot be read now."))?;
            Ok(alarm.map(|alarm| alarm.namespace).into())
        }
        AddressedKind::Object {
            storage_kind,
            declared,
            owner,
        } => {
            let mut declared = declared
                .map(|kind| app.object_backend.declared(kind))
                .unwrap_or_default()
                .into_iter();
            let value = match declared.find(|object| object.id == id) {
                Some(object) => Some(object.value),
                None => get_object(app, storage_kind, id)
                    .await?
                    .map(|object| object.value),
            };
            Ok(match value {
                None => AddressedOwner::Absent,
                Some(value) => match owner.namespace(id, &value) {
                    None => AddressedOwner::Node,
                    Some(namespace) => AddressedOwner::Namespace(namespace.to_owned()),
                },
            })
        }
    }
}
