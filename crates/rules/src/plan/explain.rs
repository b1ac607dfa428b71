//! Explains a compiled rule as text.

use std::fmt::{self, Write as _};

use super::{ColumnTarget, ListRange, Op, OpId, OutputColumn, Plan, PutStep, StepOp};
use crate::index_keys::{IndexKeys, TopicKey};
use crate::rule::{Rule, RuleBody};
use crate::value::Value;

/// Maximum length of an explanation in bytes; the rest is omitted.
const MAX_SHOWN_BYTES: usize = 16 << 10;

impl Rule {
    /// Dialect, sources, index keys, and each expression as evaluated: with resolved aliases and folded
    /// constants.
    #[must_use]
    pub fn explain(&self) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = self.write_plan(&mut out);
        out
    }

    fn write_plan(&self, out: &mut String) -> fmt::Result {
        writeln!(out, "dialect  {}", self.dialect().name())?;
        for source in &self.sources {
            writeln!(out, "from     {source}")?;
        }
        write_keys(&self.keys, out)?;
        if let Some(filter) = self.filter {
            writeln!(out, "where    {}", self.program.plan.render(filter))?;
        }
        match &self.body {
            RuleBody::Select(columns) => self.write_columns("select", columns, out)?,
            RuleBody::Foreach {
                list,
                incase,
                columns,
            } => {
                writeln!(out, "foreach  {}", self.program.plan.render(*list))?;
                if let Some(incase) = incase {
                    writeln!(out, "incase   {}", self.program.plan.render(*incase))?;
                }
                self.write_columns("do", columns, out)?;
            }
            RuleBody::Windowed(grouping) => {
                writeln!(out, "window   {}", grouping.window.kind)?;
                for &key in &grouping.keys {
                    writeln!(out, "group by {}", self.program.plan.render(key))?;
                }
                for (at, (aggregate, &argument)) in grouping
                    .window
                    .aggregates
                    .iter()
                    .zip(&grouping.arguments)
                    .enumerate()
                {
                    writeln!(
                        out,
                        "counts   #{} = {}({})",
                        at + 1,
                        aggregate.kind.name(),
                        self.program.plan.render(argument)
                    )?;
                }
                self.write_columns("select", &grouping.columns, out)?;
                if let Some(having) = grouping.having {
                    writeln!(out, "having   {}", self.program.plan.render(having))?;
                }
            }
        }
        writeln!(out, "memory   {} bytes", self.size_bytes())
    }

    fn write_columns(&self, word: &str, columns: &[OutputColumn], out: &mut String) -> fmt::Result {
        for column in columns {
            match column.target {
                ColumnTarget::All => writeln!(out, "{word:<8} *")?,
                ColumnTarget::Key(name) => writeln!(
                    out,
                    "{word:<8} {} as {}",
                    self.program.plan.render(column.node),
                    self.program.plan.text(name)
                )?,
                ColumnTarget::Nested(list) => {
                    let name = self.program.plan.put_name(list);
                    writeln!(
                        out,
                        "{word:<8} {} as {name}",
                        self.program.plan.render(column.node)
                    )?;
                }
            }
        }
        Ok(())
    }
}

fn write_keys(keys: &IndexKeys, out: &mut String) -> fmt::Result {
    if let Some(topics) = &keys.topics {
        let topics: Vec<String> = (topics.iter())
            .map(|topic| match topic {
                TopicKey::Exact(text) => format!("= '{text}'"),
                TopicKey::Filter(text) => format!("=~ '{text}'"),
            })
            .collect();
        let topics = if topics.is_empty() {
            "none: no event can pass".to_owned()
        } else {
            topics.join(", ")
        };
        writeln!(out, "index    topic {topics}")?;
    }
    if let Some(ids) = &keys.client_ids {
        writeln!(out, "index    client id = '{}'", ids.join("', '"))?;
    }
    if let Some(qos) = keys.qos {
        let levels: Vec<String> = (0..3)
            .filter(|level| qos >> level & 1 == 1)
            .map(|level| level.to_string())
            .collect();
        writeln!(out, "index    qos {}", levels.join(", "))?;
    }
    Ok(())
}

