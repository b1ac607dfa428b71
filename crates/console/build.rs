//! Builds the web console with Node and writes `assets.rs`, which embeds its files.
//!
//! `TIDEGATE_CONSOLE` = `skip`: leave the console out. `require`: fail if it cannot be built. Unset: build it if Node is
//! installed, and warn otherwise.

use std::env;
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const SWITCH: &str = "TIDEGATE_CONSOLE";
const MIN_NODE: u32 = 20;
/// What the files are built from. `node_modules` is missing here: it follows from the lock file.
const SOURCES: &[&str] = &[
    "index.html",
    "lingui.config.ts",
    "package-lock.json",
    "package.json",
    "public",
    "src",
    "tsconfig.json",
    "vite.config.ts",
];

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    println!("cargo::rerun-if-env-changed={SWITCH}");
    println!("cargo::rerun-if-changed=build.rs");
    let folder = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../../console");
    for source in SOURCES {
        println!("cargo::rerun-if-changed={}", folder.join(source).display());
    }
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let switch = env::var(SWITCH).unwrap_or_default();
    let built = match switch.as_str() {
        "skip" => Err("it was left out of this build (TIDEGATE_CONSOLE=skip)".into()),
        "" | "require" => build(&folder, &out.join("dist")),
        other => {
            return Err(format!("{SWITCH}={other}: expected \"skip\" or \"require\"").into());
        }
    };
    let source = match built {
        Ok(()) => embed(&out.join("dist"))?,
        Err(error) if switch == "require" => return Err(error),
        Err(error) => {
            if switch != "skip" {
                println!("cargo::warning=the web console is left out: {error}");
            }
            format!(
                "const INDEX: Option<&str> = None;\nconst MISSING_REASON: &str = {:?};\nconst ASSETS: &[Asset] = &[];\n",
                error.to_string()
            )
        }
    };
    fs::write(out.join("assets.rs"), source)?;
    Ok(())
}

/// Installs the packages of the lock file if they are not installed yet, and runs Vite.
fn build(folder: &Path, dist: &Path) -> Result<()> {
    check_node()?;
    let lock = fs::read(folder.join("package-lock.json"))?;
    let installed = folder.join("node_modules/.installed-lock.json");
    if fs::read(&installed).ok().as_deref() != Some(&*lock) {
        run(
            Command::new("npm").args(["ci", "--no-audit", "--no-fund"]),
            folder,
        )?;
        fs::write(&installed, lock)?;
    }
    let mut vite = Command::new("node");
    vite.args(["node_modules/vite/bin/vite.js", "build", "--emptyOutDir"]);
    run(vite.arg("--outDir").arg(dist), folder)
}

fn check_node() -> Result<()> {
    let output = Command::new("node").arg("--version").output();
    let output = output.map_err(|_| format!("building it needs Node {MIN_NODE} or later"))?;
    let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let major = version.trim_start_matches('v').split('.').next();
    match major.and_then(|major| major.parse::<u32>().ok()) {
        Some(major) if major >= MIN_NODE => Ok(()),
        _ => Err(format!("building it needs Node {MIN_NODE} or later; this is {version}").into()),
    }
}

fn run(command: &mut Command, folder: &Path) -> Result<()> {
    let output = command.current_dir(folder).output();
    let output = output.map_err(|error| format!("{command:?} could not be started: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8_lossy(&printed).into_owned();
    eprintln!("{printed}");
    let last = printed.lines().rev().find(|line| !line.trim().is_empty());
    Err(format!("{command:?} failed: {}", last.unwrap_or_default()).into())
}

/// Source text with the index page and all other files. Vite's configuration has compressed them.
fn embed(dist: &Path) -> Result<String> {
    let mut files = Vec::new();
    list(dist, dist, &mut files)?;
    files.sort();
    let index = dist.join("index.html");
    let mut source = format!(
        "const INDEX: Option<&str> = Some(include_str!({index:?}));\nconst MISSING_REASON: &str = \"\";\nconst ASSETS: &[Asset] = &[\n"
    );
    for path in files {
        let file = dist.join(&path);
        let content = fs::read(&file)?;
        let extension = file.extension().and_then(|extension| extension.to_str());
        let content_type = match extension {
            Some("js") => "text/javascript; charset=utf-8",
            Some("css") => "text/css; charset=utf-8",
            Some("svg") => "image/svg+xml",
            Some("json" | "webmanifest") => "application/json",
            Some("png") => "image/png",
            Some("txt") => "text/plain; charset=utf-8",
            Some("woff2") => "font/woff2",
            other => return Err(format!("{path}: no content type for {other:?}").into()),
        };
        writeln!(
            source,
            "    Asset {{ path: {path:?}, content_type: {content_type:?}, etag: \"\\\"{:016x}\\\"\", is_immutable: {}, \
             brotli: include_bytes!({:?}), gzip: include_bytes!({:?}) }},",
            fingerprint(&content),
            path.starts_with("assets/"),
            file.with_added_extension("br"),
            file.with_added_extension("gz"),
        )?;
    }
    source.push_str("];\n");
    Ok(source)
}

fn list(root: &Path, folder: &Path, files: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            list(root, &path, files)?;
            continue;
        }
        let is_compressed = path.extension().is_some_and(|it| it == "br" || it == "gz");
        let relative = path
            .strip_prefix(root)?
            .to_str()
            .ok_or("a path is not UTF-8")?;
        if !is_compressed && relative != "index.html" {
            files.push(relative.replace('\\', "/"));
        }
    }
    Ok(())
}

/// FNV-1a: tells versions of a file apart, nothing more.
fn fingerprint(content: &[u8]) -> u64 {
    content.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
