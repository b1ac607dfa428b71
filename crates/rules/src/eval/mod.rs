//! Evaluates the operations of a plan for one event. Allocates only in the arena, and counts its steps.

mod operators;
mod output;
mod paths;

use crate::compile_options::EvaluationLimits;
use crate::evaluation_error::EvaluationError;
use crate::evaluation_resources::EvaluationResources;
use crate::event_field::EventField;
use crate::event_view::EventView;
use crate::function_context::{Dialect, FunctionContext};
use crate::function_limits::FunctionLimits;
use crate::functions::Function;
use crate::kv_store::KvStore;
use crate::plan::{ListRange, Op, OpId, Plan, TextRange};
use crate::syntax::ast::BinaryOp;
use crate::value::Value;
use crate::window::ClosedWindow;
use crate::zone::Zone;

pub(crate) use output::OutputColumns;

/// Every so many bytes of text count as one step.
const BYTES_PER_STEP: usize = 64;
/// Calls with more arguments collect them in the arena.
const ARGUMENTS_ON_STACK: usize = 6;
/// Maximum number of items that a range expression creates.
const MAX_RANGE: u64 = 100_000;

/// `'a` is the lifetime of values, `'e` that of the evaluation.
pub(crate) struct Evaluator<'a, 'e> {
    plan: &'a Plan,
    view: &'e EventView<'a>,
    context: FunctionContext<'a, 'e>,
    memos: &'a mut [Option<Value<'a>>],
    /// The current item of FOREACH.
    pub(crate) item: Value<'a>,
    /// The columns that a template is filled in from.
    pub(crate) output: &'a [(&'a str, Value<'a>)],
    pub(crate) closed: Option<ClosedWindow<'a>>,
    /// Strict null handling, as in EMQX: a missing operand or argument is an error. Otherwise the result is
    /// null.
    pub(crate) needs_values: bool,
    steps_left: u32,
    max_steps: u32,
}

impl<'a, 'e> Evaluator<'a, 'e> {
    pub(crate) fn new(
        plan: &'a Plan,
        view: &'e EventView<'a>,
        resources: &'e mut EvaluationResources,
        kv: &'e mut KvStore,
        zone: &'e Zone,
        dialect: Dialect,
    ) -> Self {
        let memos: &mut [_] = match plan.memos {
            0 => &mut [],
            count => view.arena.alloc_slice_fill_copy(count.into(), None),
        };
        Self {
            plan,
            view,
            context: FunctionContext {
                arena: view.arena,
                resources,
                kv,
                message: Some(view),
                zone,
                dialect,
                now_ms: view.now_ms,
                limits: FunctionLimits::default(),
            },
            memos,
            item: Value::Undefined,
            output: &[],
            closed: None,
            needs_values: false,
            steps_left: u32::MAX,
            max_steps: u32::MAX,
        }
    }

    pub(crate) fn set_limits(&mut self, limits: EvaluationLimits) {
        self.steps_left = limits.max_steps;
        self.max_steps = limits.max_steps;
        self.context.limits = FunctionLimits::new(limits.max_output_bytes, limits.max_jq_steps);
    }

