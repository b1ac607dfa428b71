//! Files that were received completely, evaluated by the rules `FROM "$events/file/received"`.

use rules::{EventKind, RuleEvent, Value};
use wall_clock::now_ms;

use crate::engine::Engine;
use crate::evaluation::{EventEvaluation, index_query};
use crate::rule_lineage::RuleLineage;

/// A file that was received completely.
#[derive(Debug, Clone, Copy)]
pub struct FileReceived<'m> {
    /// When it was complete, in milliseconds since 1970.
    pub timestamp_ms: u64,
    /// The id of the client, device or operator that sent it; it groups the messages that rules publish.
    pub sender: &'m str,
    /// The client id of a client that is not a device; otherwise empty.
    pub client_id: &'m str,
    /// The fields of the event: the text of a JSON object.
    pub fields: &'m str,
}

impl Engine {
    /// Whether any rule selects received files.
    #[must_use]
    pub fn wants_received_files(&self) -> bool {
        let snapshot = self.shared.snapshot.load();
        snapshot.index.has_rules_for(EventKind::FileReceived)
    }

    /// Evaluates the rules on a received file. Resolves when their outputs are published and no sink is full.
    pub async fn handle_file_received(&self, file: FileReceived<'_>) {
        let snapshot = self.shared.snapshot.load_full();
        let mut found = Vec::new();
        let query = index_query(EventKind::FileReceived, None, file.client_id, None);
        snapshot.index.matches(&query, |rule| found.push(rule));
        if found.is_empty() {
            return;
        }
        let outcome = self.with_evaluation_context(|context| {
            context.scratch.reset();
            let (scratch, at_ms) = (&context.scratch, now_ms());
            let event = RuleEvent {
                node: &self.shared.settings.node_name,
                client_id: file.client_id,
                extra: Value::Json(file.fields),
                ..RuleEvent::new(EventKind::FileReceived, file.timestamp_ms)
            };
            let view = scratch.view(&event, at_ms);
            let mut run = EventEvaluation {
                index: &snapshot.index,
                rows: &self.shared.rows,
                scratch,
                stage: &mut context.stage,
                lineage: RuleLineage(0),
                now_ms: at_ms,
                chained: 0,
            };
            run.evaluate_all(&view, |at| found.get(at).map(|rule| &***rule));
            context.take_outcome()
        });
        self.finish_event(file.sender, outcome).await;
    }
}
