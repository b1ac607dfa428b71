//! A dictionary of repeated texts, each stored once: states, names, units. A value that is one of them is
//! stored as its number.

use std::collections::HashMap;
use std::sync::Arc;

use crate::encoding_hint::EncodingHint;

/// Shorter texts are stored in place; longer ones are rarely repeated.
const TEXT_LENGTHS: std::ops::RangeInclusive<usize> = 3..=128;
const MAX_WORDS: usize = 4096;

#[derive(Default)]
pub(crate) struct TextDictionary {
    /// Indexed by their numbers, also for readers.
    pub(crate) texts: Arc<Vec<Arc<str>>>,
    numbers: HashMap<Arc<str>, u32, foldhash::fast::RandomState>,
    /// For each text, the block of the write-ahead log that last defined it.
    defined_in: Vec<u64>,
    /// The current block, and the words still to be defined in it.
    block: u64,
    pub(crate) undefined: Vec<u32>,
    pub(crate) bytes: usize,
}

impl TextDictionary {
    /// Following values are written to this block.
    #[inline]
    pub(crate) fn begin_block(&mut self, block: u64) {
        self.block = block;
        self.undefined.clear();
    }

    pub(crate) fn get(&self, number: u32) -> &str {
        &self.texts[number as usize]
    }

    /// The number of a text, if it has one or gets one now.
    #[inline]
    pub(crate) fn number_for_text(&mut self, text: &str, hint: &mut EncodingHint) -> Option<u32> {
        let number = match self.texts.get(hint.word as usize) {
            Some(word) if **word == *text => hint.word,
            _ => self.search_number(text, hint)?,
        };
        let defined_in = &mut self.defined_in[number as usize];
        if *defined_in != self.block {
            *defined_in = self.block;
            self.undefined.push(number);
        }
        Some(number)
    }

    fn search_number(&mut self, text: &str, hint: &mut EncodingHint) -> Option<u32> {
        if !TEXT_LENGTHS.contains(&text.len()) || hint.should_skip() {
            return None;
        }
        if let Some(&number) = self.numbers.get(text) {
            hint.record_search(true);
            hint.word = number;
            return Some(number);
        }
        // Keys whose texts are all different do not fill the dictionary.
        hint.record_search(false);
        if self.texts.len() == MAX_WORDS {
            return None;
        }
        let (word, number) = (Arc::<str>::from(text), self.texts.len() as u32);
        Arc::make_mut(&mut self.texts).push(Arc::clone(&word));
        self.bytes += text.len() + 80;
        self.numbers.insert(word, number);
        self.defined_in.push(0);
        hint.word = number;
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_texts_get_a_number() {
        let (mut words, mut hint) = (TextDictionary::default(), EncodingHint::default());
        words.begin_block(1);
        let numbers =
            ["idle", "idle", "on", "idle"].map(|text| words.number_for_text(text, &mut hint));
        assert_eq!(numbers, [Some(0), Some(0), None, Some(0)]);
        assert_eq!((words.get(0), &words.undefined[..]), ("idle", &[0][..]));
        // Another block has to define it again, once.
        words.begin_block(2);
        assert_eq!(words.number_for_text("idle", &mut hint), Some(0));
        assert_eq!(words.number_for_text("idle", &mut hint), Some(0));
        assert_eq!(words.undefined, [0]);
    }

    #[test]
    fn distinct_texts_do_not_fill_the_dictionary() {
        let (mut words, mut hint) = (TextDictionary::default(), EncodingHint::default());
        words.begin_block(1);
        for number in 0..100_000 {
            words.number_for_text(&format!("text {number}"), &mut hint);
        }
        assert!(words.texts.len() < 200, "{}", words.texts.len());
    }
}
