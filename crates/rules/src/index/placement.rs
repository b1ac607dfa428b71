//! Placement of a rule in the index: at the most selective condition on the topic, with a guard for its other
//! conditions.

use super::rule_bucket::TopicGuard;
use crate::index_keys::IndexKeys;
use crate::rule_source::{EventKind, RuleSource};

/// Beyond this number of combinations of sources and topics the index does not distinguish them; WHERE does.
const MAX_COMBINATIONS: usize = 64;

/// One place of a rule within one kind of event.
pub(super) struct IndexPlacement<'a> {
    /// `None`: no condition on the topic.
    pub(super) filter: Option<&'a str>,
    pub(super) guard: Option<TopicGuard>,
}

/// The placements of a rule by kind of event. At most one of them accepts an event, so that the event meets
/// the rule once.
pub(super) fn placements<'a>(
    sources: &'a [RuleSource],
    keys: &'a IndexKeys,
) -> Vec<(EventKind, Vec<IndexPlacement<'a>>)> {
    let mut kinds: Vec<(EventKind, Vec<Option<&str>>)> = Vec::new();
    for source in sources {
        let (kind, filter) = match source {
            RuleSource::Event(kind) => (*kind, None),
            RuleSource::Topic(filter) => (EventKind::Publish, Some(&**filter)),
            RuleSource::Rule(_) | RuleSource::Bridge(_) => continue,
        };
        match kinds.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, filters)) => filters.push(filter),
            None => kinds.push((kind, vec![filter])),
        }
    }
    let positions = |(kind, filters): (EventKind, Vec<Option<&'a str>>)| {
        // A rule for every event of a kind does not need its filters.
        let filters = match filters.contains(&None) {
            true => None,
            false => Some(filters.into_iter().flatten().collect()),
        };
        (kind, placements_for_kind(filters, keys))
    };
    // A rule that no event can match has no placement.
    let is_somewhere =
        |(_, positions): &(EventKind, Vec<IndexPlacement<'a>>)| !positions.is_empty();
    kinds
        .into_iter()
        .map(positions)
        .filter(is_somewhere)
        .collect()
}

/// One of `filters` must match; `None`: any topic, or no topic at all.
fn placements_for_kind<'a>(
    filters: Option<Vec<&'a str>>,
    keys: &'a IndexKeys,
) -> Vec<IndexPlacement<'a>> {
    let texts =
        |keys: &'a [crate::index_keys::TopicKey]| keys.iter().map(|key| key.text()).collect();
    let topics: Option<Vec<&str>> = keys.topics.as_deref().map(texts);
    // The name of a subscription contains wildcards and cannot be looked up as a filter.
    let topics = topics.filter(|_| !keys.topics.iter().flatten().any(is_special_topic));
    let combinations: Vec<Vec<&str>> = match (filters, topics) {
        (None, None) => {
            return vec![IndexPlacement {
                filter: None,
                guard: None,
            }];
        }
        (Some(one), None) | (None, Some(one)) => one.into_iter().map(|text| vec![text]).collect(),
        (Some(filters), Some(topics)) if filters.len() * topics.len() <= MAX_COMBINATIONS => {
            let pair = |filter| topics.iter().map(move |&topic| vec![filter, topic]);
            filters.into_iter().flat_map(pair).collect()
        }
        (Some(filters), Some(topics)) => {
            let fewer = if topics.len() < filters.len() {
                topics
            } else {
                filters
            };
            fewer.into_iter().map(|text| vec![text]).collect()
        }
    };
    let mut positions = Vec::new();
    for (n, all) in combinations.iter().enumerate() {
        positions.extend(choose_placement(all, &combinations[..n]));
    }
    positions
}

fn is_special_topic(key: &crate::index_keys::TopicKey) -> bool {
    matches!(key, crate::index_keys::TopicKey::Exact(name) if mqtt::has_wildcards(name))
}

/// Places the rule at the most selective filter and guards it by the others. `None`: no event can match.
fn choose_placement<'a>(all: &[&'a str], earlier: &[Vec<&'a str>]) -> Option<IndexPlacement<'a>> {
    let telling = |filter: &&&str| {
        let has_wildcards = mqtt::has_wildcards(filter);
        let literal = mqtt::levels(filter).filter(|level| !matches!(*level, "+" | "#"));
        (!has_wildcards, literal.count(), filter.len())
    };
    let place = all.iter().max_by_key(telling).copied()?;
    if !mqtt::has_wildcards(place) {
        // Only one topic can match here, so the other conditions on it are decided now.
        let is_in = |filters: &[&str]| {
            filters
                .iter()
                .all(|filter| mqtt::filter_matches(filter, place))
        };
        let is_wanted = is_in(all) && !earlier.iter().any(|filters| is_in(filters));
        return is_wanted.then_some(IndexPlacement {
            filter: Some(place),
            guard: None,
        });
    }
    let owned = |filters: &[&str]| filters.iter().map(|&filter| filter.into()).collect();
    let others: Vec<&str> = all
        .iter()
        .copied()
        .filter(|&filter| filter != place)
        .collect();
    let guard = TopicGuard {
        all: owned(&others),
        none: earlier.iter().map(|filters| owned(filters)).collect(),
    };
    let is_needed = !guard.all.is_empty() || !guard.none.is_empty();
    Some(IndexPlacement {
        filter: Some(place),
        guard: is_needed.then_some(guard),
    })
}
