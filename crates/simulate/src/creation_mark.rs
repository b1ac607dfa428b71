//! By which objects on a node are recognised that a simulation has created.

/// In the description of products, in the names of relay endpoints, and in the notes of packages.
pub(crate) const MARK: &str = "tidegate simulate";
/// Name of the tag of devices, whose value is [`MARK`].
pub(crate) const TAG: &str = "created-by";
