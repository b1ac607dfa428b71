//! The program `tidegate`: parses the command line and runs one command.

mod area_record;
mod argument_help;
mod backup;
mod cli;
mod client;
mod cluster_command;
mod config;
mod ctl;
mod exit_status;
mod link_command;
mod logging;
mod managed_server;
mod password_command;
mod quarantine;
mod serve;
mod storage_areas;
mod store_command;
mod transfer_progress;

use std::process::ExitCode;

/// Shards allocate and free small buffers all the time; with mimalloc this does not show in
/// profiles.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // The allocator requests huge pages, and each of about twenty threads would hold 2 MiB for a
    // few KiB. An idle node took twice the memory and was not faster. Kernels without huge pages
    // return an error, which is ignored.
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    let cli = cli::Cli::parse_arguments();
    let cli = cli.unwrap_or_else(|error| cli::clarify_usage_error(error).exit());
    match cli.run() {
        Ok(code) => code,
        Err(error) => {
            // One line with all causes; the last one contains the remedy if there is one.
            eprintln!("error: {error:#}");
            cli::exit_code_of(&error).into()
        }
    }
}