impl Plan {
    pub(super) fn render(&self, id: OpId) -> String {
        let mut out = String::new();
        let _ = self.write_op(id, &mut out);
        out
    }

    fn put_name(&self, list: ListRange) -> String {
        let mut name = String::new();
        for put in self.puts(list) {
            let _ = match *put {
                PutStep::Key(key) if name.is_empty() => write!(name, "{}", self.text(key)),
                PutStep::Key(key) => write!(name, ".{}", self.text(key)),
                PutStep::Index(index) => write!(name, "[{index}]"),
                PutStep::Head => write!(name, "[0]"),
                PutStep::Tail => write!(name, "[-0]"),
                PutStep::Computed(at) => write!(name, "[{}]", self.render(at)),
            };
        }
        name
    }

    fn write_op(&self, id: OpId, out: &mut String) -> fmt::Result {
        // An alias used in many places is written out in each of them.
        if out.len() > MAX_SHOWN_BYTES {
            return write!(out, "..");
        }
        match self.op(id) {
            Op::Null => write!(out, "null"),
            Op::Bool(value) => write!(out, "{value}"),
            Op::Int(value) => write!(out, "{value}"),
            Op::Float(value) => write_value(Value::Float(value), out),
            Op::Text(text) => write!(out, "'{}'", self.text(text).replace('\'', "''")),
            Op::Owned(at) => write_value(
                self.owned[at as usize].to_value(&crate::value::Arena::new()),
                out,
            ),
            Op::Field(field) => write!(out, "{}", field.name()),
            Op::Open(name, _) | Op::Column(name, _) => write!(out, "{}", self.text(name)),
            Op::Output => write!(out, "."),
            Op::Item => write!(out, "item"),
            Op::Memo(inner, _) => self.write_op(inner, out),
            Op::Path(base, steps) => self.write_path(base, steps, out),
            Op::Call(function, list) => {
                write!(out, "{}", function.name)?;
                self.write_list('(', list, ')', out)
            }
            Op::Not(inner) => {
                write!(out, "not ")?;
                self.write_operand(inner, out)
            }
            Op::Negate(inner) => {
                write!(out, "-")?;
                self.write_operand(inner, out)
            }
            Op::Binary(op, left, right) => {
                self.write_operand(left, out)?;
                write!(out, " {} ", op.text())?;
                self.write_operand(right, out)
            }
            Op::IsNull(inner, negated) => {
                self.write_operand(inner, out)?;
                write!(out, " is {}null", if negated { "not " } else { "" })
            }
            Op::In(inner, list, negated) => {
                self.write_operand(inner, out)?;
                write!(out, " {}in ", if negated { "not " } else { "" })?;
                self.write_list('(', list, ')', out)
            }
            Op::Between(inner, list, negated) => {
                self.write_operand(inner, out)?;
                write!(out, " {}between ", if negated { "not " } else { "" })?;
                let &[low, high] = self.list(list) else {
                    return Ok(());
                };
                self.write_operand(low, out)?;
                write!(out, " and ")?;
                self.write_operand(high, out)
            }
            Op::Like(inner, pattern, negated) => {
                self.write_operand(inner, out)?;
                write!(out, " {}like ", if negated { "not " } else { "" })?;
                self.write_operand(pattern, out)
            }
            Op::MatchFilter(inner, filter) => {
                self.write_operand(inner, out)?;
                write!(out, " =~ '{}'", self.text(filter))
            }
            Op::Case(list) => {
                write!(out, "case")?;
                self.write_case_arms(self.list(list), out)
            }
            Op::Switch(list) => {
                let Some((&subject, arms)) = self.list(list).split_first() else {
                    return Ok(());
                };
                write!(out, "case ")?;
                self.write_op(subject, out)?;
                self.write_case_arms(arms, out)
            }
            Op::Array(list) => self.write_list('[', list, ']', out),
            Op::Map(list) => {
                write!(out, "{{")?;
                for (at, pair) in self.list(list).chunks_exact(2).enumerate() {
                    write!(out, "{}", if at > 0 { ", " } else { "" })?;
                    self.write_op(pair[0], out)?;
                    write!(out, ": ")?;
                    self.write_op(pair[1], out)?;
                }
                write!(out, "}}")
            }
            Op::Range(from, to) => {
                write!(out, "[")?;
                self.write_op(from, out)?;
                write!(out, "..")?;
                self.write_op(to, out)?;
                write!(out, "]")
            }
            Op::Key(at) => write!(out, "group key {}", at + 1),
            Op::Aggregate(at) => write!(out, "#{}", at + 1),
            Op::WindowStart => write!(out, "window_start()"),
            Op::WindowEnd => write!(out, "window_end()"),
        }
    }

