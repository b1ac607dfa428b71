//! Files of jobs: what an import has received, and what an export has written. They end with their job in the list of jobs, and
//! with the node.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use namespaces::NamespaceSelection;

use crate::access::random_id;
use crate::node_backend::ProgramBackend;
use crate::problem_details::ProblemDetails;

/// A file that is removed when it is dropped.
#[derive(Debug)]
pub(crate) struct JobFile {
    path: PathBuf,
    file: File,
}

impl JobFile {
    pub(crate) fn create(program: &dyn ProgramBackend) -> Result<Self, ProblemDetails> {
        let directory = program.job_directory();
        let name =
            random_id("file-").map_err(|error| ProblemDetails::unavailable(format!("{error}.")))?;
        let path = directory.join(name);
        let create = || {
            fs::create_dir_all(&directory)?;
            let mut options = File::options();
            options.write(true).create_new(true).mode(0o600).open(&path)
        };
        match create() {
            Ok(file) => Ok(Self { path, file }),
            Err(error) => Err(write_problem(&error)),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Leaves the space that the node needs.
    pub(crate) fn check_room(&self, program: &dyn ProgramBackend) -> Result<(), ProblemDetails> {
        match program.has_room_for_jobs() {
            true => Ok(()),
            false => Err(write_problem(&io::ErrorKind::StorageFull.into())),
        }
    }

    pub(crate) fn problem(&self, error: &io::Error) -> ProblemDetails {
        write_problem(error)
    }
}

fn write_problem(error: &io::Error) -> ProblemDetails {
    let detail = format!("The result file of the job cannot be written: {error}.");
    match error.kind() {
        io::ErrorKind::StorageFull => ProblemDetails::storage_full(detail),
        _ => ProblemDetails::unavailable(detail),
    }
}

impl Write for JobFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for JobFile {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the file of a job");
        }
    }
}

/// The namespace that a job on these namespaces belongs to; `None`: the node as a whole.
pub(crate) fn job_namespace(
    selection: &NamespaceSelection,
) -> Result<Option<String>, ProblemDetails> {
    match selection {
        NamespaceSelection::All => Ok(None),
        NamespaceSelection::Only(names) if names.len() == 1 => Ok(names.first().cloned()),
        NamespaceSelection::Only(_) => {
            let detail = "namespace: expected one of the namespaces that you operate.";
            Err(ProblemDetails::invalid_parameter("namespace", detail))
        }
    }
}
