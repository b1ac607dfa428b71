//! Compiles a statement into a rule.

use crate::compile_options::CompileOptions;
use crate::event_field::EventField;
use crate::function_context::Dialect;
use crate::plan::aliases::Alias;
use crate::plan::builder::PlanBuilder;
use crate::plan::resolver::{NameScope, Resolver};
use crate::plan::{ColumnTarget, Op, OpId, OutputColumn};
use crate::program::Program;
use crate::rule::{Rule, RuleBody, WindowedBody};
use crate::rule_source::{EventKind, RuleSource, own_fields};
use crate::statement_error::{Span, StatementError};
use crate::syntax::ast::{
    AliasPart, Expr, ExprNode, GroupBy, SelectItem, SelectItemKind, Statement,
    StatementBody as Syntax,
};
use crate::syntax::{WINDOWS, default_alias, parse};
use crate::window::WindowDefinition;

/// Compiles a statement into a rule.
///
/// # Errors
/// If the statement is invalid. The error contains the position, what was expected, and the name that may
/// have been meant.
pub fn compile(sql: &str, options: &CompileOptions) -> Result<Rule, StatementError> {
    let statement = parse(sql, &options.limits)?;
    let sources = parse_sources(sql, &statement.from)?;
    let dialect = options
        .dialect
        .unwrap_or_else(|| infer_dialect(&statement.from));
    let mut builder = PlanBuilder::new(dialect, options.timezone.clone(), options.limits.max_depth);
    // The empty text is stored at position 0, where deduplication finds it at the lowest cost.
    builder.text("");
    let mut resolver = Resolver::new(sql, builder, &options.limits, NameScope::Event);
    resolver.lacks_window = statement.group.is_none();
    resolver.is_open = sources.iter().any(RuleSource::has_open_fields);
    resolver.own_fields = own_fields(&sources);
    resolver.is_of_devices =
        (sources.iter()).all(|source| *source == RuleSource::Event(EventKind::Device));
    let parts = match &statement.body {
        Syntax::Foreach {
            lists,
            each,
            incase,
        } => compile_foreach(
            &mut resolver,
            &statement,
            lists,
            each.as_deref(),
            incase.as_ref(),
        )?,
        Syntax::Select(items) => match &statement.group {
            Some(group) => compile_windowed(&mut resolver, &statement, items, group)?,
            None => compile_select(&mut resolver, &statement, items)?,
        },
    };
    let warnings = std::mem::take(&mut resolver.warnings).into();
    let program = Program::new(resolver.builder, options.limits.evaluation_limits());
    let plan = &program.plan;
    let keys = parts
        .filter
        .map(|filter| plan.extract_keys(filter))
        .unwrap_or_default();
    // Outputs of other rules and bridge messages do not come through the index.
    let is_found_by_topic = sources
        .iter()
        .all(|source| matches!(source, RuleSource::Event(_) | RuleSource::Topic(_)));
    let found_filter = match parts.filter {
        Some(filter) if is_found_by_topic => plan.remaining_condition(filter, &keys),
        filter => filter,
    };
    Ok(Rule {
        sources: sources.into(),
        keys,
        indexed_filter: found_filter,
        filter: parts.filter,
        body: parts.body,
        program,
        warnings,
        max_outputs: options.limits.max_outputs,
        limit: statement.limit.map_or(usize::MAX, |limit| {
            usize::try_from(limit).unwrap_or(usize::MAX)
        }),
    })
}

struct RuleParts {
    filter: Option<OpId>,
    body: RuleBody,
}

