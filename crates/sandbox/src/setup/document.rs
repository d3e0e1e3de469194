//! Changing a client's configuration file and leaving everything else in it as it is, comments
//! included.

use jsonc_parser::ParseOptions;
use jsonc_parser::cst::{CstInputValue, CstNode, CstObject, CstRootNode};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::clients::is_our_server;

/// One change, at a path of keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Edit {
    Set {
        at: Vec<String>,
        value: Value,
    },
    /// To a list of strings, those that are not in it.
    Add {
        at: Vec<String>,
        values: Vec<String>,
    },
}

impl Edit {
    pub(super) fn at(&self) -> &[String] {
        match self {
            Self::Set { at, .. } | Self::Add { at, .. } => at,
        }
    }
}

/// What takes a change back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Inverse {
    /// `None`: there was nothing.
    Set {
        at: Vec<String>,
        former: Option<Value>,
        /// Anything else there is not ours.
        entered: Value,
    },
    Drop {
        at: Vec<String>,
        values: Vec<String>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// With comments, where the client takes them.
    Json,
    Toml,
}

/// Makes the changes; comes back with the new text and what takes them back.
pub(super) fn apply(
    format: Format,
    text: &str,
    edits: &[Edit],
) -> Result<(String, Vec<Inverse>), String> {
    let (mark, text) = split_mark(text);
    let (new, inverses) = match format {
        Format::Json => apply_json(text, edits),
        Format::Toml => toml_file::apply(text, edits),
    }?;
    Ok((format!("{mark}{new}"), inverses))
}

/// Takes changes back, whatever else has changed since; comes back with the new text and the
/// places that somebody else has something at now.
pub(super) fn revert(
    format: Format,
    text: &str,
    inverses: &[Inverse],
) -> Result<(String, Vec<String>), String> {
    let (mark, text) = split_mark(text);
    let mut kept = Vec::new();
    let mut ours = Vec::new();
    for inverse in inverses {
        match inverse {
            Inverse::Set { at, entered, .. } if !is_as_entered(format, text, at, entered)? => {
                kept.push(at.join("."));
            }
            _ => ours.push(inverse),
        }
    }
    let text = match format {
        Format::Json => revert_json(text, &ours),
        Format::Toml => toml_file::revert(text, &ours),
    }?;
    Ok((format!("{mark}{text}"), kept))
}

/// What is gone counts as well.
fn is_as_entered(
    format: Format,
    text: &str,
    at: &[String],
    entered: &Value,
) -> Result<bool, String> {
    let found = value_at(format, text, at)?;
    let is_ours =
        |found: &Value| found == entered || (is_our_server(entered) && is_our_server(found));
    Ok(found.as_ref().is_none_or(is_ours))
}

/// What is there now.
pub(super) fn value_at(format: Format, text: &str, at: &[String]) -> Result<Option<Value>, String> {
    let (_, text) = split_mark(text);
    match format {
        Format::Json => {
            let root = parse_json(text)?;
            let found = object_found(&root, at).and_then(|(object, key)| object.get(key));
            Ok(found.and_then(|found| found.to_serde_value()))
        }
        Format::Toml => toml_file::value_at(text, at),
    }
}

/// Some editors put a byte order mark in front, which is no part of either language.
fn split_mark(text: &str) -> (&str, &str) {
    match text.strip_prefix('\u{feff}') {
        Some(rest) => ("\u{feff}", rest),
        None => ("", text),
    }
}

fn parse_json(text: &str) -> Result<CstRootNode, String> {
    // More than this no client takes.
    let options = ParseOptions {
        allow_comments: true,
        allow_trailing_commas: true,
        allow_loose_object_property_names: false,
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
        allow_bare_decimal_point_numbers: false,
        allow_non_finite_numbers: false,
        allow_extended_string_escapes: false,
    };
    let text = if text.trim().is_empty() { "{}\n" } else { text };
    let root = CstRootNode::parse(text, &options).map_err(|error| error.to_string())?;
    match root.object_value() {
        Some(_) => Ok(root),
        None => Err("it holds no object".into()),
    }
}

