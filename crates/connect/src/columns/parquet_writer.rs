//! Writes a Parquet file one row group at a time, so only one group is in memory.

use std::io;
use std::sync::Arc;

use parquet::basic::{
    Compression as Codec, LogicalType, Repetition, TimeUnit, Type as PhysicalType,
};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::types::Type as Schema;

use super::record::{ColumnValue, put_value, read_record};
use super::schema::{ColumnSchema, ColumnType};
use super::{ParquetCompression, ParquetLayout};
use crate::row::SinkValue;

/// A Parquet file being written. It is valid only after [`ParquetWriter::finish`].
pub struct ParquetWriter<W: io::Write + Send> {
    file: SerializedFileWriter<W>,
    schema: ColumnSchema,
    layout: ParquetLayout,
    columns: Vec<ColumnBuffer>,
    /// Rows in the current group.
    rows: usize,
    bytes: usize,
    record: Vec<u8>,
}

/// The values of a column in the current group.
struct ColumnBuffer {
    values: ColumnBufferValues,
    /// Definition level of each row: 1, or 0 for null.
    levels: Vec<i16>,
}

enum ColumnBufferValues {
    Bool(Vec<bool>),
    Int(Vec<i64>),
    Float(Vec<f64>),
    Bytes(Vec<ByteArray>),
}

fn io_error(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(error) => match error.downcast::<io::Error>() {
            Ok(error) => *error,
            Err(error) => io::Error::other(error),
        },
        error => io::Error::other(error),
    }
}

fn schema(shape: &ColumnSchema) -> Result<Schema, ParquetError> {
    let fields = shape.0.iter().map(|(name, of)| {
        let (physical, logical) = match of {
            ColumnType::Bool => (PhysicalType::BOOLEAN, None),
            ColumnType::Int => (PhysicalType::INT64, None),
            ColumnType::Float => (PhysicalType::DOUBLE, None),
            ColumnType::Text => (PhysicalType::BYTE_ARRAY, Some(LogicalType::String)),
            ColumnType::Json => (PhysicalType::BYTE_ARRAY, Some(LogicalType::Json)),
            ColumnType::Bytes => (PhysicalType::BYTE_ARRAY, None),
            ColumnType::TimestampMs => {
                let time = LogicalType::timestamp(true, TimeUnit::MILLIS);
                (PhysicalType::INT64, Some(time))
            }
        };
        let field = Schema::primitive_type_builder(name, physical)
            .with_repetition(Repetition::OPTIONAL)
            .with_logical_type(logical);
        field.build().map(Arc::new)
    });
    let fields = fields.collect::<Result<_, _>>()?;
    Schema::group_type_builder("row")
        .with_fields(fields)
        .build()
}

impl<W: io::Write + Send> ParquetWriter<W> {
    pub fn new(out: W, shape: &ColumnSchema, layout: ParquetLayout) -> io::Result<Self> {
        let codec = match layout.compression {
            ParquetCompression::Snappy => Codec::SNAPPY,
            ParquetCompression::None => Codec::UNCOMPRESSED,
        };
        let properties = WriterProperties::builder()
            .set_compression(codec)
            .set_created_by(concat!("tidegate version ", env!("CARGO_PKG_VERSION")).to_owned())
            .build();
        let schema = Arc::new(schema(shape).map_err(io_error)?);
        let columns = shape
            .0
            .iter()
            .map(|(_, of)| ColumnBuffer::new(*of))
            .collect();
        Ok(Self {
            file: SerializedFileWriter::new(out, schema, Arc::new(properties)).map_err(io_error)?,
            schema: shape.clone(),
            layout,
            columns,
            rows: 0,
            bytes: 0,
            record: Vec::new(),
        })
    }

    /// Adds a row: one value per column, in column order.
    pub fn put_row(&mut self, values: &[SinkValue<'_>]) -> io::Result<()> {
        let mut record = std::mem::take(&mut self.record);
        record.clear();
        for ((name, of), value) in self.schema.0.iter().zip(values) {
            put_value(*of, *value, &mut record)
                .map_err(|what| io::Error::other(format!("column {name}: {what}")))?;
        }
        let added = self.add_record(&record);
        self.record = record;
        added
    }

    /// Adds a row from its record.
    pub(crate) fn add_record(&mut self, record: &[u8]) -> io::Result<()> {
        let cells = read_record(&self.schema, record)
            .ok_or_else(|| io::Error::other("a record does not match the columns of the file"))?;
        for (column, cell) in self.columns.iter_mut().zip(cells) {
            column.add(cell);
        }
        self.rows += 1;
        self.bytes += record.len();
        match self.rows >= self.layout.row_group_rows || self.bytes >= self.layout.row_group_bytes {
            true => self.write_group(),
            false => Ok(()),
        }
    }

    fn write_group(&mut self) -> io::Result<()> {
        if self.rows == 0 {
            return Ok(());
        }
        let mut group = self.file.next_row_group().map_err(io_error)?;
        for column in &mut self.columns {
            let writer = group.next_column().map_err(io_error)?;
            let writer = writer.ok_or_else(|| io::Error::other("a column is missing"))?;
            column.write(writer).map_err(io_error)?;
        }
        group.close().map_err(io_error)?;
        (self.rows, self.bytes) = (0, 0);
        Ok(())
    }

    /// Writes the footer, which makes the file readable.
    pub fn finish(mut self) -> io::Result<W> {
        self.write_group()?;
        self.file.into_inner().map_err(io_error)
    }
}

impl ColumnBuffer {
    fn new(of: ColumnType) -> Self {
        let values = match of {
            ColumnType::Bool => ColumnBufferValues::Bool(Vec::new()),
            ColumnType::Int | ColumnType::TimestampMs => ColumnBufferValues::Int(Vec::new()),
            ColumnType::Float => ColumnBufferValues::Float(Vec::new()),
            ColumnType::Text | ColumnType::Json | ColumnType::Bytes => {
                ColumnBufferValues::Bytes(Vec::new())
            }
        };
        Self {
            values,
            levels: Vec::new(),
        }
    }

