//! A selection of namespaces, by which lists are filtered.

use std::collections::BTreeSet;
use std::sync::Arc;

/// The namespaces whose objects are selected.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum NamespaceSelection {
    #[default]
    All,
    Only(Arc<BTreeSet<String>>),
}

impl NamespaceSelection {
    /// No namespace.
    #[must_use]
    pub fn none() -> Self {
        Self::Only(Arc::default())
    }

    /// Whether it contains everything that another selection contains.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::All, _) => true,
            (Self::Only(_), Self::All) => false,
            (Self::Only(names), Self::Only(others)) => others.is_subset(names),
        }
    }

    #[must_use]
    pub fn contains(&self, namespace: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(names) => names.contains(namespace),
        }
    }

    /// The part of the selection within one namespace.
    #[must_use]
    pub fn within(&self, namespace: &str) -> Self {
        let only = self.contains(namespace).then(|| namespace.to_owned());
        Self::Only(Arc::new(only.into_iter().collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_never_widens_a_selection() {
        let names = ["a", "b"].map(str::to_owned);
        let some = NamespaceSelection::Only(Arc::new(names.into()));
        assert!(NamespaceSelection::All.contains("c") && !some.contains("c"));
        assert!(some.within("a").contains("a") && !some.within("a").contains("b"));
        assert!(!some.within("c").contains("c"));
        assert!(NamespaceSelection::All.within("c").contains("c"));
        assert!(NamespaceSelection::All.covers(&some) && !some.covers(&NamespaceSelection::All));
        assert!(some.covers(&some.within("a")) && !some.within("a").covers(&some));
        assert!(some.covers(&NamespaceSelection::none()));
    }
}
