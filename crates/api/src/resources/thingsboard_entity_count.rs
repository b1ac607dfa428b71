//! `ENTITY_COUNT` of ThingsBoard's WebSocket: the number of devices that a filter selects, and each
//! change of it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::time::sleep;

use super::thingsboard_answers::AnswerSender;
use super::thingsboard_entity_filter::{EntityFilter, read_filter};
use super::thingsboard_subscriptions::{Command, CommandForm, failure};
use crate::problem_details::ProblemDetails;
use crate::state::ApiState;

/// Time between two counts of a subscription, and between two reads of a dynamic page.
pub(super) const REFRESH: Duration = Duration::from_secs(6);

pub(super) struct EntityCountSubscription {
    id: i64,
    filter: EntityFilter,
}

impl EntityCountSubscription {
    pub(super) fn read(command: &Command) -> Result<Self, String> {
        Ok(Self {
            id: command.cmd_id,
            filter: read_filter(&command.query)?,
        })
    }

    /// Sends the count and its changes until the connection ends.
    pub(super) async fn run(self, app: Arc<ApiState>, out: AnswerSender) {
        if let Err(problem) = self.follow(&app, &out).await {
            let failure = failure(CommandForm::EntityCount, self.id, &problem);
            out.turn().await.send(failure).await;
        }
    }

    async fn follow(&self, app: &Arc<ApiState>, out: &AnswerSender) -> Result<(), ProblemDetails> {
        let mut sent = None;
        loop {
            let turn = out.turn().await;
            let count = self.filter.count(app).await?;
            if sent != Some(count) {
                let answer = json!({"cmdId": self.id, "errorCode": 0, "errorMsg": null,
                    "count": count, "cmdUpdateType": "COUNT_DATA"});
                if !turn.send(answer.to_string()).await {
                    return Ok(());
                }
                sent = Some(count);
            }
            drop(turn);
            sleep(REFRESH).await;
        }
    }
}
