//! `cargo xtask test`: all tests of the repository, on a machine with Rust, Node and apt and nothing else.

use crate::report::Report;
use crate::tools::Environment;
use crate::{TaskError, check, deny, disk_space, docs, test_programs, tools};

pub(crate) fn run(filters: &[String]) -> Result<(), TaskError> {
    if let Some(flag) = filters.iter().find(|filter| filter.starts_with('-')) {
        return Err(format!(
            "`{flag}`: `test` takes parts of test names, no flags"
        ));
    }
    // An estimate: a run that needs less must not fail because of it.
    if let Err(why) = disk_space::check() {
        eprintln!("warning: {why}");
    }
    let is_whole = filters.is_empty();
    let mut report = Report::default();
    let (environment, programs) = std::thread::scope(|scope| {
        // Mostly waits for downloads.
        let tools = scope.spawn(|| install_tools(is_whole));
        if is_whole {
            check::steps(&mut report);
        }
        let mut programs = Vec::new();
        report.run_section("build of the tests", |report| {
            match test_programs::build() {
                Ok(built) => programs = built,
                Err(why) => report.fail(why),
            }
        });
        let (environment, installed) = tools.join().expect("installing does not panic");
        report.append(installed);
        (environment, programs)
    });
    if is_whole {
        deny::steps(&mut report);
    }
    report.run_section("tests", |report| {
        disk_space::print_peak(|| test_programs::run(programs, filters, &environment, report));
    });
    if is_whole {
        report.run_step(docs::STEP, docs::check);
    }
    report.finish()
}

fn install_tools(is_whole: bool) -> (Environment, Report) {
    let mut report = Report::default();
    let environment = tools::install_all(&mut report);
    if is_whole {
        tools::install_cargo_deny(&mut report);
    }
    (environment, report)
}
