//! What DuckDB reads in Parquet files.

use std::path::{Path, PathBuf};
use std::process::Command;

const SCRIPT: &str = "import duckdb, json, sys\n\
    rows = duckdb.execute(sys.argv[1], [sys.argv[2]]).fetchall()\n\
    print(json.dumps(rows, default=str))";

/// What DuckDB says of files (`?` in the query), as JSON; `None`: it is not here.
///
/// # Panics
/// If it refuses the query or a file.
pub fn query_parquet(query: &str, files: &Path) -> Option<String> {
    let packages = std::env::var_os("TIDEGATE_TEST_DUCKDB").map(PathBuf::from);
    let packages = packages.or_else(|| {
        // Test programs lie in target/PROFILE/deps.
        let test = std::env::current_exe().ok()?;
        Some(test.ancestors().nth(3)?.join("tools/duckdb"))
    });
    let packages = packages.filter(|packages| packages.is_dir())?;
    let output = Command::new("python3")
        .env("PYTHONPATH", packages)
        .args(["-c", SCRIPT, query])
        .arg(files)
        .output()
        .expect("python3 can be started");
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}");
    Some(String::from_utf8(output.stdout).expect("JSON is UTF-8"))
}