    fn add(&mut self, cell: Option<ColumnValue<'_>>) {
        self.levels.push(cell.is_some().into());
        match (&mut self.values, cell) {
            (ColumnBufferValues::Bool(values), Some(ColumnValue::Bool(value))) => {
                values.push(value)
            }
            (ColumnBufferValues::Int(values), Some(ColumnValue::Int(value))) => values.push(value),
            (ColumnBufferValues::Float(values), Some(ColumnValue::Float(value))) => {
                values.push(value)
            }
            (ColumnBufferValues::Bytes(values), Some(ColumnValue::Bytes(value))) => {
                // Names and topics repeat; consecutive equal values share memory.
                let value = match values.last() {
                    Some(last) if last.data() == value => last.clone(),
                    _ => ByteArray::from(value.to_vec()),
                };
                values.push(value);
            }
            // Null; a record with these columns never yields a value of another type.
            _ => {}
        }
    }

    fn write(&mut self, mut writer: SerializedColumnWriter<'_>) -> Result<(), ParquetError> {
        let levels = Some(self.levels.as_slice());
        match &self.values {
            ColumnBufferValues::Bool(values) => writer
                .typed::<BoolType>()
                .write_batch(values, levels, None)?,
            ColumnBufferValues::Int(values) => writer
                .typed::<Int64Type>()
                .write_batch(values, levels, None)?,
            ColumnBufferValues::Float(values) => writer
                .typed::<DoubleType>()
                .write_batch(values, levels, None)?,
            ColumnBufferValues::Bytes(values) => writer
                .typed::<ByteArrayType>()
                .write_batch(values, levels, None)?,
        };
        writer.close()?;
        self.levels.clear();
        match &mut self.values {
            ColumnBufferValues::Bool(values) => values.clear(),
            ColumnBufferValues::Int(values) => values.clear(),
            ColumnBufferValues::Float(values) => values.clear(),
            ColumnBufferValues::Bytes(values) => values.clear(),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use parquet::file::reader::{FileReader as _, SerializedFileReader};
    use parquet::record::RowAccessor as _;

    use super::*;

    #[test]
    fn rows_of_values_are_read_again_group_by_group() {
        let shape = ColumnSchema::new(&[
            ("t", ColumnType::TimestampMs),
            ("d", ColumnType::Text),
            ("n", ColumnType::Float),
        ]);
        let mut file =
            ParquetWriter::new(Vec::new(), &shape, ParquetLayout::new(2, 1 << 20)).unwrap();
        for n in 0..5 {
            let number = match n {
                3 => SinkValue::Null,
                n => SinkValue::Int(n),
            };
            file.put_row(&[SinkValue::Int(n), SinkValue::Text("same"), number])
                .unwrap();
        }
        let wrong = file.put_row(&[
            SinkValue::Int(9),
            SinkValue::Text("d"),
            SinkValue::Bool(true),
        ]);
        let expected = "column n: expected a number, found a bool";
        assert_eq!(wrong.unwrap_err().to_string(), expected);
        let bytes = file.finish().unwrap();
        let file = SerializedFileReader::new(bytes::Bytes::from(bytes)).unwrap();
        let groups = file.metadata().row_groups().iter();
        assert_eq!(
            groups.map(|group| group.num_rows()).collect::<Vec<_>>(),
            [2, 2, 1]
        );
        let rows = file.get_row_iter(None).unwrap().map(Result::unwrap);
        let rows: Vec<_> = rows
            .map(|row| {
                assert_eq!(row.get_string(1).unwrap(), "same");
                (row.get_timestamp_millis(0).unwrap(), row.get_double(2).ok())
            })
            .collect();
        let numbers = [Some(0.0), Some(1.0), Some(2.0), None, Some(4.0)];
        assert_eq!(rows, (0..).zip(numbers).collect::<Vec<_>>());
    }
}
