//! The rules that evaluate a message, for people who ask what happened to it.

use hooks::{MessageView, carries_secret};
use rules::EventKind;

use crate::engine::Engine;
use crate::evaluation::index_query;

impl Engine {
    /// Names of the rules that a published message is passed to, at most `limit`. Whether their conditions are true is not
    /// evaluated.
    #[must_use]
    pub fn rules_for_message(&self, message: &MessageView<'_>, limit: usize) -> Vec<Box<str>> {
        let ignores_sys = self.shared.settings.ignore_sys_messages;
        if carries_secret(message.topic) || ignores_sys && message.topic.starts_with("$SYS/") {
            return Vec::new();
        }
        let (topic, qos) = (Some(message.topic), Some(message.qos as u8));
        let query = index_query(EventKind::Publish, topic, message.from_client_id, qos);
        let snapshot = self.shared.snapshot.load();
        let mut names = Vec::new();
        snapshot.index.matches(&query, |rule| {
            if names.len() < limit {
                names.push(rule.name.clone());
            }
        });
        names
    }
}
