//! Which nodes have too many connections, and how many each should have.

/// Excess over the average, in percent of it, that is left alone: clients come and go.
const TOLERATED_PERCENT: u128 = 5;
/// Smallest excess for which clients are disconnected.
const MIN_EXCESS: u64 = 5;

/// The connections of a node that takes part.
#[derive(Debug, Clone, Copy)]
pub(super) struct NodeConnections {
    pub(super) connections: u64,
    /// Connections that stay; `None`: not known.
    pub(super) bound: Option<u64>,
}

/// What a node does in a rebalancing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PlannedNode {
    /// Number of connections down to which it disconnects clients; `None`: it disconnects none.
    pub(super) target: Option<u64>,
    /// Expected number of connections afterwards.
    pub(super) after: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RebalancePlan {
    /// Rounded up.
    pub(super) average: u64,
    /// In the order of the nodes.
    pub(super) nodes: Vec<PlannedNode>,
    /// Whether a node has too many connections, but all of them stay.
    pub(super) is_bound: bool,
}

impl RebalancePlan {
    pub(super) fn new(nodes: &[NodeConnections]) -> Self {
        let total: u128 = nodes.iter().map(|node| u128::from(node.connections)).sum();
        let average = total.div_ceil(nodes.len().max(1) as u128) as u64;
        let has_too_many = |node: &NodeConnections| {
            let of_all = u128::from(node.connections) * nodes.len() as u128;
            of_all * 100 > total * (100 + TOLERATED_PERCENT)
                && node.connections.saturating_sub(average) >= MIN_EXCESS
        };
        let mut is_bound = false;
        let mut planned = Vec::with_capacity(nodes.len());
        for node in nodes {
            let bound = node.bound.unwrap_or(0);
            let can_move = bound < node.connections;
            let has_too_many = has_too_many(node);
            is_bound |= has_too_many && !can_move;
            let target = (has_too_many && can_move).then_some(average);
            planned.push(PlannedNode {
                target,
                after: target.map_or(node.connections, |target| target.max(bound)),
            });
        }
        let moved = nodes.iter().zip(&planned);
        let moved = moved.map(|(node, planned)| node.connections - planned.after);
        distribute(moved.sum(), average, &mut planned);
        Self {
            average,
            nodes: planned,
            is_bound,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.nodes.iter().all(|node| node.target.is_none())
    }
}

/// Adds connections to the nodes that have fewer than the average, in proportion to what they lack.
fn distribute(connections: u64, average: u64, nodes: &mut [PlannedNode]) {
    let lacks = |node: &PlannedNode| u128::from(average.saturating_sub(node.after));
    let mut lacking: u128 = nodes.iter().map(lacks).sum();
    let mut left = u128::from(connections);
    for node in nodes {
        let lack = lacks(node);
        if lack > 0 {
            let share = left * lack / lacking;
            node.after += share as u64;
            left -= share;
            lacking -= lack;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(connections: &[(u64, u64)]) -> RebalancePlan {
        let node = |&(connections, bound)| NodeConnections {
            connections,
            bound: Some(bound),
        };
        RebalancePlan::new(&connections.iter().map(node).collect::<Vec<_>>())
    }

    fn targets(plan: &RebalancePlan) -> Vec<Option<u64>> {
        plan.nodes.iter().map(|node| node.target).collect()
    }

    fn after(plan: &RebalancePlan) -> Vec<u64> {
        plan.nodes.iter().map(|node| node.after).collect()
    }

    #[test]
    fn nodes_with_too_many_connections_disconnect_down_to_the_average() {
        let plan = plan(&[(1000, 0), (0, 0), (100, 0)]);
        assert_eq!(plan.average, 367);
        assert_eq!(targets(&plan), [Some(367), None, None]);
        assert_eq!(after(&plan), [367, 366, 367]);
        assert!(!plan.is_empty());
    }

    #[test]
    fn several_nodes_may_have_too_many() {
        let plan = plan(&[(500, 0), (400, 0), (300, 0), (0, 0)]);
        assert_eq!(targets(&plan), [Some(300), Some(300), None, None]);
        assert_eq!(after(&plan), [300, 300, 300, 300]);
    }

    #[test]
    fn small_differences_are_left_alone() {
        for even in [
            &[][..],
            &[(1000, 0)],
            &[(0, 0), (0, 0)],
            &[(8, 0), (0, 0)],
            &[(105, 0), (100, 0), (95, 0)],
            &[(1050, 0), (1000, 0), (950, 0)],
        ] {
            let plan = plan(even);
            assert!(plan.is_empty(), "{even:?}: {plan:?}");
            let connections: Vec<_> = even.iter().map(|node| node.0).collect();
            assert_eq!(after(&plan), connections);
        }
        assert!(!plan(&[(10, 0), (0, 0)]).is_empty());
        assert!(!plan(&[(1051, 0), (1000, 0), (949, 0)]).is_empty());
    }

    #[test]
    fn connections_that_stay_are_counted() {
        let partly = plan(&[(900, 700), (0, 0), (0, 0)]);
        assert_eq!(targets(&partly), [Some(300), None, None]);
        assert_eq!(after(&partly), [700, 100, 100]);
        let bound = plan(&[(900, 900), (0, 0)]);
        assert!(bound.is_empty() && bound.is_bound);
        assert_eq!(after(&bound), [900, 0]);
    }

    #[test]
    fn a_node_that_does_not_say_what_stays_is_part_of_the_plan() {
        let of = |connections| NodeConnections {
            connections,
            bound: None,
        };
        let plan = RebalancePlan::new(&[of(100), of(0)]);
        assert_eq!(targets(&plan), [Some(50), None]);
    }
}
