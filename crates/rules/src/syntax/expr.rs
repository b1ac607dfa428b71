//! Parser of expressions by binding power: `or`, `and`, `not`, comparisons, `||`, `+ -`, `* / div mod`, sign,
//! paths and methods.

use super::ast::{BinaryOp, CallForm, Expr, ExprNode, PathStep};
use super::clause::is_clause_word;
use super::token::{Symbol, TokenKind};
use super::{Parser, truncate_text};
use crate::statement_error::{Span, StatementError};

const OR: u8 = 1;
const AND: u8 = 2;
const NOT: u8 = 3;
const COMPARISON: u8 = 4;
const CONCAT: u8 = 5;
const SUM: u8 = 6;
const PRODUCT: u8 = 7;
const SIGN: u8 = 8;

/// An operator between two operands.
enum InfixOperator {
    Binary(BinaryOp),
    Is,
    In,
    Between,
    Like,
    /// `not in`, `not between`, `not like`
    Not,
}

impl Parser<'_> {
    pub(super) fn parse_expr(&mut self) -> Result<Expr, StatementError> {
        self.parse_binding(0)
    }

    /// Parses an expression of operators that bind more tightly than `weakest`.
    fn parse_binding(&mut self, weakest: u8) -> Result<Expr, StatementError> {
        self.depth += 1;
        if self.depth > self.bounds.max_depth {
            let span = self.peek().span;
            let error = self.error(span, "expressions are nested too deep");
            return Err(error.with_expected(format!(
                "at most {} levels (max_depth)",
                self.bounds.max_depth
            )));
        }
        let mut left = self.parse_prefix()?;
        while let Some((infix, power)) = self.peek_infix() {
            if power <= weakest {
                break;
            }
            left = self.parse_infix(left, &infix, power)?;
        }
        self.depth -= 1;
        Ok(left)
    }

    /// Creates a node and checks the depth limit, which also applies to expressions nested without brackets,
    /// such as a long sum. Recursion over the tree is equally deep.
    fn new_expr(&mut self, span: Span, node: ExprNode) -> Result<Expr, StatementError> {
        self.count_node(span)?;
        let depth = node.depth() + 1;
        let most = self.bounds.max_depth.saturating_mul(2).min(500);
        if usize::from(depth) > most {
            let error = self.error(span, "too many operators or methods in a row");
            return Err(error.with_expected(format!("at most {most} (twice max_depth)")));
        }
        Ok(Expr { span, depth, node })
    }

    fn parse_prefix(&mut self) -> Result<Expr, StatementError> {
        let start = self.peek().span;
        if self.accept_symbol(Symbol::Minus) {
            let operand = self.parse_binding(SIGN)?;
            let span = start.to_end_of(operand.span);
            return self.new_expr(span, ExprNode::Negate(Box::new(operand)));
        }
        if self.accept_symbol(Symbol::Plus) {
            return self.parse_binding(SIGN);
        }
        // `not(x)` is the operator, too.
        if self.accept_word("not") {
            let operand = self.parse_binding(NOT)?;
            let span = start.to_end_of(operand.span);
            return self.new_expr(span, ExprNode::Not(Box::new(operand)));
        }
        let primary = self.parse_primary()?;
        self.parse_postfix(primary)
    }

    fn parse_primary(&mut self) -> Result<Expr, StatementError> {
        const EXPECTED: &str = "a value, a field or a function";
        let token = self.peek().clone();
        let node = match token.kind {
            TokenKind::Int(value) => ExprNode::Int(value),
            TokenKind::Float(value) => ExprNode::Float(value),
            TokenKind::Text(text) => ExprNode::Text(text),
            TokenKind::Symbol(Symbol::LeftParen) => return self.parse_parenthesized(),
            TokenKind::Symbol(Symbol::LeftBracket) => return self.parse_bracketed(),
            TokenKind::Symbol(Symbol::LeftBrace) => return self.parse_map(),
            TokenKind::Word => return self.parse_word(),
            TokenKind::Symbol(_) | TokenKind::End => return Err(self.unexpected_error(EXPECTED)),
        };
        self.advance();
        self.new_expr(token.span, node)
    }

    fn parse_parenthesized(&mut self) -> Result<Expr, StatementError> {
        let open = self.advance();
        if self.at_word("select") {
            return Err(self.unexpected_error("an expression; a rule has one SELECT"));
        }
        let mut inner = self.parse_expr()?;
        let close = self.expect_symbol(Symbol::RightParen, "`)` or an operator")?;
        inner.span = open.span.to_end_of(close.span);
        Ok(inner)
    }

    fn parse_word(&mut self) -> Result<Expr, StatementError> {
        let token = self.peek().clone();
        let name = self.text(token.span);
        if !self.is_quoted(&token) {
            if self.peek_at(1).kind == TokenKind::Symbol(Symbol::LeftParen) && !is_clause_word(name)
            {
                self.advance();
                return self.parse_call(name, token.span);
            }
            for (word, node) in [
                ("null", ExprNode::Null),
                ("undefined", ExprNode::Null),
                ("true", ExprNode::Bool(true)),
                ("false", ExprNode::Bool(false)),
            ] {
                if name.eq_ignore_ascii_case(word) {
                    self.advance();
                    return self.new_expr(token.span, node);
                }
            }
            if name.eq_ignore_ascii_case("case") {
                return self.parse_case();
            }
            if is_clause_word(name) {
                return Err(self.unexpected_error("a value, a field or a function"));
            }
        }
        self.advance();
        self.new_expr(token.span, ExprNode::Name(name.into()))
    }

    /// Parses a call after its name, at the parenthesis.
    fn parse_call(&mut self, name: &str, name_span: Span) -> Result<Expr, StatementError> {
        self.advance();
        let mut form = CallForm::Plain;
        let mut args = Vec::new();
        if self.at_symbol(Symbol::Star)
            && self.peek_at(1).kind == TokenKind::Symbol(Symbol::RightParen)
        {
            self.advance();
            form = CallForm::Star;
        } else if self.at_word("distinct")
            && self.peek_at(1).kind != TokenKind::Symbol(Symbol::LeftParen)
        {
            self.advance();
            form = CallForm::Distinct;
        }
        if !self.at_symbol(Symbol::RightParen) {
            loop {
                args.push(self.parse_expr()?);
                self.count_items(args.len(), self.last_span())?;
                if !self.accept_symbol(Symbol::Comma) {
                    break;
                }
            }
        }
        let close = self.expect_symbol(Symbol::RightParen, "`,` or `)`")?;
        let node = ExprNode::Call {
            name: name.into(),
            name_span,
            args,
            form,
        };
        self.new_expr(name_span.to_end_of(close.span), node)
    }

    fn parse_case(&mut self) -> Result<Expr, StatementError> {
        let start = self.advance().span;
        let subject = if self.at_word("when") {
            None
        } else {
            Some(Box::new(self.parse_expr()?))
        };
        let mut arms = Vec::new();
        while self.accept_word("when") {
            let condition = self.parse_expr()?;
            if !self.accept_word("then") {
                return Err(self.unexpected_error("`then`"));
            }
            arms.push((condition, self.parse_expr()?));
            self.count_items(arms.len(), self.last_span())?;
        }
        if arms.is_empty() {
            return Err(self.unexpected_error("`when`"));
        }
        let otherwise = if self.accept_word("else") {
            Some(Box::new(self.parse_expr()?))
        } else {
            None
        };
        if !self.accept_word("end") {
            return Err(self.unexpected_error(if otherwise.is_some() {
                "`end`"
            } else {
                "`when`, `else` or `end`"
            }));
        }
        let node = ExprNode::Case {
            subject,
            arms,
            otherwise,
        };
        self.new_expr(start.to_end_of(self.last_span()), node)
    }

    /// Parses a list `[1, 2]` or a range `[1..5]`.
    fn parse_bracketed(&mut self) -> Result<Expr, StatementError> {
        let start = self.advance().span;
        let mut items = Vec::new();
        if !self.at_symbol(Symbol::RightBracket) {
            items.push(self.parse_expr()?);
            if self.accept_symbol(Symbol::DotDot) {
                let to = self.parse_expr()?;
                let close = self.expect_symbol(Symbol::RightBracket, "`]`")?;
                let from = items.remove(0);
                return self.new_expr(
                    start.to_end_of(close.span),
                    ExprNode::Range(Box::new(from), Box::new(to)),
                );
            }
            while self.accept_symbol(Symbol::Comma) {
                items.push(self.parse_expr()?);
                self.count_items(items.len(), self.last_span())?;
            }
        }
        let close = self.expect_symbol(Symbol::RightBracket, "`,` or `]`")?;
        self.new_expr(start.to_end_of(close.span), ExprNode::Array(items))
    }

    /// `{'a': 1, b: 2}`
    fn parse_map(&mut self) -> Result<Expr, StatementError> {
        let start = self.advance().span;
        let mut fields = Vec::new();
        if !self.at_symbol(Symbol::RightBrace) {
            loop {
                let token = self.peek().clone();
                let key: Box<str> = match token.kind {
                    TokenKind::Text(text) => text,
                    TokenKind::Word => self.text(token.span).into(),
                    _ => return Err(self.unexpected_error("a key")),
                };
                self.advance();
                self.expect_symbol(Symbol::Colon, "`:`")?;
                fields.push((key, self.parse_expr()?));
                self.count_items(fields.len(), self.last_span())?;
                if !self.accept_symbol(Symbol::Comma) {
                    break;
                }
            }
        }
        let close = self.expect_symbol(Symbol::RightBrace, "`,` or `}`")?;
        self.new_expr(start.to_end_of(close.span), ExprNode::Map(fields))
    }

    /// Parses keys, indexes and methods after a value.
    fn parse_postfix(&mut self, base: Expr) -> Result<Expr, StatementError> {
        let mut base = base;
        let mut steps = Vec::new();
        loop {
            if self.at_symbol(Symbol::Dot) {
                self.advance();
                let is_method = self.peek().kind == TokenKind::Word
                    && self.peek_at(1).kind == TokenKind::Symbol(Symbol::LeftParen);
                if is_method {
                    let receiver = self.new_path(base, std::mem::take(&mut steps))?;
                    base = self.parse_method(receiver)?;
                } else {
                    self.parse_keys(&mut steps)?;
                }
            } else if self.at_symbol(Symbol::LeftBracket) {
                steps.push(self.parse_index()?);
            } else {
                return self.new_path(base, steps);
            }
            if steps.len() > self.bounds.max_depth {
                let span = self.last_span();
                let error = self.error(span, "the path is too long");
                return Err(error.with_expected(format!(
                    "at most {} steps (max_depth)",
                    self.bounds.max_depth
                )));
            }
        }
    }

    fn new_path(&mut self, base: Expr, steps: Vec<PathStep>) -> Result<Expr, StatementError> {
        if steps.is_empty() {
            return Ok(base);
        }
        let span = base.span.to_end_of(self.last_span());
        self.new_expr(span, ExprNode::Path(Box::new(base), steps))
    }

    fn parse_method(&mut self, receiver: Expr) -> Result<Expr, StatementError> {
        let token = self.advance();
        let name = self.text(token.span);
        let mut call = self.parse_call(name, token.span)?;
        call.span = receiver.span.to_end_of(call.span);
        if let ExprNode::Call { args, form, .. } = &mut call.node {
            args.insert(0, receiver);
            *form = CallForm::Method;
        }
        self.new_expr(call.span, call.node)
    }

    /// Parses what follows a dot: a word (also a keyword), a number, or anything in quotes.
    fn parse_keys(&mut self, steps: &mut Vec<PathStep>) -> Result<(), StatementError> {
        let token = self.peek().clone();
        match token.kind {
            TokenKind::Text(text) => {
                self.advance();
                steps.push(PathStep::Key(text));
            }
            TokenKind::Word => {
                self.advance();
                steps.push(PathStep::Key(self.text(token.span).into()));
            }
            // The lexer returns the keys in `a.1.2` and `a.2nd` as a number and its suffix.
            TokenKind::Int(_) | TokenKind::Float(_) => {
                self.advance();
                let mut text = self.text(token.span).to_owned();
                let next = self.peek().clone();
                if next.kind == TokenKind::Word && next.span.start == token.span.end {
                    self.advance();
                    text.push_str(self.text(next.span));
                }
                steps.extend(text.split('.').map(|key| PathStep::Key(key.into())));
            }
            _ => return Err(self.unexpected_error("a key, such as `a` or 'odd key'")),
        }
        Ok(())
    }

    fn parse_index(&mut self) -> Result<PathStep, StatementError> {
        self.advance();
        let from = self.parse_expr()?;
        let step = if self.accept_symbol(Symbol::DotDot) {
            PathStep::Slice(Box::new(from), Box::new(self.parse_expr()?))
        } else {
            PathStep::Index(Box::new(from))
        };
        self.expect_symbol(Symbol::RightBracket, "`]`")?;
        Ok(step)
    }

    fn peek_infix(&self) -> Option<(InfixOperator, u8)> {
        let token = self.peek();
        let binary = |op, power| Some((InfixOperator::Binary(op), power));
        match &token.kind {
            TokenKind::Symbol(symbol) => match symbol {
                Symbol::Equal => binary(BinaryOp::Equal, COMPARISON),
                Symbol::NotEqual => binary(BinaryOp::NotEqual, COMPARISON),
                Symbol::Less => binary(BinaryOp::Less, COMPARISON),
                Symbol::LessEqual => binary(BinaryOp::LessEqual, COMPARISON),
                Symbol::Greater => binary(BinaryOp::Greater, COMPARISON),
                Symbol::GreaterEqual => binary(BinaryOp::GreaterEqual, COMPARISON),
                Symbol::Match => binary(BinaryOp::Match, COMPARISON),
                Symbol::BarBar => binary(BinaryOp::Concat, CONCAT),
                Symbol::Plus => binary(BinaryOp::Add, SUM),
                Symbol::Minus => binary(BinaryOp::Subtract, SUM),
                Symbol::Star => binary(BinaryOp::Multiply, PRODUCT),
                Symbol::Slash => binary(BinaryOp::Divide, PRODUCT),
                Symbol::Percent => binary(BinaryOp::Remainder, PRODUCT),
                _ => None,
            },
            TokenKind::Word if !self.is_quoted(token) => {
                let word = self.text(token.span);
                let is = |other: &str| word.eq_ignore_ascii_case(other);
                match () {
                    () if is("or") => binary(BinaryOp::Or, OR),
                    () if is("and") => binary(BinaryOp::And, AND),
                    () if is("div") => binary(BinaryOp::Quotient, PRODUCT),
                    () if is("mod") => binary(BinaryOp::Remainder, PRODUCT),
                    () if is("is") => Some((InfixOperator::Is, COMPARISON)),
                    () if is("in") => Some((InfixOperator::In, COMPARISON)),
                    () if is("between") => Some((InfixOperator::Between, COMPARISON)),
                    () if is("like") => Some((InfixOperator::Like, COMPARISON)),
                    () if is("not") => Some((InfixOperator::Not, COMPARISON)),
                    () => None,
                }
            }
            _ => None,
        }
    }

    fn parse_infix(
        &mut self,
        left: Expr,
        infix: &InfixOperator,
        power: u8,
    ) -> Result<Expr, StatementError> {
        let operator = self.advance();
        match infix {
            InfixOperator::Binary(op) => {
                let right = self.parse_binding(power)?;
                let span = left.span.to_end_of(right.span);
                self.new_expr(span, ExprNode::Binary(*op, Box::new(left), Box::new(right)))
            }
            InfixOperator::Is => {
                let negated = self.accept_word("not");
                if !self.accept_word("null") {
                    return Err(self.unexpected_error(if negated {
                        "`null`"
                    } else {
                        "`null` or `not null`"
                    }));
                }
                let span = left.span.to_end_of(self.last_span());
                self.new_expr(span, ExprNode::IsNull(Box::new(left), negated))
            }
            InfixOperator::In => self.parse_in_list(left, false),
            InfixOperator::Between => self.parse_between(left, false),
            InfixOperator::Like => self.parse_like(left, false),
            InfixOperator::Not => {
                if self.accept_word("in") {
                    self.parse_in_list(left, true)
                } else if self.accept_word("between") {
                    self.parse_between(left, true)
                } else if self.accept_word("like") {
                    self.parse_like(left, true)
                } else {
                    let message = format!(
                        "unexpected `{}` after a value",
                        truncate_text(self.text(operator.span))
                    );
                    Err(self
                        .error(operator.span, message)
                        .with_expected("`not in`, `not between` or `not like`"))
                }
            }
        }
    }

    fn parse_in_list(&mut self, left: Expr, negated: bool) -> Result<Expr, StatementError> {
        self.expect_symbol(Symbol::LeftParen, "`(` and a list of values")?;
        let mut items = Vec::new();
        loop {
            items.push(self.parse_expr()?);
            self.count_items(items.len(), self.last_span())?;
            if !self.accept_symbol(Symbol::Comma) {
                break;
            }
        }
        let close = self.expect_symbol(Symbol::RightParen, "`,` or `)`")?;
        let span = left.span.to_end_of(close.span);
        self.new_expr(span, ExprNode::In(Box::new(left), items, negated))
    }

    fn parse_between(&mut self, left: Expr, negated: bool) -> Result<Expr, StatementError> {
        let low = self.parse_binding(COMPARISON)?;
        if !self.accept_word("and") {
            return Err(self.unexpected_error("`and`"));
        }
        let high = self.parse_binding(COMPARISON)?;
        let span = left.span.to_end_of(high.span);
        self.new_expr(
            span,
            ExprNode::Between(Box::new(left), Box::new(low), Box::new(high), negated),
        )
    }

    fn parse_like(&mut self, left: Expr, negated: bool) -> Result<Expr, StatementError> {
        let pattern = self.parse_binding(COMPARISON)?;
        let span = left.span.to_end_of(pattern.span);
        self.new_expr(
            span,
            ExprNode::Like(Box::new(left), Box::new(pattern), negated),
        )
    }
}
