//! The JSON Schemas of `docs/schema/` are those of the types. `cargo xtask schema` writes them.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;

use codeagent_stdio::{Request, schema};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/schema")
}

#[test]
fn the_documented_schemas_are_those_of_the_types() {
    for (name, document) in schema::documents() {
        let file = folder().join(name);
        let made = format!("{document:#}\n");
        if std::env::var_os("CODEAGENT_WRITE_SCHEMAS").is_some() {
            std::fs::create_dir_all(folder()).unwrap();
            std::fs::write(&file, &made).unwrap();
        }
        let written = std::fs::read_to_string(&file).unwrap_or_default();

        assert!(written == made, "{name} is out of date: run `cargo xtask schema`");
    }
}

#[test]
fn every_operation_has_a_schema_and_every_reference_leads_somewhere() {
    for (name, document) in schema::documents() {
        let text = document.to_string();
        let definitions = document["$defs"].as_object().unwrap();
        for reference in text.split("\"#/$defs/").skip(1) {
            let target = reference.split('"').next().unwrap();
            assert!(definitions.contains_key(target), "{name}: {target}");
        }
    }
    let requests = &schema::documents()[0].1;
    let titles = requests["oneOf"].as_array().unwrap().iter().map(|one| one["title"].as_str());
    assert!(titles.eq(Request::NAMES.iter().map(|name| Some(*name))));
}
