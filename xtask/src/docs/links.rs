//! Links of the Markdown files: each relative link names an existing file, and each anchor a heading of it.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::report::StepOutcome;

/// Folders below the root that contain no files of the repository.
const SKIPPED_FOLDERS: [&str; 4] = ["target", "corpus", "artifacts", "node_modules"];

/// Checks all Markdown files of the repository, and the pages that Rust sources name.
pub(super) fn check(root: &Path) -> StepOutcome {
    match broken_links(root) {
        Ok(broken) if broken.is_empty() => StepOutcome::Passed,
        Ok(broken) => StepOutcome::Failed(broken.join("\n")),
        Err(error) => StepOutcome::Failed(error.to_string()),
    }
}

/// A line for each link that leads nowhere.
fn broken_links(root: &Path) -> std::io::Result<Vec<String>> {
    let mut files = Vec::new();
    collect_files(root, &mut files)?;
    files.sort();
    let mut pages = HashMap::new();
    let mut sources = Vec::new();
    for path in files {
        let text = fs::read_to_string(&path)?;
        if is_markdown(&path) {
            pages.insert(path.clone(), heading_anchors(&text));
        }
        sources.push((path, text));
    }
    let mut broken = Vec::new();
    for (path, text) in &sources {
        let shown = path.strip_prefix(root).unwrap_or(path).display();
        if is_markdown(path) {
            for (line, target) in links(text) {
                if let Some(problem) = problem_of(path, target, &pages) {
                    broken.push(format!("{shown}:{line}: {target}: {problem}"));
                }
            }
        } else {
            for (line, page) in mentioned_pages(text) {
                if !root.join(page).is_file() {
                    broken.push(format!("{shown}:{line}: {page}: no such page"));
                }
            }
        }
    }
    Ok(broken)
}

fn collect_files(folder: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            if !name.starts_with('.') && !SKIPPED_FOLDERS.contains(&&*name) {
                collect_files(&path, files)?;
            }
        } else if is_markdown(&path) || path.extension().is_some_and(|ending| ending == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

fn is_markdown(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "md")
}

/// What is wrong with a link on this page.
fn problem_of(
    page: &Path,
    target: &str,
    pages: &HashMap<PathBuf, HashSet<String>>,
) -> Option<&'static str> {
    let has_scheme = target.split_once(':').is_some_and(|(scheme, _)| {
        !scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric())
    });
    if has_scheme {
        return None;
    }
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path = if file.is_empty() {
        page.to_owned()
    } else {
        normalized(&page.parent().unwrap_or(page).join(file))
    };
    if !path.exists() {
        return Some("no such file");
    }
    if anchor.is_empty() {
        return None;
    }
    match pages.get(&path) {
        Some(anchors) if anchors.contains(anchor) => None,
        Some(_) => Some("the page has no such heading"),
        None => Some("only Markdown files have anchors"),
    }
}

/// The path without `.` and `..`, as the keys of all pages are.
fn normalized(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                clean.pop();
            }
            other => clean.push(other),
        }
    }
    clean
}

/// The lines outside fenced code blocks, with their numbers.
fn prose_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fence: Option<&str> = None;
    text.lines().zip(1..).filter_map(move |(line, number)| {
        let start = line.trim_start();
        match fence {
            Some(mark) => {
                if start.starts_with(mark) {
                    fence = None;
                }
                None
            }
            None => {
                fence = ["```", "~~~"]
                    .into_iter()
                    .find(|mark| start.starts_with(mark));
                fence.is_none().then_some((number, line))
            }
        }
    })
}

/// Targets of inline links, images and link definitions, with their line numbers.
fn links(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (number, line) in prose_lines(text) {
        let definition = line
            .strip_prefix('[')
            .and_then(|rest| rest.split_once("]: "));
        if let Some((_, target)) = definition {
            found.push((number, target.trim()));
            continue;
        }
        for (at, _) in line.match_indices("](") {
            if is_in_code(line, at) {
                continue;
            }
            let target = &line[at + 2..];
            if let Some(end) = target.find([')', ' ']) {
                found.push((number, &target[..end]));
            }
        }
    }
    found
}

