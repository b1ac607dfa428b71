//! Members that are lost stay in the list until they return, leave or are evicted.

#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

use cluster::{ChannelLimits, ClusterMembership, Member, MemberChange, MembershipConfig, NodeName};

fn member(name: &str, run_id: u64) -> Member {
    Member::new(NodeName::new(name).unwrap(), run_id, "1", 1..=1)
}

fn membership() -> ClusterMembership {
    let config = MembershipConfig {
        lease_ms: 5000,
        channel: ChannelLimits::default(),
    };
    let mut last = 0;
    ClusterMembership::new(member("self", 1), config, move || {
        last += 1;
        last
    })
}

/// Names and whether they can be reached.
fn listed(membership: &ClusterMembership, now_ms: u64) -> Vec<(String, bool)> {
    let members = membership.members(now_ms).into_iter();
    members
        .map(|info| (info.member.node.to_string(), info.is_reachable))
        .collect()
}

#[test]
fn a_member_whose_entry_has_expired_stays_in_the_list_until_it_leaves() {
    let mut membership = membership();
    membership.handle_change(MemberChange::Renewed(member("other", 1)), 0);
    let name = NodeName::new("other").unwrap();
    membership.handle_change(MemberChange::Expired(name.clone()), 30_000);
    assert_eq!(listed(&membership, 30_000), [("other".to_owned(), false)]);
    let info = &membership.members(40_000)[0];
    assert_eq!(info.silent_ms, 40_000);
    // Nobody is waited for.
    membership.handle_change(MemberChange::Complete, 40_000);
    assert!(membership.is_settled());

    // It returns, and its channel is opened.
    membership.handle_change(MemberChange::Renewed(member("other", 2)), 50_000);
    assert!(!membership.is_settled());
    membership.handle_change(MemberChange::Left(name), 50_000);
    assert_eq!(listed(&membership, 50_000), []);
}

#[test]
fn the_members_that_were_lost_first_are_forgotten() {
    let mut membership = membership();
    for n in 0..70_u64 {
        let node = member(&format!("node-{n:02}"), 1);
        let name = node.node.clone();
        membership.handle_change(MemberChange::Renewed(node), n);
        membership.handle_change(MemberChange::Expired(name), n + 30_000);
    }
    let listed = listed(&membership, 40_000);
    assert_eq!(listed.len(), 64);
    assert_eq!(listed[0].0, "node-06");
}
