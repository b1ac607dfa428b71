//! Groups of telemetry segment files: any bytes are read or rejected, and every value of what is read can be had.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = series::read_group(data);
});
