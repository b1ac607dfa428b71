//! What `tidegate version` tells about the build: commit, compiler, target. The names do not begin with `TIDEGATE_`, since
//! `cargo run` hands them to the program, which would take them for settings.

use std::process::Command;

fn main() {
    let commit = output("git", &["describe", "--always", "--abbrev=12"]);
    println!(
        "cargo:rustc-env=BUILT_COMMIT={}",
        commit.as_deref().unwrap_or("unknown")
    );
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let compiler = output(&rustc, &["--version"]);
    println!(
        "cargo:rustc-env=BUILT_COMPILER={}",
        compiler.as_deref().unwrap_or("unknown")
    );
    for name in ["TARGET", "PROFILE"] {
        let value = std::env::var(name).unwrap_or_else(|_| "unknown".into());
        println!("cargo:rustc-env=BUILT_{name}={value}");
    }
    println!("cargo:rerun-if-changed=build.rs");
    // The reflog grows with every commit and checkout, in worktrees too.
    if let Some(log) = output("git", &["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo:rerun-if-changed={log}");
    }
}

fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
