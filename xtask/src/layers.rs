//! Module layers: inside a crate, files import from the files below them, without cycles.
//!
//! The check reads the sources with `syn`. It resolves every path that begins in the own crate to the file that
//! *defines* the item, also through re-exports. It reports
//! - cycles of files that import from each other, and
//! - imports through a re-export of an ancestor module (`use crate::Error` instead of `use crate::error::Error`): they
//!   make a file depend on a module above it, which depends on the file.
//!
//! Test code (`#[cfg(test)]`, files of tests) is not examined. Re-exports (`pub use`) of a module that does not use the
//! name itself do not count as an import. Dependencies through methods and trait implementations are not seen.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, UseTree, Visibility};

use crate::report::StepOutcome;
use crate::{TaskError, crate_layers, root};

/// More re-exports in a row than any sensible code has; guards against cyclic ones.
const MAX_REEXPORTS: usize = 16;

/// `cargo xtask layers [CRATE]`: prints what the check of the modules of one crate, or of all crates and their
/// dependencies, finds.
pub(crate) fn run(arguments: &[String]) -> Result<(), TaskError> {
    let findings = match arguments {
        [] => {
            let mut findings = crate_layers::examine()?;
            findings.extend(examine_workspace()?);
            findings
        }
        [name] => examine_crate(&root().join("crates").join(name))?,
        _ => return Err("`layers` takes at most the folder name of one crate".to_owned()),
    };
    match findings.as_slice() {
        [] => Ok(()),
        findings => {
            for finding in findings {
                println!("{finding}");
            }
            Err(format!("{} findings", findings.len()))
        }
    }
}

/// The step of `cargo xtask check`.
pub(crate) fn check() -> StepOutcome {
    match examine_workspace() {
        Err(why) => StepOutcome::Failed(why),
        Ok(findings) if findings.is_empty() => StepOutcome::Passed,
        Ok(findings) => StepOutcome::Failed(format!("\n{}", findings.join("\n"))),
    }
}

