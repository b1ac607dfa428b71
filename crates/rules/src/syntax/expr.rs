//! Expressions, by binding power: `or`, `and`, `not`, comparisons, `||`, `+ -`, `* / div mod`, a sign, paths and methods.

use super::ast::{BinaryOp, CallForm, Expr, Node, Step};
use super::clause::is_clause_word;
use super::token::{Kind, Symbol};
use super::{Parser, shown};
use crate::error::{Error, Span};

const OR: u8 = 1;
const AND: u8 = 2;
const NOT: u8 = 3;
const COMPARISON: u8 = 4;
const CONCAT: u8 = 5;
const SUM: u8 = 6;
const PRODUCT: u8 = 7;
const SIGN: u8 = 8;

/// What stands between two operands.
enum Infix {
    Binary(BinaryOp),
    Is,
    In,
    Between,
    Like,
    /// `not in`, `not between`, `not like`
    Not,
}

impl Parser<'_> {
    pub(super) fn expression(&mut self) -> Result<Expr, Error> {
        self.binding(0)
    }

    /// An expression of operators that bind more tightly than `weakest`.
    fn binding(&mut self, weakest: u8) -> Result<Expr, Error> {
        self.depth += 1;
        if self.depth > self.bounds.max_depth {
            let span = self.peek().span;
            let error = self.error(span, "expressions are nested too deep");
            return Err(error.expected(format!(
                "at most {} levels (max_depth)",
                self.bounds.max_depth
            )));
        }
        let mut left = self.prefix()?;
        while let Some((infix, power)) = self.infix() {
            if power <= weakest {
                break;
            }
            left = self.continue_with(left, &infix, power)?;
        }
        self.depth -= 1;
        Ok(left)
    }

    /// What is not nested by brackets, such as a long sum, is bounded here: whoever walks the tree goes as deep.
    fn make(&mut self, span: Span, node: Node) -> Result<Expr, Error> {
        self.count_node(span)?;
        let depth = node.depth() + 1;
        let most = self.bounds.max_depth.saturating_mul(2).min(500);
        if usize::from(depth) > most {
            let error = self.error(span, "too many operators or methods after one another");
            return Err(error.expected(format!("at most {most} (twice max_depth)")));
        }
        Ok(Expr { span, depth, node })
    }

    fn prefix(&mut self) -> Result<Expr, Error> {
        let start = self.peek().span;
        if self.eat_symbol(Symbol::Minus) {
            let operand = self.binding(SIGN)?;
            let span = start.to(operand.span);
            return self.make(span, Node::Negate(Box::new(operand)));
        }
        if self.eat_symbol(Symbol::Plus) {
            return self.binding(SIGN);
        }
        // `not(x)` is the operator too.
        if self.eat_word("not") {
            let operand = self.binding(NOT)?;
            let span = start.to(operand.span);
            return self.make(span, Node::Not(Box::new(operand)));
        }
        let primary = self.primary()?;
        self.postfix(primary)
    }

    fn primary(&mut self) -> Result<Expr, Error> {
        const EXPECTED: &str = "a value, a field or a function";
        let token = self.peek().clone();
        let node = match token.kind {
            Kind::Int(value) => Node::Int(value),
            Kind::Float(value) => Node::Float(value),
            Kind::Text(text) => Node::Text(text),
            Kind::Symbol(Symbol::LeftParen) => return self.parenthesized(),
            Kind::Symbol(Symbol::LeftBracket) => return self.bracketed(),
            Kind::Symbol(Symbol::LeftBrace) => return self.map(),
            Kind::Word => return self.word(),
            Kind::Symbol(_) | Kind::End => return Err(self.unexpected(EXPECTED)),
        };
        self.advance();
        self.make(token.span, node)
    }

    fn parenthesized(&mut self) -> Result<Expr, Error> {
        let open = self.advance();
        if self.at_word("select") {
            return Err(self.unexpected("an expression; a rule has one SELECT"));
        }
        let mut inner = self.expression()?;
        let close = self.expect_symbol(Symbol::RightParen, "`)` or an operator")?;
        inner.span = open.span.to(close.span);
        Ok(inner)
    }

    fn word(&mut self) -> Result<Expr, Error> {
        let token = self.peek().clone();
        let name = self.text(token.span);
        if !self.is_quoted(&token) {
            if self.peek_at(1).kind == Kind::Symbol(Symbol::LeftParen) && !is_clause_word(name) {
                self.advance();
                return self.call(name, token.span);
            }
            for (word, node) in [
                ("null", Node::Null),
                ("undefined", Node::Null),
                ("true", Node::Bool(true)),
                ("false", Node::Bool(false)),
            ] {
                if name.eq_ignore_ascii_case(word) {
                    self.advance();
                    return self.make(token.span, node);
                }
            }
            if name.eq_ignore_ascii_case("case") {
                return self.case();
            }
            if is_clause_word(name) {
                return Err(self.unexpected("a value, a field or a function"));
            }
        }
        self.advance();
        self.make(token.span, Node::Name(name.into()))
    }

    /// After the name, at the parenthesis.
    fn call(&mut self, name: &str, name_span: Span) -> Result<Expr, Error> {
        self.advance();
        let mut form = CallForm::Plain;
        let mut args = Vec::new();
        if self.at_symbol(Symbol::Star) && self.peek_at(1).kind == Kind::Symbol(Symbol::RightParen)
        {
            self.advance();
            form = CallForm::Star;
        } else if self.at_word("distinct")
            && self.peek_at(1).kind != Kind::Symbol(Symbol::LeftParen)
        {
            self.advance();
            form = CallForm::Distinct;
        }
        if !self.at_symbol(Symbol::RightParen) {
            loop {
                args.push(self.expression()?);
                self.count_items(args.len(), self.last_span())?;
                if !self.eat_symbol(Symbol::Comma) {
                    break;
                }
            }
        }
        let close = self.expect_symbol(Symbol::RightParen, "`,` or `)`")?;
        let node = Node::Call {
            name: name.into(),
            name_span,
            args,
            form,
        };
        self.make(name_span.to(close.span), node)
    }

    fn case(&mut self) -> Result<Expr, Error> {
        let start = self.advance().span;
        let subject = if self.at_word("when") {
            None
        } else {
            Some(Box::new(self.expression()?))
        };
        let mut arms = Vec::new();
        while self.eat_word("when") {
            let condition = self.expression()?;
            if !self.eat_word("then") {
                return Err(self.unexpected("`then`"));
            }
            arms.push((condition, self.expression()?));
            self.count_items(arms.len(), self.last_span())?;
        }
        if arms.is_empty() {
            return Err(self.unexpected("`when`"));
        }
        let otherwise = if self.eat_word("else") {
            Some(Box::new(self.expression()?))
        } else {
            None
        };
        if !self.eat_word("end") {
            return Err(self.unexpected(if otherwise.is_some() {
                "`end`"
            } else {
                "`when`, `else` or `end`"
            }));
        }
        let node = Node::Case {
            subject,
            arms,
            otherwise,
        };
        self.make(start.to(self.last_span()), node)
    }

    /// A list `[1, 2]` or a range `[1..5]`.
    fn bracketed(&mut self) -> Result<Expr, Error> {
        let start = self.advance().span;
        let mut items = Vec::new();
        if !self.at_symbol(Symbol::RightBracket) {
            items.push(self.expression()?);
            if self.eat_symbol(Symbol::DotDot) {
                let to = self.expression()?;
                let close = self.expect_symbol(Symbol::RightBracket, "`]`")?;
                let from = items.remove(0);
                return self.make(
                    start.to(close.span),
                    Node::Range(Box::new(from), Box::new(to)),
                );
            }
            while self.eat_symbol(Symbol::Comma) {
                items.push(self.expression()?);
                self.count_items(items.len(), self.last_span())?;
            }
        }
        let close = self.expect_symbol(Symbol::RightBracket, "`,` or `]`")?;
        self.make(start.to(close.span), Node::Array(items))
    }

    /// `{'a': 1, b: 2}`
    fn map(&mut self) -> Result<Expr, Error> {
        let start = self.advance().span;
        let mut fields = Vec::new();
        if !self.at_symbol(Symbol::RightBrace) {
            loop {
                let token = self.peek().clone();
                let key: Box<str> = match token.kind {
                    Kind::Text(text) => text,
                    Kind::Word => self.text(token.span).into(),
                    _ => return Err(self.unexpected("a key")),
                };
                self.advance();
                self.expect_symbol(Symbol::Colon, "`:`")?;
                fields.push((key, self.expression()?));
                self.count_items(fields.len(), self.last_span())?;
                if !self.eat_symbol(Symbol::Comma) {
                    break;
                }
            }
        }
        let close = self.expect_symbol(Symbol::RightBrace, "`,` or `}`")?;
        self.make(start.to(close.span), Node::Map(fields))
    }

    /// Keys, indexes and methods after a value.
    fn postfix(&mut self, base: Expr) -> Result<Expr, Error> {
        let mut base = base;
        let mut steps = Vec::new();
        loop {
            if self.at_symbol(Symbol::Dot) {
                self.advance();
                let is_method = self.peek().kind == Kind::Word
                    && self.peek_at(1).kind == Kind::Symbol(Symbol::LeftParen);
                if is_method {
                    let receiver = self.path(base, std::mem::take(&mut steps))?;
                    base = self.method(receiver)?;
                } else {
                    self.keys(&mut steps)?;
                }
            } else if self.at_symbol(Symbol::LeftBracket) {
                steps.push(self.index()?);
            } else {
                return self.path(base, steps);
            }
            if steps.len() > self.bounds.max_depth {
                let span = self.last_span();
                let error = self.error(span, "the path is too long");
                return Err(error.expected(format!(
                    "at most {} steps (max_depth)",
                    self.bounds.max_depth
                )));
            }
        }
    }

    fn path(&mut self, base: Expr, steps: Vec<Step>) -> Result<Expr, Error> {
        if steps.is_empty() {
            return Ok(base);
        }
        let span = base.span.to(self.last_span());
        self.make(span, Node::Path(Box::new(base), steps))
    }

    fn method(&mut self, receiver: Expr) -> Result<Expr, Error> {
        let token = self.advance();
        let name = self.text(token.span);
        let mut call = self.call(name, token.span)?;
        call.span = receiver.span.to(call.span);
        if let Node::Call { args, form, .. } = &mut call.node {
            args.insert(0, receiver);
            *form = CallForm::Method;
        }
        self.make(call.span, call.node)
    }

    /// What stands after a dot: a word (keywords too), a number, or anything in quotes.
    fn keys(&mut self, steps: &mut Vec<Step>) -> Result<(), Error> {
        let token = self.peek().clone();
        match token.kind {
            Kind::Text(text) => {
                self.advance();
                steps.push(Step::Key(text));
            }
            Kind::Word => {
                self.advance();
                steps.push(Step::Key(self.text(token.span).into()));
            }
            // `a.1.2` and `a.2nd` came out of the lexer as a number, and what follows it.
            Kind::Int(_) | Kind::Float(_) => {
                self.advance();
                let mut text = self.text(token.span).to_owned();
                let next = self.peek().clone();
                if next.kind == Kind::Word && next.span.start == token.span.end {
                    self.advance();
                    text.push_str(self.text(next.span));
                }
                steps.extend(text.split('.').map(|key| Step::Key(key.into())));
            }
            _ => return Err(self.unexpected("a key, such as `a` or 'odd key'")),
        }
        Ok(())
    }

    fn index(&mut self) -> Result<Step, Error> {
        self.advance();
        let from = self.expression()?;
        let step = if self.eat_symbol(Symbol::DotDot) {
            Step::Slice(Box::new(from), Box::new(self.expression()?))
        } else {
            Step::Index(Box::new(from))
        };
        self.expect_symbol(Symbol::RightBracket, "`]`")?;
        Ok(step)
    }

    fn infix(&self) -> Option<(Infix, u8)> {
        let token = self.peek();
        let binary = |op, power| Some((Infix::Binary(op), power));
        match &token.kind {
            Kind::Symbol(symbol) => match symbol {
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
            Kind::Word if !self.is_quoted(token) => {
                let word = self.text(token.span);
                let is = |other: &str| word.eq_ignore_ascii_case(other);
                match () {
                    () if is("or") => binary(BinaryOp::Or, OR),
                    () if is("and") => binary(BinaryOp::And, AND),
                    () if is("div") => binary(BinaryOp::Quotient, PRODUCT),
                    () if is("mod") => binary(BinaryOp::Remainder, PRODUCT),
                    () if is("is") => Some((Infix::Is, COMPARISON)),
                    () if is("in") => Some((Infix::In, COMPARISON)),
                    () if is("between") => Some((Infix::Between, COMPARISON)),
                    () if is("like") => Some((Infix::Like, COMPARISON)),
                    () if is("not") => Some((Infix::Not, COMPARISON)),
                    () => None,
                }
            }
            _ => None,
        }
    }

    fn continue_with(&mut self, left: Expr, infix: &Infix, power: u8) -> Result<Expr, Error> {
        let operator = self.advance();
        match infix {
            Infix::Binary(op) => {
                let right = self.binding(power)?;
                let span = left.span.to(right.span);
                self.make(span, Node::Binary(*op, Box::new(left), Box::new(right)))
            }
            Infix::Is => {
                let negated = self.eat_word("not");
                if !self.eat_word("null") {
                    return Err(self.unexpected(if negated {
                        "`null`"
                    } else {
                        "`null` or `not null`"
                    }));
                }
                let span = left.span.to(self.last_span());
                self.make(span, Node::IsNull(Box::new(left), negated))
            }
            Infix::In => self.in_list(left, false),
            Infix::Between => self.between(left, false),
            Infix::Like => self.like(left, false),
            Infix::Not => {
                if self.eat_word("in") {
                    self.in_list(left, true)
                } else if self.eat_word("between") {
                    self.between(left, true)
                } else if self.eat_word("like") {
                    self.like(left, true)
                } else {
                    let message = format!(
                        "unexpected `{}` after a value",
                        shown(self.text(operator.span))
                    );
                    Err(self
                        .error(operator.span, message)
                        .expected("`not in`, `not between` or `not like`"))
                }
            }
        }
    }

    fn in_list(&mut self, left: Expr, negated: bool) -> Result<Expr, Error> {
        self.expect_symbol(Symbol::LeftParen, "`(` and a list of values")?;
        let mut items = Vec::new();
        loop {
            items.push(self.expression()?);
            self.count_items(items.len(), self.last_span())?;
            if !self.eat_symbol(Symbol::Comma) {
                break;
            }
        }
        let close = self.expect_symbol(Symbol::RightParen, "`,` or `)`")?;
        let span = left.span.to(close.span);
        self.make(span, Node::In(Box::new(left), items, negated))
    }

    fn between(&mut self, left: Expr, negated: bool) -> Result<Expr, Error> {
        let low = self.binding(COMPARISON)?;
        if !self.eat_word("and") {
            return Err(self.unexpected("`and`"));
        }
        let high = self.binding(COMPARISON)?;
        let span = left.span.to(high.span);
        self.make(
            span,
            Node::Between(Box::new(left), Box::new(low), Box::new(high), negated),
        )
    }

    fn like(&mut self, left: Expr, negated: bool) -> Result<Expr, Error> {
        let pattern = self.binding(COMPARISON)?;
        let span = left.span.to(pattern.span);
        self.make(span, Node::Like(Box::new(left), Box::new(pattern), negated))
    }
}
