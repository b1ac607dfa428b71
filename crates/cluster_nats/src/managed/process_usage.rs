//! Memory and processor time of another process, from `/proc`.

use std::fs;

/// Resident bytes and milliseconds of processor time; `None` if the process or `/proc` does not exist.
pub(super) fn read(pid: u32) -> Option<(u64, u64)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    parse(
        &stat,
        rustix::param::page_size() as u64,
        rustix::param::clock_ticks_per_second(),
    )
}

/// Reads a line as in proc_pid_stat(5). The name in parentheses may contain anything.
fn parse(stat: &str, page_bytes: u64, ticks_per_second: u64) -> Option<(u64, u64)> {
    let (_, rest) = stat.rsplit_once(')')?;
    // The first of these is the third field.
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    let resident_pages: u64 = fields.nth(8)?.parse().ok()?;
    let cpu_ms = (user + system).checked_mul(1000)? / ticks_per_second.max(1);
    Some((resident_pages * page_bytes, cpu_ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_whatever_the_name_of_the_process_is() {
        let line =
            "42 (a) b (c) S 1 42 42 0 -1 4194560 300 0 0 0 150 50 0 0 20 0 9 0 555 123456 2000 184";
        assert_eq!(parse(line, 4096, 100), Some((2000 * 4096, 2000)));
        assert_eq!(parse("42 (a", 4096, 100), None);
        assert_eq!(parse("42 (a) S 1", 4096, 100), None);
    }
}