fn examine_workspace() -> Result<Vec<String>, TaskError> {
    let crates = root().join("crates");
    let mut folders: Vec<PathBuf> = fs::read_dir(&crates)
        .map_err(|error| format!("cannot read {}: {error}", crates.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.join("src").is_dir())
        .collect();
    folders.sort();
    let mut findings = Vec::new();
    for folder in folders {
        findings.extend(examine_crate(&folder)?);
    }
    Ok(findings)
}

fn examine_crate(folder: &Path) -> Result<Vec<String>, TaskError> {
    let mut findings = Vec::new();
    for name in ["lib.rs", "main.rs"] {
        let file = folder.join("src").join(name);
        if file.is_file() {
            let source = CrateSource::read(&file)?;
            let (imports, upward) = source.imports();
            findings.extend(upward);
            findings.extend(source.cycles(&imports));
        }
    }
    Ok(findings)
}

/// Module path below the crate root; the root is empty.
type ModulePath = Vec<String>;
/// Number of a file in [`CrateSource::files`].
type FileIndex = usize;
/// What each file imports from which other file: the names.
type Imports = BTreeMap<(FileIndex, FileIndex), BTreeSet<String>>;

#[derive(Default)]
struct Module {
    file: FileIndex,
    /// Only its parent module and what lies below that can name it.
    is_private: bool,
    /// Names of items that the module defines, except modules.
    definitions: HashSet<String>,
    /// Names that `use` brings into the module, with the path as written.
    used: BTreeMap<String, Vec<String>>,
    /// Paths of `use path::*`.
    globs: Vec<Vec<String>>,
}

/// One path of the own crate in a file.
struct Reference {
    module: ModulePath,
    path: Vec<String>,
    /// It is a re-export, and counts as an import only if the file uses the name otherwise.
    is_reexport: bool,
}

#[derive(Default)]
struct CrateSource {
    files: Vec<PathBuf>,
    modules: BTreeMap<ModulePath, Module>,
    references: Vec<(FileIndex, Reference)>,
    /// Identifiers of each file outside of `use` declarations.
    identifiers: Vec<HashSet<String>>,
}

impl CrateSource {
    fn read(root_file: &Path) -> Result<Self, TaskError> {
        let mut source = Self::default();
        let folder = root_file.parent().expect("a file lies in a folder");
        source.read_file(root_file, folder, Vec::new())?;
        Ok(source)
    }

    /// Reads the file of a module; its child modules lie in `folder`.
    fn read_file(&mut self, file: &Path, folder: &Path, path: ModulePath) -> Result<(), TaskError> {
        let text = fs::read_to_string(file)
            .map_err(|error| format!("cannot read {}: {error}", file.display()))?;
        let syntax = syn::parse_file(&text)
            .map_err(|error| format!("cannot parse {}: {error}", file.display()))?;
        let index = self.files.len();
        self.files.push(file.to_path_buf());
        self.identifiers.push(HashSet::new());
        self.modules.entry(path.clone()).or_default().file = index;
        self.read_items(&syntax.items, index, folder, &path)
    }

    fn read_items(
        &mut self,
        items: &[Item],
        file: FileIndex,
        folder: &Path,
        path: &ModulePath,
    ) -> Result<(), TaskError> {
        for item in items {
            if is_test(item_attributes(item)) {
                continue;
            }
            if let Item::Mod(module) = item {
                let name = module.ident.to_string();
                let mut child = path.clone();
                child.push(name.clone());
                let below = folder.join(&name);
                let state = self.modules.entry(child.clone()).or_default();
                state.file = file;
                state.is_private = matches!(module.vis, Visibility::Inherited);
                match &module.content {
                    Some((_, items)) => self.read_items(items, file, &below, &child)?,
                    None => {
                        let flat = folder.join(format!("{name}.rs"));
                        let nested = below.join("mod.rs");
                        let found = if flat.is_file() { flat } else { nested };
                        if found.is_file() {
                            self.read_file(&found, &below, child)?;
                        }
                    }
                }
                continue;
            }
            let module = self.modules.get_mut(path).expect("inserted above");
            if let Some(name) = item_name(item) {
                module.definitions.insert(name);
            }
            let mut visitor = PathVisitor {
                module: path,
                source: self,
                file,
                is_top_level: true,
            };
            visitor.visit_item(item);
        }
        Ok(())
    }

    /// The imports between files, and findings about imports through an ancestor's re-export.
    fn imports(&self) -> (Imports, Vec<String>) {
        let mut imports = Imports::new();
        let mut upward = BTreeSet::new();
        for (file, reference) in &self.references {
            let name = reference.path.last().cloned().unwrap_or_default();
            if reference.is_reexport && !self.identifiers[*file].contains(&name) {
                continue;
            }
            let Some(target) = self.resolve(&reference.module, &reference.path, 0) else {
                continue;
            };
            if let Some(face) = &target.reexported_by
                && !reference.is_reexport
                && reference.module.starts_with(face)
                && self.modules[face].file != *file
                && target.file != self.modules[face].file
                && self.is_visible(&target.path, &reference.module)
            {
                let defined = target.path.join("::");
                upward.insert(format!(
                    "{}: `{}` is imported through a module above; write `crate::{defined}`",
                    self.display(*file),
                    reference.path.join("::"),
                ));
            }
            if target.file != *file {
                imports
                    .entry((*file, target.file))
                    .or_default()
                    .insert(name);
            }
        }
        (imports, upward.into_iter().collect())
    }

    /// Whether the modules that contain a definition can be named from `module`.
    fn is_visible(&self, definition: &[String], module: &[String]) -> bool {
        (1..definition.len()).all(|length| {
            let parent = &definition[..length - 1];
            !self.modules[&definition[..length]].is_private || module.starts_with(parent)
        })
    }

    /// Finds the definition of `path` as seen from `module`; `None` for other crates and names not found.
    fn resolve(&self, module: &[String], path: &[String], depth: usize) -> Option<Definition> {
        if depth > MAX_REEXPORTS {
            return None;
        }
        let mut at: ModulePath = module.to_vec();
        let mut segments = path;
        match path.first()?.as_str() {
            "crate" => {
                at.clear();
                segments = &path[1..];
            }
            "self" => segments = &path[1..],
            "super" => {
                while segments.first().is_some_and(|first| first == "super") {
                    at.pop()?;
                    segments = &segments[1..];
                }
            }
            first => {
                // A relative path: a child module, or a name that `use` brought in.
                let mut child = at.clone();
                child.push(first.to_owned());
                if !self.modules.contains_key(&child) {
                    return None;
                }
            }
        }
        let mut reexported_by = None;
        for (position, segment) in segments.iter().enumerate() {
            let mut child = at.clone();
            child.push(segment.clone());
            if self.modules.contains_key(&child) {
                at = child;
                continue;
            }
            let here = &self.modules[&at];
            if here.definitions.contains(segment) {
                return Some(Definition {
                    file: here.file,
                    path: child,
                    reexported_by,
                });
            }
            let rest = &segments[position + 1..];
            if let Some(used) = here.used.get(segment) {
                let full: Vec<String> = used.iter().chain(rest).cloned().collect();
                let definition = self.resolve(&at, &full, depth + 1)?;
                reexported_by.get_or_insert(at);
                return Some(Definition {
                    reexported_by,
                    ..definition
                });
            }
            for glob in &here.globs {
                let full: Vec<String> = glob.iter().chain(&segments[position..]).cloned().collect();
                if let Some(definition) = self.resolve(&at, &full, depth + 1)
                    && definition.path.last() == segments.last()
                {
                    return Some(Definition {
                        reexported_by: Some(at),
                        ..definition
                    });
                }
            }
            // Macros, and items that macros define.
            return Some(Definition {
                file: here.file,
                path: child,
                reexported_by,
            });
        }
        Some(Definition {
            file: self.modules[&at].file,
            path: at,
            reexported_by,
        })
    }

    /// One finding for each set of files that import from each other.
    fn cycles(&self, imports: &Imports) -> Vec<String> {
        let reached: Vec<BTreeSet<FileIndex>> = (0..self.files.len())
            .map(|start| reachable(start, imports))
            .collect();
        let mut findings = Vec::new();
        let mut listed: HashSet<FileIndex> = HashSet::new();
        for start in 0..self.files.len() {
            if !reached[start].contains(&start) || listed.contains(&start) {
                continue;
            }
            let members: BTreeSet<FileIndex> = reached[start]
                .iter()
                .copied()
                .filter(|other| reached[*other].contains(&start))
                .collect();
            listed.extend(&members);
            let mut text = format!("a cycle of {} files:", members.len());
            for ((from, to), names) in imports {
                if members.contains(from) && members.contains(to) {
                    let names: Vec<&str> = names.iter().map(String::as_str).collect();
                    let (from, to) = (self.display(*from), self.display(*to));
                    text.push_str(&format!("\n    {from} -> {to}: {}", names.join(", ")));
                }
            }
            findings.push(text);
        }
        findings
    }

    fn display(&self, file: FileIndex) -> String {
        let file = &self.files[file];
        let file = file.strip_prefix(root()).unwrap_or(file);
        file.display().to_string()
    }
}

/// The files that `start` depends on, directly or not.
fn reachable(start: FileIndex, imports: &Imports) -> BTreeSet<FileIndex> {
    let mut reached = BTreeSet::new();
    let mut open = vec![start];
    while let Some(at) = open.pop() {
        for (_, to) in imports.range((at, 0)..(at + 1, 0)).map(|(edge, _)| *edge) {
            if reached.insert(to) {
                open.push(to);
            }
        }
    }
    reached
}

struct Definition {
    file: FileIndex,
    path: ModulePath,
    /// The first module on the way whose `use` the path goes through.
    reexported_by: Option<ModulePath>,
}

/// Collects the paths and identifiers of one item.
struct PathVisitor<'a> {
    module: &'a ModulePath,
    source: &'a mut CrateSource,
    file: FileIndex,
    /// `use` declarations inside functions do not bring names into the module.
    is_top_level: bool,
}

