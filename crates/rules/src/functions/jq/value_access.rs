//! Access to the contents of values, and the conversions that jaq requires of its value type.

use std::fmt;

use jaq_core::path::Opt;
use jaq_core::val::Range;
use jaq_core::{Error, Exn, ValR, ValT, ValX};

use super::execution_meter;
use super::value::{JqValue, ObjectFields};

impl fmt::Display for JqValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_json())
    }
}

impl fmt::Debug for JqValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_json())
    }
}

impl From<bool> for JqValue {
    fn from(truth: bool) -> Self {
        JqValue::Bool(truth)
    }
}

impl From<isize> for JqValue {
    fn from(number: isize) -> Self {
        JqValue::Int(number as i64)
    }
}

impl From<usize> for JqValue {
    fn from(number: usize) -> Self {
        JqValue::Int(number as i64)
    }
}

impl From<f64> for JqValue {
    fn from(number: f64) -> Self {
        JqValue::Float(number)
    }
}

impl From<String> for JqValue {
    fn from(text: String) -> Self {
        JqValue::text(&text)
    }
}

impl From<Range<JqValue>> for JqValue {
    fn from(range: Range<JqValue>) -> Self {
        let mut fields = ObjectFields::default();
        for (name, bound) in [("start", range.start), ("end", range.end)] {
            if let Some(bound) = bound {
                fields.set(name, bound);
            }
        }
        JqValue::object(fields)
    }
}

impl FromIterator<JqValue> for JqValue {
    fn from_iter<I: IntoIterator<Item = JqValue>>(items: I) -> Self {
        let mut bytes = 0;
        let mut collected = Vec::new();
        for item in items {
            // The iterator may be infinite.
            bytes += item.bytes() + 1;
            execution_meter::check_bytes(bytes);
            execution_meter::count_steps(1);
            collected.push(item);
        }
        JqValue::array(collected)
    }
}

/// The position that an index denotes.
fn position(index: &JqValue) -> Option<i64> {
    match index {
        JqValue::Int(number) => Some(*number),
        JqValue::Float(number) => Some(number.floor() as i64),
        _ => None,
    }
}

/// Converts a negative index, which counts from the end, to one from the start.
fn start_index(index: i64, length: usize) -> i64 {
    if index < 0 {
        index.saturating_add_unsigned(length as u64)
    } else {
        index
    }
}

/// The bounds of a slice, limited to the length.
fn bounds(range: &Range<&JqValue>, length: usize) -> Result<(usize, usize), Error<JqValue>> {
    let bound = |item: &Option<&JqValue>, default: usize| match item {
        None | Some(JqValue::Null) => Ok(default),
        Some(item) => match position(item) {
            Some(index) => Ok(start_index(index, length).clamp(0, length as i64) as usize),
            None => Err(Error::typ((*item).clone(), "integer")),
        },
    };
    let start = bound(&range.start, 0)?;
    Ok((start, bound(&range.end, length)?.max(start)))
}

fn byte_bounds(text: &str, range: &Range<&JqValue>) -> Result<(usize, usize), Error<JqValue>> {
    execution_meter::count_steps(text.len() as u64 / 64);
    let (start, end) = bounds(range, text.chars().count())?;
    let byte = |character| crate::functions::characters::byte_at(text, character);
    Ok((byte(start), byte(end)))
}

fn not_iterable(item: JqValue) -> Error<JqValue> {
    Error::typ(item, "iterable (array or object)")
}

/// An index of the form `{"start": .., "end": ..}` is a slice.
fn as_range(index: &JqValue) -> Option<Range<&JqValue>> {
    match index {
        JqValue::Object(tree) => Some(tree.inner.get("start")..tree.inner.get("end")),
        _ => None,
    }
}

impl JqValue {
    /// The member at an index, if the value has one.
    pub(super) fn child_at(&self, index: &JqValue) -> Result<Option<JqValue>, Error<JqValue>> {
        execution_meter::count_steps(1);
        match (self, index) {
            (
                JqValue::Null,
                JqValue::Null
                | JqValue::Str(_)
                | JqValue::Int(_)
                | JqValue::Float(_)
                | JqValue::Object(_),
            ) => Ok(None),
            (JqValue::Object(tree), JqValue::Str(name)) => Ok(tree.inner.get(name).cloned()),
            (JqValue::Array(tree), JqValue::Int(_) | JqValue::Float(_)) => {
                let at = start_index(position(index).unwrap_or(0), tree.inner.len());
                Ok(usize::try_from(at)
                    .ok()
                    .and_then(|at| tree.inner.get(at))
                    .cloned())
            }
            (JqValue::Array(_) | JqValue::Str(_), JqValue::Object(_)) => {
                let range = as_range(index).unwrap_or(None..None);
                self.clone().range(range).map(Some)
            }
            (JqValue::Array(_), JqValue::Array(_)) => self.indices(index).map(Some),
            _ => Err(Error::index(self.clone(), index.clone())),
        }
    }

