//! A statement into a rule.

use crate::context::Dialect;
use crate::error::{Error, Span};
use crate::field::Field;
use crate::options::Options;
use crate::plan::aliases::Alias;
use crate::plan::build::Builder;
use crate::plan::resolve::{Resolver, Scope};
use crate::plan::{Column, NodeId, Op, Target};
use crate::rule::{Body, Grouping, Rule};
use crate::source::{EventKind, Source};
use crate::syntax::ast::{AliasPart, Body as Syntax, Expr, Group, Item, ItemKind, Node, Statement};
use crate::syntax::{WINDOWS, natural_alias, parse};
use crate::window::Window;

/// Makes a rule of a statement.
///
/// # Errors
/// If it is not one: says where, what was expected, and which name may have been meant.
pub fn compile(sql: &str, options: &Options) -> Result<Rule, Error> {
    let statement = parse(sql, &options.bounds)?;
    let sources = sources(sql, &statement.from)?;
    let dialect = options
        .dialect
        .unwrap_or_else(|| dialect_of(&statement.from));
    let mut builder = Builder::new(dialect, options.timezone.clone(), options.bounds.max_depth);
    // Its place among equal texts costs least at the start.
    builder.text("");
    let mut resolver = Resolver::new(sql, builder, &options.bounds, Scope::Event);
    resolver.is_open = sources.iter().any(Source::is_open);
    resolver.is_of_devices =
        (sources.iter()).all(|source| *source == Source::Event(EventKind::Device));
    let parts = match &statement.body {
        Syntax::Foreach {
            lists,
            each,
            incase,
        } => foreach(
            &mut resolver,
            &statement,
            lists,
            each.as_deref(),
            incase.as_ref(),
        )?,
        Syntax::Select(items) => match &statement.group {
            Some(group) => windowed(&mut resolver, &statement, items, group)?,
            None => select(&mut resolver, &statement, items)?,
        },
    };
    let warnings = std::mem::take(&mut resolver.warnings).into();
    let plan = resolver.builder.finish();
    let keys = parts
        .filter
        .map(|filter| plan.keys(filter))
        .unwrap_or_default();
    // Outputs of other rules and what bridges bring do not come through the index.
    let is_found_by_topic = sources
        .iter()
        .all(|source| matches!(source, Source::Event(_) | Source::Topic(_)));
    let found_filter = match parts.filter {
        Some(filter) if is_found_by_topic => plan.left_to_ask(filter, &keys),
        filter => filter,
    };
    Ok(Rule {
        sources: sources.into(),
        keys,
        found_filter,
        filter: parts.filter,
        body: parts.body,
        plan,
        dialect,
        zone: options.timezone.clone(),
        limits: options.bounds.evaluation(),
        warnings,
        max_outputs: options.bounds.max_outputs,
        limit: statement.limit.map_or(usize::MAX, |limit| {
            usize::try_from(limit).unwrap_or(usize::MAX)
        }),
    })
}

struct Parts {
    filter: Option<NodeId>,
    body: Body,
}

