//! Python's pickle format, as far as plain values need it: protocol 2, written only.

/// A plain value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(String),
    List(Vec<Self>),
    Pair(Box<(Self, Self)>),
    Dict(Vec<(Self, Self)>),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Int(number.into())
    }
}

impl From<bool> for Value {
    fn from(truth: bool) -> Self {
        Self::Bool(truth)
    }
}

/// A dict with text keys.
pub(super) fn dict<const N: usize>(entries: [(&str, Value); N]) -> Value {
    Value::Dict(entries.into_iter().map(|(key, value)| (key.into(), value)).collect())
}

/// A value as `pickle.load` reads it.
pub(super) fn dump(value: &Value) -> Vec<u8> {
    let mut bytes = vec![0x80, 2];
    write(value, &mut bytes);
    bytes.push(b'.');
    bytes
}

fn write(value: &Value, bytes: &mut Vec<u8>) {
    match value {
        Value::None => bytes.push(b'N'),
        Value::Bool(truth) => bytes.push(if *truth { 0x88 } else { 0x89 }),
        Value::Int(number) => {
            if let Ok(small) = i32::try_from(*number) {
                bytes.push(b'J');
                bytes.extend(small.to_le_bytes());
            } else {
                bytes.extend([0x8a, 16]);
                bytes.extend(number.to_le_bytes());
            }
        }
        Value::Float(number) => {
            bytes.push(b'G');
            bytes.extend(number.to_be_bytes());
        }
        Value::Text(text) => {
            // A text of 4 GiB would have to be cut; none of ours is.
            let length = u32::try_from(text.len()).unwrap_or(0);
            bytes.push(b'X');
            bytes.extend(length.to_le_bytes());
            bytes.extend(text.as_bytes().iter().take(length as usize));
        }
        Value::List(values) => {
            bytes.extend(*b"](");
            values.iter().for_each(|value| write(value, bytes));
            bytes.push(b'e');
        }
        Value::Pair(pair) => {
            write(&pair.0, bytes);
            write(&pair.1, bytes);
            bytes.push(0x86);
        }
        Value::Dict(entries) => {
            bytes.extend(*b"}(");
            for (key, value) in entries {
                write(key, bytes);
                write(value, bytes);
            }
            bytes.push(b'u');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_as_python_writes_them() {
        assert_eq!(dump(&Value::None), b"\x80\x02N.");
        assert_eq!(dump(&true.into()), b"\x80\x02\x88.");
        assert_eq!(dump(&5_u64.into()), b"\x80\x02J\x05\0\0\0.");
        assert_eq!(dump(&(1_u64 << 40).into())[..4], *b"\x80\x02\x8a\x10");
        assert_eq!(dump(&"é".into()), b"\x80\x02X\x02\0\0\0\xc3\xa9.");
        assert_eq!(dump(&Value::List(vec![Value::None])), b"\x80\x02](Ne.");
        assert_eq!(dump(&dict([("a", Value::None)])), b"\x80\x02}(X\x01\0\0\0aNu.");
    }
}
