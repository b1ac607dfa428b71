//! Who publishes to whom: groups of publishers and subscribers, their topics and filters.
//!
//! Within a group every subscriber gets every message of every publisher; groups know nothing of each other, so
//! they can be spread over threads.

use anyhow::{bail, ensure};

/// Most (subscriber, publisher) pairs; each has a sequence to check.
const MAX_PAIRS: usize = 4_000_000;
/// Most different topics of a run.
const MAX_TOPICS: usize = 2_000_000;

/// Many topics, each matched by exactly one filter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TopicSpread {
    /// Different filters, over all groups.
    pub(crate) filters: usize,
    /// The share of them with wildcards.
    pub(crate) wildcards: f64,
}

/// Which topics there are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum TopicLayout {
    /// One for each publisher; a subscriber reads those of its group through one filter.
    PerPublisher,
    /// So many over all groups, through which the publishers cycle.
    Spread(TopicSpread),
    /// One for each subscriber, who reads no other; the group's publishers cycle through them.
    PerSubscriber,
    /// Those that rules want; what the rules make of them goes to the one subscriber of each group.
    RuleTopics(RuleTopics),
}

/// Topics that rules want, in which each rule has its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RuleTopics {
    pub(crate) rules: usize,
    /// Rules name their topic, the same for all publishers; or a filter, of which each publisher has a topic.
    pub(crate) is_exact: bool,
}

impl RuleTopics {
    /// The topic, or the filter, that a rule names.
    pub(crate) fn filter(self, rule: usize) -> String {
        let place = match self.rules {
            1 => "sensor".to_owned(),
            _ => format!("sensor/r{rule:05}"),
        };
        match self.is_exact {
            true => format!("{place}/temperature"),
            false => format!("{place}/+/data"),
        }
    }

    /// The topics of one publisher.
    fn topics(self, publisher: usize) -> Vec<String> {
        let own = format!("/d{publisher:06}/");
        (0..self.rules)
            .map(|rule| self.filter(rule).replace("/+/", &own))
            .collect()
    }
}

/// The shape of a load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LoadShape {
    pub(crate) groups: usize,
    /// In each group.
    pub(crate) publishers: usize,
    /// In each group.
    pub(crate) subscribers: usize,
    pub(crate) topics: TopicLayout,
}

impl LoadShape {
    /// Refuses shapes that no machine would hold.
    pub(crate) fn validate(&self) -> anyhow::Result<()> {
        let pairs = self
            .groups
            .checked_mul(self.publishers)
            .and_then(|product| product.checked_mul(self.subscribers));
        if pairs.is_none_or(|pairs| pairs > MAX_PAIRS) {
            bail!(
                "{} groups of {} publishers and {} subscribers make more than {MAX_PAIRS} sequences to check",
                self.groups,
                self.publishers,
                self.subscribers
            );
        }
        if let TopicLayout::Spread(spread) = self.topics {
            let publishers = self.groups * self.publishers;
            ensure!(
                spread.filters >= publishers,
                "--filters {} is fewer than one for each of the {publishers} publishers",
                spread.filters
            );
            ensure!(
                spread.filters <= MAX_TOPICS,
                "--filters {} is more than {MAX_TOPICS}",
                spread.filters
            );
        }
        if let TopicLayout::RuleTopics(ruled) = self.topics {
            let topics = self.groups * self.publishers * ruled.rules;
            ensure!(
                topics <= MAX_TOPICS,
                "--rules {} for each of {} publishers make more than {MAX_TOPICS} topics",
                ruled.rules,
                self.groups * self.publishers
            );
        }
        Ok(())
    }

    /// Connections of one group.
    pub(crate) fn group_connections(&self) -> usize {
        self.publishers + self.subscribers
    }

    /// Connections of all groups.
    pub(crate) fn connections(&self) -> usize {
        self.groups * self.group_connections()
    }

    /// Of how many messages in a row of one publisher a subscriber gets one.
    pub(crate) fn stride(&self) -> u64 {
        match self.topics {
            TopicLayout::PerSubscriber => self.subscribers.max(1) as u64,
            TopicLayout::PerPublisher | TopicLayout::Spread(_) | TopicLayout::RuleTopics(_) => 1,
        }
    }

    /// The topics a publisher cycles through, all of the same length.
    pub(crate) fn topics(&self, run: u32, group: usize, publisher: usize) -> Vec<String> {
        match self.topics {
            TopicLayout::PerPublisher => vec![format!("bench/{run:08x}/{group}/{publisher}")],
            TopicLayout::Spread(spread) => {
                let (from, to) = self.topic_range(spread, group * self.publishers + publisher);
                (from..to).map(|i| spread_topic(run, i)).collect()
            }
            TopicLayout::PerSubscriber => (0..self.subscribers)
                .map(|member| own_topic(run, group, member))
                .collect(),
            TopicLayout::RuleTopics(ruled) => ruled.topics(group * self.publishers + publisher),
        }
    }

    /// The filters that one subscriber of a group holds.
    pub(crate) fn filters(&self, run: u32, group: usize, subscriber: usize) -> Vec<String> {
        match self.topics {
            TopicLayout::PerPublisher if self.publishers == 1 => self.topics(run, group, 0),
            TopicLayout::PerPublisher => vec![format!("bench/{run:08x}/{group}/+")],
            TopicLayout::Spread(spread) => {
                let (from, _) = self.topic_range(spread, group * self.publishers);
                let (_, to) = self.topic_range(spread, (group + 1) * self.publishers - 1);
                (from..to)
                    .map(|i| spread_filter(run, i, spread.wildcards))
                    .collect()
            }
            TopicLayout::PerSubscriber => vec![own_topic(run, group, subscriber)],
            // Rules publish to topics named after clients: see `BrokerAccess::output_topic`.
            TopicLayout::RuleTopics(_) => Vec::new(),
        }
    }

