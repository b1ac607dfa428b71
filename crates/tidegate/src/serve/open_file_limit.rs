//! The limit on open files. Each connection is an open file, so the limit also bounds connections.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A lower limit causes a warning.
const LOW_LIMIT: u64 = 10_000;
/// Generous estimate of open files besides connections.
const RESERVED_FILES: u64 = 200;

/// Raises the limit as far as the system allows. Returns a warning if the result is low.
pub(super) fn raise_limit() -> Option<String> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        let wanted = Rlimit {
            current: maximum,
            maximum,
        };
        if let Err(error) = setrlimit(Resource::Nofile, wanted) {
            tracing::debug!(
                "raising the limit of open files failed; it stays at {current:?}: {error}"
            );
        }
    }
    // `None`: no limit.
    getrlimit(Resource::Nofile).current.and_then(warning)
}

fn warning(limit: u64) -> Option<String> {
    (limit < LOW_LIMIT).then(|| {
        format!(
            "this process may have {limit} files open, so about {} connections; raise it with `ulimit -n` in \
             the shell or LimitNOFILE= in the systemd unit",
            limit.saturating_sub(RESERVED_FILES)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_limit_is_a_warning_with_what_to_do() {
        assert_eq!(warning(LOW_LIMIT), None);
        let warning = warning(1024).unwrap();
        assert!(
            warning.contains("1024 files open, so about 824 connections"),
            "{warning}"
        );
    }

    #[test]
    fn the_limit_is_raised_to_what_the_system_allows() {
        raise_limit();
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        assert_eq!(current, maximum);
    }
}
