//! What new devices report about the time before the run.

use anyhow::Context as _;
use load_client::interrupt::Interrupt;
use load_client::node_api::NodeApi;
use outbound::url_encoding::url_encode;
use serde_json::{Value, json};
use wall_clock::now_ms;

use crate::message_sampler::{MessageMoment, MessageSampler};
use crate::plan::{FleetPlan, SimulationPlan};

/// Messages of a device in one request.
const ROWS_PER_REQUEST: usize = 48;

pub(crate) struct DeviceHistory<'a> {
    node: &'a NodeApi,
    plan: &'a SimulationPlan,
    sampler: MessageSampler<'a>,
}

impl<'a> DeviceHistory<'a> {
    pub(crate) fn new(node: &'a NodeApi, plan: &'a SimulationPlan) -> anyhow::Result<Self> {
        Ok(Self {
            node,
            plan,
            sampler: MessageSampler::new(plan)?,
        })
    }

    /// Reports the history of the devices at these positions of a fleet, until it is interrupted.
    pub(crate) fn report(
        &mut self,
        (number, fleet): (usize, &FleetPlan),
        positions: &[u32],
        interrupt: &Interrupt,
    ) -> anyhow::Result<()> {
        let username = fleet.username.as_ref();
        let username = username.context("devices with a history have an access token")?;
        for &at in positions {
            if interrupt.is_requested() {
                return Ok(());
            }
            let token = fleet.identity_text(username, self.plan.seed, fleet.first + at);
            let path = format!("/api/v1/{}/telemetry", url_encode(&token));
            for rows in self.rows((number, fleet), at)?.chunks(ROWS_PER_REQUEST) {
                self.node
                    .request_json("POST", &path, Some(&json!(rows)))
                    .context("reporting the history of a new device failed")?;
            }
        }
        Ok(())
    }

    /// The messages of a device with their times.
    fn rows(
        &mut self,
        (number, fleet): (usize, &FleetPlan),
        at: u32,
    ) -> anyhow::Result<Vec<Value>> {
        let now_ms = now_ms();
        let key = fleet.key(self.plan.seed, fleet.first + at);
        let mut cells = vec![0.0; fleet.state.cells()];
        fleet.state.initialize(key, &mut cells);
        let mut rows = Vec::new();
        for part in &fleet.history {
            let mut ago_ms = part.from_ms;
            while ago_ms > part.to_ms {
                let step = rows.len() as u32;
                let moment = MessageMoment {
                    step,
                    elapsed_ns: 0,
                    wall_ms: now_ms.saturating_sub(ago_ms),
                    cells: &cells,
                };
                if let Some(message) = self.sampler.message(number, at, 0, &moment)? {
                    let payload: Value = serde_json::from_str(&message.payload)
                        .context("the messages of a history must be JSON")?;
                    // A script may have replaced the message by values without a time.
                    rows.push(match payload.get("values") {
                        Some(Value::Object(_)) => payload,
                        _ => json!({"ts": moment.wall_ms, "values": payload}),
                    });
                }
                fleet.state.advance(key, step + 1, &mut cells);
                ago_ms = ago_ms.saturating_sub(part.every_ms);
            }
        }
        Ok(rows)
    }
}
