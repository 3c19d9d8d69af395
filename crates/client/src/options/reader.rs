//! Reads one JSON object against the table of options.
//!
//! Called by [`super::Options::parse`] only. A value that was not given is read from the default of
//! its row, through the same checks, so a default that is not valid fails the first test.

use std::time::Duration;

use serde_json::{Map, Value};

use super::{Kind, NodeOption, OptionDoc, OptionError, TABLE};

/// The longest piece of a wrong value that a message repeats, in characters.
const SHOWN_CHARS: usize = 60;

/// How alike a wrong key and a right one must be to be proposed.
const ALIKE: f64 = 0.7;

impl Kind {
    /// The type in words, as errors and the documentation say it.
    #[must_use]
    pub fn describe(self) -> String {
        match self {
            Self::Flag => "true or false".into(),
            Self::Text => "a string".into(),
            Self::Integer { min, max } => format!("a whole number from {min} to {max}"),
            Self::Bytes { min, max } => format!(
                "bytes from {} to {}, as a whole number or a string such as \"4GiB\"",
                show_bytes(min),
                show_bytes(max)
            ),
            Self::Choice(words) => {
                let quoted: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
                format!("one of {}", quoted.join(", "))
            }
            Self::Nodes => "a list of \"host:port\", \"unix:/path\" or \
                            {\"address\": string, \"weight\": whole number}"
                .into(),
        }
    }
}

/// One JSON object whose keys are all known.
pub(super) struct Reader<'a> {
    given: &'a Map<String, Value>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(value: &'a Value) -> Result<Self, OptionError> {
        let Value::Object(given) = value else {
            return Err(OptionError::NotAnObject { got: show(value) });
        };
        match given
            .keys()
            .find(|key| TABLE.iter().all(|row| row.key != *key))
        {
            Some(key) => Err(OptionError::UnknownKey {
                key: key.clone(),
                hint: hint(key),
            }),
            None => Ok(Self { given }),
        }
    }

    fn value(&self, key: &'static str) -> (&'static OptionDoc, Value) {
        let row = TABLE
            .iter()
            .find(|row| row.key == key)
            .expect("the key has a row");
        let value = match self.given.get(key) {
            Some(value) => value.clone(),
            None => serde_json::from_str(row.default).expect("a default is JSON"),
        };
        (row, value)
    }

    pub(super) fn flag(&self, key: &'static str) -> Result<bool, OptionError> {
        let (row, value) = self.value(key);
        value.as_bool().ok_or_else(|| wrong_type(row, &value))
    }

    pub(super) fn text(&self, key: &'static str) -> Result<String, OptionError> {
        let (row, value) = self.value(key);
        value
            .as_str()
            .map(str::to_owned)
            .ok_or_else(|| wrong_type(row, &value))
    }

    pub(super) fn choice(&self, key: &'static str) -> Result<&'static str, OptionError> {
        let (row, value) = self.value(key);
        let Kind::Choice(words) = row.kind else {
            return Err(wrong_type(row, &value));
        };
        let text = value.as_str().ok_or_else(|| wrong_type(row, &value))?;
        let word = words.iter().find(|word| **word == text);
        word.copied().ok_or_else(|| out_of_range(row, &value))
    }

    pub(super) fn optional_integer(&self, key: &'static str) -> Result<Option<u64>, OptionError> {
        let (row, value) = self.value(key);
        if row.default == "null" && value.is_null() {
            return Ok(None);
        }
        let number = value.as_u64().ok_or_else(|| wrong_type(row, &value))?;
        within(row, number, &value).map(Some)
    }

    pub(super) fn integer(&self, key: &'static str) -> Result<u64, OptionError> {
        let (row, value) = self.value(key);
        let number = value.as_u64().ok_or_else(|| wrong_type(row, &value))?;
        within(row, number, &value)
    }

    pub(super) fn millis(&self, key: &'static str) -> Result<Duration, OptionError> {
        self.integer(key).map(Duration::from_millis)
    }

    pub(super) fn bytes(&self, key: &'static str) -> Result<u64, OptionError> {
        let (row, value) = self.value(key);
        let number = match &value {
            Value::String(text) => parse_bytes(text),
            other => other.as_u64(),
        };
        within(row, number.ok_or_else(|| wrong_type(row, &value))?, &value)
    }

    pub(super) fn nodes(&self, key: &'static str) -> Result<Vec<NodeOption>, OptionError> {
        let (row, value) = self.value(key);
        let list = value.as_array().ok_or_else(|| wrong_type(row, &value))?;
        let nodes = list.iter().map(|node| read_node(row, node));
        let nodes: Vec<NodeOption> = nodes.collect::<Result<_, _>>()?;
        let is_twice = |(index, node): (usize, &NodeOption)| {
            nodes[..index]
                .iter()
                .any(|other| other.address == node.address)
        };
        match nodes.iter().enumerate().position(is_twice) {
            Some(index) => Err(OptionError::OutOfRange {
                key: row.key,
                expected: "a list in which every node is named once, with a weight if it is to \
                           hold more"
                    .into(),
                got: format!("{} twice", show(&list[index])),
            }),
            None => Ok(nodes),
        }
    }

    /// Host and port to listen on, or nothing.
    pub(super) fn listen(&self, key: &'static str) -> Result<Option<(String, u16)>, OptionError> {
        let text = self.text(key)?;
        if text.is_empty() {
            return Ok(None);
        }
        let parsed = text.rsplit_once(':').filter(|(host, _)| !host.is_empty());
        match parsed.map(|(host, port)| (host, port.parse())) {
            Some((host, Ok(port))) => Ok(Some((host.to_owned(), port))),
            _ => Err(OptionError::OutOfRange {
                key,
                expected: "\"host:port\", such as \"127.0.0.1:0\", or empty".into(),
                got: show(&Value::String(text)),
            }),
        }
    }

    /// A folder or a file by its absolute path, or nothing.
    pub(super) fn folder(&self, key: &'static str) -> Result<String, OptionError> {
        let text = self.text(key)?;
        if text.is_empty() || text.starts_with('/') {
            return Ok(text);
        }
        Err(OptionError::OutOfRange {
            key,
            expected: "an absolute path, since every process has a working folder of its own"
                .into(),
            got: show(&Value::String(text)),
        })
    }
}

