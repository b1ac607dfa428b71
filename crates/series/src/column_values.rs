//! Values of one key in row order, of one kind or of several.

use crate::cell::{Cell, RawCell};
use crate::decimal;
use crate::point::PointValue;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ValueKind {
    Bool = 0,
    Int = 1,
    Float = 2,
    Text = 3,
    Json = 4,
}

impl ValueKind {
    pub(crate) fn from_byte(byte: u8) -> Option<Self> {
        [
            ValueKind::Bool,
            ValueKind::Int,
            ValueKind::Float,
            ValueKind::Text,
            ValueKind::Json,
        ]
        .get(usize::from(byte))
        .copied()
    }
}

/// Floats, stored as integers of one scale while all of them fit.
#[derive(Debug, Clone)]
pub(crate) enum FloatValues {
    Decimal { scale: u8, numbers: Vec<i64> },
    Plain(Vec<f64>),
}

impl Default for FloatValues {
    fn default() -> Self {
        FloatValues::Decimal {
            scale: 0,
            numbers: Vec::new(),
        }
    }
}

impl FloatValues {
    pub(crate) fn len(&self) -> usize {
        match self {
            FloatValues::Decimal { numbers, .. } => numbers.len(),
            FloatValues::Plain(floats) => floats.len(),
        }
    }

    #[inline]
    pub(crate) fn get(&self, at: usize) -> f64 {
        match self {
            FloatValues::Decimal { scale, numbers } => decimal::unscale(numbers[at], *scale),
            FloatValues::Plain(floats) => floats[at],
        }
    }

    fn clear(&mut self) {
        let mut numbers = match std::mem::take(self) {
            FloatValues::Decimal { numbers, .. } => numbers,
            // Collecting into the same layout keeps the memory, here and below.
            FloatValues::Plain(floats) => floats.into_iter().take(0).map(|_| 0).collect(),
        };
        numbers.clear();
        *self = FloatValues::Decimal { scale: 0, numbers };
    }

    fn make_plain(&mut self) -> &mut Vec<f64> {
        if let FloatValues::Decimal { scale, numbers } = self {
            let floats = std::mem::take(numbers).into_iter();
            let floats = floats.map(|number| decimal::unscale(number, *scale));
            *self = FloatValues::Plain(floats.collect());
        }
        match self {
            FloatValues::Plain(floats) => floats,
            FloatValues::Decimal { .. } => unreachable!("it was made plain just above"),
        }
    }

    #[inline]
    fn push_decimal(&mut self, scale: u8, number: i64) {
        if let FloatValues::Decimal {
            scale: of_all,
            numbers,
        } = self
        {
            if *of_all == scale {
                return numbers.push(number);
            }
            if numbers.is_empty() {
                *of_all = scale;
                return numbers.push(number);
            }
            if let Some(number) = rescale(number, scale, *of_all) {
                return numbers.push(number);
            }
            if scale > *of_all
                && let Some(all) = numbers
                    .iter()
                    .map(|&number| rescale(number, *of_all, scale))
                    .collect()
            {
                (*of_all, *numbers) = (scale, all);
                return numbers.push(number);
            }
        }
        self.make_plain().push(decimal::unscale(number, scale));
    }

    fn push(&mut self, value: f64) {
        if let FloatValues::Decimal { scale, .. } = self {
            let known = decimal::scale(value, *scale).map(|number| (*scale, number));
            if let Some((scale, number)) = known.or_else(|| decimal::find_scale(value)) {
                return self.push_decimal(scale, number);
            }
        }
        self.make_plain().push(value);
    }
}

/// The same decimal with more places, if it remains exact.
fn rescale(number: i64, from: u8, to: u8) -> Option<i64> {
    let by = decimal::INT_POWERS[usize::from(to.checked_sub(from)?)];
    number
        .checked_mul(by)
        .filter(|number| number.unsigned_abs() < 1 << 53)
}

/// Maximum number of distinct texts that are searched; with more, only the previous text is compared.
const MAX_SEARCHED_TEXTS: usize = 8;

/// Mostly repeated texts: each distinct text is stored once, as long as they are few.
#[derive(Debug, Clone, Default)]
pub(crate) struct TextValues {
    /// For each value, the index of its text.
    pub(crate) numbers: Vec<i64>,
    pub(crate) words: TextPool,
    /// The last word of a memtable, and the index of its text.
    known: Option<(u32, i64)>,
}

/// Concatenated texts.
#[derive(Debug, Clone, Default)]
pub(crate) struct TextPool {
    pub(crate) ends: Vec<u32>,
    pub(crate) bytes: String,
}

impl TextPool {
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn push(&mut self, text: &str) {
        self.bytes.push_str(text);
        self.ends.push(self.bytes.len() as u32);
    }

    #[inline]
    pub(crate) fn get(&self, at: usize) -> &str {
        let start = if at == 0 { 0 } else { self.ends[at - 1] };
        &self.bytes[start as usize..self.ends[at] as usize]
    }

    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        (0..self.len()).map(|at| self.get(at))
    }
}

