//! Crate layers: a crate depends only on crates of lower layers of the table in ARCHITECTURE.md.
//!
//! The check compares the dependencies in each `crates/*/Cargo.toml` with the table. A crate without a layer exists for
//! tests, and only `[dev-dependencies]` name it. The table of CONTRIBUTING.md lists all crates in the order of layers.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::report::StepOutcome;
use crate::{TaskError, root};

/// Layer by crate; `None`: the crate has no layer.
type CrateLayers = BTreeMap<String, Option<u32>>;

/// The step of `cargo xtask check`.
pub(crate) fn check() -> StepOutcome {
    match examine() {
        Err(why) => StepOutcome::Failed(why),
        Ok(findings) if findings.is_empty() => StepOutcome::Passed,
        Ok(findings) => StepOutcome::Failed(format!("\n{}", findings.join("\n"))),
    }
}

pub(crate) fn examine() -> Result<Vec<String>, TaskError> {
    let read = |path: &Path| {
        fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
    };
    let crates = root().join("crates");
    let mut manifests = BTreeMap::new();
    let folders = fs::read_dir(&crates)
        .map_err(|error| format!("cannot read {}: {error}", crates.display()))?;
    for folder in folders.filter_map(Result::ok) {
        let manifest = folder.path().join("Cargo.toml");
        if manifest.is_file() {
            let name = folder.file_name().to_string_lossy().into_owned();
            manifests.insert(name, read(&manifest)?);
        }
    }
    let (layers, mut findings) = read_layers(&read(&root().join("ARCHITECTURE.md"))?);
    findings.extend(compare(&layers, &manifests));
    let contributing = read(&root().join("CONTRIBUTING.md"))?;
    findings.extend(compare_listing(&layers, &contributing));
    Ok(findings)
}

/// The layers in the rows ``| LAYER | [`NAME`](crates/NAME) |`` of a page, and findings about their order.
fn read_layers(page: &str) -> (CrateLayers, Vec<String>) {
    let (mut layers, mut findings) = (CrateLayers::new(), Vec::new());
    let mut highest = 0;
    for line in page.lines() {
        let mut cells = line.split('|').map(str::trim).skip(1);
        let (Some(layer), Some(name)) = (cells.next(), cells.next()) else {
            continue;
        };
        let link = name.strip_prefix("[`").and_then(|it| it.split_once("`]("));
        let Some((name, target)) = link else {
            continue;
        };
        if target.strip_suffix(')') != Some(&format!("crates/{name}")) {
            continue;
        }
        let layer = layer.parse().ok();
        if let Some(layer) = layer {
            if layer < highest {
                findings.push(format!(
                    "ARCHITECTURE.md: `{name}` of layer {layer} follows a crate of layer {highest}"
                ));
            }
            highest = highest.max(layer);
        }
        layers.insert(name.to_owned(), layer);
    }
    (layers, findings)
}

/// Findings about crates that the table does not contain, and about dependencies that it does not permit.
fn compare(layers: &CrateLayers, manifests: &BTreeMap<String, String>) -> Vec<String> {
    let mut findings = Vec::new();
    let missing = layers.keys().filter(|name| !manifests.contains_key(*name));
    findings.extend(missing.map(|name| format!("ARCHITECTURE.md: there is no crate `{name}`")));
    for (name, manifest) in manifests {
        let Some(layer) = layers.get(name) else {
            findings.push(format!(
                "ARCHITECTURE.md: the table of layers does not contain the crate `{name}`"
            ));
            continue;
        };
        for (dependency, is_for_tests) in dependencies(manifest) {
            let problem = match (layer, layers.get(dependency)) {
                (Some(from), Some(Some(to))) if to >= from => {
                    format!("layer {from} depends on `{dependency}` of layer {to}")
                }
                (Some(_), Some(None)) if !is_for_tests => {
                    format!("it depends on `{dependency}`, which is for tests only")
                }
                _ => continue,
            };
            findings.push(format!("crates/{name}/Cargo.toml: {problem}"));
        }
    }
    findings
}

/// Names of the dependencies in a manifest, and whether only tests use them.
fn dependencies(manifest: &str) -> Vec<(&str, bool)> {
    let mut found = Vec::new();
    // Whether the lines of the current table are dependencies, and for tests.
    let mut table = None;
    for line in manifest.lines().map(str::trim) {
        if let Some(header) = line.strip_prefix('[') {
            let header = header.trim_end_matches(']');
            let kind = |name: &str| match name.rsplit('.').next() {
                Some("dependencies" | "build-dependencies") => Some(false),
                Some("dev-dependencies") => Some(true),
                _ => None,
            };
            table = kind(header);
            // `[dependencies.NAME]`
            if let Some((parent, name)) = header.rsplit_once('.')
                && let Some(is_for_tests) = kind(parent)
            {
                found.push((name, is_for_tests));
            }
            continue;
        }
        let Some(is_for_tests) = table else {
            continue;
        };
        let name = line.split(['.', '=', ' ']).next().unwrap_or_default();
        if !name.is_empty() && !name.starts_with('#') {
            found.push((name, is_for_tests));
        }
    }
    found
}

