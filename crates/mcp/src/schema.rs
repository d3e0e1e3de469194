//! Schemas as clients like them: no references where they can be avoided, no unusual formats.

use std::sync::Arc;

use rmcp::model::JsonObject;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::Value;

pub(crate) fn input<T: JsonSchema>() -> Arc<JsonObject> {
    object::<T>(SchemaSettings::draft2020_12().for_deserialize())
}

pub(crate) fn output<T: JsonSchema>() -> Arc<JsonObject> {
    object::<T>(SchemaSettings::draft2020_12().for_serialize())
}

fn object<T: JsonSchema>(mut settings: SchemaSettings) -> Arc<JsonObject> {
    settings.inline_subschemas = true;
    settings.meta_schema = None;
    let schema = settings.into_generator().into_root_schema_for::<T>();
    let mut value = schema.to_value();
    simplify(&mut value);
    let mut object = match value {
        Value::Object(object) => object,
        _ => JsonObject::new(),
    };
    object.remove("title");
    object.remove("description");
    object.entry("properties").or_insert_with(|| Value::Object(JsonObject::new()));
    Arc::new(object)
}

/// Leaves out `format`, of which some clients know only a few, and `null` as a type: a field that is
/// not wanted is left out.
fn simplify(value: &mut Value) {
    match value {
        Value::Object(object) => {
            if object.get("format").is_some_and(Value::is_string) {
                object.remove("format");
            }
            if object.get("default").is_some_and(Value::is_null) {
                object.remove("default");
            }
            if let Some(Value::Array(types)) = object.get_mut("type") {
                types.retain(|name| name != "null");
                if let [only] = types.as_slice() {
                    let only = only.clone();
                    object.insert("type".to_owned(), only);
                }
            }
            object.values_mut().for_each(simplify);
        }
        Value::Array(values) => values.iter_mut().for_each(simplify),
        _ => {}
    }
}
