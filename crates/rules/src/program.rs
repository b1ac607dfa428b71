//! A plan together with everything its evaluation depends on besides the event.

use crate::compile_options::EvaluationLimits;
use crate::eval::Evaluator;
use crate::evaluation_error::{EvaluationError, catch_panic};
use crate::event_view::EventView;
use crate::function_context::Dialect;
use crate::kv_store::KvStore;
use crate::plan::Plan;
use crate::plan::builder::PlanBuilder;
use crate::zone::Zone;

pub(crate) struct Program {
    pub(crate) plan: Plan,
    pub(crate) dialect: Dialect,
    zone: Zone,
    pub(crate) limits: EvaluationLimits,
}

impl Program {
    pub(crate) fn new(builder: PlanBuilder, limits: EvaluationLimits) -> Self {
        Self {
            dialect: builder.dialect,
            zone: builder.zone.clone(),
            plan: builder.finish(),
            limits,
        }
    }

    pub(crate) fn zone(&self) -> &Zone {
        &self.zone
    }

    /// Evaluates operations of the plan for one event; `work` says which.
    pub(crate) fn evaluate<'a, T>(
        &'a self,
        view: &EventView<'a>,
        kv: &mut KvStore,
        work: impl FnOnce(&mut Evaluator<'a, '_>) -> Result<T, EvaluationError>,
    ) -> Result<T, EvaluationError> {
        let mut resources = view.resources.borrow_mut();
        let mut evaluator = Evaluator::new(
            &self.plan,
            view,
            &mut resources,
            kv,
            &self.zone,
            self.dialect,
        );
        evaluator.set_limits(self.limits);
        catch_panic(|| work(&mut evaluator))
    }
}
