//! Where copies of telemetry are, as the nodes announce it.

use std::collections::BTreeMap;

use crate::message::PlacedCopy;

/// A copy and the node that has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyPlace {
    /// The node with the copy.
    pub holder: String,
    pub copy: PlacedCopy,
}

/// What other nodes have announced.
#[derive(Default)]
pub(crate) struct CopyDirectory {
    by_holder: BTreeMap<String, Vec<PlacedCopy>>,
}

impl CopyDirectory {
    pub(crate) fn set(&mut self, holder: String, kept: Vec<PlacedCopy>) {
        match kept.is_empty() {
            true => self.by_holder.remove(&holder),
            false => self.by_holder.insert(holder, kept),
        };
    }

    /// One place of each copy: `own` and those at nodes that can be reached. Of several copies of the same time series, the one to which
    /// the node has sent something last.
    pub(crate) fn places(
        &self,
        own: (&str, Vec<PlacedCopy>),
        reachable: &[String],
    ) -> Vec<CopyPlace> {
        let (node, kept) = own;
        let others = self.by_holder.iter();
        let others = others
            .filter(|(holder, _)| reachable.contains(holder))
            .flat_map(|(holder, kept)| kept.iter().map(|copy| (holder.as_str(), copy.clone())));
        let mut places = BTreeMap::<String, CopyPlace>::new();
        for (holder, copy) in kept.into_iter().map(|copy| (node, copy)).chain(others) {
            let is_later = places
                .get(&copy.key)
                .is_none_or(|known| known.copy.sent_ms < copy.sent_ms);
            if is_later {
                let holder = holder.to_owned();
                places.insert(copy.key.clone(), CopyPlace { holder, copy });
            }
        }
        places.into_values().collect()
    }
}