    fn write_operand(&self, id: OpId, out: &mut String) -> fmt::Result {
        let mut seen = self.op(id);
        while let Op::Memo(inner, _) = seen {
            seen = self.op(inner);
        }
        let simple = !matches!(
            seen,
            Op::Binary(..)
                | Op::Not(_)
                | Op::IsNull(..)
                | Op::In(..)
                | Op::Between(..)
                | Op::Like(..)
                | Op::MatchFilter(..)
        );
        if simple {
            return self.write_op(id, out);
        }
        write!(out, "(")?;
        self.write_op(id, out)?;
        write!(out, ")")
    }

    fn write_list(
        &self,
        open: char,
        list: ListRange,
        close: char,
        out: &mut String,
    ) -> fmt::Result {
        write!(out, "{open}")?;
        for (at, &id) in self.list(list).iter().enumerate() {
            write!(out, "{}", if at > 0 { ", " } else { "" })?;
            self.write_op(id, out)?;
        }
        write!(out, "{close}")
    }

    fn write_case_arms(&self, list: &[OpId], out: &mut String) -> fmt::Result {
        let mut arms = list.chunks_exact(2);
        for arm in &mut arms {
            write!(out, " when ")?;
            self.write_op(arm[0], out)?;
            write!(out, " then ")?;
            self.write_op(arm[1], out)?;
        }
        if let Some(&otherwise) = arms.remainder().first() {
            write!(out, " else ")?;
            self.write_op(otherwise, out)?;
        }
        write!(out, " end")
    }

    fn write_path(&self, base: OpId, steps: ListRange, out: &mut String) -> fmt::Result {
        self.write_operand(base, out)?;
        for step in self.steps(steps) {
            match *step {
                StepOp::Key(key) => {
                    let key = self.text(key);
                    let plain = key.chars().all(|c| c.is_alphanumeric() || c == '_');
                    if plain {
                        write!(out, ".{key}")?
                    } else {
                        write!(out, ".'{key}'")?
                    }
                }
                StepOp::Index(index) => write!(out, "[{index}]")?,
                StepOp::Computed(id) => {
                    write!(out, "[")?;
                    self.write_op(id, out)?;
                    write!(out, "]")?;
                }
                StepOp::Get(id) => {
                    write!(out, ".get(")?;
                    self.write_op(id, out)?;
                    write!(out, ")")?;
                }
                StepOp::Slice(from, to) => {
                    write!(out, "[")?;
                    self.write_op(from, out)?;
                    write!(out, "..")?;
                    self.write_op(to, out)?;
                    write!(out, "]")?;
                }
            }
        }
        Ok(())
    }
}

fn write_value(value: Value<'_>, out: &mut String) -> fmt::Result {
    let mut json = Vec::new();
    value.write_json(&mut json);
    out.write_str(&String::from_utf8_lossy(&json))
}
