//! Arrays and objects that know their size, and how values are reached and changed inside them.

use std::fmt;
use std::rc::Rc;

use jaq_core::path::Opt;
use jaq_core::val::Range;
use jaq_core::{Error, Exn, ValR, ValT, ValX};

use super::meter;
use super::value::Item;

pub(super) struct Tree<T> {
    pub(super) inner: T,
    pub(super) depth: u32,
    pub(super) bytes: usize,
}

/// The fields of an object in the order they came, each name once.
#[derive(Clone, Default)]
pub(super) struct Fields(Vec<(Rc<str>, Item)>);

impl Fields {
    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Item)> {
        self.0.iter().map(|(name, item)| (&**name, item))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn get(&self, name: &str) -> Option<&Item> {
        meter::steps(self.0.len() as u64 / 16);
        self.iter()
            .find(|(field, _)| *field == name)
            .map(|(_, item)| item)
    }

    pub(super) fn set(&mut self, name: &str, item: Item) {
        meter::steps(self.0.len() as u64 / 16);
        match self.0.iter_mut().find(|(field, _)| **field == *name) {
            Some((_, old)) => *old = item,
            None => self.0.push((name.into(), item)),
        }
    }

    fn remove(&mut self, name: &str) {
        self.0.retain(|(field, _)| **field != *name);
    }

    /// In the order of their names.
    pub(super) fn sorted(&self) -> Vec<(&str, &Item)> {
        meter::steps(self.0.len() as u64);
        let mut fields: Vec<_> = self.iter().collect();
        fields.sort_by_key(|(name, _)| *name);
        fields
    }
}

impl Tree<Vec<Item>> {
    pub(super) fn of_items(items: Vec<Item>) -> Self {
        let mut tree = Tree {
            inner: Vec::new(),
            depth: 0,
            bytes: 2,
        };
        for item in &items {
            tree.depth = tree.depth.max(item.depth());
            tree.bytes = tree.bytes.saturating_add(item.bytes() + 1);
        }
        tree.inner = items;
        tree.checked()
    }
}

impl Tree<Fields> {
    pub(super) fn of_fields(fields: Fields) -> Self {
        let mut tree = Tree {
            inner: Fields::default(),
            depth: 0,
            bytes: 2,
        };
        for (name, item) in fields.iter() {
            tree.depth = tree.depth.max(item.depth());
            tree.bytes = tree.bytes.saturating_add(name.len() + 4 + item.bytes());
        }
        tree.inner = fields;
        tree.checked()
    }
}

impl<T> Tree<T> {
    fn checked(mut self) -> Self {
        self.depth += 1;
        meter::depth(self.depth);
        meter::bytes(self.bytes);
        self
    }
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_json())
    }
}

impl fmt::Debug for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_json())
    }
}

impl From<bool> for Item {
    fn from(truth: bool) -> Self {
        Item::Bool(truth)
    }
}

impl From<isize> for Item {
    fn from(number: isize) -> Self {
        Item::Int(number as i64)
    }
}

impl From<usize> for Item {
    fn from(number: usize) -> Self {
        Item::Int(number as i64)
    }
}

impl From<f64> for Item {
    fn from(number: f64) -> Self {
        Item::Float(number)
    }
}

impl From<String> for Item {
    fn from(text: String) -> Self {
        Item::text(&text)
    }
}

impl From<Range<Item>> for Item {
    fn from(range: Range<Item>) -> Self {
        let mut fields = Fields::default();
        for (name, bound) in [("start", range.start), ("end", range.end)] {
            if let Some(bound) = bound {
                fields.set(name, bound);
            }
        }
        Item::object(fields)
    }
}

impl FromIterator<Item> for Item {
    fn from_iter<I: IntoIterator<Item = Item>>(items: I) -> Self {
        let mut bytes = 0;
        let mut collected = Vec::new();
        for item in items {
            // There may be no end of them.
            bytes += item.bytes() + 1;
            meter::fits(bytes);
            meter::steps(1);
            collected.push(item);
        }
        Item::array(collected)
    }
}

/// What one part of a value is reached by.
fn position(index: &Item) -> Option<i64> {
    match index {
        Item::Int(number) => Some(*number),
        Item::Float(number) => Some(number.floor() as i64),
        _ => None,
    }
}

