//! Which callers with roles in namespaces may use a route. Callers with a node-wide role may use
//! every route for everything; their role alone is checked.

use crate::objects::{BackendObjectKind, ObjectOwner};

/// The scope of a route. Every route with a role declares one.
#[derive(Debug, Clone)]
pub(crate) enum EndpointScope {
    /// Only callers with a node-wide role.
    Node,
    /// All callers: the route is about the caller itself, or about nothing that belongs to a
    /// namespace.
    Caller,
    /// Callers with the role in any namespace. The handler shows and changes only what
    /// [`crate::call::ApiCall::namespaces`] selects; a handler that does not ask is an error.
    Selected,
    /// Callers with the role in the namespace of the addressed object. For others there is no such
    /// object.
    Object(AddressedObject),
}

/// The object that a path names.
#[derive(Debug, Clone)]
pub(crate) struct AddressedObject {
    /// The path parameter with its id.
    pub(crate) parameter: &'static str,
    pub(crate) kind: AddressedKind,
    /// Whether the request may create it. Then the handler checks the namespace of the new object,
    /// as for [`EndpointScope::Selected`].
    pub(crate) may_be_new: bool,
}

#[derive(Debug, Clone)]
pub(crate) enum AddressedKind {
    Device,
    Alarm,
    Command,
    /// A file or a file transfer.
    File,
    FirmwareCampaign,
    /// A configuration object.
    Object {
        storage_kind: &'static str,
        /// `None`: the kind cannot be declared.
        declared: Option<BackendObjectKind>,
        owner: ObjectOwner,
    },
}

impl AddressedKind {
    /// Name in a sentence.
    pub(crate) fn noun(&self) -> String {
        match self {
            Self::Device => "device".to_owned(),
            Self::Alarm => "alarm".to_owned(),
            Self::Command => "command".to_owned(),
            Self::File => "file".to_owned(),
            Self::FirmwareCampaign => "firmware campaign".to_owned(),
            Self::Object { storage_kind, .. } => storage_kind.replace('_', " "),
        }
    }
}

impl EndpointScope {
    fn of(kind: AddressedKind, parameter: &'static str) -> Self {
        Self::Object(AddressedObject {
            parameter,
            kind,
            may_be_new: false,
        })
    }

    pub(crate) fn device(parameter: &'static str) -> Self {
        Self::of(AddressedKind::Device, parameter)
    }

    pub(crate) fn alarm(parameter: &'static str) -> Self {
        Self::of(AddressedKind::Alarm, parameter)
    }

    pub(crate) fn command(parameter: &'static str) -> Self {
        Self::of(AddressedKind::Command, parameter)
    }

    pub(crate) fn file(parameter: &'static str) -> Self {
        Self::of(AddressedKind::File, parameter)
    }

    pub(crate) fn firmware_campaign(parameter: &'static str) -> Self {
        Self::of(AddressedKind::FirmwareCampaign, parameter)
    }

    /// A configuration object of a kind of the backend.
    pub(crate) fn object(kind: BackendObjectKind, parameter: &'static str) -> Self {
        let names = kind.names();
        let kind = AddressedKind::Object {
            storage_kind: names.kind,
            declared: Some(kind),
            owner: names.owner,
        };
        Self::of(kind, parameter)
    }

    pub(crate) fn configuration_object(kind: AddressedKind, parameter: &'static str) -> Self {
        Self::of(kind, parameter)
    }

    /// The same, for a request that may also create the object.
    pub(crate) fn or_new(self) -> Self {
        match self {
            Self::Object(addressed) => Self::Object(AddressedObject {
                may_be_new: true,
                ..addressed
            }),
            other => other,
        }
    }

    /// Name in the OpenAPI document.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Caller => "caller",
            Self::Selected => "selected",
            Self::Object(_) => "object",
        }
    }
}