impl PathVisitor<'_> {
    fn add(&mut self, path: Vec<String>, is_reexport: bool) {
        let reference = Reference {
            module: self.module.clone(),
            path,
            is_reexport,
        };
        self.source.references.push((self.file, reference));
    }

    fn add_use(&mut self, prefix: &[String], tree: &UseTree, is_reexport: bool) {
        let mut path = prefix.to_vec();
        let alias = match tree {
            UseTree::Path(part) => {
                path.push(part.ident.to_string());
                return self.add_use(&path, &part.tree, is_reexport);
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.add_use(&path, tree, is_reexport);
                }
                return;
            }
            UseTree::Glob(_) => {
                if self.is_top_level {
                    let module = self.source.modules.get_mut(self.module);
                    module.expect("it is being read").globs.push(path.clone());
                }
                return self.add(path, is_reexport);
            }
            UseTree::Name(name) => name.ident.to_string(),
            UseTree::Rename(rename) => {
                path.push(rename.ident.to_string());
                rename.rename.to_string()
            }
        };
        if matches!(tree, UseTree::Name(_)) && alias != "self" {
            path.push(alias.clone());
        }
        if self.is_top_level {
            let name = match alias.as_str() {
                "self" => path.last().cloned().unwrap_or_default(),
                _ => alias,
            };
            let module = self.source.modules.get_mut(self.module);
            let used = &mut module.expect("it is being read").used;
            used.insert(name, path.clone());
        }
        self.add(path, is_reexport);
    }

    fn add_tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(name) => {
                    let name = name.to_string();
                    self.source.identifiers[self.file].insert(name.clone());
                    if colons != 2 {
                        self.end_path(&mut path);
                    }
                    path.push(name);
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                TokenTree::Group(group) => {
                    self.end_path(&mut path);
                    colons = 0;
                    self.add_tokens(group.stream());
                }
                _ => {
                    self.end_path(&mut path);
                    colons = 0;
                }
            }
        }
        self.end_path(&mut path);
    }

    fn end_path(&mut self, path: &mut Vec<String>) {
        let path = std::mem::take(path);
        if path.len() > 1 {
            self.add(path, false);
        }
    }
}