    /// The positions at which another value occurs in this one: as a member, or as a run of members.
    pub(super) fn indices(&self, wanted: &JqValue) -> ValR<JqValue> {
        let found: Vec<JqValue> = match (self, wanted) {
            (JqValue::Null, _) => return Ok(JqValue::Null),
            (JqValue::Str(text), JqValue::Str(part)) if !part.is_empty() => {
                execution_meter::count_steps(text.len() as u64 / 8);
                let starts = text.char_indices().enumerate();
                starts
                    .filter(|(_, (at, _))| text[*at..].starts_with(&**part))
                    .map(|(at, _)| JqValue::from(at))
                    .collect()
            }
            (JqValue::Array(tree), JqValue::Array(part)) if !part.inner.is_empty() => {
                execution_meter::count_steps((tree.inner.len() * part.inner.len()) as u64);
                let runs = tree.inner.windows(part.inner.len()).enumerate();
                runs.filter(|(_, run)| *run == part.inner)
                    .map(|(at, _)| JqValue::from(at))
                    .collect()
            }
            (JqValue::Str(_), JqValue::Str(_)) | (JqValue::Array(_), JqValue::Array(_)) => {
                Vec::new()
            }
            (JqValue::Array(tree), wanted) => {
                execution_meter::count_steps(tree.inner.len() as u64);
                let items = tree.inner.iter().enumerate();
                items
                    .filter(|(_, item)| *item == wanted)
                    .map(|(at, _)| JqValue::from(at))
                    .collect()
            }
            _ => return Err(Error::index(self.clone(), wanted.clone())),
        };
        Ok(JqValue::array(found))
    }
}

impl ValT for JqValue {
    fn from_num(text: &str) -> ValR<Self> {
        match text.parse() {
            Ok(number) => Ok(JqValue::Int(number)),
            Err(_) => text.parse().map(JqValue::Float).map_err(Error::str),
        }
    }

    fn from_map<I: IntoIterator<Item = (Self, Self)>>(pairs: I) -> ValR<Self> {
        let mut fields = ObjectFields::default();
        for (name, item) in pairs {
            match name {
                JqValue::Str(name) => fields.set(&name, item),
                other => return Err(Error::typ(other, "string")),
            }
        }
        Ok(JqValue::object(fields))
    }

    fn key_values(self) -> Box<dyn Iterator<Item = ValR<(Self, Self), Self>>> {
        match self {
            JqValue::Array(tree) => {
                execution_meter::count_steps(tree.inner.len() as u64 / 8);
                let items = tree.inner.clone();
                Box::new(
                    items
                        .into_iter()
                        .enumerate()
                        .map(|(at, item)| Ok((JqValue::from(at), item))),
                )
            }
            JqValue::Object(tree) => {
                execution_meter::count_steps(tree.inner.len() as u64 / 8);
                let fields = tree.inner.clone();
                Box::new(
                    fields
                        .0
                        .into_iter()
                        .map(|(name, item)| Ok((JqValue::Str(name), item))),
                )
            }
            other => Box::new(std::iter::once(Err(not_iterable(other)))),
        }
    }

    fn values(self) -> Box<dyn Iterator<Item = ValR<Self>>> {
        match self {
            JqValue::Array(tree) => {
                Box::new((0..tree.inner.len()).map(move |at| Ok(tree.inner[at].clone())))
            }
            JqValue::Object(tree) => {
                Box::new((0..tree.inner.len()).map(move |at| Ok(tree.inner.0[at].1.clone())))
            }
            other => Box::new(std::iter::once(Err(not_iterable(other)))),
        }
    }

    fn index(self, index: &Self) -> ValR<Self> {
        self.child_at(index).map(Option::unwrap_or_default)
    }

    fn range(self, range: Range<&Self>) -> ValR<Self> {
        match &self {
            JqValue::Null => Ok(JqValue::Null),
            JqValue::Str(text) => {
                byte_bounds(text, &range).map(|(start, end)| JqValue::text(&text[start..end]))
            }
            JqValue::Array(tree) => bounds(&range, tree.inner.len())
                .map(|(start, end)| JqValue::array(tree.inner[start..end].to_vec())),
            _ => Err(Error::typ(self, "array or string")),
        }
    }