    /// The topic numbers of one publisher, counted over all groups.
    fn topic_range(&self, spread: TopicSpread, publisher: usize) -> (usize, usize) {
        let publishers = self.groups * self.publishers;
        let start = |number: usize| number * spread.filters / publishers;
        (start(publisher), start(publisher + 1))
    }
}

fn own_topic(run: u32, group: usize, subscriber: usize) -> String {
    format!("bench/{run:08x}/{group}/c{subscriber:07}")
}

fn spread_topic(run: u32, number: usize) -> String {
    format!("bench/{run:08x}/d{number:07}/telemetry/m{number:07}")
}

/// The one filter that matches topic `number` and no other topic of the run.
fn spread_filter(run: u32, number: usize, wildcards: f64) -> String {
    // Wildcards are strewn evenly: topic n has one where the running total passes a whole number.
    let before = (number as f64 * wildcards).floor();
    let after = ((number + 1) as f64 * wildcards).floor();
    if after <= before {
        return spread_topic(run, number);
    }
    match after as usize % 3 {
        0 => format!("bench/{run:08x}/d{number:07}/+/m{number:07}"),
        1 => format!("bench/{run:08x}/d{number:07}/#"),
        _ => format!("bench/{run:08x}/+/telemetry/m{number:07}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_have_a_topic_each_and_no_wildcard() {
        let shape = LoadShape {
            groups: 3,
            publishers: 1,
            subscribers: 1,
            topics: TopicLayout::PerPublisher,
        };
        assert_eq!(shape.topics(1, 2, 0), ["bench/00000001/2/0"]);
        assert_eq!(shape.filters(1, 2, 0), shape.topics(1, 2, 0));
        assert_eq!(shape.connections(), 6);
    }

    #[test]
    fn a_fan_in_is_read_through_a_wildcard() {
        let shape = LoadShape {
            groups: 1,
            publishers: 500,
            subscribers: 1,
            topics: TopicLayout::PerPublisher,
        };
        let filters = shape.filters(1, 0, 0);
        assert_eq!(filters, ["bench/00000001/0/+"]);
        let topic = &shape.topics(1, 0, 499)[0];
        assert!(mqtt::filter_matches(&filters[0], topic));
    }

    #[test]
    fn every_spread_topic_is_matched_by_its_own_filter_alone() {
        let spread = TopicSpread {
            filters: 100,
            wildcards: 0.2,
        };
        let shape = LoadShape {
            groups: 7,
            publishers: 2,
            subscribers: 1,
            topics: TopicLayout::Spread(spread),
        };
        shape.validate().expect("a fine shape");
        let all: Vec<(usize, String)> = (0..7)
            .flat_map(|group| {
                shape
                    .filters(9, group, 0)
                    .into_iter()
                    .map(move |f| (group, f))
            })
            .collect();
        assert_eq!(all.len(), 100);
        let wild = all.iter().filter(|(_, f)| f.contains(['+', '#'])).count();
        assert_eq!(wild, 20);
        let mut topics = 0;
        for group in 0..7 {
            for publisher in 0..2 {
                for topic in shape.topics(9, group, publisher) {
                    let matching: Vec<&(usize, String)> = all
                        .iter()
                        .filter(|(_, filter)| mqtt::filter_matches(filter, &topic))
                        .collect();
                    assert_eq!(matching.len(), 1, "{topic}");
                    assert_eq!(matching[0].0, group);
                    topics += 1;
                }
            }
        }
        assert_eq!(topics, 100);
    }

    #[test]
    fn topics_of_their_own_come_round_in_turn() {
        let shape = LoadShape {
            groups: 2,
            publishers: 1,
            subscribers: 3,
            topics: TopicLayout::PerSubscriber,
        };
        let topics = shape.topics(1, 1, 0);
        assert_eq!((topics.len(), shape.stride()), (3, 3));
        for (member, topic) in topics.iter().enumerate() {
            assert_eq!(&shape.filters(1, 1, member)[0], topic);
            assert_eq!(topic.len(), topics[0].len());
        }
        assert_ne!(shape.topics(1, 0, 0)[0], topics[0]);
    }

    #[test]
    fn every_topic_is_wanted_by_one_rule() {
        for (rules, is_exact) in [(1, true), (1, false), (12, true), (12, false)] {
            let ruled = RuleTopics { rules, is_exact };
            let shape = LoadShape {
                groups: 3,
                publishers: 1,
                subscribers: 1,
                topics: TopicLayout::RuleTopics(ruled),
            };
            shape.validate().expect("a fine shape");
            let topics = shape.topics(1, 2, 0);
            assert_eq!(topics.len(), rules);
            for topic in &topics {
                assert_eq!(topic.len(), topics[0].len());
                let wanting = (0..rules).filter(|&n| mqtt::filter_matches(&ruled.filter(n), topic));
                assert_eq!(wanting.count(), 1, "{topic}");
            }
        }
    }

    #[test]
    fn refuses_what_no_machine_holds() {
        let huge = LoadShape {
            groups: 1,
            publishers: 100_000,
            subscribers: 100_000,
            topics: TopicLayout::PerPublisher,
        };
        assert!(huge.validate().unwrap_err().to_string().contains("4000000"));
        let few = LoadShape {
            groups: 10,
            publishers: 1,
            subscribers: 1,
            topics: TopicLayout::Spread(TopicSpread {
                filters: 9,
                wildcards: 0.0,
            }),
        };
        assert!(
            few.validate()
                .unwrap_err()
                .to_string()
                .contains("--filters 9")
        );
    }
}
