//! How a run treats what exists on the node, and what it advises about conflicts.

/// How a run treats what exists on the node.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SetupMode {
    /// Whether other machines create the same products, and devices of their own.
    pub(crate) shares_products: bool,
    /// Whether everything stays at the end, and what an earlier run has left is used again.
    pub(crate) keeps: bool,
    /// Whether another part of the program runs it, so that there is no file to change.
    pub(crate) is_embedded: bool,
}

impl SetupMode {
    /// What to do about an object that exists.
    pub(crate) fn remedy(self) -> &'static str {
        match self.is_embedded {
            true => {
                "clean up what an earlier run of this simulation has left, or delete it if it is your own"
            }
            false => {
                "set create = false to use a product with its devices, choose another id, or remove what an earlier run has left with \
                 --clean"
            }
        }
    }
}