/// An index from the start; a negative one counts from the end.
fn counted(index: i64, length: usize) -> i64 {
    if index < 0 {
        index.saturating_add_unsigned(length as u64)
    } else {
        index
    }
}

/// The bounds of a slice, within the length.
fn bounds(range: &Range<&Item>, length: usize) -> Result<(usize, usize), Error<Item>> {
    let bound = |item: &Option<&Item>, default: usize| match item {
        None | Some(Item::Null) => Ok(default),
        Some(item) => match position(item) {
            Some(index) => Ok(counted(index, length).clamp(0, length as i64) as usize),
            None => Err(Error::typ((*item).clone(), "integer")),
        },
    };
    let start = bound(&range.start, 0)?;
    Ok((start, bound(&range.end, length)?.max(start)))
}

fn byte_bounds(text: &str, range: &Range<&Item>) -> Result<(usize, usize), Error<Item>> {
    meter::steps(text.len() as u64 / 64);
    let (start, end) = bounds(range, text.chars().count())?;
    let byte = |character| crate::functions::strings::byte_at(text, character);
    Ok((byte(start), byte(end)))
}

fn not_iterable(item: Item) -> Error<Item> {
    Error::typ(item, "iterable (array or object)")
}

/// `{"start": .., "end": ..}` as an index means a slice.
fn as_range(index: &Item) -> Option<Range<&Item>> {
    match index {
        Item::Object(tree) => Some(tree.inner.get("start")..tree.inner.get("end")),
        _ => None,
    }
}

impl Item {
    /// The part at an index, if the value has one.
    pub(super) fn part(&self, index: &Item) -> Result<Option<Item>, Error<Item>> {
        meter::steps(1);
        match (self, index) {
            (
                Item::Null,
                Item::Null | Item::Str(_) | Item::Int(_) | Item::Float(_) | Item::Object(_),
            ) => Ok(None),
            (Item::Object(tree), Item::Str(name)) => Ok(tree.inner.get(name).cloned()),
            (Item::Array(tree), Item::Int(_) | Item::Float(_)) => {
                let at = counted(position(index).unwrap_or(0), tree.inner.len());
                Ok(usize::try_from(at)
                    .ok()
                    .and_then(|at| tree.inner.get(at))
                    .cloned())
            }
            (Item::Array(_) | Item::Str(_), Item::Object(_)) => {
                let range = as_range(index).unwrap_or(None..None);
                self.clone().range(range).map(Some)
            }
            (Item::Array(_), Item::Array(_)) => self.indices(index).map(Some),
            _ => Err(Error::index(self.clone(), index.clone())),
        }
    }

    /// Where another value is in this one: as a part, or as a run of parts.
    pub(super) fn indices(&self, wanted: &Item) -> ValR<Item> {
        let found: Vec<Item> = match (self, wanted) {
            (Item::Null, _) => return Ok(Item::Null),
            (Item::Str(text), Item::Str(part)) if !part.is_empty() => {
                meter::steps(text.len() as u64 / 8);
                let starts = text.char_indices().enumerate();
                starts
                    .filter(|(_, (at, _))| text[*at..].starts_with(&**part))
                    .map(|(at, _)| Item::from(at))
                    .collect()
            }
            (Item::Array(tree), Item::Array(part)) if !part.inner.is_empty() => {
                meter::steps((tree.inner.len() * part.inner.len()) as u64);
                let runs = tree.inner.windows(part.inner.len()).enumerate();
                runs.filter(|(_, run)| *run == part.inner)
                    .map(|(at, _)| Item::from(at))
                    .collect()
            }
            (Item::Str(_), Item::Str(_)) | (Item::Array(_), Item::Array(_)) => Vec::new(),
            (Item::Array(tree), wanted) => {
                meter::steps(tree.inner.len() as u64);
                let items = tree.inner.iter().enumerate();
                items
                    .filter(|(_, item)| *item == wanted)
                    .map(|(at, _)| Item::from(at))
                    .collect()
            }
            _ => return Err(Error::index(self.clone(), wanted.clone())),
        };
        Ok(Item::array(found))
    }
}

