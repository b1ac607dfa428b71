//! Commands in wire format, and values of answers.

use redis::Value;

/// Commands in wire format.
#[derive(Default)]
pub(super) struct CommandBuffer {
    pub(super) bytes: Vec<u8>,
    pub(super) commands: usize,
}

impl CommandBuffer {
    pub(super) fn begin_command(&mut self, args: usize) {
        self.bytes
            .extend_from_slice(format!("*{args}\r\n").as_bytes());
        self.commands += 1;
    }

    pub(super) fn arg(&mut self, arg: &[u8]) {
        self.bytes
            .extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        self.bytes.extend_from_slice(arg);
        self.bytes.extend_from_slice(b"\r\n");
    }

    pub(super) fn command(&mut self, args: &[&[u8]]) {
        self.begin_command(args.len());
        args.iter().for_each(|arg| self.arg(arg));
    }
}

pub(super) fn array(value: Value) -> Vec<Value> {
    match value {
        Value::Array(values) | Value::Set(values) => values,
        Value::Map(pairs) => pairs.into_iter().flat_map(|(a, b)| [a, b]).collect(),
        _ => Vec::new(),
    }
}

pub(super) fn bytes_of(value: Value) -> Vec<u8> {
    match value {
        Value::BulkString(bytes) => bytes,
        Value::SimpleString(text) => text.into_bytes(),
        _ => Vec::new(),
    }
}

pub(super) fn text(value: Value) -> Option<String> {
    match value {
        Value::Nil => None,
        value => String::from_utf8(bytes_of(value)).ok(),
    }
}

pub(super) fn number(value: &Value) -> u64 {
    match value {
        Value::Int(number) => (*number).try_into().unwrap_or(0),
        Value::BulkString(bytes) => std::str::from_utf8(bytes)
            .ok()
            .and_then(|text| text.parse().ok())
            .unwrap_or(0),
        _ => 0,
    }
}