fn read_node(row: &'static OptionDoc, node: &Value) -> Result<NodeOption, OptionError> {
    let (address, weight) = match node {
        Value::String(address) => (address.clone(), 1),
        Value::Object(map) => {
            if let Some(key) = map
                .keys()
                .find(|key| !matches!(key.as_str(), "address" | "weight"))
            {
                let hint = "a node has \"address\" and \"weight\"".into();
                return Err(OptionError::UnknownKey {
                    key: format!("nodes[].{key}"),
                    hint,
                });
            }
            let address = map.get("address").and_then(Value::as_str);
            let weight = map.get("weight").map_or(Some(1), Value::as_u64);
            match (address, weight) {
                (Some(address), Some(weight)) => (address.to_owned(), weight),
                _ => return Err(wrong_type(row, node)),
            }
        }
        _ => return Err(wrong_type(row, node)),
    };
    match (address.parse(), u32::try_from(weight)) {
        (Ok(address), Ok(weight)) if weight > 0 => Ok(NodeOption { address, weight }),
        _ => Err(out_of_range(row, node)),
    }
}

fn within(row: &'static OptionDoc, number: u64, value: &Value) -> Result<u64, OptionError> {
    let (Kind::Integer { min, max } | Kind::Bytes { min, max }) = row.kind else {
        return Err(wrong_type(row, value));
    };
    if (min..=max).contains(&number) {
        Ok(number)
    } else {
        Err(out_of_range(row, value))
    }
}

/// `"4GiB"` in bytes. Binary units only: a decimal one would be read as the binary one by many.
pub(super) fn parse_bytes(text: &str) -> Option<u64> {
    let digits = text.len()
        - text
            .trim_start_matches(|digit: char| digit.is_ascii_digit())
            .len();
    let number: u64 = text[..digits].parse().ok()?;
    let shift = match text[digits..].trim() {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        "TiB" => 40,
        _ => return None,
    };
    number.checked_mul(1 << shift)
}

fn show_bytes(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = units
        .iter()
        .find(|(shift, _)| bytes >> shift > 0 && bytes.is_multiple_of(1 << shift));
    match unit {
        Some((shift, name)) => format!("{}{name}", bytes >> shift),
        None => bytes.to_string(),
    }
}

fn hint(key: &str) -> String {
    // A hand that reaches for this switch must be told why there is none.
    if key.to_lowercase().contains("fence") {
        return "the fences of loads and saves cannot be changed: without them the engine reads \
                memory that is still written"
            .into();
    }
    let nearest = TABLE
        .iter()
        .map(|row| (strsim::jaro_winkler(key, row.key), row.key))
        .max_by(|one, other| one.0.total_cmp(&other.0));
    match nearest {
        Some((alike, right)) if alike >= ALIKE => format!("did you mean {right:?}?"),
        _ => {
            let keys: Vec<&str> = TABLE.iter().map(|row| row.key).collect();
            format!("the options are: {}", keys.join(", "))
        }
    }
}

fn wrong_type(row: &'static OptionDoc, value: &Value) -> OptionError {
    OptionError::WrongType {
        key: row.key,
        expected: row.kind.describe(),
        got: show(value),
    }
}

fn out_of_range(row: &'static OptionDoc, value: &Value) -> OptionError {
    OptionError::OutOfRange {
        key: row.key,
        expected: row.kind.describe(),
        got: show(value),
    }
}

fn show(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}