fn parse_sources(sql: &str, from: &[(Box<str>, Span)]) -> Result<Vec<RuleSource>, StatementError> {
    let mut sources: Vec<RuleSource> = Vec::with_capacity(from.len());
    for (name, span) in from {
        let found = RuleSource::parse_all(name).map_err(|unknown| {
            let error = StatementError::at(sql, *span, format!("unknown source `{name}`"));
            error.with_suggestion(unknown.nearest.map(|name| format!("\"{name}\"")))
        })?;
        match &found[0] {
            RuleSource::Topic(filter)
                if mqtt::validate_topic_filter(filter, &mqtt::TopicLimits::NONE).is_err() =>
            {
                let error =
                    StatementError::at(sql, *span, format!("`{filter}` is not a topic filter"));
                return Err(error.with_expected(
                    "levels between `/`; `+` for one level, `#` for the rest at the end",
                ));
            }
            RuleSource::Rule(name) | RuleSource::Bridge(name) if name.is_empty() => {
                return Err(StatementError::at(sql, *span, "the source has no name")
                    .with_expected("\"$rule/NAME\" or \"$bridges/TYPE:NAME\""));
            }
            _ => {}
        }
        for source in found {
            if !sources.contains(&source) {
                sources.push(source);
            }
        }
    }
    Ok(sources)
}

/// A rule that names FluxMQ events uses the FluxMQ dialect.
fn infer_dialect(from: &[(Box<str>, Span)]) -> Dialect {
    let is_fluxmq = |name: &str| {
        name.get(..6)
            .is_some_and(|start| start.eq_ignore_ascii_case("$EVENT"))
    };
    if from
        .iter()
        .any(|(name, _)| is_fluxmq(name) && !name.starts_with("$events/"))
    {
        Dialect::Fluxmq
    } else {
        Dialect::Emqx
    }
}

fn reject_having(resolver: &Resolver<'_>, statement: &Statement) -> Result<(), StatementError> {
    match &statement.having {
        Some(having) => Err(resolver
            .error(having.span, "HAVING requires a window")
            .with_expected("WHERE, or GROUP BY with a window")),
        None => Ok(()),
    }
}

fn compile_select<'s>(
    resolver: &mut Resolver<'s>,
    statement: &'s Statement,
    items: &'s [SelectItem],
) -> Result<RuleParts, StatementError> {
    reject_having(resolver, statement)?;
    let mut columns = resolver.resolve_columns(items)?;
    let filter = statement
        .filter
        .as_ref()
        .map(|filter| resolver.resolve_expr(filter))
        .transpose()?;
    resolver.share_aliases(&mut columns, 0..resolver.aliases.len());
    Ok(RuleParts {
        filter,
        body: RuleBody::Select(columns.into()),
    })
}

fn compile_foreach<'s>(
    resolver: &mut Resolver<'s>,
    statement: &'s Statement,
    lists: &'s [SelectItem],
    each: Option<&'s [SelectItem]>,
    incase: Option<&'s Expr>,
) -> Result<RuleParts, StatementError> {
    reject_having(resolver, statement)?;
    if let Some(group) = &statement.group {
        return Err(resolver
            .error(group.span, "FOREACH has no windows")
            .with_expected("SELECT with GROUP BY; or another rule FROM \"$rule/NAME\""));
    }
    let mut list_columns = resolver.resolve_columns(lists)?;
    let filter = statement
        .filter
        .as_ref()
        .map(|filter| resolver.resolve_expr(filter))
        .transpose()?;
    let list_aliases = resolver.aliases.len();
    let item_name = foreach_item_name(lists);
    resolver.item = Some(item_name.clone());
    let mut each_columns = match each {
        Some(items) => resolver.resolve_columns(items)?,
        None => Vec::new(),
    };
    let incase = incase
        .map(|incase| resolver.resolve_expr(incase))
        .transpose()?;
    resolver.share_aliases(&mut list_columns, 0..list_aliases);
    resolver.share_aliases(&mut each_columns, list_aliases..resolver.aliases.len());
    let list = match list_columns.last() {
        Some(column) => column.node,
        None => return Err(resolver.error(Span::default(), "FOREACH needs a list")),
    };
    resolver.builder.mark_payload_read(list);
    let columns = if each.is_some() {
        each_columns
    } else {
        default_foreach_columns(resolver, list_columns, &item_name)?
    };
    Ok(RuleParts {
        filter,
        body: RuleBody::Foreach {
            list,
            incase,
            columns: columns.into(),
        },
    })
}