impl ValT for Item {
    fn from_num(text: &str) -> ValR<Self> {
        match text.parse() {
            Ok(number) => Ok(Item::Int(number)),
            Err(_) => text.parse().map(Item::Float).map_err(Error::str),
        }
    }

    fn from_map<I: IntoIterator<Item = (Self, Self)>>(pairs: I) -> ValR<Self> {
        let mut fields = Fields::default();
        for (name, item) in pairs {
            match name {
                Item::Str(name) => fields.set(&name, item),
                other => return Err(Error::typ(other, "string")),
            }
        }
        Ok(Item::object(fields))
    }

    fn key_values(self) -> Box<dyn Iterator<Item = ValR<(Self, Self), Self>>> {
        match self {
            Item::Array(tree) => {
                meter::steps(tree.inner.len() as u64 / 8);
                let items = tree.inner.clone();
                Box::new(
                    items
                        .into_iter()
                        .enumerate()
                        .map(|(at, item)| Ok((Item::from(at), item))),
                )
            }
            Item::Object(tree) => {
                meter::steps(tree.inner.len() as u64 / 8);
                let fields = tree.inner.clone();
                Box::new(
                    fields
                        .0
                        .into_iter()
                        .map(|(name, item)| Ok((Item::Str(name), item))),
                )
            }
            other => Box::new(std::iter::once(Err(not_iterable(other)))),
        }
    }

    fn values(self) -> Box<dyn Iterator<Item = ValR<Self>>> {
        match self {
            Item::Array(tree) => {
                Box::new((0..tree.inner.len()).map(move |at| Ok(tree.inner[at].clone())))
            }
            Item::Object(tree) => {
                Box::new((0..tree.inner.len()).map(move |at| Ok(tree.inner.0[at].1.clone())))
            }
            other => Box::new(std::iter::once(Err(not_iterable(other)))),
        }
    }

    fn index(self, index: &Self) -> ValR<Self> {
        self.part(index).map(Option::unwrap_or_default)
    }

    fn range(self, range: Range<&Self>) -> ValR<Self> {
        match &self {
            Item::Null => Ok(Item::Null),
            Item::Str(text) => {
                byte_bounds(text, &range).map(|(start, end)| Item::text(&text[start..end]))
            }
            Item::Array(tree) => bounds(&range, tree.inner.len())
                .map(|(start, end)| Item::array(tree.inner[start..end].to_vec())),
            _ => Err(Error::typ(self, "array or string")),
        }
    }

