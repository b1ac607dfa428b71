//! The syntax tree of a statement, before name resolution.

use crate::statement_error::Span;

pub(crate) struct Statement {
    pub(crate) body: StatementBody,
    pub(crate) from: Vec<(Box<str>, Span)>,
    pub(crate) filter: Option<Expr>,
    pub(crate) group: Option<GroupBy>,
    pub(crate) having: Option<Expr>,
    pub(crate) limit: Option<u64>,
}

pub(crate) enum StatementBody {
    Select(Vec<SelectItem>),
    Foreach {
        /// The last one is the list; those before it name values for use in it.
        lists: Vec<SelectItem>,
        each: Option<Vec<SelectItem>>,
        incase: Option<Expr>,
    },
}

pub(crate) struct SelectItem {
    pub(crate) span: Span,
    pub(crate) kind: SelectItemKind,
}

pub(crate) enum SelectItemKind {
    All,
    Expr {
        expr: Expr,
        alias: Option<Vec<AliasPart>>,
    },
}

#[derive(Debug, Clone)]
pub(crate) enum AliasPart {
    Key(Box<str>),
    /// `a[2]`, counted from 1; negative from the end.
    Index(i64),
    /// `a[0]`: inserts before the first item.
    Head,
    /// `a[-0]`: inserts after the last item.
    Tail,
    /// `a[b]`: a computed position.
    Computed(Box<Expr>),
}

/// Equal if written identically; computed positions are never equal.
impl PartialEq for AliasPart {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Key(own), Self::Key(other)) => own == other,
            (Self::Index(own), Self::Index(other)) => own == other,
            (Self::Head, Self::Head) | (Self::Tail, Self::Tail) => true,
            _ => false,
        }
    }
}

pub(crate) struct GroupBy {
    pub(crate) span: Span,
    pub(crate) keys: Vec<Expr>,
    pub(crate) window: Option<(crate::window::WindowKind, Span)>,
}

#[derive(Debug, Clone)]
pub(crate) struct Expr {
    pub(crate) span: Span,
    /// Number of nested levels of expressions, including itself.
    pub(crate) depth: u16,
    pub(crate) node: ExprNode,
}

#[derive(Debug, Clone)]
pub(crate) enum ExprNode {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(Box<str>),
    /// A field, an alias, or the item of FOREACH.
    Name(Box<str>),
    Path(Box<Expr>, Vec<PathStep>),
    Call {
        name: Box<str>,
        name_span: Span,
        args: Vec<Expr>,
        form: CallForm,
    },
    Not(Box<Expr>),
    Negate(Box<Expr>),
    Binary(BinaryOp, Box<Expr>, Box<Expr>),
    IsNull(Box<Expr>, bool),
    In(Box<Expr>, Vec<Expr>, bool),
    Between(Box<Expr>, Box<Expr>, Box<Expr>, bool),
    Like(Box<Expr>, Box<Expr>, bool),
    Case {
        subject: Option<Box<Expr>>,
        arms: Vec<(Expr, Expr)>,
        otherwise: Option<Box<Expr>>,
    },
    Array(Vec<Expr>),
    Map(Vec<(Box<str>, Expr)>),
    Range(Box<Expr>, Box<Expr>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallForm {
    Plain,
    /// `a.f(b)`, with `a` as the first argument.
    Method,
    /// `count(*)`
    Star,
    /// `count(distinct x)`
    Distinct,
}

#[derive(Debug, Clone)]
pub(crate) enum PathStep {
    Key(Box<str>),
    Index(Box<Expr>),
    Slice(Box<Expr>, Box<Expr>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BinaryOp {
    Or,
    And,
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    /// `=~`
    Match,
    Concat,
    Add,
    Subtract,
    Multiply,
    Divide,
    /// `div`: integer division that truncates towards zero.
    Quotient,
    Remainder,
}

impl BinaryOp {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Or => "or",
            Self::And => "and",
            Self::Equal => "=",
            Self::NotEqual => "!=",
            Self::Less => "<",
            Self::LessEqual => "<=",
            Self::Greater => ">",
            Self::GreaterEqual => ">=",
            Self::Match => "=~",
            Self::Concat => "||",
            Self::Add => "+",
            Self::Subtract => "-",
            Self::Multiply => "*",
            Self::Divide => "/",
            Self::Quotient => "div",
            Self::Remainder => "mod",
        }
    }
}

impl ExprNode {
    /// Number of nested levels of expressions.
    pub(crate) fn depth(&self) -> u16 {
        let deepest = |exprs: &[Expr]| exprs.iter().map(|expr| expr.depth).max().unwrap_or(0);
        match self {
            Self::Null
            | Self::Bool(_)
            | Self::Int(_)
            | Self::Float(_)
            | Self::Text(_)
            | Self::Name(_) => 0,
            Self::Path(base, steps) => steps
                .iter()
                .map(PathStep::depth)
                .max()
                .unwrap_or(0)
                .max(base.depth),
            Self::Call { args, .. } => deepest(args),
            Self::Not(inner) | Self::Negate(inner) | Self::IsNull(inner, _) => inner.depth,
            Self::Binary(_, left, right)
            | Self::Like(left, right, _)
            | Self::Range(left, right) => left.depth.max(right.depth),
            Self::In(inner, items, _) => inner.depth.max(deepest(items)),
            Self::Between(inner, low, high, _) => inner.depth.max(low.depth).max(high.depth),
            Self::Case {
                subject,
                arms,
                otherwise,
            } => {
                let arms = arms
                    .iter()
                    .map(|(condition, result)| condition.depth.max(result.depth))
                    .max();
                let ends = [subject, otherwise].map(|end| end.as_ref().map_or(0, |end| end.depth));
                arms.unwrap_or(0).max(ends[0]).max(ends[1])
            }
            Self::Array(items) => deepest(items),
            Self::Map(fields) => fields
                .iter()
                .map(|(_, value)| value.depth)
                .max()
                .unwrap_or(0),
        }
    }
}

impl PathStep {
    fn depth(&self) -> u16 {
        match self {
            Self::Key(_) => 0,
            Self::Index(index) => index.depth,
            Self::Slice(from, to) => from.depth.max(to.depth),
        }
    }
}
