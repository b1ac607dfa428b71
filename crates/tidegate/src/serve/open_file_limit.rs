//! Each connection is an open file; the system's bound on those is a bound on connections.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Below this it is worth a warning.
const LOW_LIMIT: u64 = 10_000;
/// Files a node has open apart from connections, generously.
const RESERVED_FILES: u64 = 200;

/// Raises the bound as far as the system allows this process; the answer is a warning if that is not far.
pub(super) fn raise_limit() -> Option<String> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        let wanted = Rlimit {
            current: maximum,
            maximum,
        };
        if let Err(error) = setrlimit(Resource::Nofile, wanted) {
            tracing::debug!("the limit of open files stays at {current:?}: {error}");
        }
    }
    // `None` means no bound at all.
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
