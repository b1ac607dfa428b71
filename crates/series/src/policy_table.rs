//! Resolves which policy applies to rows of a device and an age.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, Hash as _, Hasher as _};

use crate::config::{PolicyAssignment, PolicyResolver, RetentionPolicy};
use crate::point::DeviceNo;

/// The policies in force at one moment.
pub(crate) struct PolicyTable {
    of: HashMap<u8, RetentionPolicy>,
    default_policy: RetentionPolicy,
    policy_of: Option<PolicyResolver>,
    /// Distinguishes these policies from others.
    pub(crate) revision: u64,
}

impl PolicyTable {
    pub(crate) fn new(assignment: &PolicyAssignment) -> Self {
        let list = &assignment.policies;
        let of: HashMap<u8, RetentionPolicy> = list.iter().cloned().collect();
        let mut hasher = foldhash::fast::FixedState::default().build_hasher();
        assignment.revision.hash(&mut hasher);
        for (number, policy) in list {
            (number, policy.retention_ms).hash(&mut hasher);
            policy
                .tiers
                .iter()
                .for_each(|tier| (tier.after_ms, tier.interval_ms).hash(&mut hasher));
        }
        Self {
            default_policy: of.get(&0).cloned().unwrap_or_default(),
            of,
            policy_of: assignment.policy_of.clone(),
            revision: hasher.finish() | 1,
        }
    }

    pub(crate) fn policy_of(&self, device: DeviceNo) -> &RetentionPolicy {
        let number = self
            .policy_of
            .as_ref()
            .map_or(0, |of| of.policy_number(device));
        self.of.get(&number).unwrap_or(&self.default_policy)
    }

    /// Whether a policy changes its treatment between these ages.
    pub(crate) fn changes_between(&self, before_ms: i64, age_ms: i64) -> bool {
        let mut all = self.of.values().chain([&self.default_policy]);
        all.any(|policy| policy.interval_at(before_ms) != policy.interval_at(age_ms))
    }

    /// Whether no policy keeps rows of this age.
    pub(crate) fn all_expired(&self, age_ms: i64) -> bool {
        let mut all = self.of.values().chain([&self.default_policy]);
        all.all(|policy| policy.interval_at(age_ms).is_none())
    }
}
