//! Aliases: names that a statement gives to its values, and their lookup.

use super::OpId;
use crate::syntax::ast::{AliasPart, Expr, ExprNode, PathStep};

/// A name given with AS.
pub(crate) struct Alias {
    pub(crate) parts: Vec<AliasPart>,
    pub(crate) node: OpId,
    /// The column with this alias.
    pub(crate) column: usize,
}

impl Alias {
    /// The number of path steps that this alias covers; 1 means the first name alone.
    pub(crate) fn matched_steps(&self, head: &str, steps: &[PathStep]) -> Option<usize> {
        let (AliasPart::Key(first), rest) = self.parts.split_first()? else {
            return None;
        };
        let covered = &**first == head
            && rest.len() <= steps.len()
            && rest
                .iter()
                .zip(steps)
                .all(|(part, step)| match (part, step) {
                    (AliasPart::Key(own), PathStep::Key(key)) => own == key,
                    _ => false,
                });
        covered.then_some(self.parts.len())
    }

    pub(crate) fn text(&self) -> String {
        self.parts
            .iter()
            .map(part_text)
            .collect::<Vec<_>>()
            .join(".")
    }
}

fn part_text(part: &AliasPart) -> &str {
    match part {
        AliasPart::Key(key) => key,
        AliasPart::Index(_) | AliasPart::Head | AliasPart::Tail | AliasPart::Computed(_) => "[]",
    }
}

/// Whether two expressions are written identically, ignoring their positions.
pub(crate) fn is_same_expr(left: &Expr, right: &Expr) -> bool {
    let all = |left: &[Expr], right: &[Expr]| {
        left.len() == right.len()
            && left
                .iter()
                .zip(right)
                .all(|(left, right)| is_same_expr(left, right))
    };
    match (&left.node, &right.node) {
        (ExprNode::Null, ExprNode::Null) => true,
        (ExprNode::Bool(left), ExprNode::Bool(right)) => left == right,
        (ExprNode::Int(left), ExprNode::Int(right)) => left == right,
        (ExprNode::Float(left), ExprNode::Float(right)) => left == right,
        (ExprNode::Text(left), ExprNode::Text(right))
        | (ExprNode::Name(left), ExprNode::Name(right)) => left == right,
        (ExprNode::Path(left, left_steps), ExprNode::Path(right, right_steps)) => {
            is_same_expr(left, right)
                && left_steps.len() == right_steps.len()
                && left_steps
                    .iter()
                    .zip(right_steps)
                    .all(|(left, right)| is_same_step(left, right))
        }
        (
            ExprNode::Call {
                name: left,
                args: left_args,
                ..
            },
            ExprNode::Call {
                name: right,
                args: right_args,
                ..
            },
        ) => left.eq_ignore_ascii_case(right) && all(left_args, right_args),
        (ExprNode::Not(left), ExprNode::Not(right))
        | (ExprNode::Negate(left), ExprNode::Negate(right)) => is_same_expr(left, right),
        (ExprNode::Binary(left_op, a, b), ExprNode::Binary(right_op, c, d)) => {
            left_op == right_op && is_same_expr(a, c) && is_same_expr(b, d)
        }
        (ExprNode::IsNull(left, left_not), ExprNode::IsNull(right, right_not)) => {
            left_not == right_not && is_same_expr(left, right)
        }
        (
            ExprNode::Case {
                subject: a,
                arms: left,
                otherwise: b,
            },
            ExprNode::Case {
                subject: c,
                arms: right,
                otherwise: d,
            },
        ) => {
            let option = |left: &Option<Box<Expr>>, right: &Option<Box<Expr>>| match (left, right) {
                (Some(left), Some(right)) => is_same_expr(left, right),
                (None, None) => true,
                _ => false,
            };
            let arms = left.len() == right.len()
                && left.iter().zip(right).all(|(left, right)| {
                    is_same_expr(&left.0, &right.0) && is_same_expr(&left.1, &right.1)
                });
            option(a, c) && option(b, d) && arms
        }
        (ExprNode::Array(left), ExprNode::Array(right)) => all(left, right),
        _ => false,
    }
}

fn is_same_step(left: &PathStep, right: &PathStep) -> bool {
    match (left, right) {
        (PathStep::Key(left), PathStep::Key(right)) => left == right,
        (PathStep::Index(left), PathStep::Index(right)) => is_same_expr(left, right),
        (PathStep::Slice(a, b), PathStep::Slice(c, d)) => is_same_expr(a, c) && is_same_expr(b, d),
        _ => false,
    }
}
