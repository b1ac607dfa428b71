//! Compilation and execution of jq programs.

use jaq_core::load::{Arena as Sources, File, Loader};
use jaq_core::{Compiler, Ctx, Filter, Vars, load};

use super::execution_meter::{self, AbortError, JqLimits, catch_panic, run_bounded};
use super::native_filters::{FilterData, JqContext, JqDataType, native_filters};
use super::value::JqValue;
use crate::value::{Arena, Value};

/// Maximum length of a program.
const MAX_PROGRAM_BYTES: usize = 8 << 10;
/// Maximum number of operators, brackets and keywords, because the compiler's recursion is as deep as they nest.
const MAX_NESTING_PARTS: usize = 600;

/// `range` is defined in jq, so that its steps are counted like any other.
const RANGE: &str = "
def range($from; $upto; $by):
  def up: if . < $upto then ., (. + $by | up) else {}[] as $x | . end;
  def down: if . > $upto then ., (. + $by | down) else {}[] as $x | . end;
  if $by > 0 then $from | up elif $by < 0 then $from | down else {}[] as $x | . end;
";

/// Filters of the standard library that are omitted, because they need C functions that rules do not need.
const OMITTED_FILTERS: &[&str] = &[
    "logb",
    "significand",
    "drem",
    "nexttoward",
    "scalb",
    "gamma",
    "@htmld",
    "@urid",
];

/// A compiled program. Compilation takes about a millisecond, so shards cache programs.
pub(crate) struct JqProgram(Filter<JqDataType>);

impl JqProgram {
    /// Compiles a program of limited length without modules.
    pub(crate) fn compile(text: &str) -> Result<JqProgram, Box<str>> {
        if text.len() > MAX_PROGRAM_BYTES || nesting_parts(text) > MAX_NESTING_PARTS {
            return Err(format!(
                "the program is longer than {MAX_PROGRAM_BYTES} bytes or {MAX_NESTING_PARTS} parts"
            )
            .into());
        }
        // Untrusted text could make the library panic, not only return errors.
        catch_panic(|| Self::compile_bounded(text)).unwrap_or_else(|_| {
            Err(
                "invalid jq program: the interpreter cannot compile it; expected a simpler program"
                    .into(),
            )
        })
    }

    fn compile_bounded(text: &str) -> Result<JqProgram, Box<str>> {
        let range = load::parse(RANGE, |parser| parser.defs()).expect("RANGE is a definition");
        let library = jaq_core::defs()
            .chain(jaq_std::defs())
            .chain(extra_definitions());
        let library = library.filter(|def| !OMITTED_FILTERS.contains(&def.name));
        let sources = Sources::default();
        let modules = Loader::new(range.into_iter().chain(library))
            .load(
                &sources,
                File {
                    code: text,
                    path: (),
                },
            )
            .map_err(|errors| parse_error_text(&errors))?;
        // `import "a" as $a` imports a value rather than a module. The loader leaves it to its caller.
        load::import(&modules, |_| Err("there are no modules".to_owned()))
            .map_err(|errors| parse_error_text(&errors))?;
        let functions = jaq_core::funs().filter(|(name, ..)| *name != "range");
        let functions = functions
            .chain(jaq_std::base_funs())
            .chain(native_filters());
        let filter = Compiler::default()
            .with_funs(functions)
            .compile(modules)
            .map_err(|errors| compile_error_text(&errors))?;
        Ok(JqProgram(filter))
    }

