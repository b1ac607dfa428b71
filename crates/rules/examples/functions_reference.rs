//! Prints the function reference: docs/rule-functions.md.

fn main() {
    print!("{}", rules::functions::render_reference());
}
