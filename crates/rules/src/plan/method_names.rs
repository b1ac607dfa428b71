//! Methods of values, as FluxMQ takes them over from Java.

/// The function that does what a method of this name does, with the value in front of the arguments.
pub(super) fn function_name(method: &str) -> &str {
    match method {
        "toUpperCase" => "upper",
        "toLowerCase" => "lower",
        "toString" => "str",
        // Java's replaces all, FluxMQ's function of this name only the first.
        "replace" => "replaceAll",
        "size" => "length",
        "getBytes" => "bytes",
        "strip" => "trim",
        method => method,
    }
}
