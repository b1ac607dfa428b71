//! Names that a statement gives to its own values, and how they are found again.

use super::NodeId;
use crate::syntax::ast::{AliasPart, Expr, Node, Step};

/// A name given with AS.
pub(crate) struct Alias {
    pub(crate) parts: Vec<AliasPart>,
    pub(crate) node: NodeId,
    /// Which column shows it.
    pub(crate) column: usize,
}

impl Alias {
    /// How many steps of a path this name is; 1 stands for the first name alone.
    pub(crate) fn covers(&self, head: &str, steps: &[Step]) -> Option<usize> {
        let (AliasPart::Key(first), rest) = self.parts.split_first()? else {
            return None;
        };
        let covered = &**first == head
            && rest.len() <= steps.len()
            && rest
                .iter()
                .zip(steps)
                .all(|(part, step)| match (part, step) {
                    (AliasPart::Key(own), Step::Key(key)) => own == key,
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

/// Whether two expressions are written the same, wherever they stand.
pub(crate) fn same(left: &Expr, right: &Expr) -> bool {
    let all = |left: &[Expr], right: &[Expr]| {
        left.len() == right.len()
            && left
                .iter()
                .zip(right)
                .all(|(left, right)| same(left, right))
    };
    match (&left.node, &right.node) {
        (Node::Null, Node::Null) => true,
        (Node::Bool(left), Node::Bool(right)) => left == right,
        (Node::Int(left), Node::Int(right)) => left == right,
        (Node::Float(left), Node::Float(right)) => left == right,
        (Node::Text(left), Node::Text(right)) | (Node::Name(left), Node::Name(right)) => {
            left == right
        }
        (Node::Path(left, left_steps), Node::Path(right, right_steps)) => {
            same(left, right)
                && left_steps.len() == right_steps.len()
                && left_steps
                    .iter()
                    .zip(right_steps)
                    .all(|(left, right)| same_step(left, right))
        }
        (
            Node::Call {
                name: left,
                args: left_args,
                ..
            },
            Node::Call {
                name: right,
                args: right_args,
                ..
            },
        ) => left.eq_ignore_ascii_case(right) && all(left_args, right_args),
        (Node::Not(left), Node::Not(right)) | (Node::Negate(left), Node::Negate(right)) => {
            same(left, right)
        }
        (Node::Binary(left_op, a, b), Node::Binary(right_op, c, d)) => {
            left_op == right_op && same(a, c) && same(b, d)
        }
        (Node::IsNull(left, left_not), Node::IsNull(right, right_not)) => {
            left_not == right_not && same(left, right)
        }
        (
            Node::Case {
                subject: a,
                arms: left,
                otherwise: b,
            },
            Node::Case {
                subject: c,
                arms: right,
                otherwise: d,
            },
        ) => {
            let option = |left: &Option<Box<Expr>>, right: &Option<Box<Expr>>| match (left, right) {
                (Some(left), Some(right)) => same(left, right),
                (None, None) => true,
                _ => false,
            };
            let arms = left.len() == right.len()
                && left
                    .iter()
                    .zip(right)
                    .all(|(left, right)| same(&left.0, &right.0) && same(&left.1, &right.1));
            option(a, c) && option(b, d) && arms
        }
        (Node::Array(left), Node::Array(right)) => all(left, right),
        _ => false,
    }
}

fn same_step(left: &Step, right: &Step) -> bool {
    match (left, right) {
        (Step::Key(left), Step::Key(right)) => left == right,
        (Step::Index(left), Step::Index(right)) => same(left, right),
        (Step::Slice(a, b), Step::Slice(c, d)) => same(a, c) && same(b, d),
        _ => false,
    }
}
