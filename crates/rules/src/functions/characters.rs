//! Positions and lengths of text in characters.

/// The byte offset of the character with this number, or the end of the text.
pub(super) fn byte_at(text: &str, character: usize) -> usize {
    if text.is_ascii() {
        return character.min(text.len());
    }
    text.char_indices()
        .nth(character)
        .map_or(text.len(), |(at, _)| at)
}

pub(super) fn characters(text: &str) -> usize {
    if text.is_ascii() {
        text.len()
    } else {
        text.chars().count()
    }
}
