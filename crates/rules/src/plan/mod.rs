//! What a statement means, ready to be evaluated: a flat list of operations that refer to each other by number. Immutable and
//! small, since there may be a hundred thousand.

pub(crate) mod aliases;
pub(crate) mod builder;
mod constant_checks;
mod constant_folding;
mod explain;
mod index_key_extraction;
mod method_names;
pub(crate) mod no_result;
pub(crate) mod resolver;

use crate::event_field::Field;
use crate::functions::Function;
use crate::syntax::ast::BinaryOp;
use crate::value::OwnedValue;

/// The number of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OpId(pub(crate) u16);

/// A piece of the plan's text.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TextRange {
    pub(crate) start: u32,
    pub(crate) length: u32,
}

/// A piece of one of the plan's lists.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ListRange {
    pub(crate) start: u16,
    pub(crate) length: u16,
}

#[derive(Clone, Copy)]
pub(crate) enum Op {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(TextRange),
    /// A constant array or map.
    Owned(u16),
    Field(Field),
    /// A field that only the sender knows; a field of all events if the sender does not.
    Open(TextRange, Option<Field>),
    /// A column of the output a template is filled from; else a field.
    Column(TextRange, Option<Field>),
    /// The whole output.
    Output,
    /// The item of FOREACH.
    Item,
    /// Worked out once in an evaluation.
    Memo(OpId, u16),
    Path(OpId, ListRange),
    Call(&'static Function, ListRange),
    Not(OpId),
    Negate(OpId),
    Binary(BinaryOp, OpId, OpId),
    IsNull(OpId, bool),
    In(OpId, ListRange, bool),
    Between(OpId, ListRange, bool),
    Like(OpId, OpId, bool),
    /// `=~` with a filter known to be valid.
    MatchFilter(OpId, TextRange),
    /// Conditions and results in turn, then what else.
    Case(ListRange),
    /// The subject, constants and results in turn, then what else.
    Switch(ListRange),
    Array(ListRange),
    /// Names are constants, values follow, in turn.
    Map(ListRange),
    Range(OpId, OpId),
    /// An expression of GROUP BY.
    Key(u16),
    Aggregate(u16),
    WindowStart,
    WindowEnd,
}

/// One step of a path.
#[derive(Debug, Clone, Copy)]
pub(crate) enum StepOp {
    Key(TextRange),
    /// From 1; negative from the end.
    Index(i32),
    /// The same, worked out; a name if it is text.
    Computed(OpId),
    /// `.get(n)`: from 0.
    Get(OpId),
    Slice(OpId, OpId),
}

/// Where a column goes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ColumnTarget {
    All,
    Key(TextRange),
    Nested(ListRange),
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum PutStep {
    Key(TextRange),
    Index(i32),
    Head,
    Tail,
    /// A position that is worked out; a name if it is text.
    Computed(OpId),
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct OutputColumn {
    pub(crate) target: ColumnTarget,
    /// Without meaning for `ColumnTarget::AllConditions`.
    pub(crate) node: OpId,
}

/// Operations and what they refer to.
#[derive(Default)]
pub(crate) struct Plan {
    pub(crate) ops: Vec<Op>,
    pub(crate) lists: Vec<OpId>,
    pub(crate) steps: Vec<StepOp>,
    pub(crate) puts: Vec<PutStep>,
    pub(crate) owned: Vec<OwnedValue>,
    pub(crate) text: String,
    /// How many memos there are.
    pub(crate) memos: u16,
    /// Whether a path leads into the payload.
    pub(crate) reads_payload: bool,
}

impl Plan {
    pub(crate) fn op(&self, id: OpId) -> Op {
        self.ops[id.0 as usize]
    }

    pub(crate) fn text(&self, text: TextRange) -> &str {
        &self.text[text.start as usize..(text.start + text.length) as usize]
    }

    pub(crate) fn list(&self, list: ListRange) -> &[OpId] {
        &self.lists[list.start as usize..][..list.length as usize]
    }

    pub(crate) fn steps(&self, list: ListRange) -> &[StepOp] {
        &self.steps[list.start as usize..][..list.length as usize]
    }

    pub(crate) fn puts(&self, list: ListRange) -> &[PutStep] {
        &self.puts[list.start as usize..][..list.length as usize]
    }

    /// Heap memory.
    pub(crate) fn size_bytes(&self) -> usize {
        size_of_val(&*self.ops)
            + size_of_val(&*self.lists)
            + size_of_val(&*self.steps)
            + size_of_val(&*self.puts)
            + self.owned.iter().map(OwnedValue::size_bytes).sum::<usize>()
            + self.text.len()
    }
}