/// Findings about the rows ``| `crates/NAME` |`` of a page: all crates with a layer, from the lowest layer to the highest.
fn compare_listing(layers: &CrateLayers, page: &str) -> Vec<String> {
    let listed: Vec<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `crates/")?.split('`').next())
        .collect();
    let missing = layers.keys().filter(|name| !listed.contains(&&***name));
    let mut findings: Vec<String> = missing
        .map(|name| format!("CONTRIBUTING.md: `crates/{name}` is missing"))
        .collect();
    let mut highest = 0;
    for name in listed {
        let Some(layer) = layers.get(name).copied().flatten() else {
            continue;
        };
        if layer < highest {
            findings.push(format!(
                "CONTRIBUTING.md: `crates/{name}` of layer {layer} follows a crate of layer {highest}"
            ));
        }
        highest = highest.max(layer);
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
| layer | crate | purpose |
|---|---|---|
| 0 | [`disk`](crates/disk) | files, see its [page](docs/internals/marks.md) |
| 1 | [`store`](crates/store) | logs |
| 2 | [`broker`](crates/broker) | shards |
| | [`testkit`](crates/testkit) | tests only |
| | [`xtask`](xtask) | tasks |
";

    fn manifests<const N: usize>(changed: [(&str, &str); N]) -> BTreeMap<String, String> {
        let good = [
            (
                "disk",
                "[package]\nname = \"tidegate-disk\"\n[dependencies]\nbroken = \"1\"\n",
            ),
            (
                "store",
                "[dependencies]\ndisk.workspace = true\n\n[lints]\nbroker = true\n",
            ),
            (
                "broker",
                "[dependencies]\nstore = { workspace = true }\n[dev-dependencies]\ntestkit.workspace = true\n",
            ),
            ("testkit", "[dependencies]\n"),
        ];
        let all = good.into_iter().chain(changed);
        all.map(|(name, text)| (name.to_owned(), text.to_owned()))
            .collect()
    }

    #[test]
    fn dependencies_on_lower_layers_are_permitted() {
        let (layers, findings) = read_layers(TABLE);
        assert!(findings.is_empty(), "{findings:?}");
        let expected = [
            ("broker", Some(2)),
            ("disk", Some(0)),
            ("store", Some(1)),
            ("testkit", None),
        ];
        let expected = expected.map(|(name, layer)| (name.to_owned(), layer));
        assert_eq!(layers, CrateLayers::from(expected));
        assert_eq!(compare(&layers, &manifests([])), Vec::<String>::new());
    }

    #[test]
    fn dependencies_on_the_same_or_a_higher_layer_are_found_in_each_table_of_a_manifest() {
        let (layers, _) = read_layers(TABLE);
        for (manifest, finding) in [
            (
                "[dependencies]\nstore.workspace = true",
                "layer 1 depends on `store` of layer 1",
            ),
            (
                "[dev-dependencies]\nbroker = { path = \"x\" }",
                "layer 1 depends on `broker` of layer 2",
            ),
            (
                "[build-dependencies]\nbroker=\"1\"",
                "layer 1 depends on `broker` of layer 2",
            ),
            (
                "[target.'cfg(unix)'.dependencies]\nbroker.workspace = true",
                "layer 1 depends on `broker` of layer 2",
            ),
            (
                "[dependencies.broker]\nworkspace = true",
                "layer 1 depends on `broker` of layer 2",
            ),
            (
                "[dependencies]\ntestkit.workspace = true",
                "it depends on `testkit`, which is for tests only",
            ),
        ] {
            let findings = compare(&layers, &manifests([("store", manifest)]));
            assert_eq!(
                findings,
                [format!("crates/store/Cargo.toml: {finding}")],
                "{manifest}"
            );
        }
    }

    #[test]
    fn crates_and_rows_without_each_other_are_found() {
        let (layers, _) = read_layers(TABLE);
        let mut manifests = manifests([("added", "")]);
        manifests.remove("testkit");
        let expected = [
            "ARCHITECTURE.md: there is no crate `testkit`",
            "ARCHITECTURE.md: the table of layers does not contain the crate `added`",
        ];
        assert_eq!(compare(&layers, &manifests), expected);
    }

    #[test]
    fn rows_out_of_order_are_found() {
        let swapped: Vec<&str> = TABLE.lines().rev().collect();
        let (layers, findings) = read_layers(&swapped.join("\n"));
        assert_eq!(
            findings,
            [
                "ARCHITECTURE.md: `store` of layer 1 follows a crate of layer 2",
                "ARCHITECTURE.md: `disk` of layer 0 follows a crate of layer 2",
            ]
        );
        let listing =
            "| `crates/store` | logs |\n| `crates/disk` | files |\n| `crates/testkit` | tests |\n";
        let expected = [
            "CONTRIBUTING.md: `crates/broker` is missing",
            "CONTRIBUTING.md: `crates/disk` of layer 0 follows a crate of layer 1",
        ];
        assert_eq!(compare_listing(&layers, listing), expected);
    }
}