fn apply_json(text: &str, edits: &[Edit]) -> Result<(String, Vec<Inverse>), String> {
    let root = parse_json(text)?;
    let mut inverses = Vec::new();
    for edit in edits {
        match edit {
            Edit::Set { at, value } => {
                let (object, key) = object_above(&root, at)?;
                let former = object.get(key).and_then(|found| found.to_serde_value());
                put(&object, key, value);
                let entered = value.clone();
                inverses.push(Inverse::Set { at: at.clone(), former, entered });
            }
            Edit::Add { at, values } => {
                let (object, key) = object_above(&root, at)?;
                let array = object
                    .array_value_or_create(key)
                    .ok_or_else(|| format!("{} is no list", at.join(".")))?;
                let known: Vec<Value> =
                    array.elements().iter().filter_map(CstNode::to_serde_value).collect();
                let new: Vec<String> = values
                    .iter()
                    .filter(|value| !known.contains(&Value::from(value.as_str())))
                    .cloned()
                    .collect();
                for value in &new {
                    array.append(CstInputValue::String(value.clone()));
                }
                inverses.push(Inverse::Drop { at: at.clone(), values: new });
            }
        }
    }
    inverses.reverse();
    Ok((root.to_string(), inverses))
}

fn revert_json(text: &str, inverses: &[&Inverse]) -> Result<String, String> {
    let root = parse_json(text)?;
    for inverse in inverses {
        match inverse {
            Inverse::Set { at, former, .. } => {
                let Some((object, key)) = object_found(&root, at) else { continue };
                match (former, object.get(key)) {
                    (Some(former), _) => put(&object, key, former),
                    (None, Some(property)) => property.remove(),
                    (None, None) => {}
                }
                prune_json(&root, at);
            }
            Inverse::Drop { at, values } => {
                let Some((object, key)) = object_found(&root, at) else { continue };
                let Some(array) = object.array_value(key) else { continue };
                for node in array.elements() {
                    let ours = |value: &Value| values.iter().any(|ours| value == ours.as_str());
                    if node.to_serde_value().as_ref().is_some_and(ours) {
                        node.remove();
                    }
                }
                if array.elements().is_empty()
                    && let Some(property) = object.get(key)
                {
                    property.remove();
                }
                prune_json(&root, at);
            }
        }
    }
    Ok(root.to_string())
}

/// Objects above that nothing is left in were made for us.
fn prune_json(root: &CstRootNode, at: &[String]) {
    for depth in (1..at.len()).rev() {
        let Some((object, key)) = object_found(root, &at[..depth]) else { continue };
        let is_empty = object.object_value(key).is_some_and(|inner| inner.properties().is_empty());
        if is_empty && let Some(property) = object.get(key) {
            property.remove();
        }
    }
}

fn object_above<'a>(root: &CstRootNode, at: &'a [String]) -> Result<(CstObject, &'a str), String> {
    let (key, above) = at.split_last().ok_or("a key is missing")?;
    let mut object = root.object_value_or_set();
    for name in above {
        object = object
            .object_value_or_create(name)
            .ok_or_else(|| format!("{name} in it is no object"))?;
    }
    Ok((object, key))
}

fn object_found<'a>(root: &CstRootNode, at: &'a [String]) -> Option<(CstObject, &'a str)> {
    let (key, above) = at.split_last()?;
    let mut object = root.object_value()?;
    for name in above {
        object = object.object_value(name)?;
    }
    Some((object, key))
}

fn put(object: &CstObject, key: &str, value: &Value) {
    match object.get(key) {
        Some(property) => property.set_value(input(value)),
        None => drop(object.append(key, input(value))),
    }
}

