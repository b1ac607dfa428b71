//! What a statement means, ready to be evaluated: a flat list of operations that refer to each other by number. Immutable and
//! small, since there may be a hundred thousand.

pub(crate) mod aliases;
pub(crate) mod build;
mod check;
mod explain;
mod extract;
mod fold;
mod methods;
pub(crate) mod resolve;
pub(crate) mod why;

use crate::field::Field;
use crate::functions::Function;
use crate::syntax::ast::BinaryOp;
use crate::value::OwnedValue;

/// The number of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NodeId(pub(crate) u16);

/// A piece of the plan's text.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Text {
    pub(crate) start: u32,
    pub(crate) length: u32,
}

/// A piece of one of the plan's lists.
#[derive(Debug, Clone, Copy)]
pub(crate) struct List {
    pub(crate) start: u16,
    pub(crate) length: u16,
}

#[derive(Clone, Copy)]
pub(crate) enum Op {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(Text),
    /// A constant array or map.
    Owned(u16),
    Field(Field),
    /// A field that only the sender knows; a field of all events if the sender does not.
    Open(Text, Option<Field>),
    /// A column of the output a template is filled from; else a field.
    Column(Text, Option<Field>),
    /// The whole output.
    Output,
    /// The item of FOREACH.
    Item,
    /// Worked out once in an evaluation.
    Memo(NodeId, u16),
    Path(NodeId, List),
    Call(&'static Function, List),
    Not(NodeId),
    Negate(NodeId),
    Binary(BinaryOp, NodeId, NodeId),
    IsNull(NodeId, bool),
    In(NodeId, List, bool),
    Between(NodeId, List, bool),
    Like(NodeId, NodeId, bool),
    /// `=~` with a filter known to be valid.
    MatchFilter(NodeId, Text),
    /// Conditions and results in turn, then what else.
    Case(List),
    /// The subject, constants and results in turn, then what else.
    Switch(List),
    Array(List),
    /// Names are constants, values follow, in turn.
    Map(List),
    Range(NodeId, NodeId),
    /// An expression of GROUP BY.
    Key(u16),
    Aggregate(u16),
    WindowStart,
    WindowEnd,
}

/// One step of a path.
#[derive(Debug, Clone, Copy)]
pub(crate) enum StepOp {
    Key(Text),
    /// From 1; negative from the end.
    Index(i32),
    /// The same, worked out; a name if it is text.
    Computed(NodeId),
    /// `.get(n)`: from 0.
    Get(NodeId),
    Slice(NodeId, NodeId),
}

/// Where a column goes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Target {
    All,
    Key(Text),
    Nested(List),
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum PutStep {
    Key(Text),
    Index(i32),
    Head,
    Tail,
    /// A position that is worked out; a name if it is text.
    Computed(NodeId),
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Column {
    pub(crate) target: Target,
    /// Without meaning for `Target::All`.
    pub(crate) node: NodeId,
}

/// Operations and what they refer to.
#[derive(Default)]
pub(crate) struct Plan {
    pub(crate) ops: Vec<Op>,
    pub(crate) lists: Vec<NodeId>,
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
    pub(crate) fn op(&self, id: NodeId) -> Op {
        self.ops[id.0 as usize]
    }

    pub(crate) fn text(&self, text: Text) -> &str {
        &self.text[text.start as usize..(text.start + text.length) as usize]
    }

    pub(crate) fn list(&self, list: List) -> &[NodeId] {
        &self.lists[list.start as usize..][..list.length as usize]
    }

    pub(crate) fn steps(&self, list: List) -> &[StepOp] {
        &self.steps[list.start as usize..][..list.length as usize]
    }

    pub(crate) fn puts(&self, list: List) -> &[PutStep] {
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
