//! The plan of a statement, ready to be evaluated: a flat list of operations that refer to each other by
//! number. It is immutable and small, because there may be a hundred thousand of them.

pub(crate) mod aliases;
pub(crate) mod builder;
mod constant_checks;
mod constant_folding;
mod explain;
mod index_key_extraction;
mod method_names;
pub(crate) mod no_result;
pub(crate) mod resolver;

use crate::event_field::EventField;
use crate::functions::Function;
use crate::syntax::ast::BinaryOp;
use crate::value::OwnedValue;

/// Number of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OpId(pub(crate) u16);

/// A range of the plan's text.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TextRange {
    pub(crate) start: u32,
    pub(crate) length: u32,
}

/// A range of one of the plan's lists.
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
    Field(EventField),
    /// A field known only to the sender. If the sender does not set it, it is the given field of all events,
    /// if any.
    Open(TextRange, Option<EventField>),
    /// A column of the output that a template is filled in from; otherwise a field.
    Column(TextRange, Option<EventField>),
    /// The whole output.
    Output,
    /// The item of FOREACH.
    Item,
    /// Evaluated once per evaluation.
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
    /// `=~` with a filter that is known to be valid.
    MatchFilter(OpId, TextRange),
    /// Conditions and results alternating, then the ELSE value.
    Case(ListRange),
    /// The subject, constants and results alternating, then the ELSE value.
    Switch(ListRange),
    Array(ListRange),
    /// Names (constants) and values alternating.
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
    /// Counted from 1; negative from the end.
    Index(i32),
    /// A computed position, or a name if it is text.
    Computed(OpId),
    /// `.get(n)`, counted from 0.
    Get(OpId),
    Slice(OpId, OpId),
}

/// The destination of a column.
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
    /// A computed position, or a name if it is text.
    Computed(OpId),
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct OutputColumn {
    pub(crate) target: ColumnTarget,
    /// Unused for `ColumnTarget::AllConditions`.
    pub(crate) node: OpId,
}

/// Operations and the tables they refer to.
#[derive(Default)]
pub(crate) struct Plan {
    pub(crate) ops: Vec<Op>,
    pub(crate) lists: Vec<OpId>,
    pub(crate) steps: Vec<StepOp>,
    pub(crate) puts: Vec<PutStep>,
    pub(crate) owned: Vec<OwnedValue>,
    pub(crate) text: String,
    /// Number of memos.
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

    /// Heap memory in bytes.
    pub(crate) fn size_bytes(&self) -> usize {
        size_of_val(&*self.ops)
            + size_of_val(&*self.lists)
            + size_of_val(&*self.steps)
            + size_of_val(&*self.puts)
            + self.owned.iter().map(OwnedValue::size_bytes).sum::<usize>()
            + self.text.len()
    }
}
