//! Methods on values, which FluxMQ adopts from Java.

/// The function equivalent to a method of this name, with the value as its first argument.
pub(super) fn function_name(method: &str) -> &str {
    match method {
        "toUpperCase" => "upper",
        "toLowerCase" => "lower",
        "toString" => "str",
        // Java's `replace` replaces all occurrences, FluxMQ's function of this name only the first.
        "replace" => "replaceAll",
        "size" => "length",
        "getBytes" => "bytes",
        "strip" => "trim",
        method => method,
    }
}