fn input(value: &Value) -> CstInputValue {
    match value {
        Value::Null => CstInputValue::Null,
        Value::Bool(value) => CstInputValue::Bool(*value),
        Value::Number(value) => CstInputValue::Number(value.to_string()),
        Value::String(value) => CstInputValue::String(value.clone()),
        Value::Array(values) => CstInputValue::Array(values.iter().map(input).collect()),
        Value::Object(values) => CstInputValue::Object(
            values.iter().map(|(key, value)| (key.clone(), input(value))).collect(),
        ),
    }
}

mod toml_file {
    use serde_json::Value;
    use toml_edit::{Array, DocumentMut, Item, Table, value};

    use super::{Edit, Inverse};

    pub(super) fn apply(text: &str, edits: &[Edit]) -> Result<(String, Vec<Inverse>), String> {
        let mut document: DocumentMut = text.parse().map_err(|error| format!("{error}"))?;
        let mut inverses = Vec::new();
        for edit in edits {
            let Edit::Set { at, value } = edit else {
                return Err("lists are not changed here".into());
            };
            let (key, above) = at.split_last().ok_or("a key is missing")?;
            let mut table = document.as_table_mut();
            for name in above {
                let entry = table.entry(name).or_insert_with(|| {
                    let mut table = Table::new();
                    table.set_implicit(true);
                    Item::Table(table)
                });
                table = entry.as_table_mut().ok_or_else(|| format!("{name} in it is no table"))?;
            }
            let former = table.get(key).map(json);
            table.insert(key, item(value));
            let entered = value.clone();
            inverses.push(Inverse::Set { at: at.clone(), former, entered });
        }
        inverses.reverse();
        Ok((document.to_string(), inverses))
    }

    pub(super) fn revert(text: &str, inverses: &[&Inverse]) -> Result<String, String> {
        let mut document: DocumentMut = text.parse().map_err(|error| format!("{error}"))?;
        for inverse in inverses {
            let Inverse::Set { at, former, .. } = inverse else { continue };
            let Some((key, above)) = at.split_last() else { continue };
            let mut table = Some(document.as_table_mut());
            for name in above {
                table = table.and_then(|table| table.get_mut(name)?.as_table_mut());
            }
            let Some(table) = table else { continue };
            match former {
                Some(former) => drop(table.insert(key, item(former))),
                None => drop(table.remove(key)),
            }
            if let [name] = above
                && table.is_empty()
            {
                document.remove(name);
            }
        }
        Ok(document.to_string())
    }

    pub(super) fn value_at(text: &str, at: &[String]) -> Result<Option<Value>, String> {
        let document: DocumentMut = text.parse().map_err(|error| format!("{error}"))?;
        let mut found = Some(document.as_item());
        for name in at {
            found = found.and_then(|item| item.get(name));
        }
        Ok(found.map(json))
    }

    fn item(json: &Value) -> Item {
        match json {
            Value::Bool(flag) => value(*flag),
            Value::Number(number) => value(number.as_i64().unwrap_or_default()),
            Value::String(text) => value(text.as_str()),
            Value::Array(values) => {
                value(values.iter().filter_map(Value::as_str).collect::<Array>())
            }
            Value::Object(values) => {
                let mut table = Table::new();
                for (key, inner) in values {
                    table.insert(key, item(inner));
                }
                Item::Table(table)
            }
            Value::Null => Item::None,
        }
    }

    /// What our own values can be.
    fn json(item: &Item) -> Value {
        if let Some(flag) = item.as_bool() {
            Value::Bool(flag)
        } else if let Some(number) = item.as_integer() {
            Value::from(number)
        } else if let Some(text) = item.as_str() {
            Value::from(text)
        } else if let Some(array) = item.as_array() {
            array.iter().filter_map(|value| value.as_str()).map(Value::from).collect()
        } else if let Some(table) = item.as_table_like() {
            table
                .iter()
                .map(|(key, item)| (key.to_owned(), json(item)))
                .collect::<serde_json::Map<_, _>>()
                .into()
        } else {
            Value::Null
        }
    }
}