    fn map_values<'a, I: Iterator<Item = ValX<'a, Self>>>(
        self,
        opt: Opt,
        f: impl Fn(Self) -> I,
    ) -> ValX<'a, Self> {
        match self {
            Item::Array(tree) => {
                let mapped = tree.inner.iter().cloned().flat_map(f);
                mapped.collect::<Result<Item, _>>()
            }
            Item::Object(tree) => {
                let mut fields = Fields::default();
                for (name, item) in tree.inner.iter() {
                    if let Some(item) = f(item.clone()).next() {
                        fields.0.push((name.into(), item?));
                    }
                }
                Ok(Item::object(fields))
            }
            other => opt.fail(other, |other| Exn::from(not_iterable(other))),
        }
    }

    fn map_index<'a, I: Iterator<Item = ValX<'a, Self>>>(
        self,
        index: &Self,
        opt: Opt,
        f: impl Fn(Self) -> I,
    ) -> ValX<'a, Self> {
        match (&self, index) {
            (Item::Array(_) | Item::Str(_), Item::Object(_)) => {
                let range = as_range(index).unwrap_or(None..None);
                self.map_range(range, opt, f)
            }
            (Item::Null | Item::Object(_), Item::Str(name)) => {
                let mut fields = match &self {
                    Item::Object(tree) => tree.inner.clone(),
                    _ => Fields::default(),
                };
                let old = fields.get(name).cloned().unwrap_or_default();
                match f(old).next().transpose()? {
                    Some(item) => fields.set(name, item),
                    None => fields.remove(name),
                }
                Ok(Item::object(fields))
            }
            (Item::Null | Item::Array(_), Item::Int(_) | Item::Float(_)) => {
                let mut items = match &self {
                    Item::Array(tree) => tree.inner.clone(),
                    _ => Vec::new(),
                };
                let at = usize::try_from(counted(position(index).unwrap_or(0), items.len()));
                let Ok(at) = at else {
                    return opt.fail(self, |_| Exn::from(Error::str("index out of bounds")));
                };
                let old = items.get(at).cloned().unwrap_or_default();
                match f(old).next().transpose()? {
                    Some(item) if at < items.len() => items[at] = item,
                    Some(item) => {
                        // What is between is null, as in jq.
                        meter::bytes(at.saturating_mul(8));
                        items.resize(at, Item::Null);
                        items.push(item);
                    }
                    None if at < items.len() => drop(items.remove(at)),
                    None => {}
                }
                Ok(Item::array(items))
            }
            _ => opt.fail(self, |item| Exn::from(Error::index(item, index.clone()))),
        }
    }

    fn map_range<'a, I: Iterator<Item = ValX<'a, Self>>>(
        self,
        range: Range<&Self>,
        opt: Opt,
        f: impl Fn(Self) -> I,
    ) -> ValX<'a, Self> {
        match &self {
            Item::Array(tree) => {
                let (start, end) = match bounds(&range, tree.inner.len()) {
                    Ok(bounds) => bounds,
                    Err(error) => return opt.fail(self, |_| Exn::from(error)),
                };
                let middle = match f(Item::array(tree.inner[start..end].to_vec()))
                    .next()
                    .transpose()?
                {
                    Some(Item::Array(middle)) => middle.inner.clone(),
                    Some(other) => return Err(Exn::from(Error::typ(other, "array"))),
                    None => Vec::new(),
                };
                let mut items = tree.inner.clone();
                items.splice(start..end, middle);
                Ok(Item::array(items))
            }
            Item::Str(text) => {
                let (start, end) = match byte_bounds(text, &range) {
                    Ok(bounds) => bounds,
                    Err(error) => return opt.fail(self, |_| Exn::from(error)),
                };
                let middle = match f(Item::text(&text[start..end])).next().transpose()? {
                    Some(Item::Str(middle)) => middle,
                    Some(other) => return Err(Exn::from(Error::typ(other, "string"))),
                    None => "".into(),
                };
                meter::bytes(text.len() + middle.len());
                Ok(Item::text(
                    &[&text[..start], &middle, &text[end..]].concat(),
                ))
            }
            _ => opt.fail(self, |item| Exn::from(Error::typ(item, "array"))),
        }
    }

    fn as_bool(&self) -> bool {
        !matches!(self, Item::Null | Item::Bool(false))
    }

    fn into_string(self) -> Self {
        match self {
            Item::Str(_) => self,
            other => Item::text(&other.to_json()),
        }
    }
}

impl jaq_std::ValT for Item {
    fn into_seq<S: FromIterator<Self>>(self) -> Result<S, Self> {
        match self {
            Item::Array(tree) => {
                meter::steps(tree.inner.len() as u64);
                Ok(tree.inner.iter().cloned().collect())
            }
            other => Err(other),
        }
    }

    fn is_int(&self) -> bool {
        matches!(self, Item::Int(_))
    }

    fn as_isize(&self) -> Option<isize> {
        match self {
            Item::Int(number) => isize::try_from(*number).ok(),
            _ => None,
        }
    }

    fn as_f64(&self) -> Option<f64> {
        match self {
            Item::Int(number) => Some(*number as f64),
            Item::Float(number) => Some(*number),
            _ => None,
        }
    }

    fn is_utf8_str(&self) -> bool {
        matches!(self, Item::Str(_))
    }

    fn as_bytes(&self) -> Option<&[u8]> {
        match self {
            Item::Str(text) => {
                // Whoever asks looks through them.
                meter::steps(text.len() as u64 / 64);
                Some(text.as_bytes())
            }
            _ => None,
        }
    }

    fn as_sub_str(&self, part: &[u8]) -> Self {
        Item::text(&String::from_utf8_lossy(part))
    }

    fn from_utf8_bytes(bytes: impl AsRef<[u8]> + Send + 'static) -> Self {
        Item::text(&String::from_utf8_lossy(bytes.as_ref()))
    }
}