    /// Returns all outputs as an array, and the number of steps.
    pub(super) fn run<'a>(
        &self,
        input: Value<'a>,
        host: &JqContext,
        limits: JqLimits,
        arena: &'a Arena,
    ) -> (Result<Value<'a>, JqError>, u64) {
        let (outputs, steps) = run_bounded(limits, || {
            let input = JqValue::from_value(input, arena);
            let context = Ctx::<JqDataType>::new(
                FilterData {
                    lut: &self.0.lut,
                    host,
                },
                Vars::new([]),
            );
            let mut outputs = Vec::new();
            let mut bytes = 0;
            for output in self.0.id.run((context, input)) {
                match output {
                    Ok(item) => {
                        bytes += item.bytes() + 1;
                        execution_meter::check_bytes(bytes);
                        outputs.push(item);
                    }
                    Err(exception) => {
                        return Err(match exception.get_err() {
                            Ok(error) => format!("the program failed: {error}"),
                            Err(_) => "the program halted".to_owned(),
                        });
                    }
                }
            }
            let outputs = outputs.iter().map(|item| item.to_value(arena));
            Ok(Value::Array(
                arena.alloc_slice_fill_iter(outputs.collect::<Vec<_>>()),
            ))
        });
        let outputs = match outputs {
            Ok(outputs) => outputs.map_err(JqError::Program),
            Err(abort) => Err(JqError::Abort(abort)),
        };
        (outputs, steps)
    }
}

/// The reason why a program failed.
pub(super) enum JqError {
    /// An uncaught error of the program itself.
    Program(String),
    Abort(AbortError),
}

/// Definitions that jaq's JSON crate would provide.
fn extra_definitions() -> impl Iterator<Item = load::parse::Def<&'static str>> {
    const EXTRA_DEFINITIONS: &str = "
        def tonumber: if isnumber then . else fromjson | if isnumber then . else error(\"cannot be parsed as a number\") end end;
        def toboolean: if isboolean then . else fromjson | if isboolean then . else error(\"cannot be parsed as a boolean\") end end;
        def transpose: [range([.[] | length] | max) as $i | [.[][$i]]];
        def in(xs): . as $x | xs | has($x);
        def inside(xs): . as $x | xs | contains($x);
        def index($i): indices($i)[0];
        def rindex($i): indices($i)[-1];
        def ascii: [.] | implode;
        def @json: tojson;
        def @csv: [.[] | if isstring then \"\\\"\" + gsub(\"\\\"\"; \"\\\"\\\"\") + \"\\\"\" elif . == null then \"\" else tojson end] | join(\",\");
        def @tsv: [.[] | if isstring then gsub(\"\\t\"; \"\\\\t\") elif . == null then \"\" else tojson end] | join(\"\\t\");
    ";
    load::parse(EXTRA_DEFINITIONS, |parser| parser.defs())
        .expect("MORE is a list of definitions")
        .into_iter()
}

/// Counts the parts of a program that can cause nesting.
fn nesting_parts(text: &str) -> usize {
    let marks = text
        .bytes()
        .filter(|byte| b"([{|,+-*/%=<>?;".contains(byte))
        .count();
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    let keywords = [
        "try", "if", "elif", "def", "reduce", "foreach", "label", "and", "or", "as",
    ];
    marks + words.filter(|word| keywords.contains(word)).count()
}

fn parse_error_text(errors: &load::Errors<&str, ()>) -> Box<str> {
    use load::Error;
    let why = match errors.first().map(|(_, error)| error) {
        Some(Error::Parse(errors)) => errors.first().map(|(expected, found)| {
            let found = if found.is_empty() { "the end" } else { found };
            format!("expected {} instead of {found}", expected.as_str())
        }),
        Some(Error::Lex(errors)) => errors.first().map(|(expected, found)| {
            let found: String = found.chars().take(20).collect();
            format!("expected {} at {found:?}", expected.as_str())
        }),
        Some(Error::Io(_)) => {
            Some("there are no modules; expected a program without import and include".to_owned())
        }
        None => None,
    };
    format!("invalid jq program: {}", why.unwrap_or_default()).into()
}

fn compile_error_text(errors: &jaq_core::compile::Errors<&str, ()>) -> Box<str> {
    let first = errors.first().and_then(|(_, errors)| errors.first());
    match first {
        Some((name, what)) => {
            format!("invalid jq program: there is no {} {name}", what.as_str()).into()
        }
        None => "invalid jq program".into(),
    }
}
