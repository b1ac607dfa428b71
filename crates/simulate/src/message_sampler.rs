//! Single messages of devices at any time, without a network.

use crate::plan::SimulationPlan;
use crate::script::{ScriptDevice, ScriptHook, ScriptMessage, ScriptSandbox};
use crate::state::DeviceState;
use crate::template::{NO_STAMP, RenderInput, RequestView, Template};

/// Makes messages as devices would send them.
#[derive(Debug)]
pub(crate) struct MessageSampler<'a> {
    plan: &'a SimulationPlan,
    /// For each fleet, its script if that changes messages.
    sandboxes: Vec<Option<ScriptSandbox>>,
}

/// When a device sends a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessageMoment<'a> {
    /// Messages of the device before it.
    pub(crate) step: u32,
    pub(crate) elapsed_ns: u64,
    pub(crate) wall_ms: u64,
    pub(crate) cells: &'a [f64],
}

impl<'a> MessageSampler<'a> {
    pub(crate) fn new(plan: &'a SimulationPlan) -> anyhow::Result<Self> {
        let sandboxes = plan.fleets.iter().map(|fleet| {
            let script = fleet.script.as_ref()?;
            let has_hook = script.plan.has(ScriptHook::Send);
            has_hook.then(|| ScriptSandbox::new(&script.plan.source, plan.seed))
        });
        let sandboxes = sandboxes.map(Option::transpose).collect::<Result<_, _>>();
        Ok(Self {
            plan,
            sandboxes: sandboxes?,
        })
    }

    /// A message of the device at this position of a fleet; `None`: a script omits it.
    pub(crate) fn message(
        &mut self,
        fleet: usize,
        number: u32,
        send: usize,
        moment: &MessageMoment<'_>,
    ) -> anyhow::Result<Option<ScriptMessage>> {
        let plan = &self.plan.fleets[fleet];
        let send = &plan.sends[send];
        let index = plan.first + number;
        let gateway = plan.gateway.as_ref();
        let input = RenderInput {
            index,
            gateway_index: gateway.map_or(0, |gateway| gateway.index_of(number)),
            device: DeviceState {
                key: plan.key(self.plan.seed, index),
                step: moment.step,
                elapsed_ns: moment.elapsed_ns,
                wall_ms: moment.wall_ms,
                cells: moment.cells,
            },
            program: &plan.state,
            request: RequestView::default(),
            stamp: &NO_STAMP,
        };
        let render = |template: &Template| {
            let mut text = Vec::new();
            template.render(&input, &mut text);
            String::from_utf8(text).expect("templates and values are UTF-8")
        };
        let message = ScriptMessage {
            topic: render(&send.topic),
            payload: render(&send.payload),
        };
        let (Some(sandbox), Some(script)) = (&mut self.sandboxes[fleet], &plan.script) else {
            return Ok(Some(message));
        };
        let device = ScriptDevice {
            number: plan.devices_before + number,
            index,
            id: &render(&plan.id),
            fleet: &plan.name,
            messages: moment.step,
            state: &render(&script.state),
            now: moment.wall_ms,
        };
        Ok(sandbox
            .call(ScriptHook::Send, &device, Some(&message))?
            .value)
    }
}
