//! Partition of a message, chosen as the Java client does, and assignment of partitions to group members.

use std::collections::BTreeMap;

/// The partition of a key, equal to that of the Java client.
pub fn partition_for_key(key: &[u8], partitions: usize) -> usize {
    (murmur2(key) & 0x7fff_ffff) as usize % partitions.max(1)
}

fn murmur2(data: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let mut h = 0x9747_b28c_u32 ^ data.len() as u32;
    let (words, rest) = data.as_chunks::<4>();
    for word in words {
        let mut k = u32::from_le_bytes(*word).wrapping_mul(M);
        k = (k ^ k >> 24).wrapping_mul(M);
        h = h.wrapping_mul(M) ^ k;
    }
    if !rest.is_empty() {
        let last = rest
            .iter()
            .rev()
            .fold(0, |k, byte| k << 8 | u32::from(*byte));
        h = (h ^ last).wrapping_mul(M);
    }
    h = (h ^ h >> 13).wrapping_mul(M);
    h ^ h >> 15
}

/// Partitions by topic.
pub type Assignment = BTreeMap<String, Vec<i32>>;

/// The `range` assignor: for each topic, every subscribed member gets a contiguous range of partitions.
/// `members` maps to the subscribed topics; `partitions` returns the number of partitions of a topic.
pub(crate) fn assign_ranges(
    members: &BTreeMap<String, Vec<String>>,
    partitions: &BTreeMap<String, usize>,
) -> BTreeMap<String, Assignment> {
    let empty = |name: &String| (name.clone(), Assignment::new());
    let mut shares: BTreeMap<String, Assignment> = members.keys().map(empty).collect();
    for (topic, count) in partitions {
        let wanting: Vec<&String> = members
            .iter()
            .filter(|(_, topics)| topics.contains(topic))
            .map(|(member, _)| member)
            .collect();
        if wanting.is_empty() {
            continue;
        }
        let (each, more) = (count / wanting.len(), count % wanting.len());
        let mut next = 0;
        for (at, member) in wanting.into_iter().enumerate() {
            let end = next + each + usize::from(at < more);
            if let (Some(share), true) = (shares.get_mut(member), end > next) {
                share.insert(topic.clone(), (next as i32..end as i32).collect());
            }
            next = end;
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected values from the tests of the Java client.
    #[test]
    fn keys_have_the_hash_of_javas_client() {
        let known: [(&str, i32); 7] = [
            ("21", -973_932_308),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            (
                "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8",
                -58_897_971,
            ),
            ("abc", 479_470_107),
            ("", 275_646_681),
        ];
        for (key, hash) in known {
            assert_eq!(murmur2(key.as_bytes()) as i32, hash, "{key}");
        }
        assert_eq!(
            partition_for_key(b"21", 7),
            ((-973_932_308_i32) & i32::MAX) as usize % 7
        );
        assert_eq!(partition_for_key(b"x", 1), 0);
    }

    fn assigned(members: &[(&str, &[&str])], topics: &[(&str, usize)]) -> Vec<String> {
        let members = members
            .iter()
            .map(|(name, topics)| {
                let topics = topics.iter().map(|topic| (*topic).to_owned()).collect();
                ((*name).to_owned(), topics)
            })
            .collect();
        let topics = topics.iter().map(|(n, count)| ((*n).to_owned(), *count));
        let shares = assign_ranges(&members, &topics.collect());
        let described = shares.iter().map(|(member, share)| {
            let parts = share.iter().map(|(topic, all)| format!("{topic}{all:?}"));
            format!("{member}: {}", parts.collect::<Vec<_>>().join(" "))
        });
        described.collect()
    }

    #[test]
    fn members_get_ranges_of_each_topic() {
        let both: &[&str] = &["t", "u"];
        assert_eq!(
            assigned(&[("b", both), ("a", both)], &[("t", 3), ("u", 3)]),
            ["a: t[0, 1] u[0, 1]", "b: t[2] u[2]"]
        );
        assert_eq!(
            assigned(
                &[("a", both), ("b", &["u"]), ("c", &[])],
                &[("t", 2), ("u", 2)]
            ),
            ["a: t[0, 1] u[0]", "b: u[1]", "c: "]
        );
        assert_eq!(
            assigned(&[("a", &["t"]), ("b", &["t"]), ("c", &["t"])], &[("t", 2)]),
            ["a: t[0]", "b: t[1]", "c: "]
        );
        assert_eq!(assigned(&[("a", &["no"])], &[("t", 2)]), ["a: "]);
    }
}
