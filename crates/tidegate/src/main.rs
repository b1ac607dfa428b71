//! Tidegate: the program. Reads the command line and hands over to one command.

mod area_record;
mod cli;
mod client;
mod config;
mod ctl;
mod date_text;
mod logging;
mod password_command;
mod serve;
mod storage_areas;
mod store_command;

use std::process::ExitCode;

use clap::Parser as _;

/// Shards allocate and free small buffers all the time; mimalloc keeps that off the profile.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // The allocator asks for huge pages, and each of some twenty threads would hold 2 MiB for a few KiB: an idle node took twice the
    // memory, and was no faster. A kernel that does not know them has none.
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    let outcome = cli::Cli::parse().run();
    match outcome {
        Ok(code) => code,
        Err(error) => {
            // One line per cause; the last one says what to do where there is something to do.
            eprintln!("error: {error:#}");
            cli::exit_code_of(&error).into()
        }
    }
}
