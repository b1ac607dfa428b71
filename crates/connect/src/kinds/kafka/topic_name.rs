//! Names of topics.

pub(super) const MAX_TOPIC_BYTES: usize = 249;

pub(super) fn is_topic_name(name: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    (1..=MAX_TOPIC_BYTES).contains(&name.len())
        && !matches!(name, "." | "..")
        && name.chars().all(is_allowed)
}