    /// The memos known so far, to be restored later: memos computed for one item of FOREACH are discarded
    /// after it.
    pub(crate) fn memos(&self) -> &'a [Option<Value<'a>>] {
        self.view.arena.alloc_slice_copy(self.memos)
    }

    pub(crate) fn set_memos(&mut self, memos: &[Option<Value<'a>>]) {
        self.memos.copy_from_slice(memos);
    }

    /// The items that FOREACH iterates over; a value that is not a list has none.
    pub(crate) fn foreach_items(&self, value: Value<'a>) -> &'a [Value<'a>] {
        let list = match value {
            Value::Str(text) => {
                crate::json::parse_lazy(text, self.view.arena).unwrap_or(Value::Undefined)
            }
            Value::Bytes(bytes) => {
                let text = str::from_utf8(bytes).ok();
                text.and_then(|text| crate::json::parse_lazy(text, self.view.arena).ok())
                    .unwrap_or(Value::Undefined)
            }
            value => value,
        };
        match list.parse_one_level(self.view.arena) {
            Value::Array(items) => items,
            _ => &[],
        }
    }

    #[inline]
    fn charge_steps(&mut self, steps: usize) -> Result<(), EvaluationError> {
        match u32::try_from(steps)
            .ok()
            .and_then(|steps| self.steps_left.checked_sub(steps))
        {
            Some(left) => {
                self.steps_left = left;
                Ok(())
            }
            None => Err(EvaluationError::StepLimit {
                steps: self.max_steps.into(),
            }),
        }
    }

    /// Whether a condition is true; null is not.
    pub(crate) fn is_condition_true(&mut self, condition: OpId) -> Result<bool, EvaluationError> {
        Ok(self.evaluate(condition)?.is_truthy())
    }

    pub(crate) fn evaluate(&mut self, id: OpId) -> Result<Value<'a>, EvaluationError> {
        self.charge_steps(1)?;
        let plan = self.plan;
        Ok(match plan.op(id) {
            Op::Null => Value::Undefined,
            Op::Bool(value) => Value::Bool(value),
            Op::Int(value) => Value::Int(value),
            Op::Float(value) => Value::Float(value),
            Op::Text(text) => Value::Str(plan.text(text)),
            Op::Owned(at) => plan.owned[at as usize].to_value(self.view.arena),
            Op::Field(field) => self.view.field(field),
            Op::Open(name, field) => self.evaluate_open_field(name, field),
            Op::Column(name, field) => self.evaluate_column(name, field),
            Op::Output => Value::Map(self.output),
            Op::Item => self.item,
            Op::Memo(inner, slot) => return self.evaluate_memo(inner, slot),
            Op::Path(base, steps) => return self.evaluate_path(base, plan.steps(steps)),
            Op::Call(function, list) => return self.evaluate_call(function, list),
            Op::Not(inner) => operators::not(self.evaluate(inner)?, self.context.dialect),
            Op::Negate(inner) => {
                let value = self.evaluate(inner)?;
                if self.needs_values {
                    check_present("-", &[value])?;
                }
                operators::negate(value)?
            }
            Op::Binary(op, left, right) => return self.evaluate_binary(op, left, right),
            Op::IsNull(inner, negated) => Value::Bool(self.evaluate(inner)?.is_null() != negated),
            Op::In(inner, list, negated) => return self.evaluate_in(inner, list, negated),
            Op::Between(inner, list, negated) => {
                return self.evaluate_between(inner, list, negated);
            }
            Op::Like(inner, pattern, negated) => {
                return self.evaluate_like(inner, pattern, negated);
            }
            Op::MatchFilter(inner, filter) => {
                let topic = self.evaluate(inner)?;
                Value::Bool(
                    topic
                        .as_str()
                        .is_some_and(|topic| mqtt::filter_matches(plan.text(filter), topic)),
                )
            }
            Op::Case(list) => return self.evaluate_case(plan.list(list)),
            Op::Switch(list) => return self.evaluate_simple_case(plan.list(list)),
            Op::Array(list) => {
                let ids = plan.list(list);
                let items = self
                    .view
                    .arena
                    .alloc_slice_fill_copy(ids.len(), Value::Undefined);
                for (item, &id) in items.iter_mut().zip(ids) {
                    *item = self.evaluate(id)?;
                }
                Value::Array(items)
            }
            Op::Map(list) => return self.evaluate_map(plan.list(list)),
            Op::Range(from, to) => return self.evaluate_range(from, to),
            Op::Key(at) => self
                .closed
                .and_then(|closed| closed.key.get(at as usize).copied())
                .unwrap_or(Value::Undefined),
            Op::Aggregate(at) => {
                let value = self
                    .closed
                    .and_then(|closed| closed.aggregates.get(at as usize).copied());
                value.unwrap_or(Value::Undefined)
            }
            Op::WindowStart => self.closed.map_or(Value::Undefined, |closed| {
                Value::Int(closed.start_ms as i64)
            }),
            Op::WindowEnd => self
                .closed
                .map_or(Value::Undefined, |closed| Value::Int(closed.end_ms as i64)),
        })
    }

    /// A field of `$rule/`, `$bridges/`, a device event or a relay event.
    fn evaluate_open_field(&mut self, name: TextRange, field: Option<EventField>) -> Value<'a> {
        match self
            .view
            .event
            .extra
            .find_field(self.plan.text(name), self.view.arena)
        {
            Some(value) => value,
            None => field.map_or(Value::Undefined, |field| self.view.field(field)),
        }
    }

    /// A column of the output, or else a field of the event.
    fn evaluate_column(&mut self, name: TextRange, field: Option<EventField>) -> Value<'a> {
        let name = self.plan.text(name);
        if let Some((_, value)) = self.output.iter().rev().find(|(column, _)| *column == name) {
            return *value;
        }
        match field {
            Some(field) => self.view.field(field),
            None => self.view.event.extra.field(name, self.view.arena),
        }
    }

    fn evaluate_memo(&mut self, inner: OpId, slot: u16) -> Result<Value<'a>, EvaluationError> {
        if let Some(value) = self.memos[slot as usize] {
            return Ok(value);
        }
        let value = self.evaluate(inner)?;
        self.memos[slot as usize] = Some(value);
        Ok(value)
    }

    fn evaluate_call(
        &mut self,
        function: &'static Function,
        list: ListRange,
    ) -> Result<Value<'a>, EvaluationError> {
        let ids = self.plan.list(list);
        let mut on_stack = [Value::Undefined; ARGUMENTS_ON_STACK];
        let values = match on_stack.get_mut(..ids.len()) {
            Some(values) => values,
            None => self
                .view
                .arena
                .alloc_slice_fill_copy(ids.len(), Value::Undefined),
        };
        let mut bytes = 0;
        for (value, &id) in values.iter_mut().zip(ids) {
            *value = self.evaluate(id)?;
            bytes += input_bytes(*value);
        }
        self.charge_steps(bytes / BYTES_PER_STEP)?;
        let result = if self.needs_values && function.accepts_null_in_emqx {
            function.call_with_nulls(&mut self.context, values)?
        } else {
            if self.needs_values && !function.accepts_null && !function.passes_null {
                check_present(function.name, values)?;
            }
            function.call(&mut self.context, values)?
        };
        let extra_steps = std::mem::take(&mut self.context.limits.extra_steps) as usize;
        self.charge_steps(input_bytes(result) / BYTES_PER_STEP + extra_steps)?;
        Ok(result)
    }

    fn evaluate_binary(
        &mut self,
        op: BinaryOp,
        left: OpId,
        right: OpId,
    ) -> Result<Value<'a>, EvaluationError> {
        if matches!(op, BinaryOp::And | BinaryOp::Or) {
            return self.evaluate_logic(op == BinaryOp::Or, left, right);
        }
        let left = self.evaluate_operand(left)?;
        let right = self.evaluate_operand(right)?;
        match op {
            BinaryOp::Match => Ok(operators::matches(left, right)),
            BinaryOp::Concat => self.concat(left, right),
            // As in EMQX, `+` concatenates text with any value, there also with undefined.
            BinaryOp::Add if operators::is_text(left) || operators::is_text(right) => {
                if self.context.dialect == Dialect::Emqx {
                    self.concat_text(left, right)
                } else {
                    self.concat(left, right)
                }
            }
            BinaryOp::Add
            | BinaryOp::Subtract
            | BinaryOp::Multiply
            | BinaryOp::Divide
            | BinaryOp::Quotient
            | BinaryOp::Remainder => {
                if self.needs_values {
                    check_present(op.text(), &[left, right])?;
                }
                operators::arithmetic(op, left, right)
            }
            _ if self.needs_values && operators::is_unordered(left, right) => {
                Err(EvaluationError::WrongType {
                    function: op.text(),
                    argument: if operators::is_text(left) { 1 } else { 2 },
                    expected: "a number, like the other side",
                    found: "text that is not a number",
                })
            }
            _ => Ok(Value::Bool(operators::compare(
                op,
                left,
                right,
                self.context.dialect,
            ))),
        }
    }

    /// Evaluates one side of an operator. The most frequent kinds of operand take a short path.
    #[inline]
    fn evaluate_operand(&mut self, id: OpId) -> Result<Value<'a>, EvaluationError> {
        let plan = self.plan;
        let value = match plan.op(id) {
            Op::Text(text) => Value::Str(plan.text(text)),
            Op::Int(value) => Value::Int(value),
            Op::Field(field) => self.view.field(field),
            _ => return self.evaluate(id),
        };
        self.charge_steps(1)?;
        Ok(value)
    }

    /// Stops as soon as one side decides the result; null decides nothing.
    fn evaluate_logic(
        &mut self,
        deciding: bool,
        left: OpId,
        right: OpId,
    ) -> Result<Value<'a>, EvaluationError> {
        let left = self.evaluate(left)?;
        if !left.is_null() && left.is_truthy() == deciding {
            return Ok(Value::Bool(deciding));
        }
        let right = self.evaluate(right)?;
        Ok(match (left, right) {
            (_, right) if !right.is_null() && right.is_truthy() == deciding => {
                Value::Bool(deciding)
            }
            (left, right) if left.is_null() || right.is_null() => Value::Undefined,
            _ => Value::Bool(!deciding),
        })
    }

    fn concat(&mut self, left: Value<'a>, right: Value<'a>) -> Result<Value<'a>, EvaluationError> {
        if left.is_null() || right.is_null() {
            return Ok(Value::Undefined);
        }
        self.concat_text(left, right)
    }

    fn concat_text(
        &mut self,
        left: Value<'a>,
        right: Value<'a>,
    ) -> Result<Value<'a>, EvaluationError> {
        let (left, right) = (self.context.text(left), self.context.text(right));
        let limit = self.context.limits.max_output_bytes;
        if left.len() + right.len() > limit {
            return Err(EvaluationError::TooLarge {
                function: "||",
                limit,
                unit: "bytes",
            });
        }
        self.charge_steps((left.len() + right.len()) / BYTES_PER_STEP)?;
        let mut joined = bumpalo::collections::String::with_capacity_in(
            left.len() + right.len(),
            self.view.arena,
        );
        joined.push_str(left);
        joined.push_str(right);
        Ok(Value::Str(joined.into_bump_str()))
    }

    fn evaluate_in(
        &mut self,
        inner: OpId,
        list: ListRange,
        negated: bool,
    ) -> Result<Value<'a>, EvaluationError> {
        let value = self.evaluate(inner)?.parse_one_level(self.view.arena);
        let equals = self.equality_function();
        for &id in self.plan.list(list) {
            let item = self.evaluate(id)?;
            let found = match item.parse_one_level(self.view.arena) {
                // `x in (payload.list)`
                Value::Array(items) => {
                    self.charge_steps(items.len())?;
                    items.iter().any(|item| equals(item, &value))
                }
                item => equals(&item, &value),
            };
            if found {
                return Ok(Value::Bool(!negated));
            }
        }
        Ok(Value::Bool(negated))
    }

    /// The equality used by IN and CASE.
    fn equality_function(&self) -> fn(&Value<'_>, &Value<'_>) -> bool {
        match self.context.dialect {
            Dialect::Fluxmq => |left, right| left.equals(right),
            Dialect::Emqx => |left, right| left.is_strictly_equal(right),
        }
    }

    fn evaluate_between(
        &mut self,
        inner: OpId,
        list: ListRange,
        negated: bool,
    ) -> Result<Value<'a>, EvaluationError> {
        let value = self.evaluate(inner)?;
        let &[low, high] = self.plan.list(list) else {
            return Ok(Value::Undefined);
        };
        let low = self.evaluate(low)?;
        let high = self.evaluate(high)?;
        let dialect = self.context.dialect;
        let inside = operators::compare(BinaryOp::GreaterEqual, value, low, dialect)
            && operators::compare(BinaryOp::LessEqual, value, high, dialect);
        Ok(Value::Bool(inside != negated))
    }

    fn evaluate_like(
        &mut self,
        inner: OpId,
        pattern: OpId,
        negated: bool,
    ) -> Result<Value<'a>, EvaluationError> {
        let value = self.evaluate(inner)?;
        let pattern = self.evaluate(pattern)?;
        if value.is_null() || pattern.is_null() {
            return Ok(Value::Bool(negated));
        }
        let (text, pattern) = (value.text(self.view.arena), pattern.text(self.view.arena));
        // In the worst case one text is searched at every character of the other.
        self.charge_steps(
            text.len() * pattern.len() / BYTES_PER_STEP / 16 + text.len() / BYTES_PER_STEP,
        )?;
        Ok(Value::Bool(operators::is_like(text, pattern) != negated))
    }

    fn evaluate_case(&mut self, list: &[OpId]) -> Result<Value<'a>, EvaluationError> {
        let mut arms = list.chunks_exact(2);
        for arm in &mut arms {
            if self.is_condition_true(arm[0])? {
                return self.evaluate(arm[1]);
            }
        }
        arms.remainder()
            .first()
            .map_or(Ok(Value::Undefined), |&otherwise| self.evaluate(otherwise))
    }

    fn evaluate_simple_case(&mut self, list: &[OpId]) -> Result<Value<'a>, EvaluationError> {
        let Some((&subject, arms)) = list.split_first() else {
            return Ok(Value::Undefined);
        };
        let subject = self.evaluate(subject)?;
        let equals = self.equality_function();
        let mut arms = arms.chunks_exact(2);
        for arm in &mut arms {
            if equals(&self.evaluate(arm[0])?, &subject) {
                return self.evaluate(arm[1]);
            }
        }
        arms.remainder()
            .first()
            .map_or(Ok(Value::Undefined), |&otherwise| self.evaluate(otherwise))
    }

    fn evaluate_map(&mut self, list: &[OpId]) -> Result<Value<'a>, EvaluationError> {
        let fields = self
            .view
            .arena
            .alloc_slice_fill_copy(list.len() / 2, ("", Value::Undefined));
        for (field, pair) in fields.iter_mut().zip(list.chunks_exact(2)) {
            let Op::Text(name) = self.plan.op(pair[0]) else {
                continue;
            };
            *field = (self.plan.text(name), self.evaluate(pair[1])?);
        }
        Ok(Value::Map(fields))
    }

    fn evaluate_range(&mut self, from: OpId, to: OpId) -> Result<Value<'a>, EvaluationError> {
        let (from, to) = (self.evaluate(from)?, self.evaluate(to)?);
        if from.is_null() || to.is_null() {
            return Ok(Value::Undefined);
        }
        let end = |argument, value: Value<'_>| {
            value.as_i64().ok_or(EvaluationError::WrongType {
                function: "[..]",
                argument,
                expected: "an integer",
                found: value.type_name(),
            })
        };
        let (from, to) = (end(1, from)?, end(2, to)?);
        if from > to {
            return Ok(Value::Array(&[]));
        }
        let count = from.abs_diff(to).saturating_add(1);
        if count > MAX_RANGE {
            return Err(EvaluationError::TooLarge {
                function: "[..]",
                limit: MAX_RANGE as usize,
                unit: "items",
            });
        }
        self.charge_steps(count as usize)?;
        let numbers = (from..=to).map(Value::Int);
        let mut items =
            bumpalo::collections::Vec::with_capacity_in(count as usize, self.view.arena);
        items.extend(numbers);
        Ok(Value::Array(items.into_bump_slice()))
    }
}

/// Checks that every argument has a value.
#[inline]
fn check_present(function: &'static str, values: &[Value<'_>]) -> Result<(), EvaluationError> {
    match values.iter().position(Value::is_null) {
        None => Ok(()),
        Some(at) => Err(EvaluationError::WrongType {
            function,
            argument: at + 1,
            expected: "a value",
            found: match values[at] {
                Value::Undefined => "undefined",
                _ => "null",
            },
        }),
    }
}

/// Bytes that a function may have to read.
fn input_bytes(value: Value<'_>) -> usize {
    match value {
        Value::Str(text) | Value::Json(text) | Value::Big(text) => text.len(),
        Value::Bytes(bytes) => bytes.len(),
        Value::Array(items) => size_of_val(items),
        Value::Map(fields) => size_of_val(fields),
        _ => 0,
    }
}