fn sources(sql: &str, from: &[(Box<str>, Span)]) -> Result<Vec<Source>, Error> {
    let mut sources: Vec<Source> = Vec::with_capacity(from.len());
    for (name, span) in from {
        let found = Source::parse_all(name).map_err(|unknown| {
            let error = Error::at(sql, *span, format!("unknown source `{name}`"));
            error.suggest(unknown.nearest.map(|name| format!("\"{name}\"")))
        })?;
        match &found[0] {
            Source::Topic(filter)
                if mqtt::validate_topic_filter(filter, &mqtt::TopicLimits::NONE).is_err() =>
            {
                let error = Error::at(sql, *span, format!("`{filter}` is no topic filter"));
                return Err(error.expected(
                    "levels between `/`; `+` for one level, `#` for the rest at the end",
                ));
            }
            Source::Rule(name) | Source::Bridge(name) if name.is_empty() => {
                return Err(Error::at(sql, *span, "the source has no name")
                    .expected("\"$rule/NAME\" or \"$bridges/TYPE:NAME\""));
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

/// Rules that name FluxMQ's events are FluxMQ's.
fn dialect_of(from: &[(Box<str>, Span)]) -> Dialect {
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

fn refuse_having(resolver: &Resolver<'_>, statement: &Statement) -> Result<(), Error> {
    match &statement.having {
        Some(having) => Err(resolver
            .error(having.span, "HAVING is about windows, but there is none")
            .expected("WHERE, or GROUP BY with a window")),
        None => Ok(()),
    }
}

fn select<'s>(
    resolver: &mut Resolver<'s>,
    statement: &'s Statement,
    items: &'s [Item],
) -> Result<Parts, Error> {
    refuse_having(resolver, statement)?;
    let mut columns = resolver.columns(items)?;
    let filter = statement
        .filter
        .as_ref()
        .map(|filter| resolver.expr(filter))
        .transpose()?;
    resolver.share(&mut columns, 0..resolver.aliases.len());
    Ok(Parts {
        filter,
        body: Body::Select(columns.into()),
    })
}

fn foreach<'s>(
    resolver: &mut Resolver<'s>,
    statement: &'s Statement,
    lists: &'s [Item],
    each: Option<&'s [Item]>,
    incase: Option<&'s Expr>,
) -> Result<Parts, Error> {
    refuse_having(resolver, statement)?;
    if let Some(group) = &statement.group {
        return Err(resolver
            .error(group.span, "FOREACH has no windows")
            .expected("SELECT with GROUP BY; or another rule FROM \"$rule/NAME\""));
    }
    let mut list_columns = resolver.columns(lists)?;
    let filter = statement
        .filter
        .as_ref()
        .map(|filter| resolver.expr(filter))
        .transpose()?;
    let list_aliases = resolver.aliases.len();
    let item_name = item_name(lists);
    resolver.item = Some(item_name.clone());
    let mut each_columns = match each {
        Some(items) => resolver.columns(items)?,
        None => Vec::new(),
    };
    let incase = incase.map(|incase| resolver.expr(incase)).transpose()?;
    resolver.share(&mut list_columns, 0..list_aliases);
    resolver.share(&mut each_columns, list_aliases..resolver.aliases.len());
    let list = match list_columns.last() {
        Some(column) => column.node,
        None => return Err(resolver.error(Span::default(), "FOREACH needs a list")),
    };
    resolver.builder.note_reading(list);
    let columns = if each.is_some() {
        each_columns
    } else {
        everything(resolver, list_columns, &item_name)?
    };
    Ok(Parts {
        filter,
        body: Body::Foreach {
            list,
            incase,
            columns: columns.into(),
        },
    })
}

/// FOREACH without DO: the event, the lists, and the item.
fn everything(
    resolver: &mut Resolver<'_>,
    lists: Vec<Column>,
    item_name: &str,
) -> Result<Vec<Column>, Error> {
    let mut columns = vec![Column {
        target: Target::All,
        node: NodeId(0),
    }];
    columns.extend(lists);
    let item = resolver
        .builder
        .push(Op::Item)
        .map_err(|too_much| resolver.too_much(too_much, Span::default()))?;
    columns.push(Column {
        target: Target::Key(resolver.builder.text(item_name)),
        node: item,
    });
    Ok(columns)
}

fn item_name(lists: &[Item]) -> Box<str> {
    match lists.last().map(|item| &item.what) {
        Some(ItemKind::Expr {
            alias: Some(parts), ..
        }) => match parts.last() {
            Some(AliasPart::Key(key)) => key.clone(),
            _ => "item".into(),
        },
        _ => "item".into(),
    }
}

fn windowed<'s>(
    resolver: &mut Resolver<'s>,
    statement: &'s Statement,
    items: &'s [Item],
    group: &'s Group,
) -> Result<Parts, Error> {
    let Some((kind, _)) = group.window else {
        let error = resolver.error(group.span, "GROUP BY needs a window, or it would never end");
        return Err(error.expected(format!("a window after the expressions: {WINDOWS}")));
    };
    resolver.selected = items;
    resolver.keys = group.keys.iter().map(|key| meant(resolver, key)).collect();
    let keys = resolver.keys.clone();
    let keys = keys
        .into_iter()
        .map(|key| resolver.expr(key))
        .collect::<Result<Vec<_>, _>>()?;
    row_aliases(resolver, items);
    let filter = statement
        .filter
        .as_ref()
        .map(|filter| resolver.expr(filter))
        .transpose()?;
    resolver.aliases.clear();

    resolver.scope = Scope::Group;
    let columns = resolver.columns(items)?;
    let having = statement
        .having
        .as_ref()
        .map(|having| resolver.expr(having))
        .transpose()?;

    resolver.scope = Scope::Event;
    resolver.aliases.clear();
    let found = std::mem::take(&mut resolver.aggregates);
    let mut aggregates = Vec::with_capacity(found.len());
    let mut arguments = Vec::with_capacity(found.len());
    for (aggregate, argument) in found {
        aggregates.push(aggregate);
        arguments.push(match argument {
            Some(argument) => resolver.expr(argument)?,
            // count(*)
            None => resolver
                .builder
                .push(Op::Bool(true))
                .map_err(|too_much| resolver.too_much(too_much, group.span))?,
        });
    }
    Ok(Parts {
        filter,
        body: Body::Windowed(Box::new(Grouping {
            window: Window {
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

/// An alias in GROUP BY stands for what SELECT calls by it, unless a field has the name.
fn meant<'s>(resolver: &Resolver<'s>, key: &'s Expr) -> &'s Expr {
    match &key.node {
        Node::Name(name) if Field::find(name).is_none() => {
            resolver.selected_as(name).unwrap_or(key)
        }
        _ => key,
    }
}

/// Aliases that WHERE may use: those of items that are about one event.
fn row_aliases<'s>(resolver: &mut Resolver<'s>, items: &'s [Item]) {
    for (column, item) in items.iter().enumerate() {
        if let ItemKind::Expr {
            expr,
            alias: Some(parts),
        } = &item.what
            && natural_alias(expr).as_ref() != Some(parts)
            && let Ok(node) = resolver.expr(expr)
        {
            resolver.aliases.push(Alias {
                parts: parts.clone(),
                node,
                column,
            });
        }
    }
}
