//! Prints the function reference: docs/reference/rule-functions.md.

fn main() {
    print!("{}", rules::functions::render_reference());
}
