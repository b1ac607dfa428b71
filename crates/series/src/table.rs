//! Rows of one device as columns: what segment files are made of and what queries work on.

use crate::cell::{self, Cell};
use crate::decimal;
use crate::memtable::PieceView;
use crate::point::{KeyId, Point, Value};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Bool = 0,
    Int = 1,
    Float = 2,
    Text = 3,
    Json = 4,
}

impl Kind {
    pub(crate) fn from_byte(byte: u8) -> Option<Self> {
        [Kind::Bool, Kind::Int, Kind::Float, Kind::Text, Kind::Json]
            .get(usize::from(byte))
            .copied()
    }
}

/// Floats, as integers of one scale as long as all of them are.
#[derive(Debug, Clone)]
pub(crate) enum Floats {
    Decimal { scale: u8, numbers: Vec<i64> },
    Plain(Vec<f64>),
}

impl Default for Floats {
    fn default() -> Self {
        Floats::Decimal {
            scale: 0,
            numbers: Vec::new(),
        }
    }
}

impl Floats {
    pub(crate) fn len(&self) -> usize {
        match self {
            Floats::Decimal { numbers, .. } => numbers.len(),
            Floats::Plain(floats) => floats.len(),
        }
    }

    #[inline]
    pub(crate) fn get(&self, at: usize) -> f64 {
        match self {
            Floats::Decimal { scale, numbers } => decimal::unscale(numbers[at], *scale),
            Floats::Plain(floats) => floats[at],
        }
    }

    fn plain(&mut self) -> &mut Vec<f64> {
        if let Floats::Decimal { scale, numbers } = self {
            let floats = numbers
                .iter()
                .map(|&number| decimal::unscale(number, *scale));
            *self = Floats::Plain(floats.collect());
        }
        match self {
            Floats::Plain(floats) => floats,
            Floats::Decimal { .. } => unreachable!("it was made plain just above"),
        }
    }