/// Whether a code span contains this position: the backticks before it are not paired, and another one follows.
fn is_in_code(line: &str, at: usize) -> bool {
    line[..at].matches('`').count() % 2 == 1 && line[at..].contains('`')
}

/// The anchors that GitHub gives the headings of a page.
fn heading_anchors(text: &str) -> HashSet<String> {
    let mut anchors = HashSet::new();
    let mut counts: HashMap<String, usize> = HashMap::new();
    for (_, line) in prose_lines(text) {
        let heading = line.trim_start_matches('#');
        let level = line.len() - heading.len();
        if !(1..=6).contains(&level) || !heading.starts_with(' ') {
            continue;
        }
        let anchor = anchor_of(&without_link_targets(heading.trim()));
        let count = counts.entry(anchor.clone()).or_default();
        anchors.insert(match *count {
            0 => anchor,
            number => format!("{anchor}-{number}"),
        });
        *count += 1;
    }
    anchors
}

fn without_link_targets(heading: &str) -> String {
    let mut text = String::new();
    let mut rest = heading;
    while let Some((before, after)) = rest.split_once("](") {
        text.push_str(before);
        rest = after.split_once(')').map_or("", |(_, after)| after);
    }
    text + rest
}

fn anchor_of(heading: &str) -> String {
    let kept = heading.chars().filter_map(|character| match character {
        ' ' => Some('-'),
        '-' | '_' => Some(character),
        _ if character.is_alphanumeric() => Some(character),
        _ => None,
    });
    kept.flat_map(char::to_lowercase).collect()
}

/// Pages below `docs/` that the comments and messages of a Rust source name.
fn mentioned_pages(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        for (at, _) in line.match_indices("docs/") {
            let rest = &line[at..];
            let is_path = |c: char| c.is_ascii_alphanumeric() || "/_-.".contains(c);
            let end = rest.find(|c| !is_path(c)).unwrap_or(rest.len());
            if let Some(stem) = rest[..end].trim_end_matches('.').strip_suffix(".md") {
                found.push((number, &rest[..stem.len() + ".md".len()]));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchors_are_those_of_github() {
        let page = "# Rules: `$EVENT.PUBLISH`, null & text\n## Same\n## Same\n```\n# comment\n```\n#no heading\n\
                    ### A [link](x.md) there\n";
        let mut anchors: Vec<String> = heading_anchors(page).into_iter().collect();
        anchors.sort();
        assert_eq!(
            anchors,
            [
                "a-link-there",
                "rules-eventpublish-null--text",
                "same",
                "same-1"
            ]
        );
    }

    #[test]
    fn links_in_code_are_text() {
        let page =
            "[a](a.md) and `[b](b.md)` ![c](c.svg \"title\")\n```\n[d](d.md)\n```\n[e]: e.md#top\n";
        assert_eq!(links(page), [(1, "a.md"), (1, "c.svg"), (5, "e.md#top")]);
    }

    #[test]
    fn broken_links_are_reported_with_their_line() {
        let root = std::env::temp_dir().join(format!("xtask-links-{}", std::process::id()));
        fs::create_dir_all(root.join("pages/guides")).unwrap();
        fs::write(
            root.join("pages/README.md"),
            "# Pages\n\n[one](guides/one.md#two)\n",
        )
        .unwrap();
        let page = "# One\n\n[up](../README.md#pages) [web](https://example.com)\n[here](#one) [gone](gone.md)\n";
        fs::write(root.join("pages/guides/one.md"), page).unwrap();
        // Split, so that the check of this file does not find it.
        let source = concat!("//! See docs/", "old.md.\n");
        fs::write(root.join("lib.rs"), source).unwrap();
        let broken = broken_links(&root);
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(
            broken.unwrap(),
            [
                concat!("lib.rs:1: docs/", "old.md: no such page"),
                "pages/README.md:3: guides/one.md#two: the page has no such heading",
                "pages/guides/one.md:4: gone.md: no such file",
            ]
        );
    }
}