    fn map_values<'a, I: Iterator<Item = ValX<'a, Self>>>(
        self,
        opt: Opt,
        f: impl Fn(Self) -> I,
    ) -> ValX<'a, Self> {
        match self {
            JqValue::Array(tree) => {
                let mapped = tree.inner.iter().cloned().flat_map(f);
                mapped.collect::<Result<JqValue, _>>()
            }
            JqValue::Object(tree) => {
                let mut fields = ObjectFields::default();
                for (name, item) in tree.inner.iter() {
                    if let Some(item) = f(item.clone()).next() {
                        fields.0.push((name.into(), item?));
                    }
                }
                Ok(JqValue::object(fields))
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
            (JqValue::Array(_) | JqValue::Str(_), JqValue::Object(_)) => {
                let range = as_range(index).unwrap_or(None..None);
                self.map_range(range, opt, f)
            }
            (JqValue::Null | JqValue::Object(_), JqValue::Str(name)) => {
                let mut fields = match &self {
                    JqValue::Object(tree) => tree.inner.clone(),
                    _ => ObjectFields::default(),
                };
                let old = fields.get(name).cloned().unwrap_or_default();
                match f(old).next().transpose()? {
                    Some(item) => fields.set(name, item),
                    None => fields.remove(name),
                }
                Ok(JqValue::object(fields))
            }
            (JqValue::Null | JqValue::Array(_), JqValue::Int(_) | JqValue::Float(_)) => {
                let mut items = match &self {
                    JqValue::Array(tree) => tree.inner.clone(),
                    _ => Vec::new(),
                };
                let at = usize::try_from(start_index(position(index).unwrap_or(0), items.len()));
                let Ok(at) = at else {
                    return opt.fail(self, |_| Exn::from(Error::str("index out of bounds")));
                };
                let old = items.get(at).cloned().unwrap_or_default();
                match f(old).next().transpose()? {
                    Some(item) if at < items.len() => items[at] = item,
                    Some(item) => {
                        // The gap is filled with nulls, as in jq.
                        execution_meter::count_bytes(at.saturating_mul(8));
                        items.resize(at, JqValue::Null);
                        items.push(item);
                    }
                    None if at < items.len() => drop(items.remove(at)),
                    None => {}
                }
                Ok(JqValue::array(items))
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
            JqValue::Array(tree) => {
                let (start, end) = match bounds(&range, tree.inner.len()) {
                    Ok(bounds) => bounds,
                    Err(error) => return opt.fail(self, |_| Exn::from(error)),
                };
                let middle = match f(JqValue::array(tree.inner[start..end].to_vec()))
                    .next()
                    .transpose()?
                {
                    Some(JqValue::Array(middle)) => middle.inner.clone(),
                    Some(other) => return Err(Exn::from(Error::typ(other, "array"))),
                    None => Vec::new(),
                };
                let mut items = tree.inner.clone();
                items.splice(start..end, middle);
                Ok(JqValue::array(items))
            }
            JqValue::Str(text) => {
                let (start, end) = match byte_bounds(text, &range) {
                    Ok(bounds) => bounds,
                    Err(error) => return opt.fail(self, |_| Exn::from(error)),
                };
                let middle = match f(JqValue::text(&text[start..end])).next().transpose()? {
                    Some(JqValue::Str(middle)) => middle,
                    Some(other) => return Err(Exn::from(Error::typ(other, "string"))),
                    None => "".into(),
                };
                execution_meter::count_bytes(text.len() + middle.len());
                Ok(JqValue::text(
                    &[&text[..start], &middle, &text[end..]].concat(),
                ))
            }
            _ => opt.fail(self, |item| Exn::from(Error::typ(item, "array"))),
        }
    }

    fn as_bool(&self) -> bool {
        !matches!(self, JqValue::Null | JqValue::Bool(false))
    }

    fn into_string(self) -> Self {
        match self {
            JqValue::Str(_) => self,
            other => JqValue::text(&other.to_json()),
        }
    }
}

impl jaq_std::ValT for JqValue {
    fn into_seq<S: FromIterator<Self>>(self) -> Result<S, Self> {
        match self {
            JqValue::Array(tree) => {
                execution_meter::count_steps(tree.inner.len() as u64);
                Ok(tree.inner.iter().cloned().collect())
            }
            other => Err(other),
        }
    }

    fn is_int(&self) -> bool {
        matches!(self, JqValue::Int(_))
    }

    fn as_isize(&self) -> Option<isize> {
        match self {
            JqValue::Int(number) => isize::try_from(*number).ok(),
            _ => None,
        }
    }

    fn as_f64(&self) -> Option<f64> {
        match self {
            JqValue::Int(number) => Some(*number as f64),
            JqValue::Float(number) => Some(*number),
            _ => None,
        }
    }

    fn is_utf8_str(&self) -> bool {
        matches!(self, JqValue::Str(_))
    }

    fn as_bytes(&self) -> Option<&[u8]> {
        match self {
            JqValue::Str(text) => {
                // The caller iterates over the characters.
                execution_meter::count_steps(text.len() as u64 / 64);
                Some(text.as_bytes())
            }
            _ => None,
        }
    }

    fn as_sub_str(&self, part: &[u8]) -> Self {
        JqValue::text(&String::from_utf8_lossy(part))
    }

    fn from_utf8_bytes(bytes: impl AsRef<[u8]> + Send + 'static) -> Self {
        JqValue::text(&String::from_utf8_lossy(bytes.as_ref()))
    }
}