/// The columns of FOREACH without DO: the event, the lists, and the item.
fn default_foreach_columns(
    resolver: &mut Resolver<'_>,
    lists: Vec<OutputColumn>,
    item_name: &str,
) -> Result<Vec<OutputColumn>, StatementError> {
    let mut columns = vec![OutputColumn {
        target: ColumnTarget::All,
        node: OpId(0),
    }];
    columns.extend(lists);
    let item = resolver
        .builder
        .push(Op::Item)
        .map_err(|too_much| resolver.plan_size_error(too_much, Span::default()))?;
    columns.push(OutputColumn {
        target: ColumnTarget::Key(resolver.builder.text(item_name)),
        node: item,
    });
    Ok(columns)
}

fn foreach_item_name(lists: &[SelectItem]) -> Box<str> {
    match lists.last().map(|item| &item.kind) {
        Some(SelectItemKind::Expr {
            alias: Some(parts), ..
        }) => match parts.last() {
            Some(AliasPart::Key(key)) => key.clone(),
            _ => "item".into(),
        },
        _ => "item".into(),
    }
}

fn compile_windowed<'s>(
    resolver: &mut Resolver<'s>,
    statement: &'s Statement,
    items: &'s [SelectItem],
    group: &'s GroupBy,
) -> Result<RuleParts, StatementError> {
    let Some((kind, _)) = group.window else {
        let error = resolver.error(group.span, "GROUP BY needs a window, or it would never end");
        return Err(error.with_expected(format!("a window after the expressions: {WINDOWS}")));
    };
    resolver.selected = items;
    resolver.keys = group
        .keys
        .iter()
        .map(|key| resolve_group_key(resolver, key))
        .collect();
    let keys = resolver.keys.clone();
    let keys = keys
        .into_iter()
        .map(|key| resolver.resolve_expr(key))
        .collect::<Result<Vec<_>, _>>()?;
    declare_row_aliases(resolver, items);
    let filter = statement
        .filter
        .as_ref()
        .map(|filter| resolver.resolve_expr(filter))
        .transpose()?;
    resolver.aliases.clear();

    resolver.scope = NameScope::Group;
    let columns = resolver.resolve_columns(items)?;
    let having = statement
        .having
        .as_ref()
        .map(|having| resolver.resolve_expr(having))
        .transpose()?;

    resolver.scope = NameScope::Event;
    resolver.aliases.clear();
    let found = std::mem::take(&mut resolver.aggregates);
    let mut aggregates = Vec::with_capacity(found.len());
    let mut arguments = Vec::with_capacity(found.len());
    for (aggregate, argument) in found {
        aggregates.push(aggregate);
        arguments.push(match argument {
            Some(argument) => resolver.resolve_expr(argument)?,
            // count(*)
            None => resolver
                .builder
                .push(Op::Bool(true))
                .map_err(|too_much| resolver.plan_size_error(too_much, group.span))?,
        });
    }
    Ok(RuleParts {
        filter,
        body: RuleBody::Windowed(Box::new(WindowedBody {
            window: WindowDefinition {
                kind,
                keys: keys.len(),
                aggregates: aggregates.into(),
                zone: resolver.builder.zone.clone(),
            },
            keys: keys.into(),
            arguments: arguments.into(),
            columns: columns.into(),
            having,
        })),
    })
}

/// Resolves an alias in GROUP BY to its expression in SELECT, unless a field has this name.
fn resolve_group_key<'s>(resolver: &Resolver<'s>, key: &'s Expr) -> &'s Expr {
    match &key.node {
        ExprNode::Name(name) if EventField::find(name).is_none() => {
            resolver.find_select_alias(name).unwrap_or(key)
        }
        _ => key,
    }
}

/// Declares the aliases that WHERE may use: those of items about one event.
fn declare_row_aliases<'s>(resolver: &mut Resolver<'s>, items: &'s [SelectItem]) {
    for (column, item) in items.iter().enumerate() {
        if let SelectItemKind::Expr {
            expr,
            alias: Some(parts),
        } = &item.kind
            && default_alias(expr).as_ref() != Some(parts)
            && let Ok(node) = resolver.resolve_expr(expr)
        {
            resolver.aliases.push(Alias {
                parts: parts.clone(),
                node,
                column,
            });
        }
    }
}
