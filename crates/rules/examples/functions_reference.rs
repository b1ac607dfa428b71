//! Prints the page about the functions of the rule language: docs/rule-functions.md.

fn main() {
    print!("{}", rules::functions::render_reference());
}