impl TextValues {
    /// `numbers` contains for each value the index of its text.
    pub(crate) fn new(numbers: Vec<i64>, words: TextPool) -> Self {
        Self {
            numbers,
            words,
            known: None,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Whether all texts are distinct.
    pub(crate) fn are_distinct(&self) -> bool {
        self.words.len() <= MAX_SEARCHED_TEXTS
    }

    #[inline]
    fn find(&self, text: &[u8]) -> Option<i64> {
        let last = *self.numbers.last()?;
        if self.words.get(last as usize).as_bytes() == text {
            return Some(last);
        }
        if self.words.len() > MAX_SEARCHED_TEXTS {
            return None;
        }
        let mut words = self.words.iter();
        let found = words.position(|word| word.as_bytes() == text)?;
        Some(found as i64)
    }

    pub(crate) fn push(&mut self, text: &str) {
        let number = self.find(text.as_bytes()).unwrap_or_else(|| {
            self.words.push(text);
            self.words.len() as i64 - 1
        });
        self.numbers.push(number);
    }

    /// Returns `None` if the bytes are not valid text.
    #[inline]
    fn push_bytes(&mut self, text: &[u8]) -> Option<()> {
        match self.find(text) {
            Some(number) => self.numbers.push(number),
            // A known text needs no validation.
            None => self.push(std::str::from_utf8(text).ok()?),
        }
        Some(())
    }

    #[inline]
    fn push_word(&mut self, word: u32, text: &str) {
        match self.known {
            Some((known, number)) if known == word => self.numbers.push(number),
            _ => {
                self.push(text);
                self.known = self.numbers.last().map(|&number| (word, number));
            }
        }
    }

    #[inline]
    pub(crate) fn get(&self, at: usize) -> &str {
        self.words.get(self.numbers[at] as usize)
    }

    fn extend(&mut self, other: &TextValues) {
        let mut last: Option<(i64, i64)> = None;
        for &number in &other.numbers {
            match last {
                Some((of, own)) if of == number => self.numbers.push(own),
                _ => {
                    self.push(other.words.get(number as usize));
                    last = self.numbers.last().map(|&own| (number, own));
                }
            }
        }
    }

    fn clear(&mut self) {
        self.numbers.clear();
        self.known = None;
        self.words.ends.clear();
        self.words.bytes.clear();
    }
}

/// Positions of values of several kinds.
#[derive(Debug, Clone, Default)]
pub(crate) struct MixedKinds {
    pub(crate) kinds: Vec<u8>,
    /// For each value, its index among the values of its kind.
    pub(crate) places: Vec<u32>,
}

/// Values of one key in row order.
#[derive(Debug, Clone, Default)]
pub(crate) struct ColumnValues {
    /// The kind of all values, or of the last one.
    pub(crate) kind: Option<ValueKind>,
    pub(crate) mixed: Option<Box<MixedKinds>>,
    pub(crate) bools: Vec<i64>,
    pub(crate) ints: Vec<i64>,
    pub(crate) floats: FloatValues,
    pub(crate) texts: TextValues,
    pub(crate) jsons: TextValues,
}

impl ColumnValues {
    /// Empties the column and keeps its memory.
    pub(crate) fn clear(&mut self) {
        self.kind = None;
        self.mixed = None;
        self.bools.clear();
        self.ints.clear();
        self.floats.clear();
        self.texts.clear();
        self.jsons.clear();
    }

    pub(crate) fn text_bytes(&self) -> usize {
        self.texts.words.bytes.len() + self.jsons.words.bytes.len()
    }

    pub(crate) fn count(&self, kind: ValueKind) -> usize {
        match kind {
            ValueKind::Bool => self.bools.len(),
            ValueKind::Int => self.ints.len(),
            ValueKind::Float => self.floats.len(),
            ValueKind::Text => self.texts.len(),
            ValueKind::Json => self.jsons.len(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match (&self.mixed, self.kind) {
            (Some(mixed), _) => mixed.kinds.len(),
            (None, Some(kind)) => self.count(kind),
            (None, None) => 0,
        }
    }

    #[inline]
    fn set_kind(&mut self, kind: ValueKind) {
        if self.mixed.is_some() || self.kind != Some(kind) {
            self.switch_kind(kind);
        }
    }

    #[cold]
    fn switch_kind(&mut self, kind: ValueKind) {
        let place = self.count(kind) as u32;
        if let Some(before) = self.kind {
            let count = self.count(before);
            let mixed = self.mixed.get_or_insert_with(|| {
                Box::new(MixedKinds {
                    kinds: vec![before as u8; count],
                    places: (0..count as u32).collect(),
                })
            });
            mixed.kinds.push(kind as u8);
            mixed.places.push(place);
        }
        self.kind = Some(kind);
    }

    #[inline]
    pub(crate) fn push(&mut self, cell: Cell<'_>) {
        match cell {
            Cell::Decimal { scale, number } => {
                self.set_kind(ValueKind::Float);
                self.floats.push_decimal(scale, number);
            }
            Cell::Plain(value) => self.push_value(value),
        }
    }

    /// Adds a value from its encoded form; `None` if it is invalid.
    #[inline]
    pub(crate) fn push_raw(&mut self, cell: RawCell<'_>) -> Option<()> {
        match cell {
            RawCell::Decimal { scale, number } => {
                self.set_kind(ValueKind::Float);
                self.floats.push_decimal(scale, number);
            }
            RawCell::Float(value) => {
                self.set_kind(ValueKind::Float);
                match &mut self.floats {
                    FloatValues::Plain(floats) => floats.push(value),
                    floats => floats.push(value),
                }
            }
            RawCell::Int(value) => {
                self.set_kind(ValueKind::Int);
                self.ints.push(value);
            }
            RawCell::Bool(value) => {
                self.set_kind(ValueKind::Bool);
                self.bools.push(i64::from(value));
            }
            RawCell::Text(text) => {
                self.set_kind(ValueKind::Text);
                self.texts.push_bytes(text)?;
            }
            // Words need the reader's dictionary: use [`ColumnValues::push_word`].
            RawCell::Word(_) => return None,
            RawCell::Json(text) => {
                self.set_kind(ValueKind::Json);
                self.jsons.push_bytes(text)?;
            }
        }
        Some(())
    }

    /// Adds a word of the memtable being read.
    #[inline]
    pub(crate) fn push_word(&mut self, word: u32, text: &str) {
        self.set_kind(ValueKind::Text);
        self.texts.push_word(word, text);
    }

    /// Forgets the last word before another memtable is read, which has other words.
    pub(crate) fn reset_known_word(&mut self) {
        self.texts.known = None;
    }

    #[inline]
    pub(crate) fn push_value(&mut self, value: PointValue<'_>) {
        match value {
            PointValue::Bool(value) => {
                self.set_kind(ValueKind::Bool);
                self.bools.push(i64::from(value));
            }
            PointValue::Int(value) => {
                self.set_kind(ValueKind::Int);
                self.ints.push(value);
            }
            PointValue::Float(value) => {
                self.set_kind(ValueKind::Float);
                self.floats.push(value);
            }
            PointValue::Text(text) => {
                self.set_kind(ValueKind::Text);
                self.texts.push(text);
            }
            PointValue::Json(text) => {
                self.set_kind(ValueKind::Json);
                self.jsons.push(text);
            }
        }
    }

    pub(crate) fn extend(&mut self, other: &ColumnValues) {
        let is_alike = self.mixed.is_none()
            && other.mixed.is_none()
            && (self.kind.is_none() || self.kind == other.kind);
        match (is_alike, other.kind, &other.floats) {
            (true, Some(ValueKind::Int), _) => self.ints.extend_from_slice(&other.ints),
            (true, Some(ValueKind::Bool), _) => self.bools.extend_from_slice(&other.bools),
            (true, Some(ValueKind::Float), FloatValues::Decimal { scale, numbers }) => {
                numbers
                    .iter()
                    .for_each(|&number| self.floats.push_decimal(*scale, number));
            }
            (true, Some(ValueKind::Float), FloatValues::Plain(floats)) => {
                self.floats.make_plain().extend_from_slice(floats)
            }
            (true, Some(ValueKind::Text), _) => self.texts.extend(&other.texts),
            (true, Some(ValueKind::Json), _) => self.jsons.extend(&other.jsons),
            _ => return (0..other.len()).for_each(|at| self.push_value(other.get(at))),
        }
        self.kind = other.kind;
    }

    /// A range of the values.
    pub(crate) fn slice(&self, range: std::ops::Range<usize>) -> ColumnValues {
        let mut part = ColumnValues::default();
        match (&self.mixed, self.kind, &self.floats) {
            (None, Some(ValueKind::Int), _) => part.ints = self.ints[range].to_vec(),
            (None, Some(ValueKind::Bool), _) => part.bools = self.bools[range].to_vec(),
            (None, Some(ValueKind::Float), FloatValues::Plain(floats)) => {
                part.floats = FloatValues::Plain(floats[range].to_vec());
            }
            (None, Some(ValueKind::Float), FloatValues::Decimal { scale, numbers }) => {
                part.floats = FloatValues::Decimal {
                    scale: *scale,
                    numbers: numbers[range].to_vec(),
                };
            }
            _ => {
                range.for_each(|at| part.push_value(self.get(at)));
                return part;
            }
        }
        part.kind = self.kind;
        part
    }

    #[inline]
    pub(crate) fn get(&self, at: usize) -> PointValue<'_> {
        let (kind, at) = match (&self.mixed, self.kind) {
            (Some(mixed), _) => (
                ValueKind::from_byte(mixed.kinds[at]),
                mixed.places[at] as usize,
            ),
            (None, kind) => (kind, at),
        };
        match kind.expect("a pushed value sets the kind") {
            ValueKind::Bool => PointValue::Bool(self.bools[at] != 0),
            ValueKind::Int => PointValue::Int(self.ints[at]),
            ValueKind::Float => PointValue::Float(self.floats.get(at)),
            ValueKind::Text => PointValue::Text(self.texts.get(at)),
            ValueKind::Json => PointValue::Json(self.jsons.get(at)),
        }
    }
}