    #[inline]
    fn push_decimal(&mut self, scale: u8, number: i64) {
        if let Floats::Decimal {
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
        self.plain().push(decimal::unscale(number, scale));
    }

    fn push(&mut self, value: f64) {
        if let Floats::Decimal { scale, .. } = self {
            let known = decimal::scale(value, *scale).map(|number| (*scale, number));
            if let Some((scale, number)) = known.or_else(|| decimal::find_scale(value)) {
                return self.push_decimal(scale, number);
            }
        }
        self.plain().push(value);
    }
}

/// The same decimal with more places, if it is still exact.
fn rescale(number: i64, from: u8, to: u8) -> Option<i64> {
    let by = decimal::INT_POWERS[usize::from(to.checked_sub(from)?)];
    number
        .checked_mul(by)
        .filter(|number| number.unsigned_abs() < 1 << 53)
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Texts {
    pub(crate) ends: Vec<u32>,
    pub(crate) bytes: String,
}

impl Texts {
    pub(crate) fn push(&mut self, text: &str) {
        self.bytes.push_str(text);
        self.ends.push(self.bytes.len() as u32);
    }

    pub(crate) fn get(&self, at: usize) -> &str {
        let start = if at == 0 { 0 } else { self.ends[at - 1] };
        &self.bytes[start as usize..self.ends[at] as usize]
    }
}

/// Where values of several kinds are.
#[derive(Debug, Clone, Default)]
pub(crate) struct Mixed {
    pub(crate) kinds: Vec<u8>,
    /// Each one's place among those of its kind.
    pub(crate) places: Vec<u32>,
}

/// Values of one key in the order of their rows.
#[derive(Debug, Clone, Default)]
pub(crate) struct Values {
    /// The kind of all, or of the last one.
    pub(crate) kind: Option<Kind>,
    pub(crate) mixed: Option<Box<Mixed>>,
    pub(crate) bools: Vec<i64>,
    pub(crate) ints: Vec<i64>,
    pub(crate) floats: Floats,
    pub(crate) texts: Texts,
    pub(crate) jsons: Texts,
}

impl Values {
    pub(crate) fn text_bytes(&self) -> usize {
        self.texts.bytes.len() + self.jsons.bytes.len()
    }

    pub(crate) fn count(&self, kind: Kind) -> usize {
        match kind {
            Kind::Bool => self.bools.len(),
            Kind::Int => self.ints.len(),
            Kind::Float => self.floats.len(),
            Kind::Text => self.texts.ends.len(),
            Kind::Json => self.jsons.ends.len(),
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
    fn note(&mut self, kind: Kind) {
        if self.mixed.is_some() || self.kind != Some(kind) {
            self.note_other(kind);
        }
    }

    #[cold]
    fn note_other(&mut self, kind: Kind) {
        let place = self.count(kind) as u32;
        if let Some(before) = self.kind {
            let count = self.count(before);
            let mixed = self.mixed.get_or_insert_with(|| {
                Box::new(Mixed {
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
                self.note(Kind::Float);
                self.floats.push_decimal(scale, number);
            }
            Cell::Plain(value) => self.push_value(value),
        }
    }

    #[inline]
    pub(crate) fn push_value(&mut self, value: Value<'_>) {
        match value {
            Value::Bool(value) => {
                self.note(Kind::Bool);
                self.bools.push(i64::from(value));
            }
            Value::Int(value) => {
                self.note(Kind::Int);
                self.ints.push(value);
            }
            Value::Float(value) => {
                self.note(Kind::Float);
                self.floats.push(value);
            }
            Value::Text(text) => {
                self.note(Kind::Text);
                self.texts.push(text);
            }
            Value::Json(text) => {
                self.note(Kind::Json);
                self.jsons.push(text);
            }
        }
    }

    fn extend(&mut self, other: &Values) {
        let is_alike = self.mixed.is_none()
            && other.mixed.is_none()
            && (self.kind.is_none() || self.kind == other.kind);
        match (is_alike, other.kind, &other.floats) {
            (true, Some(Kind::Int), _) => self.ints.extend_from_slice(&other.ints),
            (true, Some(Kind::Bool), _) => self.bools.extend_from_slice(&other.bools),
            (true, Some(Kind::Float), Floats::Decimal { scale, numbers }) => {
                numbers
                    .iter()
                    .for_each(|&number| self.floats.push_decimal(*scale, number));
            }
            (true, Some(Kind::Float), Floats::Plain(floats)) => {
                self.floats.plain().extend_from_slice(floats)
            }
            _ => return (0..other.len()).for_each(|at| self.push_value(other.get(at))),
        }
        self.kind = other.kind;
    }

    /// Some of them.
    fn slice(&self, range: std::ops::Range<usize>) -> Values {
        let mut part = Values::default();
        match (&self.mixed, self.kind, &self.floats) {
            (None, Some(Kind::Int), _) => part.ints = self.ints[range].to_vec(),
            (None, Some(Kind::Bool), _) => part.bools = self.bools[range].to_vec(),
            (None, Some(Kind::Float), Floats::Plain(floats)) => {
                part.floats = Floats::Plain(floats[range].to_vec());
            }
            (None, Some(Kind::Float), Floats::Decimal { scale, numbers }) => {
                part.floats = Floats::Decimal {
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
    pub(crate) fn get(&self, at: usize) -> Value<'_> {
        let (kind, at) = match (&self.mixed, self.kind) {
            (Some(mixed), _) => (Kind::from_byte(mixed.kinds[at]), mixed.places[at] as usize),
            (None, kind) => (kind, at),
        };
        match kind.expect("a value was pushed, and with it its kind") {
            Kind::Bool => Value::Bool(self.bools[at] != 0),
            Kind::Int => Value::Int(self.ints[at]),
            Kind::Float => Value::Float(self.floats.get(at)),
            Kind::Text => Value::Text(self.texts.get(at)),
            Kind::Json => Value::Json(self.jsons.get(at)),
        }
    }
}

/// What a column says of its key: the value itself, or one of the aggregates of a downsampled interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Facet {
    Value = 0,
    /// Values in the interval, of any kind.
    Count = 1,
    /// Numbers among them: numbers and bools that are not NaN.
    Numbers = 2,
    Sum = 3,
    Min = 4,
    Max = 5,
    First = 6,
    Last = 7,
}

impl Facet {
    pub(crate) fn from_byte(byte: u8) -> Option<Self> {
        use Facet::{Count, First, Last, Max, Min, Numbers, Sum, Value};
        let all = [Value, Count, Numbers, Sum, Min, Max, First, Last];
        all.get(usize::from(byte)).copied()
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Column {
    pub(crate) key: KeyId,
    pub(crate) facet: Facet,
    /// The rows that have a value; `None`: all.
    pub(crate) rows: Option<Vec<u32>>,
    pub(crate) values: Values,
}

impl Column {
    /// The place of a row's value.
    pub(crate) fn place(&self, row: usize) -> Option<usize> {
        match &self.rows {
            None => (row < self.values.len()).then_some(row),
            Some(rows) => rows.binary_search(&(row as u32)).ok(),
        }
    }

    #[inline]
    fn push(&mut self, row: usize, cell: Cell<'_>) {
        match &mut self.rows {
            Some(rows) => rows.push(row as u32),
            None if self.values.len() == row => {}
            None => {
                let mut rows: Vec<u32> = (0..self.values.len() as u32).collect();
                rows.push(row as u32);
                self.rows = Some(rows);
            }
        }
        self.values.push(cell);
    }
}

/// Rows of one device.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    pub(crate) ts: Vec<i64>,
    pub(crate) columns: Vec<Column>,
    /// Each row is later than the one before.
    pub(crate) is_sorted: bool,
}

impl Default for Table {
    fn default() -> Self {
        Self {
            ts: Vec::new(),
            columns: Vec::new(),
            is_sorted: true,
        }
    }
}

impl Table {
    pub(crate) fn is_empty(&self) -> bool {
        self.ts.is_empty()
    }

    #[inline]
    pub(crate) fn begin_row(&mut self, ts_ms: i64) {
        self.is_sorted &= self.ts.last().is_none_or(|&last| last < ts_ms);
        self.ts.push(ts_ms);
    }

    pub(crate) fn column(&mut self, key: KeyId, facet: Facet) -> usize {
        let is_it = |column: &Column| column.key == key && column.facet == facet;
        if let Some(at) = self.columns.iter().position(is_it) {
            return at;
        }
        self.columns.push(Column {
            key,
            facet,
            rows: None,
            values: Values::default(),
        });
        self.columns.len() - 1
    }

    /// Gives the row begun last a value.
    #[inline]
    pub(crate) fn put(&mut self, column: usize, cell: Cell<'_>) {
        let row = self.ts.len() - 1;
        self.columns[column].push(row, cell);
    }

    /// Columns that not all rows have, as far as they end early, get their lists of rows.
    pub(crate) fn finish(&mut self) {
        let rows = self.ts.len();
        for column in &mut self.columns {
            if column.rows.is_none() && column.values.len() < rows {
                column.rows = Some((0..column.values.len() as u32).collect());
            }
        }
        self.columns.retain(|column| column.values.len() > 0);
    }

    /// Adds rows from memory, of the wanted keys only; `None` if what was written cannot be read.
    pub(crate) fn read_piece(&mut self, view: &PieceView, wanted: Option<&[KeyId]>) -> Option<()> {
        let is_wanted = |key: &KeyId| wanted.is_none_or(|wanted| wanted.contains(key));
        // Per shape the columns of its keys.
        let mut columns_of: Vec<Vec<Option<usize>>> = Vec::new();
        for shape in &view.shapes {
            let column = |key: &KeyId| is_wanted(key).then(|| self.column(*key, Facet::Value));
            columns_of.push(shape.iter().map(column).collect());
        }
        view.rows(|ts_ms, shape, reader| {
            let columns = columns_of.get(shape)?;
            self.begin_row(ts_ms);
            for &column in columns {
                let cell = cell::read(reader)?;
                if let Some(column) = column {
                    self.put(column, cell);
                }
            }
            Some(())
        })
    }

    /// Gives the rows of [from, to) in their order, or backwards, with their values of these facets; stops when told to.
    pub(crate) fn each_row(
        &self,
        range: std::ops::Range<usize>,
        backwards: bool,
        each: &mut dyn FnMut(i64, &[Point<'_>]) -> std::ops::ControlFlow<()>,
    ) -> std::ops::ControlFlow<()> {
        debug_assert!(self.is_sorted, "rows are given when they are in order");
        let mut points = Vec::with_capacity(self.columns.len());
        for step in 0..range.len() {
            let row = if backwards {
                range.end - 1 - step
            } else {
                range.start + step
            };
            points.clear();
            for column in &self.columns {
                if let Some(place) = column.place(row) {
                    points.push(Point {
                        key: column.key,
                        value: column.values.get(place),
                    });
                }
            }
            if !points.is_empty() {
                each(self.ts[row], &points)?;
            }
        }
        std::ops::ControlFlow::Continue(())
    }

    pub(crate) fn points(&self) -> u64 {
        self.columns
            .iter()
            .map(|column| column.values.len() as u64)
            .sum()
    }

    /// Adds rows that are all later.
    pub(crate) fn append(&mut self, other: &Table) {
        let before = self.ts.len();
        self.is_sorted &= other.is_sorted
            && !matches!((self.ts.last(), other.ts.first()), (Some(last), Some(first)) if last >= first);
        self.ts.extend_from_slice(&other.ts);
        for column in &other.columns {
            let at = self.column(column.key, column.facet);
            let own = &mut self.columns[at];
            let is_dense =
                own.rows.is_none() && own.values.len() == before && column.rows.is_none();
            if !is_dense {
                let len = own.values.len() as u32;
                let rows = own.rows.get_or_insert_with(|| (0..len).collect());
                let offset = before as u32;
                match &column.rows {
                    Some(of) => rows.extend(of.iter().map(|row| row + offset)),
                    None => rows.extend(offset..offset + column.values.len() as u32),
                }
            }
            own.values.extend(&column.values);
        }
    }

    /// Some of its rows.
    pub(crate) fn slice(&self, range: std::ops::Range<usize>) -> Table {
        let mut part = Table {
            ts: self.ts[range.clone()].to_vec(),
            columns: Vec::with_capacity(self.columns.len()),
            is_sorted: true,
        };
        for column in &self.columns {
            let (rows, places) = match &column.rows {
                None => (None, range.clone()),
                Some(rows) => {
                    let start = rows.partition_point(|&row| (row as usize) < range.start);
                    let end = rows.partition_point(|&row| (row as usize) < range.end);
                    let of_part = rows[start..end].iter().map(|row| row - range.start as u32);
                    (Some(of_part.collect()), start..end)
                }
            };
            if !places.is_empty() {
                part.columns.push(Column {
                    key: column.key,
                    facet: column.facet,
                    rows,
                    values: column.values.slice(places),
                });
            }
        }
        part
    }

    /// Takes out the values of a key, or of all, in [from, to).
    pub(crate) fn remove(&mut self, key: Option<KeyId>, from_ms: i64, to_ms: i64) {
        let is_gone = |column: &Column| key.is_none_or(|key| key == column.key);
        if !self.ts.iter().any(|ts_ms| (from_ms..to_ms).contains(ts_ms))
            || !self.columns.iter().any(is_gone)
        {
            return;
        }
        let mut kept = Table::default();
        for (row, &ts_ms) in self.ts.iter().enumerate() {
            let is_hit = (from_ms..to_ms).contains(&ts_ms);
            let mut has_begun = false;
            for column in &self.columns {
                if is_hit && is_gone(column) {
                    continue;
                }
                if let Some(place) = column.place(row) {
                    if !has_begun {
                        kept.begin_row(ts_ms);
                        has_begun = true;
                    }
                    let at = kept.column(column.key, column.facet);
                    kept.put(at, Cell::Plain(column.values.get(place)));
                }
            }
        }
        kept.finish();
        *self = kept;
    }

    /// The rows within a time, as long as they are in order.
    pub(crate) fn within(&self, from_ms: i64, to_ms: i64) -> std::ops::Range<usize> {
        let start = self.ts.partition_point(|&ts_ms| ts_ms < from_ms);
        start..self.ts.partition_point(|&ts_ms| ts_ms < to_ms).max(start)
    }

    /// Puts tables together, each younger than the one before: of two values of a key and a time the younger one stays.
    pub(crate) fn merge(tables: &[Table]) -> Table {
        let rows = tables.iter().map(|table| table.ts.len()).sum();
        let mut order: Vec<(i64, u32, u32)> = Vec::with_capacity(rows);
        for (age, table) in tables.iter().enumerate() {
            let rows = table.ts.iter().enumerate();
            order.extend(rows.map(|(row, &ts_ms)| (ts_ms, age as u32, row as u32)));
        }
        order.sort_unstable();
        let mut merged = Table::default();
        let columns: Vec<Vec<usize>> = tables
            .iter()
            .map(|table| {
                table
                    .columns
                    .iter()
                    .map(|column| merged.column(column.key, column.facet))
                    .collect()
            })
            .collect();
        // Per column of the result the source of its value in this row.
        let mut winners: Vec<Option<(usize, usize, usize)>> = vec![None; merged.columns.len()];
        for same in order.chunk_by(|left, right| left.0 == right.0) {
            merged.begin_row(same[0].0);
            for &(_, age, row) in same {
                let age = age as usize;
                for (at, column) in tables[age].columns.iter().enumerate() {
                    if let Some(place) = column.place(row as usize) {
                        winners[columns[age][at]] = Some((age, at, place));
                    }
                }
            }
            for (column, winner) in winners.iter_mut().enumerate() {
                if let Some((age, at, place)) = winner.take() {
                    let value = tables[age].columns[at].values.get(place);
                    merged.put(column, Cell::Plain(value));
                }
            }
        }
        merged.finish();
        merged
    }

    /// Puts rows into the order of their times, each time once.
    pub(crate) fn sort(&mut self) {
        self.finish();
        if !self.is_sorted {
            *self = Table::merge(std::slice::from_ref(self));
        }
    }
}