impl<'ast> Visit<'ast> for PathVisitor<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_test(item_attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item(&mut self, item: &'ast syn::ImplItem) {
        let attributes = match item {
            syn::ImplItem::Fn(function) => &function.attrs,
            syn::ImplItem::Const(constant) => &constant.attrs,
            _ => return visit::visit_impl_item(self, item),
        };
        if !is_test(attributes) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_block(&mut self, block: &'ast syn::Block) {
        let outer = std::mem::replace(&mut self.is_top_level, false);
        visit::visit_block(self, block);
        self.is_top_level = outer;
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let is_reexport = self.is_top_level && !matches!(item.vis, Visibility::Inherited);
        self.add_use(&[], &item.tree, is_reexport);
    }

    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<String> = path.segments.iter().map(|s| s.ident.to_string()).collect();
        if segments.len() > 1 {
            self.add(segments, false);
        }
        visit::visit_path(self, path);
    }

    fn visit_ident(&mut self, ident: &'ast proc_macro2::Ident) {
        self.source.identifiers[self.file].insert(ident.to_string());
    }

    fn visit_macro(&mut self, invocation: &'ast syn::Macro) {
        self.visit_path(&invocation.path);
        self.add_tokens(invocation.tokens.clone());
    }
}

/// Whether an item exists only in tests or benchmarks of the crate.
fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("test")
            || attribute.path().is_ident("cfg")
                && attribute.meta.require_list().is_ok_and(|list| {
                    let condition = list.tokens.to_string();
                    condition == "test" || condition.starts_with("all (test")
                })
    })
}

fn item_attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// The name that an item defines in its module.
fn item_name(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Examines a crate with these files in `src`.
    fn examine<const N: usize>(name: &str, files: [(&str, &str); N]) -> Vec<String> {
        let folder = format!("xtask-layers-{}-{name}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        for (file, text) in files {
            let file = folder.join("src").join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        let findings = examine_crate(&folder).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        let root = format!("{}/", folder.display());
        (findings.iter().map(|finding| finding.replace(&root, ""))).collect()
    }

    #[test]
    fn imports_from_files_below_are_permitted() {
        let findings = examine(
            "below",
            [
                ("lib.rs", "mod data;\nmod service;\npub use service::run;\n"),
                (
                    "data.rs",
                    "pub struct Data;\n#[cfg(test)]\nmod tests { use crate::service::run; }\n",
                ),
                (
                    "service.rs",
                    "mod part;\nuse crate::data::Data;\npub fn run(_: Data) { part::step() }\n",
                ),
                (
                    "service/part.rs",
                    "pub fn step() { let _ = std::mem::size_of::<crate::data::Data>(); }\n",
                ),
            ],
        );
        assert_eq!(findings, Vec::<String>::new());
    }

    #[test]
    fn a_cycle_is_found_through_imports_paths_and_reexports() {
        let cycle = "a cycle of 2 files:\n    \
                     src/data.rs -> src/service.rs: run\n    \
                     src/service.rs -> src/data.rs: Data";
        for (name, data) in [
            (
                "import",
                "use super::service::run;\npub struct Data;\npub fn f() { run() }\n",
            ),
            (
                "path",
                "pub struct Data;\npub fn f() { crate::service::run() }\n",
            ),
            (
                "macro",
                "pub struct Data;\npub fn f() { println!(\"{:?}\", crate::service::run()) }\n",
            ),
        ] {
            let findings = examine(
                name,
                [
                    ("lib.rs", "mod data;\nmod service;\n"),
                    ("data.rs", data),
                    (
                        "service.rs",
                        "use crate::data::Data;\npub fn run() { let _: Option<Data> = None; }\n",
                    ),
                ],
            );
            assert_eq!(findings, [cycle], "{name}");
        }
    }

    #[test]
    fn an_import_through_the_reexport_of_a_module_above_is_found() {
        let findings = examine(
            "above",
            [
                (
                    "lib.rs",
                    "mod error;\nmod service;\npub use error::Failure;\npub fn f() { service::run() }\n",
                ),
                ("error.rs", "pub struct Failure;\n"),
                (
                    "service.rs",
                    "use crate::Failure;\npub fn run() { let _ = Failure; }\n",
                ),
            ],
        );
        let expected = "src/service.rs: `crate::Failure` is imported through a module above; \
                        write `crate::error::Failure`";
        assert_eq!(findings, [expected]);
    }
}
